"""Fuzzing: a damaged file of another format is converted or raises one of our errors.

tests/robustness/fuzzing/converters.py fuzzes the readers of all formats. The tests here look at
what a conversion leaves behind.
"""

from __future__ import annotations

import os
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from ffrecord import FFRecordError
from ffrecord.convert import convert
from tests.convert import foreign
from tests.robustness.fuzzing.converters import a_tar, with_checksums
from tests.robustness.fuzzing.mutate import Mutator

RECORDS = [b"one", b"", b"three" * 30]


SEEDS = {
    "tfrecord": ("tfrecord", foreign.tfrecord(RECORDS)),
    "pax": ("tar", a_tar(tarfile.PAX_FORMAT)),
    "gnu": ("tar", a_tar(tarfile.GNU_FORMAT)),
}


def fuzz(kind: str, rounds: int, seed: int, tmp_path: Path) -> None:
    name, data = SEEDS[kind]
    generator = random.Random(seed)
    mutator = Mutator(generator)
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(rounds):
        bad = mutator.mutate(data, largest=len(data) + 1000)
        source.write_bytes(with_checksums(bad) if kind in ("pax", "gnu") and number % 2 else bad)
        wanted = generator.choice(["packed", "dataset"]) if name == "tar" else "records"
        try:
            convert(source, target, source_format=name, target_format=wanted)
        except FFRecordError:
            assert os.listdir(tmp_path) == ["source"]
            continue
        shutil.rmtree(target) if target.is_dir() else target.unlink()


@pytest.mark.parametrize("kind", SEEDS)
def test_damaged_files_are_converted_or_raise_our_errors(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 60, 1, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", SEEDS)
def test_many_damaged_files_are_converted_or_raise_our_errors(kind: str, tmp_path: Path) -> None:
    fuzz(kind, 5000, 2, tmp_path)

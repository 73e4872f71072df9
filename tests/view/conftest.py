"""Archives, servers and a browser that the tests of the page share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from ffrecord.view.server import Server
from tests.support import archives
from tests.view import browsers, corpus

DATAPOINTS = 300
LABELS = ("cat", "dog", "owl")
DAMAGED = "photos/0007.jpg"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with browsers.chromium() as started:
        yield started


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder with a file of every kind, and pack it; one photo is damaged."""
    top = tmp_path_factory.mktemp("view") / "tree"
    corpus.write_tree(top)
    archives.pack(top, top.with_suffix(".ffr"))
    damage(top.with_suffix(".ffr"), (top / DAMAGED).read_bytes())
    return top


def damage(file: Path, content: bytes) -> None:
    """Flip a byte in the middle of a record."""
    raw = bytearray(file.read_bytes())
    at = raw.index(content) + len(content) // 2
    raw[at] ^= 0xFF
    file.write_bytes(raw)


@pytest.fixture(scope="session")
def archive(tree: Path) -> Path:
    return tree.with_suffix(".ffr")


@pytest.fixture(scope="session")
def folder(archive: Path) -> Iterator[Server]:
    with browsers.served(archive) as server:
        yield server


@pytest.fixture(scope="session")
def dataset_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a dataset with fields of many types. One caption is damaged."""
    path = tmp_path_factory.mktemp("view") / "dataset"
    spec = {
        "image": "jpg", "label": "utf8", "age": "int", "score": "float", "caption": "utf8",
        "embedding": "array", "words": "utf8[]", "frames": "png[]", "meta": "json", "good": "bool",
    }  # fmt: skip
    random = np.random.default_rng(0)
    with ffrecord.DatasetWriter(path, spec) as writer:
        for number in range(DATAPOINTS):
            writer.append({
                "image": corpus.photo(number, 64, 48), "label": LABELS[number % 3],
                "age": number, "score": float(random.normal()),
                "caption": f"caption of datapoint {number} <b>{corpus.SCRIPT}</b>" + " long" * 20,
                "embedding": random.normal(size=(8, 8)).astype(np.float32),
                "words": [f"word{i}" for i in range(number % 5)],
                "frames": [corpus.photo(i, 16, 16) for i in range(number % 3)],
                "meta": {"number": number, "tags": ["a", "b"]}, "good": number % 2 == 0,
            })  # fmt: skip
    damage(path / "caption.ffr", b"caption of datapoint 5 ")
    return path


@pytest.fixture(scope="session")
def dataset(dataset_path: Path) -> Iterator[Server]:
    with browsers.served(dataset_path) as server:
        yield server


@pytest.fixture(scope="session")
def record_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the contents of all kinds as records without names. Record 3 is damaged."""
    path = tmp_path_factory.mktemp("view") / "records.ffr"
    contents = [content() for _, content in corpus.KINDS.values()]
    with ffrecord.FileWriter(path, len(contents)) as writer:
        for content in contents:
            writer.write_one(content)
    damage(path, contents[3])
    return path


@pytest.fixture(scope="session")
def records(record_file: Path) -> Iterator[Server]:
    with browsers.served(record_file) as server:
        yield server

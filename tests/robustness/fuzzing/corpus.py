"""Malformed files of every kind, made from a seed: written, tried with every command, removed.

The files are not stored: the same seed makes the same files. A right outcome is an answer, or one
of our errors in one line with its exit code. A traceback is wrong, and so is more memory than the
size of the file plus 16 MiB. Only the bytes of a hole that salvage searches count as size. To try
some files and print their outcomes: `python -m tests.robustness.fuzzing.corpus COUNT SEED`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ffrecord import errors
from ffrecord.cli import main
from ffrecord.convert.formats import tfrecord
from ffrecord.records import broken_header
from scripts.benchmarks import memory
from tests.convert import foreign
from tests.robustness.fuzzing import campaign, converters, indexes, records
from tests.robustness.fuzzing.mutate import Mutator
from tests.robustness.fuzzing.scratch import in_memory
from tests.robustness.fuzzing.target import MEMORY

SECONDS = 600  # long, because the machine may be busy
CODES = {
    0, 1, 2, 13,
    *(each.exit_code for each in vars(errors).values() if hasattr(each, "exit_code")),
}  # fmt: skip


@dataclass(frozen=True)
class BadFile:
    """Files by name, and the name that the commands get."""

    kind: str
    files: dict[str, bytes]
    name: str
    holes: int = 0  # bytes of a hole after its content


def bad_files(count: int, seed: int) -> Iterator[BadFile]:
    """Yield malformed files of all kinds in turn."""
    generator = random.Random(seed)
    for number in range(count):
        kind = list(_KINDS)[number % len(_KINDS)]
        yield _KINDS[kind](kind, generator)


def _spoiled(generator: random.Random, seeds: tuple[bytes, ...], seal: object = bytes) -> bytes:
    data = Mutator(generator).mutate(generator.choice(seeds))
    return seal(data) if generator.random() < campaign.SEALED else data  # type: ignore[operator]


def _record_file(kind: str, generator: random.Random) -> BadFile:
    return BadFile(kind, {"a.ffr": _spoiled(generator, records.FILES, records.sealed)}, "a.ffr")


def _archive(kind: str, generator: random.Random) -> BadFile:
    data = _spoiled(generator, indexes.ARCHIVES, indexes.sealed_archive)
    return BadFile(kind, {"a.ffr": data}, "a.ffr")


def _shards(kind: str, generator: random.Random) -> BadFile:
    data = _spoiled(generator, (indexes.joined(indexes._SHARDS),), indexes.sealed_shards)
    files = indexes.split(data, list(indexes._SHARDS))
    return BadFile(kind, {f"a/{name}": content for name, content in files.items()}, "a")


def _unfinished(kind: str, generator: random.Random) -> BadFile:
    data = _spoiled(generator, records.JOURNALS, records.sealed_journal)
    body = bytes(84) + records.BODY
    return BadFile(kind, {".a.partial": body, ".a.partial.journal": data}, ".a.partial")


def _sparse(kind: str, generator: random.Random) -> BadFile:
    """Make a file that is mostly a hole, after a header, the start of an HDF5 heap, or nothing."""
    n = generator.choice((1 << 21, 1 << 30)) + generator.randrange(1 << 16)
    if generator.random() < 0.5:
        crc = generator.choice((0, 1))
        return BadFile(kind, {"a.ffr": struct.pack("<Iq", crc, n)}, "a.ffr", 12 * n)
    front = b"GCOL\x01\0\0\0" + struct.pack("<Q", 8 * n)
    return BadFile(kind, {"a.ffr": generator.choice((front, b""))}, "a.ffr", 8 * n)


def _foreign(kind: str, generator: random.Random) -> BadFile:
    suffix, seeds, seal = _FOREIGN[kind]
    return BadFile(kind, {f"a{suffix}": _spoiled(generator, seeds, seal)}, f"a{suffix}")


_RECORDS = [b"one", b"", b"three" * 9]
_FOREIGN: dict[str, tuple[str, tuple[bytes, ...], object]] = {
    "tar": (".tar", (converters.a_tar(1)[:8192],), converters.with_checksums),
    "tfrecord": (".tfrecord", (foreign.tfrecord(_RECORDS),), converters._sealed_tf),
    "recordio": (".recordio", (foreign.python_chunk(_RECORDS, "snappy"),), bytes),
    "bag": (".bag", (foreign.single_bag(_RECORDS, 1),), bytes),
}  # fmt: skip
_KINDS = {
    "records": _record_file, "archive": _archive, "shards": _shards, "unfinished": _unfinished,
    "sparse": _sparse, **dict.fromkeys(_FOREIGN, _foreign),
}  # fmt: skip


# ---- running the commands --------------------------------------------------------------------


def commands(path: str, out: str, kind: str) -> list[list[str]]:
    if kind in _FOREIGN:
        target = "packed" if kind == "tar" else "records"
        return [["convert", path, out, "--from", kind, "--to", target]]
    found = [["info", path], ["verify", path], ["ls", "-lR", path], ["extract", path, "-C", out]]
    found.append(["cat", path, "--record", "0"])
    return found if kind == "shards" else [*found, ["salvage", path, f"{out}.ffr"]]


def looked_at(bad: BadFile, top: Path) -> list[str]:
    """Return the outcome of every command on a file, or raise AssertionError if one is wrong."""
    for name, content in bad.files.items():
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_bytes(content)
    path = top / bad.name
    if bad.holes:
        os.truncate(path, path.stat().st_size + bad.holes)
    outcomes = []
    for number, command in enumerate(commands(str(path), str(top / "out"), bad.kind)):
        out = io.TextIOWrapper(io.BytesIO())
        err = io.StringIO()
        with ExitStack() as quiet:
            quiet.enter_context(contextlib.redirect_stdout(out))
            quiet.enter_context(contextlib.redirect_stderr(err))
            quiet.enter_context(campaign.no_longer_than(SECONDS))
            quiet.enter_context(warnings.catch_warnings())
            code = main([f"{each}{number}" if each.endswith("/out") else each for each in command])
        lines = [line for line in err.getvalue().splitlines() if "warning: " not in line]
        assert code in CODES, (command, code)
        # These print a line for each damaged file.
        several = command[0] == "extract" or code in (0, 1)
        assert len(lines) <= 1 or several, (command, lines)
        assert all(line.startswith("ffrecord: ") or code in (0, 1) for line in lines), lines
        assert code in (0, 1) or lines, command
        assert "Traceback" not in err.getvalue()
        outcomes.append(f"{command[0]} {code}")
    return outcomes


def run(count: int, seed: int) -> None:
    """Try `count` files, and print the outcomes of each file as a line of JSON."""
    assert tfrecord.masked_crc(b"")  # load modules that are imported on first use
    most = 0
    for number, bad in enumerate(bad_files(count, seed)):
        with tempfile.TemporaryDirectory(prefix="ffrecord-fuzz-", dir=in_memory()) as top:
            outcomes = looked_at(bad, Path(top))
            if os.path.exists(top):
                shutil.rmtree(os.path.join(top, "out"), ignore_errors=True)
        used = memory.peak()
        # The first files of each kind load modules, threads and buffers.
        if number >= 2 * len(_KINDS):
            size = sum(map(len, bad.files.values())) + min(bad.holes, 3 * broken_header.SCANNED)
            assert used - most <= MEMORY + size, f"{bad.kind}: used {used - most} more bytes"
        most = max(most, used)
        print(json.dumps([bad.kind, outcomes]), flush=True)


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))

"""Reads of records, packed folders and datasets while system calls fail."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ffrecord import FileReader, FileWriter, PackedFolder, cli
from ffrecord.dataset import DatasetReader, DatasetWriter
from ffrecord.format.journal import journal_path, partial_path
from ffrecord.terminal import EXIT_SYSTEM
from tests.robustness.faults.cases import Operation
from tests.support import archives, handmade, trees

BLOCK = 128 << 10
# Every second record is far enough from the next that it needs a separate read.
RECORDS = handmade.random_records([3000, 21_000] * 5 + [0, 1, 300_000, 5], seed=3)
APART = [*range(0, 10, 2), 11]
FILES = {
    "a/one": trees.content(700, 1),
    "a/two": trees.content(30_000, 2),
    "b/large": trees.content(3 * BLOCK + 77, 3),
    "b/empty": b"",
    "last": trees.content(5000, 4),
}
SPEC = {"name": "utf8", "frames": "bytes[]"}
POINTS = [
    {"name": f"point {i}", "frames": handmade.random_records([20_000 + i, 0, 7], seed=i)}
    for i in range(4)
]


class Reading(Operation):
    """A read of files that do not change. `cold` evicts them from the page cache first."""

    def __init__(self, paths: Sequence[Path], due: Any, *, cold: bool) -> None:
        self._paths = paths
        self._due = due
        self._cold = cold

    def prepare(self) -> None:
        for path in self._paths:
            if self._cold:
                handmade.evict(path)
            else:
                path.read_bytes()

    def check(self, result: Any) -> None:
        assert result == self._due, f"wrong result: {str(result)[:200]}"

    def prepare_again(self) -> None:
        self.prepare()


class ReadRecords(Reading):
    """Read a batch, and records one by one."""

    def __init__(self, folder: Path, mode: str, *, cold: bool, check: bool = True) -> None:
        self._path = handmade.write_records(folder / "records.ffr", RECORDS)
        self._mode = mode
        self._check = check
        due = [RECORDS[i] for i in APART], RECORDS[12], RECORDS[3]
        super().__init__([self._path], due, cold=cold)

    def run(self) -> Any:
        with FileReader(self._path, self._check, mode=self._mode) as reader:
            batch = handmade.as_bytes(reader.read(APART))
            return batch, reader.read_one(12).tobytes(), reader[3].tobytes()


class ReadAhead(Reading):
    """Read in all ways that start a read before its result is needed."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._path = handmade.write_records(folder / "records.ffr", RECORDS)
        self._mode = mode
        apart = [RECORDS[i] for i in APART]
        super().__init__([self._path], (apart, apart[::-1], RECORDS, RECORDS[12]), cold=True)

    def run(self) -> Any:
        with FileReader(self._path, mode=self._mode) as reader:
            reader.prefetch(APART[::-1])
            pending = reader.read_async(APART)
            batch = handmade.as_bytes(pending.result())
            prefetched = handmade.as_bytes(reader.read(APART[::-1]))
            streamed = b"".join(piece.tobytes() for piece in reader.stream(12, 100_000))
            return batch, prefetched, handmade.as_bytes(reader), streamed


class ReadUnfinished(Reading):
    """Read the flushed records of a killed writer. Some are flushed after the reader is opened."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "long.ffr"
        unfinished = partial_path(os.fspath(self._path))
        self._journal = Path(journal_path(unfinished))
        self._next = folder / "the journal after the next flush"
        self._journals = []
        for count in (5, len(RECORDS)):
            writer = FileWriter(self._path, len(RECORDS), resumable=True)
            writer.write(RECORDS[writer.count : count])
            writer.flush()
            writer._file.abandon()
            self._journals.append(self._journal.read_bytes())
        due = 5, len(RECORDS) - 5, RECORDS
        super().__init__([Path(unfinished)], due, cold=False)

    def prepare(self) -> None:
        for path, content in zip((self._journal, self._next), self._journals, strict=True):
            path.write_bytes(content)
        super().prepare()

    def run(self) -> Any:
        with FileReader(self._path, unfinished=True, mode="buffered") as reader:
            there = reader.n
            self._next.replace(self._journal)  # same effect as a flush of the writer
            return there, reader.refresh(), handmade.as_bytes(reader)


class ReadFolder(Reading):
    """Read a packed folder: one file, shards, or an archive of the original."""

    def __init__(self, folder: Path, form: str) -> None:
        self._archive = folder / "packed.ffr"
        source = trees.plain_tree(folder / "source", FILES)
        if form == "original":
            handmade.write_records(self._archive, original_records())
        else:
            archives.pack(source, self._archive, shard_size=200_000 if form == "shards" else None)
        large = FILES["b/large"]
        paths = sorted(self._archive.iterdir()) if form == "shards" else [self._archive]
        super().__init__(paths, (FILES, large, large[BLOCK - 5 : BLOCK + 5]), cold=True)

    def run(self) -> Any:
        with PackedFolder(self._archive) as folder:
            names = list(FILES)
            contents = handmade.as_bytes(folder.read(names))
            with folder.open("b/large") as file:
                large = file.read()
            piece = folder.read_range("b/large", BLOCK - 5, 10).tobytes()
            return dict(zip(names, contents, strict=True)), large, piece


def original_records() -> list[bytes]:
    """Return the records of FILES as the original FFRecord packs them."""
    structure: OrderedDict[str, Any] = OrderedDict()
    for number, name in enumerate(FILES):
        folder, _, last = name.rpartition("/")
        inside = structure.setdefault(folder, OrderedDict()) if folder else structure
        inside[last] = number
    return [*FILES.values(), b"piouhjgbr" + pickle.dumps(structure)]


class UnreadableError(Exception):
    """`verify` reported that it could not read, and did not report damage."""


class Verify(Reading):
    """Run the command `verify`. It must not report damage if a read fails."""

    allowed = (UnreadableError,)

    def __init__(self, folder: Path) -> None:
        self._archive = folder / "packed.ffr"
        archives.pack(trees.plain_tree(folder / "source", FILES), self._archive)
        due = f"{self._archive}: OK, 6 records, 7 names\n"
        super().__init__([self._archive], due, cold=True)

    def run(self) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = cli.main(["verify", "--no-progress", os.fspath(self._archive)])
        said = out.getvalue()
        if not code:
            return said
        *unread, last = said.splitlines()
        if code == EXIT_SYSTEM:
            assert last.startswith(f"{self._archive}: NOT READ: "), said
        else:
            told = re.compile(
                rf"BAD: {re.escape(str(self._archive))}: reading at byte \d+ failed: "
            )
            unread += [] if " damaged of " in last else [last]
            assert unread, said
            assert all(map(told.match, unread)), said
        raise UnreadableError(said)


class ReadDataset(Reading):
    """Read datapoints of a dataset, with headers in memory or on disk."""

    def __init__(self, folder: Path, *, cache_index: bool) -> None:
        self._folder = folder / "dataset"
        self._cache_index = cache_index
        with DatasetWriter(self._folder, SPEC) as writer:
            for point in POINTS:
                writer.append(point)
        paths = [path for path in self._folder.iterdir() if path.suffix == ".ffr"]
        super().__init__(paths, (POINTS, POINTS[2]), cold=True)

    def run(self) -> Any:
        with DatasetReader(self._folder, cache_index=self._cache_index) as reader:
            return reader.read(range(len(POINTS))), reader[2]


MAKERS: dict[str, Callable[[Path], Reading]] = {
    "read auto, cold": lambda folder: ReadRecords(folder, "auto", cold=True),
    "read auto, cached": lambda folder: ReadRecords(folder, "auto", cold=False),
    "read auto, unchecked": lambda folder: ReadRecords(folder, "auto", cold=True, check=False),
    "read aio, unchecked": lambda folder: ReadRecords(folder, "aio", cold=True, check=False),
    "read buffered": lambda folder: ReadRecords(folder, "buffered", cold=True),
    "read ahead, auto": lambda folder: ReadAhead(folder, "auto"),
    "read ahead, aio": lambda folder: ReadAhead(folder, "aio"),
    "read unfinished": ReadUnfinished,
    "folder": lambda folder: ReadFolder(folder, "file"),
    "folder of shards": lambda folder: ReadFolder(folder, "shards"),
    "folder of the original": lambda folder: ReadFolder(folder, "original"),
    "verify": Verify,
    "dataset": lambda folder: ReadDataset(folder, cache_index=True),
    "dataset, no index": lambda folder: ReadDataset(folder, cache_index=False),
}

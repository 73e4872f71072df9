"""Writes while system calls fail: the new file is complete, or the old one is unchanged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ffrecord import BusyError, ChangedError, FileWriter, PackedFolder, salvage_file
from ffrecord.atomic import file as atomic_file
from ffrecord.dataset import DatasetReader, DatasetWriter
from ffrecord.format.journal import journal_path, partial_path
from ffrecord.records.salvage import SalvageReport
from tests.robustness.faults.cases import Operation
from tests.robustness.faults.reading import FILES, POINTS, RECORDS, SPEC
from tests.robustness.faults.shim import Fault
from tests.support import archives, handmade, trees

OLD = handmade.random_records([0, 5, 7000, 4096], seed=1)
NEW = handmade.random_records([5000, 0, 12_345, 7, 30_000, 9000], seed=2)
LARGE = handmade.random_records([70_000, 300_000, 1, 150_000], seed=4)


class Writing(Operation):
    """A write of one file or folder that leaves no other files behind."""

    def __init__(self, folder: Path, *, old: bytes | None = None) -> None:
        self._folder = folder / "out"
        self._target = self._folder / "target.ffr"
        self._old = old

    def prepare(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        if self._old is not None:
            self._target.write_bytes(self._old)

    def check(self, result: Any) -> None:
        assert self.litter() == []
        self.check_content()

    def check_left(self, fault: Fault) -> None:
        assert self.litter() == []
        if not self._is_as_before():
            self.check_content()

    def check_content(self) -> None:
        """Check that the target has the right content."""
        raise NotImplementedError  # subclasses that use `check` of this class define it

    def litter(self) -> list[str]:
        return [name for name in os.listdir(self._folder) if name != self._target.name]

    def _is_as_before(self) -> bool:
        if self._old is None:
            return not self._target.exists()
        return self._target.is_file() and self._target.read_bytes() == self._old


class WriteRecords(Writing):
    """Write a new file over an old one, or append to it."""

    def __init__(self, folder: Path, n: int | None, *, append: bool = False) -> None:
        super().__init__(folder, old=handmade.record_bytes(OLD))
        self._n = n
        self._append = append
        self.allowed = (BusyError,) if append else ()  # raised for EAGAIN from flock

    def run(self) -> None:
        with FileWriter(self._target, self._n, append=self._append) as writer:
            writer.write(NEW)

    def prepare_again(self) -> None:
        if self._append and not self._is_as_before():  # do not append a second time
            self.prepare()

    def check_content(self) -> None:
        due = OLD + NEW if self._append else NEW
        assert handmade.records_in(self._target.read_bytes()) == due


class WriteLarge(Writing):
    """Write a file with O_DIRECT in a thread."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        atomic_file.DIRECT_FROM, atomic_file.DIRECT_BUFFER = 128 << 10, 64 << 10

    def run(self) -> None:
        with FileWriter(self._target, len(LARGE)) as writer:
            writer.write(LARGE)

    def check_content(self) -> None:
        assert handmade.records_in(self._target.read_bytes()) == LARGE


class WriteResumably(Writing):
    """Write a resumable file in two parts. Flushed records must never be lost."""

    allowed = (BusyError,)  # raised for EAGAIN from flock

    def __init__(self, folder: Path, n: int | None) -> None:
        super().__init__(folder)
        self._n = n
        self._flushed = 0

    def prepare(self) -> None:
        super().prepare()
        self._flushed = 0

    def run(self) -> None:
        for stop in (len(NEW) // 2, len(NEW)):
            if self._target.exists():
                return
            with FileWriter(self._target, self._n, resumable=True) as writer:
                assert writer.count >= self._flushed, "flushed records are lost"
                while writer.count < stop:
                    writer.write_one(NEW[writer.count])
                    if writer.count % 2:
                        writer.flush()
                        self._flushed = writer.count
                if stop < len(NEW):
                    writer.suspend()

    def litter(self) -> list[str]:
        partial = os.path.basename(partial_path(os.fspath(self._target)))
        kept = () if self._target.exists() else (partial, journal_path(partial))
        return [name for name in super().litter() if name not in kept]

    def check_left(self, fault: Fault) -> None:
        if self._target.exists():  # complete; only the fsync of its name failed
            self._target.unlink()
            self.prepare()
        else:
            super().check_left(fault)

    def check_content(self) -> None:
        assert handmade.records_in(self._target.read_bytes()) == NEW


class WritingFolder(Writing):
    """A write of a folder. It is filled under a hidden name, and never replaces another folder."""

    allowed: tuple[type[Exception], ...] = (BusyError,)  # raised for EAGAIN from flock

    def prepare_again(self) -> None:
        if self._target.exists():
            self.prepare()

    def check_left(self, fault: Fault) -> None:
        """Allow a hidden folder that could not be removed.

        A folder that cannot be opened cannot be removed; the next writer removes it. A folder whose
        lock is held (EAGAIN) belongs to another process.
        """
        cannot_open = fault.call == "open" and fault.lasting
        is_held = fault.call == "lock" and fault.kind == "EAGAIN"
        if (cannot_open or is_held) and not self._target.exists():
            hidden = f".{self._target.name}."
            assert all(name.startswith(hidden) for name in self.litter())
        else:
            super().check_left(fault)


class Pack(WritingFolder):
    """Pack a folder into an archive or shards. The same folder gives the same bytes."""

    # EAGAIN from a source file is taken as a sign that the file was replaced.
    allowed = (*WritingFolder.allowed, ChangedError)

    def __init__(self, folder: Path, files: dict[str, bytes], **options: int) -> None:
        super().__init__(folder)
        self._options = options
        self._source = trees.plain_tree(folder / "source", files)
        clean = folder / "clean"
        archives.pack(self._source, clean, **options)
        self._due = contents(clean)
        with PackedFolder(clean) as packed:
            found = {name: packed.read_one(name).tobytes() for name in files}
        assert found == files

    def run(self) -> None:
        archives.pack(self._source, self._target, **self._options)

    def check_content(self) -> None:
        assert contents(self._target) == self._due


def contents(path: Path) -> dict[str, bytes]:
    """Return the content of a file, or of all files in a folder, by path."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*")) if each.is_file()
    }  # fmt: skip


class Extract(Writing):
    """Extract an archive. After an error, each file is complete or as it was before."""

    def __init__(self, folder: Path, *, overwrite: bool) -> None:
        super().__init__(folder)
        self._source = trees.plain_tree(folder / "source", FILES)
        os.link(self._source / "last", self._source / "link")
        (self._source / "symbolic").symlink_to("last")
        self._archive = folder / "packed.ffr"
        archives.pack(self._source, self._archive)
        self._overwrite = overwrite

    def prepare(self) -> None:
        super().prepare()
        if self._overwrite:
            trees.plain_tree(self._target, dict.fromkeys(FILES, b"old"))
        handmade.evict(self._archive)

    def prepare_again(self) -> None:
        if not self._overwrite:
            self.prepare()

    def run(self) -> None:
        with PackedFolder(self._archive) as folder:
            folder.extract(self._target, overwrite=self._overwrite)

    def check_content(self) -> None:
        found = trees.snapshot(self._target)
        due = trees.snapshot(self._source)
        assert found.keys() == due.keys()
        for path, each in due.items():
            assert found[path].content == each.content, path
            assert found[path].target == each.target, path
            assert found[path].kind == "folder" or found[path].mode == each.mode, path
            assert found[path].same_file == each.same_file, path

    def check_left(self, fault: Fault) -> None:
        assert self.litter() == []
        if not self._target.exists():
            return
        for name, content in contents(self._target).items():
            whole = FILES[{"link": "last", "symbolic": "last"}.get(name, name)]
            assert content == whole or (self._overwrite and content == b"old"), name


class Salvage(Writing):
    """Salvage a file with one damaged record. Unreadable records are lost, and reported."""

    DAMAGED = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._broken = handmade.write_records(folder / "broken.ffr", RECORDS)
        with open(self._broken, "r+b") as file:
            file.seek(len(handmade.header_bytes(RECORDS)) + len(RECORDS[0]))
            file.write(bytes([RECORDS[1][0] ^ 1]))

    def prepare(self) -> None:
        super().prepare()
        handmade.evict(self._broken)

    def run(self) -> SalvageReport:
        return salvage_file(self._broken, self._target)

    def check(self, result: SalvageReport) -> None:
        assert self.litter() == []
        lost = {each.record: each.reason for each in result.lost}
        assert self.DAMAGED in lost
        assert "checksum" in lost[self.DAMAGED] or "failed: " in lost[self.DAMAGED]
        assert all("failed: " in lost[record] for record in lost if record != self.DAMAGED), lost
        gone = {self.DAMAGED, *lost}
        due = [record for number, record in enumerate(RECORDS) if number not in gone]
        assert handmade.records_in(self._target.read_bytes()) == due

    def check_left(self, fault: Fault) -> None:
        assert self.litter() == []
        if not self._is_as_before():  # complete; only the fsync of its name failed
            due = [*RECORDS[: self.DAMAGED], *RECORDS[self.DAMAGED + 1 :]]
            assert handmade.records_in(self._target.read_bytes()) == due


class WriteDataset(WritingFolder):
    """Write a dataset."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _write_dataset(folder / "clean")
        self._due = _records(folder / "clean")

    def run(self) -> None:
        _write_dataset(self._target)

    def check_content(self) -> None:
        # Compare records, not bytes: a file may have a gap before its first record.
        assert _records(self._target) == self._due
        with DatasetReader(self._target) as reader:
            assert reader.read(range(len(reader))) == POINTS


class AppendToDataset(WritingFolder):
    """Append to an existing dataset."""

    allowed = (BusyError,)  # raised for EAGAIN from flock

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        _write_dataset(folder / "clean")
        self._due = _records(folder / "clean")
        self._half = folder / "half"
        _write_dataset(self._half, POINTS[:1])

    def prepare(self) -> None:
        super().prepare()
        shutil.copytree(self._half, self._target)
        (self._target / "README").write_bytes(b"is kept")

    def prepare_again(self) -> None:
        if not self._is_as_before():
            self.prepare()

    def run(self) -> None:
        with DatasetWriter(self._target, append=True) as writer:
            for point in POINTS[len(writer) :]:
                writer.append(point)

    def check_left(self, fault: Fault) -> None:
        if not self._is_as_before():  # complete; only the fsync of its name failed
            self.check_content()
        assert set(self.litter()) <= {f".{self._target.name}.writing"}

    def check_content(self) -> None:
        assert _records(self._target) == self._due
        with DatasetReader(self._target) as reader:
            assert reader.read(range(len(reader))) == POINTS
        assert (self._target / "README").read_bytes() == b"is kept"

    def _is_as_before(self) -> bool:
        return contents(self._target) == {**contents(self._half), "README": b"is kept"}


def _records(folder: Path) -> dict[str, list[bytes]]:
    """Return the records of all record files in a folder."""
    return {path.name: handmade.records_in(path.read_bytes()) for path in folder.glob("*.ffr")}


def _write_dataset(folder: Path, points: Sequence[Mapping[str, Any]] = POINTS) -> None:
    with DatasetWriter(folder, SPEC) as writer:
        for point in points:
            writer.append(point)


LARGE_FILE = {"large": trees.content((2 << 20) + 5, 9), "small": b"x"}
MAKERS: dict[str, Callable[[Path], Writing]] = {
    "write": lambda folder: WriteRecords(folder, len(NEW)),
    "write, n unknown": lambda folder: WriteRecords(folder, None),
    "append": lambda folder: WriteRecords(folder, len(NEW), append=True),
    "append, n unknown": lambda folder: WriteRecords(folder, None, append=True),
    "write large": WriteLarge,
    "resume": lambda folder: WriteResumably(folder, len(NEW)),
    "resume, n unknown": lambda folder: WriteResumably(folder, None),
    "pack": lambda folder: Pack(folder, FILES),
    "pack large": lambda folder: Pack(folder, LARGE_FILE),
    "pack shards": lambda folder: Pack(folder, FILES, shard_size=200_000),
    "pack aligned shards": lambda folder: Pack(folder, FILES, shard_size=200_000, align=512),
    "extract": lambda folder: Extract(folder, overwrite=False),
    "extract over": lambda folder: Extract(folder, overwrite=True),
    "salvage": Salvage,
    "write dataset": WriteDataset,
    "append to dataset": AppendToDataset,
}

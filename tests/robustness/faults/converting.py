"""Conversions from and to other formats while system calls fail."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ffrecord import BusyError, ChangedError, PackedFolder
from ffrecord.convert import convert
from ffrecord.dataset import DatasetReader, DatasetWriter
from tests.convert import foreign
from tests.robustness.faults.shim import Fault
from tests.robustness.faults.writing import Writing, contents
from tests.support import archives, handmade, trees

# Other calls are made by our own readers and writers, which other operations test.
CALLS = ("open", "read", "write", "fsync", "rename", "link", "lock", "disk")
RECORDS = handmade.random_records([5000, 0, 12_345, 7, 20_000], seed=5)
OLD = handmade.random_records([5, 0, 700], seed=6)
FILES = {
    "a/one": trees.content(700, 1),
    "a/two": trees.content(20_000, 2),
    "b/empty": b"",
    "last": trees.content(5000, 4),
}
SPEC = {"name": "utf8", "data": "bytes"}
ROWS = [{"name": f"row {i}", "data": trees.content(3000 * i + 5, i)} for i in range(4)]
SAMPLES = {
    f"{i:03}.{kind}": trees.content(3000 * i + 5, i) for i in range(3) for kind in ("a", "b")
}


class Convert(Writing):
    """A conversion of one source to one target. `right` checks the target."""

    # EAGAIN from flock means that the lock is held (BusyError). EAGAIN from a source file is taken
    # as a sign that the file was replaced (ChangedError).
    allowed = (BusyError, ChangedError)

    def __init__(
        self, folder: Path, source: Path, target: str, right: Callable[[Path], bool], **options: Any
    ) -> None:
        super().__init__(folder, old=b"old" if options.get("force") else None)
        self._source = source
        self._target = self._folder / target
        self._right = right
        self._options = options

    def kinds(self, call: str) -> Iterable[str]:
        return super().kinds(call) if call in CALLS else ()

    def run(self) -> None:
        convert(self._source, self._target, **self._options)

    def check_content(self) -> None:
        assert self._right(self._target)

    def check_left(self, fault: Fault) -> None:
        """Allow a hidden folder that could not be removed.

        A folder that cannot be opened cannot be removed unless it is empty; the next conversion
        removes it. A folder whose lock is held (EAGAIN) belongs to another process.
        """
        cannot_open = fault.call == "open" and fault.lasting
        is_held = fault.call == "lock" and fault.kind == "EAGAIN"
        hidden = [f".{self._target.name}.converting"] if cannot_open or is_held else []
        assert [name for name in self.litter() if name not in hidden] == []
        if not self._is_as_before():
            self.check_content()

    def prepare_again(self) -> None:
        if not self._options.get("force") and self._target.exists():
            self.prepare()


class ConvertToBag(Convert):
    """A conversion to a bag, which is two files."""

    def __init__(self, folder: Path, *, force: bool) -> None:
        source = handmade.write_records(folder / "records.ffr", RECORDS)
        super().__init__(folder, source, "target.bag", lambda _: self._holds(RECORDS), force=force)
        self._index = self._target.with_suffix(".idx")

    def prepare(self) -> None:
        super().prepare()
        if self._old is not None:
            self._target.write_bytes(b"".join(OLD))
            self._index.write_bytes(foreign.limits(OLD))

    def litter(self) -> list[str]:
        kept = self._index.name if self._target.exists() else ""
        return [name for name in super().litter() if name != kept]

    def _is_as_before(self) -> bool:
        if self._old is None:
            return not self._target.exists()
        return self._holds(OLD)

    def _holds(self, records: list[bytes]) -> bool:
        data, index = self._target.read_bytes(), self._index.read_bytes()
        return (data, index) == (b"".join(records), foreign.limits(records))


# ---- sources -------------------------------------------------------------------------------


def from_tar(folder: Path, kind: str, target: str, right: Callable[[Path], bool]) -> Convert:
    source = folder / f"source.tar{kind}"
    how: Any = f"w:{kind[1:]}"
    with tarfile.open(source, how) as tar:
        for name, data in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return Convert(folder, source, target, right)


def from_tfrecord(folder: Path) -> Convert:
    source = folder / "source.tfrecord"
    source.write_bytes(foreign.tfrecord(RECORDS))
    return Convert(folder, source, "target.ffr", _is_records, force=True)


def from_bag(folder: Path) -> Convert:
    source = folder / "source.bag"
    source.write_bytes(b"".join(RECORDS))
    source.with_suffix(".idx").write_bytes(foreign.limits(RECORDS))
    return Convert(folder, source, "target.tfrecord", _is_tfrecord)


def from_recordio(folder: Path) -> Convert:
    source = folder / "source.recordio"
    source.write_bytes(b"".join(foreign.go_chunk([each], "gzip") for each in RECORDS))
    return Convert(folder, source, "target.ffr", _is_records)


def from_folder(folder: Path, target: str, right: Callable[[Path], bool], **how: Any) -> Convert:
    source = trees.plain_tree(folder / "source", SAMPLES)
    return Convert(folder, source, target, right, **how)


def from_packed(folder: Path, target: str, right: Callable[[Path], bool], **how: Any) -> Convert:
    archives.pack(trees.plain_tree(folder / "source", FILES), folder / "packed.ffr")
    return Convert(folder, folder / "packed.ffr", target, right, **how)


def to_recordio(folder: Path) -> Convert:
    source = handmade.write_records(folder / "records.ffr", RECORDS)
    return Convert(folder, source, "target.recordio", _is_recordio)


def from_rows(folder: Path, target: str, **how: Any) -> Convert:
    """Return a conversion of a dataset of ROWS."""
    source = folder / "rows"
    with DatasetWriter(source, SPEC) as writer:
        for row in ROWS:
            writer.append(row)
    return Convert(folder, source, target, _comes_back, **how)


def to_rows(folder: Path, name: str, **how: Any) -> Convert:
    source = folder / name
    convert(from_rows(folder, "unused")._source, source, **how)
    return Convert(folder, source, "target", _is_rows, target_format="dataset")


# ---- checks of targets ----------------------------------------------------------------------


def _is_packed(path: Path) -> bool:
    with PackedFolder(path) as packed:
        return {name: packed.read_one(name).tobytes() for name in FILES} == FILES


def _is_folder(path: Path) -> bool:
    return contents(path) == FILES


def _is_tar(path: Path) -> bool:
    return _in_tar(path) == FILES


def _are_tars(path: Path) -> bool:
    found: dict[str, bytes] = {}
    for each in sorted(path.iterdir()):
        found |= _in_tar(each)
    return found == FILES


def _in_tar(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {each.name: _read(tar, each) for each in tar if each.isreg()}


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _is_records(path: Path) -> bool:
    return handmade.records_in(path.read_bytes()) == RECORDS


def _is_tfrecord(path: Path) -> bool:
    return path.read_bytes() == _TFRECORD


def _is_recordio(path: Path) -> bool:
    return foreign.read_recordio(path.read_bytes(), "python") == RECORDS


def _is_dataset(path: Path) -> bool:
    with DatasetReader(path) as reader:
        points = reader.read(range(len(reader)))
    found = {f"{each['__key__']}.{kind}": each[kind] for each in points for kind in ("a", "b")}
    return found == SAMPLES


def _is_rows(path: Path) -> bool:
    with DatasetReader(path) as reader:
        return bool(reader.read(range(len(reader))) == ROWS)


def _comes_back(path: Path) -> bool:
    """Return True if converting back gives the same rows. tests/convert uses other readers."""
    with tempfile.TemporaryDirectory() as place:
        convert(path, Path(place, "again"), target_format="dataset")
        return _is_rows(Path(place, "again"))


_TFRECORD = foreign.tfrecord(RECORDS)  # made once, because it is slow

MAKERS: dict[str, Callable[[Path], Convert]] = {
    "convert tar": lambda folder: from_tar(folder, "", "target.ffr", _is_packed),
    "convert tar.xz": lambda folder: from_tar(folder, ".xz", "target", _is_folder),
    "convert tfrecord": from_tfrecord,
    "convert bag": from_bag,
    "convert recordio": from_recordio,
    "convert folder": lambda folder: from_folder(folder, "target", _is_dataset,
                                                 target_format="dataset"),
    "convert to tar": lambda folder: from_packed(folder, "target.tar", _is_tar, force=True),
    "convert to tars": lambda folder: from_packed(folder, "target", _are_tars,
                                                  target_format="tar", shard_size=10_000),
    "convert to aligned": lambda folder: from_packed(folder, "target.ffr", _is_packed, align=512),
    "convert to recordio": to_recordio,
    "convert granular": lambda folder: to_rows(folder, "source", target_format="granular"),
    "convert to granular": lambda folder: from_rows(folder, "target", target_format="granular"),
    "convert hdf5": lambda folder: to_rows(folder, "source.h5"),
    "convert to hdf5": lambda folder: from_rows(folder, "target.h5"),
    "convert to bag": lambda folder: ConvertToBag(folder, force=False),
    "convert to bag, forced": lambda folder: ConvertToBag(folder, force=True),
}  # fmt: skip

LONG = {
    "convert tar.xz", "convert recordio", "convert bag", "convert folder", "convert to tars",
    "convert to recordio", "convert to bag", "convert granular", "convert to granular",
    "convert hdf5", "convert to hdf5", "convert to aligned",
}  # fmt: skip
"""Operations that run only with `--long`: they mostly use the same code as the others."""

"""The data of `cluster`: the same contents as files, as ours, in tars and in Parquet files."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from . import datasets, trees
from .trees import FileTree

RECIPE = "1"
"""Raise the number when the bytes change; then all files are made again."""

SHARDS = 8
"""Tars, and Parquet files. Ray gives each of them to one task, so they must be several."""
COLUMN = "content"


@dataclass(frozen=True, slots=True)
class Files:
    """The places of one set of contents, in the form of each contestant."""

    tree: FileTree
    root: Path

    @property
    def place(self) -> Path:
        """Return the folder of the marker and of all forms but the files themselves."""
        return self.root / f"cluster-{self.tree.count}x{self.tree.mean}"

    @property
    def plain(self) -> Path:
        return self.tree.top(self.root)

    @property
    def records(self) -> Path:
        return self.place / "records.ffr"

    @property
    def archive(self) -> Path:
        return self.place / "archive.ffr"

    @property
    def tars(self) -> Path:
        return self.place / "tars"

    @property
    def parquet(self) -> Path:
        return self.place / "parquet"

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path and the content of every file, in the order of paths."""
        for number in range(self.tree.count):
            path = self.tree.path(number)
            yield path, (self.plain / path).read_bytes()


def create(root: str, name: str, mean: int, count: int, per_folder: int) -> None:
    """Write a set in every form unless it exists; called in a fresh process."""
    trees.create(root, name, mean, count, per_folder)
    files = Files(FileTree(name, mean, count, per_folder), Path(root))
    datasets.make_once(files.place, f"{RECIPE}/{per_folder}", lambda: _write(files))


def _write(files: Files) -> None:
    from ffrecord import FileWriter, pack_folder

    pack_folder(files.plain, files.archive)
    with FileWriter(files.records, files.tree.count) as writer:
        for _, content in files.contents():
            writer.write_one(content)
    _in_shards(files, files.tars, _write_tar)
    _in_shards(files, files.parquet, _write_parquet)


def _in_shards(
    files: Files, folder: Path, write: Callable[[Path, list[tuple[str, bytes]]], None]
) -> None:
    folder.mkdir()
    size = -(-files.tree.count // SHARDS)
    some: list[tuple[str, bytes]] = []
    shards = 0
    for each in files.contents():
        some.append(each)
        if len(some) == size:
            write(folder / f"{shards:05}", some)
            shards, some = shards + 1, []
    if some:
        write(folder / f"{shards:05}", some)


def _write_tar(path: Path, some: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path.with_suffix(".tar"), "w") as tar:
        for name, content in some:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))


def _write_parquet(path: Path, some: list[tuple[str, bytes]]) -> None:
    """Write a file as suits random bytes best: without compression and without dictionaries."""
    import pyarrow as pa
    from pyarrow import parquet

    names, contents = zip(*some, strict=True)
    table = pa.table({"path": names, COLUMN: pa.array(contents, pa.binary())})
    parquet.write_table(
        table, path.with_suffix(".parquet"), compression="none", use_dictionary=False
    )

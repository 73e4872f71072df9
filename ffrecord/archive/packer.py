"""`Packer`: numbers the files of a tree, cuts them into shards, and writes the index."""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.counts import Counts, count_tree
from ffrecord.archive.index import Index, legacy
from ffrecord.archive.index.build import Shard, Tree, build
from ffrecord.archive.index.resolve import readable_record
from ffrecord.archive.scan import change_advice
from ffrecord.disk.source import Source
from ffrecord.errors import ChangedError, ChangedWarning
from ffrecord.format import index as index_layout
from ffrecord.format import padding
from ffrecord.format.checksum import crc32
from ffrecord.format.records import CRC_SIZE
from ffrecord.plan.values import Part
from ffrecord.records.writer import FileWriter
from ffrecord.text import Advised

MOST_SHARDS = 100_000  # the names PART_00000.ffr to PART_99999.ffr sort by number


@dataclass(slots=True)
class PackReport(Counts):
    """Counts of packed files, folders and links, and of files that were left out."""

    shards: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of sockets, fifos and devices, by kind."""
    changed: list[str] = field(default_factory=list)
    """With `ignore_changed`, the paths of files that changed or disappeared."""


class Packer:
    """Everything about an archive but the contents of its files.

    Args:
        tree: the files, folders and links.
        paths: returns all paths of an inode, for messages.
        align: alignment of the files.
        skipped: number of things that are not packed, by kind.
        changed: paths that disappeared before.
        ignore_changed: warn about changed files, instead of raising an error.
        legacy_index: also write the index that the original FFRecord reads.
    """

    def __init__(
        self, tree: Tree, paths: Callable[[int], Sequence[bytes]], *, align: int,
        skipped: Mapping[str, int], changed: Sequence[str], ignore_changed: bool,
        legacy_index: bool,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.align = align
        self._paths = paths
        self._ignore_changed = ignore_changed
        self._legacy_index = legacy_index
        self._gone: set[int] = set()
        self.files, self.records = _number_files(tree, align)
        self.report = PackReport(
            **asdict(count_tree(tree)), skipped=dict(skipped), changed=list(changed)
        )

    def parts(self, target: str, largest: int) -> list[Part]:
        """Return the files of each shard: as many as fit, and at least one."""
        cuts, size = [0], 0
        for row, inode in enumerate(self.files):
            length = padding.rounded_up(self.tree.length[inode], self.align)
            if row > cuts[-1] and size + length > largest:
                cuts.append(row)
                size = 0
            size += length
        if len(cuts) > MOST_SHARDS:
            many = f"{target}: {len(cuts)} shards, but at most {MOST_SHARDS} are possible; pass a "
            raise ValueError(Advised(many, "larger shard_size", "larger --shard-size"))
        self.report.shards = len(cuts)
        return [
            self._part(begin, end)
            for begin, end in zip(cuts, [*cuts[1:], len(self.files)], strict=True)
        ]

    def _part(self, begin: int, end: int) -> Part:
        records = self._first_record(end) - self._first_record(begin)
        size = sum(map(self.tree.length.__getitem__, self.files[begin:end]))
        return Part(begin, end - begin, records, size)

    def _first_record(self, row: int) -> int:
        """Return the record of file `row`, or the number of all records after the last file."""
        files = self.files
        return self.tree.record[files[row]] if row < len(files) else self.records

    def note_change(self, inode: int, gone: bool) -> None:
        """Raise an error for a changed file, or warn and note it."""
        paths = [os.fsdecode(path) for path in self._paths(inode)]
        what = "disappeared" if gone else "changed"
        if not self._ignore_changed:
            raise ChangedError(change_advice(f"{paths[0]}: {what}"))
        if gone and inode not in self._gone:
            self._gone.add(inode)
            self.report.files -= 1
            self.report.hard_links -= len(paths) - 1
            self.report.bytes -= self.tree.length[inode]
        for path in paths:
            if path not in self.report.changed:
                self.report.changed.append(path)
                packed = "left out" if gone else "packed as it was read"
                message = f"{path}: {what} while its folder was packed; {packed}"
                warnings.warn(message, ChangedWarning, stacklevel=6)

    def write_index(self, writer: FileWriter, target: str, shards: list[Shard]) -> None:
        """Write the index, as the last record."""
        tree, sizes = self.tree, self.record_sizes()
        if self._gone:
            tree = tree.without(self._gone)
        write_index(writer, target, tree, sizes, shards, legacy_index=self._legacy_index)

    def record_sizes(self) -> Ints:
        """Return the sizes of all records before the index: of the files and of their padding."""
        tree, files = self.tree, np.frombuffer(self.files, np.uint32)
        lengths = np.frombuffer(tree.length, np.int64)[files]
        if self.records == len(files):  # no padding
            return lengths
        records = np.frombuffer(tree.record, np.int64)[files]
        missing = -lengths % self.align
        padded = missing.nonzero()[0]
        sizes = np.empty(self.records, np.int64)
        sizes[records] = lengths
        sizes[records[padded] + 1] = missing[padded]
        return sizes


def _number_files(tree: Tree, align: int) -> tuple[array[int], int]:
    """Give files their record numbers, in path order.

    Return the inodes in that order, and the number of records, with those of padding.
    """
    files = array("I")
    records = 0
    seen = bytearray(len(tree))
    for entry, _ in tree.in_path_order():
        inode = tree.inode[entry]
        if tree.is_file(inode) and not seen[inode]:
            seen[inode] = True
            tree.record[inode] = records
            files.append(inode)
            records += 1 + (tree.length[inode] % align > 0)
    return files, records


def write_index(
    writer: FileWriter, target: str, tree: Tree, sizes: Ints, shards: Sequence[Shard] = (),
    *, legacy_index: bool = True,
) -> None:  # fmt: skip
    """Write the index as the last record of an archive. `sizes`: the sizes of all other records."""
    size = crc = 0
    for piece in index_record(target, tree, sizes, shards, legacy_index=legacy_index):
        writer.append(memoryview(piece))
        size, crc = size + len(piece), crc32(piece, crc)
    writer.seal([size], [crc])


def index_record(
    target: str, tree: Tree, sizes: Ints, shards: Sequence[Shard] = (), *, legacy_index: bool = True
) -> Iterator[index_layout.Buffer]:
    """Yield the last record, the index, piece by piece."""
    image = build(tree, shards)
    # `Index` makes all checks of a reader. So a wrong index is never written.
    index = Index(target, image, sizes)
    if legacy_index:
        yield from legacy.pickled(tree, partial(_symlink_record, tree, index))
    yield image
    yield index_layout.trailer(image, crc32(image))


def _symlink_record(tree: Tree, index: Index, entry: int) -> int | None:
    """Return the record of the file in the archive that a symlink leads to.

    Takes an entry, not an inode: a relative symlink with several names can lead to several places.
    """
    return readable_record(index, tree.parent[entry], tree.names[entry], tree.inode[entry])


def header_crc(path: str) -> int:
    """Return the checksum of a record file's header."""
    return int.from_bytes(Source(path, direct=False).read_bytes(0, CRC_SIZE), "little")

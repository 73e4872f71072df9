"""`Tree`, the description of a folder while it is packed, and `build`, which makes its index.

A tree has one row for each inode and one for each entry. It must be filled breadth first: add the
root, then go through the folders in the order of their numbers and add the entries of each, sorted
by name. The same tree gives the same bytes.
"""

from __future__ import annotations

import mmap
import stat
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.archive.index.columns import BlocksOf, DistinctTexts, Texts, TextsOf, Xattrs, XattrsOf
from ffrecord.format import index as index_layout
from ffrecord.format.checksum import crc32
from ffrecord.format.index import ATTRIBUTES, NO_ENTRY, XATTR

__all__ = ["Shard", "Tree", "Xattrs", "build"]

Numbers: TypeAlias = npt.NDArray[np.uint32]

AT_A_TIME = 1 << 16
"""Number of rows whose intermediate results are in memory at once."""

MOST_RECENT = 4096  # rows of attributes in the cache of `_attributes`


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of an archive: its name, number of records, and the CRC of its header."""

    name: bytes
    records: int
    crc: int


class Tree:
    """Columns of inodes and entries: 36 bytes for an inode, 16 bytes and the name for an entry."""

    def __init__(self) -> None:
        self.mode = array("I")
        self.uid = array("I")
        self.gid = array("I")
        self.mtime = array("q")
        self.length = array("Q")  # used for files only
        self.record = array("Q")  # used for files only
        self.targets = TextsOf()
        self.xattrs = XattrsOf()
        self.blocks = BlocksOf()  # of files larger than one block
        self.names = Texts()
        self.inode = array("I")  # of each entry
        self.parent = array("I")

    def __len__(self) -> int:
        return len(self.mode)

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The columns with one value for each inode."""
        return self.mode, self.uid, self.gid, self.mtime, self.length, self.record

    def add_inode(
        self, mode: int, uid: int, gid: int, mtime: int, length: int = 0, record: int = 0
    ) -> int:
        """Add an inode; return its number."""
        values = (mode, uid, gid, mtime, length, record)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        return len(self.mode) - 1

    def add_entry(self, parent: int, name: bytes, inode: int) -> None:
        self.names.append(name)
        self.parent.append(parent)
        self.inode.append(inode)

    def is_file(self, inode: int) -> bool:
        return stat.S_ISREG(self.mode[inode])

    def is_folder(self, inode: int) -> bool:
        return stat.S_ISDIR(self.mode[inode])

    def kinds(self) -> Numbers:
        """Return the kind of each inode, as `stat.S_IFMT` returns it."""
        kinds: Numbers = np.frombuffer(self.mode, np.uint32) & np.uint32(0o170000)
        return kinds

    def entries(self, folder: int) -> range:
        """Return the numbers of a folder's entries. Entries are in the order of their folders."""
        first = bisect_left(self.parent, folder)
        return range(first, bisect_right(self.parent, folder, first))

    def in_path_order(self) -> Iterator[tuple[int, int]]:
        """Yield every entry and its depth, depth first: a folder, then its contents."""
        inodes, modes = self.inode, self.mode
        open_folders = [iter(self.entries(0))]
        while open_folders:
            depth = len(open_folders)
            for entry in open_folders[-1]:
                yield entry, depth
                inode = inodes[entry]
                if stat.S_ISDIR(modes[inode]):
                    open_folders.append(iter(self.entries(inode)))
                    break
            else:
                open_folders.pop()

    def without(self, gone: set[int]) -> Tree:
        """Return a copy of the tree without some files."""
        kept = Tree()
        keep = np.ones(len(self), bool)
        keep[list(gone)] = False
        number = np.cumsum(keep) - 1
        for column, values in zip(kept.columns, self.columns, strict=True):
            column.frombytes(np.frombuffer(values, column.typecode)[keep].tobytes())
        parent, inode = (np.frombuffer(each, np.uint32) for each in (self.parent, self.inode))
        named = keep[inode].nonzero()[0]
        kept.parent.frombytes(number[parent[named]].astype(np.uint32).tobytes())
        kept.inode.frombytes(number[inode[named]].astype(np.uint32).tobytes())
        for entry in named.tolist():
            kept.names.append(self.names[entry])
        kept.targets = self.targets.renumbered(number)
        kept.xattrs = self.xattrs.renumbered(keep, number)
        kept.blocks = self.blocks.renumbered(keep, number)
        return kept


def build(tree: Tree, shards: Sequence[Shard] = ()) -> mmap.mmap:
    """Return the index image of a tree whose files all have their record, length and blocks.

    The sections are filled in place, to save memory: no copy as large as a section is made.
    """
    texts = DistinctTexts()
    folders = _Folders.of(tree)
    targets = array("Q", (texts.begin(texts.add(each)) for each in tree.targets.texts))
    xattrs, sets = _xattrs(tree.xattrs, texts)
    rows, attributes = _attributes(tree, _links(tree, folders), sets)
    names = [texts.begin(texts.add(shard.name)) for shard in shards]

    image, tables = index_layout.blank({
        "inodes": len(tree), "entries": len(tree.names), "hashes": len(tree.names),
        "attributes": len(attributes), "xattrs": len(xattrs), "large": len(tree.blocks.inodes),
        "blocks": len(tree.blocks.checksums), "shards": len(shards),
        "texts": len(texts.bytes), "names": len(tree.names.bytes),
    })  # fmt: skip
    tables.inodes["attributes"] = rows
    tables.attributes[:] = attributes
    tables.xattrs[:] = xattrs
    tables.shards[:] = np.array(
        [(shard.records, text, len(shard.name), shard.crc)
         for shard, text in zip(shards, names, strict=True)], index_layout.SHARD,
    )  # fmt: skip
    tables.texts[:] = np.frombuffer(texts.bytes, np.uint8)
    tables.names[:] = np.frombuffer(tree.names.bytes, np.uint8)
    _fill_entries(tables, tree)
    _fill_inodes(tables, tree, folders, targets)
    _fill_blocks(tables, tree.blocks)
    _fill_hashes(tables, tree, folders)
    return image


@dataclass(frozen=True, slots=True)
class _Folders:
    """The folders of a tree, in order, and the ranges of their entries."""

    inodes: Ints
    first: Ints  # first entry in each folder
    count: Ints  # number of entries in each folder
    named_by: Ints  # the entry that names each folder, except the root

    @classmethod
    def of(cls, tree: Tree) -> _Folders:
        is_folder = tree.kinds() == stat.S_IFDIR
        inodes = is_folder.nonzero()[0]
        parents = np.frombuffer(tree.parent, np.uint32)
        # The same type as the column: otherwise numpy would copy the column.
        wanted = inodes.astype(np.uint32)
        first = np.searchsorted(parents, wanted, "left")
        count = np.searchsorted(parents, wanted, "right") - first
        named_by = is_folder[np.frombuffer(tree.inode, np.uint32)].nonzero()[0]
        return cls(inodes, first, count, named_by)


def _links(tree: Tree, folders: _Folders) -> Numbers:
    """Return the number of links of each inode."""
    links = np.bincount(np.frombuffer(tree.inode, np.uint32), minlength=len(tree))
    links[folders.inodes] = 2
    parents = np.frombuffer(tree.parent, np.uint32)[folders.named_by]
    links += np.bincount(parents, minlength=len(tree))
    return links.astype(np.uint32)


def _xattrs(xattrs: XattrsOf, texts: DistinctTexts) -> tuple[index_layout.Rows, dict[str, Numbers]]:
    """Return the table of extended attributes, and which rows belong to which inodes.

    The second value has columns: the inodes with extended attributes, the first row of each, and
    the number of rows. Inodes with equal sets share rows.
    """
    inodes = np.frombuffer(xattrs.inodes, np.uint32)
    order = np.argsort(inodes, kind="stable")
    sets = np.frombuffer(xattrs.sets, np.uint32)[order]
    known, first_inode = np.unique(sets, return_index=True)
    first, count = np.zeros((2, len(known)), np.uint32)
    rows = array("Q"), array("I"), array("I")
    for number in np.argsort(first_inode).tolist():
        first[number] = len(rows[0])
        for name, value in xattrs.set(int(known[number])):
            row = texts.begin(texts.add(name + value)), len(name), len(value)
            for column, each in zip(rows, row, strict=True):
                column.append(each)
        count[number] = len(rows[0]) - first[number]
    table = np.zeros(len(rows[0]), XATTR)
    table["text"], table["name"], table["value"] = rows
    number = np.searchsorted(known, sets)
    return table, {"inodes": inodes[order], "first": first[number], "count": count[number]}


def _attributes(
    tree: Tree, links: Numbers, sets: dict[str, Numbers]
) -> tuple[Numbers, index_layout.Rows]:
    """Return the number of each inode's attribute row, and the distinct rows.

    Neighbouring inodes mostly have equal attributes, so only the first inode of each run of equal
    ones is looked up.
    """
    columns = [np.frombuffer(each, np.uint32) for each in (tree.mode, tree.uid, tree.gid)]
    columns.append(links)
    for name in ("first", "count"):
        columns.append(np.zeros(len(tree), np.uint32))
        columns[-1][sets["inodes"]] = sets[name]
    is_first = np.ones(len(tree), bool)
    is_first[1:] = False
    for column in columns:
        is_first[1:] |= column[1:] != column[:-1]
    first = is_first.nonzero()[0]
    known = DistinctTexts()
    recent: dict[bytes, int] = {}  # a cache in front of `known`

    def row_of(raw: bytes) -> int:
        row = recent.get(raw, -1)
        if row < 0:
            if len(recent) == MOST_RECENT:
                recent.clear()
            row = recent[raw] = known.add(raw)
        return row

    rows = np.fromiter(
        (row_of(raw) for some in _cut(first) for raw in _raw_attributes(columns, some)),
        np.uint32,
        len(first),
    )
    row_of_each = np.repeat(rows, np.diff(first, append=len(tree)))
    return row_of_each, np.frombuffer(known.bytes, ATTRIBUTES)


def _raw_attributes(columns: Sequence[Numbers], inodes: Ints) -> Iterator[bytes]:
    """Return an iterator over the bytes of each inode's row."""
    rows = np.stack([column[inodes] for column in columns], axis=1).astype("<u4").tobytes()
    size = ATTRIBUTES.itemsize
    return (rows[at : at + size] for at in range(0, len(rows), size))


def _cut(rows: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(rows), AT_A_TIME):
        yield rows[start : start + AT_A_TIME]


def _fill_entries(tables: index_layout.Image, tree: Tree) -> None:
    tables.entries["name_end"] = np.frombuffer(tree.names.ends, np.uint64)
    tables.entries["inode"] = np.frombuffer(tree.inode, np.uint32)
    tables.entries["parent"] = np.frombuffer(tree.parent, np.uint32)


def _fill_inodes(
    tables: index_layout.Image, tree: Tree, folders: _Folders, targets: array[int]
) -> None:
    inodes = tables.inodes
    inodes["mtime"] = np.frombuffer(tree.mtime, np.int64)
    inodes["data"] = np.frombuffer(tree.record, np.uint64)
    inodes["length"] = np.frombuffer(tree.length, np.uint64)
    inodes["data"][folders.inodes] = folders.first
    inodes["length"][folders.inodes] = folders.count
    symlinks = np.frombuffer(tree.targets.inodes, np.uint32)
    ends = np.frombuffer(tree.targets.texts.ends, np.uint64)
    inodes["data"][symlinks] = np.frombuffer(targets, np.uint64)
    inodes["length"][symlinks] = np.diff(ends, prepend=np.uint64(0))
    inodes["entry"] = NO_ENTRY
    # Backwards, so that the first of several entries for one inode is written last and stays.
    stop = len(tree.inode)
    for some in _cut(np.frombuffer(tree.inode, np.uint32)[::-1]):
        inodes["entry"][some] = np.arange(stop - 1, stop - 1 - len(some), -1)
        stop -= len(some)


def _fill_blocks(tables: index_layout.Image, blocks: BlocksOf) -> None:
    """Fill in the checksums of blocks, in the order of the inodes."""
    ends = np.frombuffer(blocks.ends, np.int64)
    counts = np.diff(ends, prepend=0)
    checksums = np.frombuffer(blocks.checksums, np.uint32)
    inodes = np.frombuffer(blocks.inodes, np.uint32)
    order = np.argsort(inodes, kind="stable")
    tables.large["inode"] = inodes[order]
    tables.large["first"] = np.cumsum(counts[order]) - counts[order]
    at = 0
    for some in _cut(order):
        for end, count in zip(ends[some].tolist(), counts[some].tolist(), strict=True):
            tables.blocks[at : at + count] = checksums[end - count : end]
            at += count


def _fill_hashes(tables: index_layout.Image, tree: Tree, folders: _Folders) -> None:
    """Fill in the CRC-32s of all paths, sorted, and the entry of each."""
    crcs = array("I")
    named_by = iter(folders.named_by.tolist())
    prefix = 0  # CRC of the empty path of the root
    for first, count in zip(folders.first.tolist(), folders.count.tolist(), strict=True):
        crcs.extend(map(crc32, tree.names.some(first, first + count), repeat(prefix)))
        # Breadth first: the entry of the next folder is in an earlier folder, so its CRC is known.
        prefix = crc32(b"/", crcs[entry]) if (entry := next(named_by, None)) is not None else 0
    rows = np.frombuffer(crcs, np.uint32).astype(np.uint64)
    del crcs
    rows <<= np.uint64(32)
    rows |= np.arange(len(rows), dtype=np.uint32)
    rows.sort()  # by hash, then by entry
    for start in range(0, len(rows), AT_A_TIME):
        some = rows[start : start + AT_A_TIME]
        tables.hashes[start : start + len(some)] = some >> np.uint64(32)
        tables.hashed[start : start + len(some)] = some & np.uint64(0xFFFFFFFF)

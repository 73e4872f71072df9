"""`Tree`: a folder as it is gathered, one row per inode and per entry; and its index's image.

Breadth first: whoever fills a tree adds the root, then goes through the folders in the order of
their numbers and adds each one's entries, sorted by name. The same tree gives the same bytes.
"""

from __future__ import annotations

import stat
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.checksum import crc32
from ffrecord.index import layout
from ffrecord.index.layout import ATTRIBUTES, ENTRY, INODE, LARGE, NO_ENTRY, SHARD, XATTR, Image

Ints: TypeAlias = npt.NDArray[np.int64]
Xattrs: TypeAlias = "tuple[tuple[bytes, bytes], ...]"


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of an archive that has several."""

    name: bytes
    records: int
    crc: int


class Tree:
    """Inodes and entries, in columns: a million files take about 150 MB while they are packed."""

    def __init__(self) -> None:
        self.mode = array("I")
        self.uid = array("I")
        self.gid = array("I")
        self.mtime = array("q")
        self.length = array("Q")  # of files
        self.record = array("Q")  # of files
        self.targets: dict[int, bytes] = {}
        self.xattrs: dict[int, Xattrs] = {}
        self.blocks: dict[int, array[int]] = {}  # of files larger than one block
        self.names: list[bytes] = []
        self.inode = array("I")  # of each entry
        self.parent = array("I")

    def __len__(self) -> int:
        return len(self.mode)

    @property
    def columns(self) -> tuple[array[int], ...]:
        """What there is one of for each inode."""
        return self.mode, self.uid, self.gid, self.mtime, self.length, self.record

    def add_inode(
        self, mode: int, uid: int, gid: int, mtime: int, length: int = 0, record: int = 0
    ) -> int:
        """A new inode's number."""
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

    def spans(self) -> tuple[Ints, Ints]:
        """For every inode its first entry and how many it has; both 0 unless it is a folder."""
        count = np.bincount(np.frombuffer(self.parent, np.uint32), minlength=len(self))
        first = np.cumsum(count) - count
        return first, count

    def in_path_order(self) -> Iterator[tuple[int, int]]:
        """Every entry and its depth, depth first: a folder, then all that is in it."""
        first, count = (column.tolist() for column in self.spans())
        open_folders = [iter(range(count[0]))]
        while open_folders:
            entry = next(open_folders[-1], None)
            if entry is None:
                open_folders.pop()
                continue
            yield entry, len(open_folders)
            inode = self.inode[entry]
            if count[inode]:
                open_folders.append(iter(range(first[inode], first[inode] + count[inode])))

    def without(self, gone: set[int]) -> Tree:
        """The same without some files."""
        kept = Tree()
        number = {}
        for inode in range(len(self)):
            if inode in gone:
                continue
            number[inode] = new = kept.add_inode(*(column[inode] for column in self.columns))
            for column in ("targets", "xattrs", "blocks"):
                if inode in getattr(self, column):
                    getattr(kept, column)[new] = getattr(self, column)[inode]
        for name, parent, inode in zip(self.names, self.parent, self.inode, strict=True):
            if inode not in gone:
                kept.add_entry(number[parent], name, number[inode])
        return kept


def build(tree: Tree, shards: Sequence[Shard] = ()) -> bytes:
    """The image of a tree whose files all have their record, length and blocks."""
    texts = _Texts()
    first, count = tree.spans()
    entries = _entries(tree)
    kind = np.frombuffer(tree.mode, np.uint32) & np.uint32(0o170000)
    is_folder, is_symlink = kind == stat.S_IFDIR, kind == stat.S_IFLNK

    inodes = np.zeros(len(tree), INODE)
    inodes["data"] = np.where(is_folder, first, np.frombuffer(tree.record, np.uint64))
    inodes["length"] = np.where(is_folder, count, np.frombuffer(tree.length, np.uint64))
    inodes["mtime"] = tree.mtime
    symlinks = is_symlink.nonzero()[0].tolist()
    inodes["data"][symlinks] = [texts.add(tree.targets[inode]) for inode in symlinks]
    inodes["length"][symlinks] = [len(tree.targets[inode]) for inode in symlinks]
    inodes["entry"] = NO_ENTRY
    # Backwards, so that of several entries for one inode the first is what remains.
    inodes["entry"][entries["inode"][::-1]] = np.arange(len(entries) - 1, -1, -1)

    links = np.bincount(entries["inode"], minlength=len(tree))
    links[is_folder] = 2
    links += np.bincount(entries["parent"][is_folder[entries["inode"]]], minlength=len(tree))
    xattrs, sets = _xattrs(tree.xattrs, texts)
    inodes["attributes"], attributes = _attributes(tree, links, sets)

    large, blocks = _blocks(tree.blocks)
    hashes, hashed = _hashes(tree)
    shard_rows = np.zeros(len(shards), SHARD)
    for row, shard in zip(shard_rows, shards, strict=True):
        row["records"], row["text"] = shard.records, texts.add(shard.name)
        row["name"], row["crc"] = len(shard.name), shard.crc
    image = Image(
        inodes, entries, hashes, hashed, attributes, xattrs, large, blocks, shard_rows,
        np.frombuffer(texts.bytes, np.uint8), np.frombuffer(b"".join(tree.names), np.uint8),
    )  # fmt: skip
    return layout.assemble(image)


class _Texts:
    """Strings end to end, each one kept once."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._known: dict[bytes, int] = {}

    def add(self, text: bytes) -> int:
        at = self._known.setdefault(text, len(self.bytes))
        if at == len(self.bytes):
            self.bytes += text
        return at


def _entries(tree: Tree) -> layout.Rows:
    entries = np.zeros(len(tree.names), ENTRY)
    entries["name_end"] = np.cumsum(np.fromiter(map(len, tree.names), np.int64, len(tree.names)))
    entries["inode"] = tree.inode
    entries["parent"] = tree.parent
    return entries


def _xattrs(
    xattrs: Mapping[int, Xattrs], texts: _Texts
) -> tuple[layout.Rows, dict[int, tuple[int, int]]]:
    """The table, and for each inode that has some its first row and how many. Sets are shared."""
    rows: list[tuple[int, int, int]] = []
    known: dict[Xattrs, tuple[int, int]] = {}
    sets = {}
    for inode in sorted(xattrs):
        pairs = xattrs[inode]
        if pairs not in known:
            known[pairs] = (len(rows), len(pairs))
            rows += [(texts.add(name + value), len(name), len(value)) for name, value in pairs]
        sets[inode] = known[pairs]
    return np.array(rows, XATTR), sets


def _attributes(
    tree: Tree, links: Ints, sets: Mapping[int, tuple[int, int]]
) -> tuple[npt.NDArray[np.uint32], layout.Rows]:
    """Each inode's row, and the rows: what many inodes have in common is there once."""
    known: dict[tuple[int, ...], int] = {}
    none = (0, 0)
    rows = np.fromiter(
        (
            known.setdefault((mode, uid, gid, count, *sets.get(inode, none)), len(known))
            for inode, (mode, uid, gid, count) in enumerate(
                zip(tree.mode, tree.uid, tree.gid, links.tolist(), strict=True)
            )
        ),
        np.uint32,
        len(tree),
    )
    return rows, np.array(list(known), ATTRIBUTES)


def _blocks(blocks: Mapping[int, array[int]]) -> tuple[layout.Rows, npt.NDArray[np.uint32]]:
    large = np.zeros(len(blocks), LARGE)
    large["inode"] = sorted(blocks)
    checksums = [np.frombuffer(blocks[inode], np.uint32) for inode in large["inode"].tolist()]
    counts = np.array(list(map(len, checksums)), np.int64)
    large["first"] = np.cumsum(counts) - counts
    return large, np.concatenate(checksums) if checksums else np.empty(0, np.uint32)


def _hashes(tree: Tree) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """CRC-32s of all paths, sorted, and whose they are."""
    prefix = array("I", bytes(4 * len(tree)))  # of each folder's path with a slash after it
    hashes = np.empty(len(tree.names), np.uint32)
    for entry, (name, parent, inode) in enumerate(
        zip(tree.names, tree.parent, tree.inode, strict=True)
    ):
        hashes[entry] = crc = crc32(name, prefix[parent])
        if tree.is_folder(inode):
            prefix[inode] = crc32(b"/", crc)
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order.astype(np.uint32)

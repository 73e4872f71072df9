"""Targets: EROFS images of random valid trees, and of mutated indexes.

The image of a tree is compared with the tree itself. No archive is needed: the records are numbers
in a table, and the bytes of a record follow from their positions.
"""

from __future__ import annotations

import os
import random
import stat
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit_texts
from ffrecord.archive.index import Index
from ffrecord.archive.index.build import Tree, build
from ffrecord.format import erofs
from ffrecord_fuse.filesystem import Ownership
from ffrecord_fuse.kernel.image import Image
from tests.robustness.fuzzing import indexes, reference
from tests.robustness.fuzzing.target import Target
from tests.support.erofs_image import IN_IMAGE, Checker, Node

BLOCK = 128 << 10
SIZES = (0, 1, 100, 511, 512, 513, 4095, 4096, 4097, 10_000, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK)
HUGE = ((1 << 32) - 1, 1 << 32, (1 << 32) + 12_345)
TARGETS = (1, 20, 440, 448, 449, 512, 1000, 4032, 4033, 4095)
VALUES = (0, 1, 3, 4, 100, 5000, 65_535, 65_536)
STARTS = (b"", b"-", b".", b"..", b".-", b". ", b"~", b"\xff", b"\x01")
IN_TARGETS = b"\x01" + bytes(range(1, 256))  # for each random byte, one that a target may have
IN_NAMES = IN_TARGETS.replace(b"/", b"-")


# ---- archives without bytes ------------------------------------------------------------------


def byte_at(device: int, offset: int, length: int) -> bytes:
    """Return bytes that differ from device to device and from place to place."""
    places = np.arange(offset, offset + length)
    return ((7 * places + places // 256 + device) % 251).astype(np.uint8).tobytes()


@dataclass(frozen=True)
class Device:
    """A file of an archive that has no bytes but those that `byte_at` returns."""

    number: int
    length: int
    fd: int

    def size(self) -> int:
        return self.length

    def read_bytes(self, offset: int, length: int) -> bytes:
        assert offset + length <= self.length
        return byte_at(self.number, offset, length)


@dataclass
class Table:
    """The places of records."""

    device: list[int] = field(default_factory=list)
    begin: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def places(self, records: Ints) -> tuple[Ints, Ints]:
        return np.array(self.device, np.int64)[records], np.array(self.begin, np.int64)[records]


def image_of(index: Index, table: Table, layout: erofs.Layout, own: Ownership) -> tuple[bytes, Any]:
    """Return the bytes of an image, and the image."""
    fds = [os.memfd_create("device") for _ in table.sizes]
    out = os.memfd_create("image")
    try:
        for fd, size in zip(fds, table.sizes, strict=True):
            os.ftruncate(fd, size)
        devices = tuple(
            Device(number, size, fd)
            for number, (size, fd) in enumerate(zip(table.sizes, fds, strict=True))
        )
        opened = SimpleNamespace(each=devices)
        kept = SimpleNamespace(places=table.places, require_files=lambda: opened)
        reader = SimpleNamespace(_table=kept, get_offsets=lambda number: [table.sizes[number]])
        archive = SimpleNamespace(index=index, reader=reader)
        image = Image(cast(Archive, archive), layout, own)
        image.write(out)
        return os.pread(out, os.fstat(out).st_size, 0), image
    finally:
        for fd in (*fds, out):
            os.close(fd)


# ---- random trees ----------------------------------------------------------------------------


@dataclass
class Item:
    """A file, folder or symlink of a random tree."""

    node: Node
    record: int = -1
    inside: dict[bytes, Item] = field(default_factory=dict)
    inode: int = -1


class Garden:
    """Random trees, with the columns of an index that must describe them."""

    def __init__(self, data: bytes) -> None:
        self.random = random.Random(data)
        self.layout = self.random.choice([erofs.EXTENTS, erofs.CHUNKS])
        self.table = Table()
        self.devices = self.random.randint(1, 4)
        self.sets = [self._xattrs() for _ in range(4)]
        self.linked: list[Item] = []
        self.room = self.random.choice([5, 10, 20, 50, 250])  # names that may still be added
        self.root = self._folder(0)
        self._place_records()

    def _node(self, kind: int, size: int = 0) -> Node:
        pick = self.random
        mtime = pick.choice([0, -1, 1, -(10**18) - 1, 10**18 + 5, pick.randrange(-(2**62), 2**62)])
        owners = [0, 1000, 2**32 - 2, pick.randrange(2**32 - 1)]
        xattrs = pick.choice([{}, {}, {}, *self.sets])
        return Node(0, kind | pick.randrange(0o10000), pick.choice(owners), pick.choice(owners),
                    mtime, 1, size, xattrs=xattrs)  # fmt: skip

    def _xattrs(self) -> dict[bytes, bytes]:
        pick = self.random
        count = pick.choice([0, 1, 2, 5]) if pick.random() < 0.99 else pick.randint(250, 330)
        sizes = VALUES if count < 10 else pick.choice([VALUES[:5], VALUES[5:6]])
        return {
            b"user.%d" % n + b"x" * pick.choice([0, 1, 9, 240]): pick.randbytes(pick.choice(sizes))
            for n in range(count)
        }

    def _folder(self, depth: int) -> Item:
        pick = self.random
        item = Item(self._node(stat.S_IFDIR))
        item.node.links = 2
        count = pick.choice([0, 1, 2, 3, 8, 20]) if pick.random() < 0.95 else pick.randint(30, 150)
        for _ in range(min(count, self.room)):
            self.room -= 1
            name = self._name()
            chance = pick.random()
            if chance < 0.2 and depth < 5:
                item.inside[name] = self._folder(depth + 1)
            elif chance < 0.4:
                target = self._node(stat.S_IFLNK, pick.choice(TARGETS))
                target.target = pick.randbytes(target.size).translate(IN_TARGETS)
                item.inside[name] = Item(target)
            elif chance < 0.5 and self.linked:
                item.inside[name] = pick.choice(self.linked)
            else:
                item.inside[name] = self._file()
        return item

    def _name(self) -> bytes:
        pick = self.random
        length = pick.choice([1, 2, 3, 12, 12, 12, 30, 200, 255])
        start = pick.choice(STARTS) if pick.random() < 0.3 else b""
        name = (start + pick.randbytes(length).translate(IN_NAMES))[:255]
        return name if name not in (b".", b"..") else b"dots"

    def _file(self) -> Item:
        pick = self.random
        is_huge = pick.random() < 0.0005
        item = Item(self._node(stat.S_IFREG, pick.choice(HUGE if is_huge else SIZES)))
        if self.table.length and pick.random() < 0.05:  # two files may share a record
            item.record = pick.randrange(len(self.table.length))
            item.node.size = self.table.length[item.record]
        else:
            item.record = len(self.table.length)
            self.table.length.append(item.node.size)
        if pick.random() < 0.2:
            self.linked.append(item)
        return item

    def _place_records(self) -> None:
        """Give the records places in the devices, one after the other."""
        pick, table = self.random, self.table
        unit = self.layout.block if self.layout is erofs.CHUNKS else 1
        ends = [pick.randrange(3000) for _ in range(self.devices)]
        for length in table.length:
            device = pick.randrange(self.devices)
            gap = pick.choice([0, 0, 0, pick.randrange(5000)])
            begin = -(-(ends[device] + gap) // unit) * unit
            table.device.append(device)
            table.begin.append(begin)
            ends[device] = begin + length
        more = [pick.choice([0, 1, 100, 4096, 10_000]) for _ in ends]
        table.sizes = [
            -(-end // unit) * unit + extra for end, extra in zip(ends, more, strict=True)
        ]

    def index(self) -> Index:
        """Return the index of the tree. Give inodes their numbers and links, breadth first."""
        tree, level = Tree(), [self.root]
        self._add(tree, self.root)
        while level:
            below = []
            for folder in level:
                for name, item in sorted(folder.inside.items()):
                    if item.inode < 0:
                        self._add(tree, item)
                    elif not stat.S_ISDIR(item.node.mode):
                        item.node.links += 1
                    tree.add_entry(folder.inode, name, item.inode)
                    if stat.S_ISDIR(item.node.mode):
                        folder.node.links += 1
                        below.append(item)
            level = below
        sizes = np.array([*self.table.length, 0])
        return Index("random.ffr", build(tree), sizes)

    def _add(self, tree: Tree, item: Item) -> None:
        node = item.node
        is_file = stat.S_ISREG(node.mode)
        item.inode = tree.add_inode(
            node.mode, node.uid, node.gid, node.mtime_ns,
            node.size if is_file else 0, item.record if is_file else 0,
        )  # fmt: skip
        if node.target:
            tree.targets[item.inode] = node.target
        if node.xattrs:
            tree.xattrs[item.inode] = tuple(node.xattrs.items())
        if is_file and node.size > BLOCK:
            tree.blocks[item.inode] = array("I", bytes(4 * -(-node.size // BLOCK)))

    def ownership(self) -> tuple[Ownership, Item]:
        """Return random options, and the folder that they make the root."""
        pick = self.random
        root = self.root
        while pick.random() < 0.3:
            inner = [each for each in root.inside.values() if stat.S_ISDIR(each.node.mode)]
            root = pick.choice(inner) if inner else root
        uid, gid, umask, keeper = (pick.choice([None, None, n]) for n in (5, 6, 0o27, 77))
        return Ownership(uid, gid, umask, root.inode, keeper), root


def checked(data: bytes) -> str:
    """Make a random tree and its image, and check the image."""
    garden = Garden(data)
    index = garden.index()
    own, root = garden.ownership()
    raw, image = image_of(index, garden.table, garden.layout, own)
    found = Checker(raw, garden.table.sizes).tree()
    due: dict[bytes, Item] = {b"": root}
    waiting = [(b"", root)]
    while waiting:
        path, folder = waiting.pop()
        for name, item in folder.inside.items():
            inner = path + b"/" + name if path else name
            due[inner] = item
            if item.inside:
                waiting.append((inner, item))
    assert found.keys() == due.keys()
    numbers: dict[int, int] = {}
    left_out = set(image.left_out())
    for path, item in due.items():
        compare(found[path], item, garden, own, raw, left_out)
        assert numbers.setdefault(item.inode, found[path].number) == found[path].number
    assert len(set(numbers.values())) == len(numbers)
    return f"{garden.layout.name}, {'subfolder' if own.root else 'whole'}"


def compare(
    found: Node, item: Item, garden: Garden, own: Ownership, raw: bytes, left_out: set[bytes]
) -> None:
    node = item.node
    kind = stat.S_IFMT(node.mode)
    mode = node.mode
    if own.umask is not None and kind != stat.S_IFLNK:
        mode = kind | (0o777 & ~own.umask)
    uid = node.uid if own.uid is None else own.uid
    gid = node.gid if own.gid is None else own.gid
    if item.inode == own.root and own.keeper is not None:
        mode, uid = stat.S_IFDIR | 0o500, own.keeper
    assert (found.mode, found.uid, found.gid) == (mode, uid, gid)
    assert (found.mtime_ns, found.links) == (node.mtime_ns, node.links)
    assert found.xattrs.items() <= node.xattrs.items()
    missing = node.xattrs.keys() - found.xattrs.keys()
    assert missing <= left_out
    assert all(len(node.xattrs[name]) > 65_535 or len(node.xattrs) > 255 for name in missing)
    if kind == stat.S_IFDIR:
        return
    assert found.size == node.size
    if kind == stat.S_IFLNK:
        assert found.target == node.target
    elif node.size:
        compare_pieces(found, item.record, garden.table, raw)


def compare_pieces(found: Node, record: int, table: Table, raw: bytes) -> None:
    """Check that the pieces of a file are its record, in order; a few bytes may be in the image."""
    device, at = table.device[record], table.begin[record]
    for where, offset, length in found.pieces:
        if where == IN_IMAGE:
            assert raw[offset : offset + length] == byte_at(device, at, length)
        else:
            assert (where, offset) == (device, at)
        at += length
    assert at == table.begin[record] + table.length[record]


def images() -> Target:
    seeds = tuple(b"%d" % number for number in range(20))
    return Target("image", checked, seeds, memory=256 << 20, is_seed=True)


# ---- mutated indexes -------------------------------------------------------------------------


def indexed() -> Target:
    sizes = np.array(indexes.SIZES, np.int64)
    ends = np.cumsum(sizes)
    count = len(indexes.SIZES)
    table = Table([0] * count, (ends - sizes).tolist(), sizes.tolist(), [int(ends[-1])])

    def run(data: bytes) -> str:
        found = Index("folder.ffr", data, sizes)
        reader = SimpleNamespace(path="folder.ffr", index=found)
        audit_texts(cast(Archive, reader))
        raw, _ = image_of(found, table, erofs.EXTENTS, Ownership())
        shown = Checker(raw, table.sizes).tree()
        expected = reference.index(data, indexes.SIZES)
        assert expected is not None
        paths = {0: b""}
        for folder, (first, entries, *_) in enumerate(expected.inodes):
            if folder in paths and stat.S_ISDIR(shown[paths[folder]].mode):
                for row in range(first, first + entries):
                    path = os.path.join(paths[folder], expected.names[row])
                    paths.setdefault(expected.entries[row][1], path)
                    assert path in shown
        for inode, path in paths.items():
            node, status = shown[path], found.status(inode)
            assert (node.mode, node.uid, node.gid) == (status.mode, status.uid, status.gid)
            assert (node.mtime_ns, node.links) == (status.mtime_ns, status.links)
            if status.is_file and status.size:
                compare_pieces(node, found.record(inode), table, raw)
        return "image"

    return Target("indexed", run, indexes.IMAGES, in_place=True, memory=256 << 20)

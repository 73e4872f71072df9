"""Read and check EROFS images, with `struct` only, from the definition of the format.

The definition is fs/erofs/erofs_fs.h of Linux 6.18, and what the kernel's code demands. This module
must not use ffrecord.format.erofs, because it checks what that module makes.
"""

from __future__ import annotations

import stat
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

KINDS = {1: stat.S_IFREG, 2: stat.S_IFDIR, 7: stat.S_IFLNK}
PLAIN, EXTENTS, INLINE, CHUNKS = 0, 1, 2, 4
IN_IMAGE = -1
MAX_EXTENT = 1 << 20


@dataclass
class Node:
    """An inode of an image. `pieces` has (device, offset, length) for each part of a file."""

    number: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    links: int
    size: int
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[tuple[int, int, int]] = field(default_factory=list)


class Checker:
    """An image, and the sizes of the devices that it must describe."""

    def __init__(self, image: bytes, device_sizes: Sequence[int]) -> None:
        self.image = image
        self.sizes = device_sizes
        self._read_superblock()
        tails = self.block * len(self.sizes) if self.block == 4096 else 0
        self.tails = self.end - tails
        """Where the copies of the devices' incomplete blocks begin."""
        self.used = [(0, self.meta), (self.shared, self.end)]
        """Ranges of the image that have a purpose."""

    def _read_superblock(self) -> None:
        image = self.image
        (magic, _, compatible, bits, slots, root, self.inodes, _, _, blocks, meta, xattrs) = (
            struct.unpack_from("<IIIBBHQQIIII", image, 1024)
        )
        features, _, devices, slot_offset, dir_bits, prefixes = struct.unpack_from(
            "<IHHHBB", image, 1024 + 80
        )
        assert magic == 0xE0F5E1E2
        assert compatible == 2
        assert not slots
        assert not dir_bits
        assert not prefixes
        assert image[1024 + 92 : 1024 + 128] == bytes(36)
        assert bits in (9, 12)
        assert features == {9: 0x4 | 0x8, 12: 0x1 | 0x8}[bits]
        self.block = 1 << bits
        assert blocks * self.block <= len(image) < blocks * self.block + 4096
        assert len(image) % 4096 == 0
        self.end = blocks * self.block
        self.meta, self.shared, self.root = meta * self.block, xattrs * self.block, root
        assert devices == len(self.sizes)
        self.firsts = []
        for number, size in enumerate(self.sizes):
            at = 128 * (slot_offset + number)
            assert 1024 + 144 <= at <= self.meta - 128
            count, first = struct.unpack_from("<II", image, at + 64)
            assert image[at : at + 64] == bytes(64)
            assert image[at + 72 : at + 128] == bytes(56)
            assert count == -(-size // self.block)
            self.firsts.append(first * self.block)
        if bits == 12:
            ends = [first + -(-size // 4096) * 4096 for first, size in
                    zip(self.firsts, self.sizes, strict=True)]  # fmt: skip
            assert self.firsts == [self.end, *ends][:-1]

    # ---- the tree ----------------------------------------------------------------------------

    def tree(self) -> dict[bytes, Node]:
        """Return all inodes by path, and b"" for the root. Check everything on the way."""
        found = {b"": self.node(self.root)}
        nodes = {self.root: found[b""]}
        waiting = [(b"", self.root, self.root)]
        while waiting:
            path, number, above = waiting.pop()
            for name, child, kind in self.entries(nodes[number]):
                if name in (b".", b".."):
                    assert child == (number if name == b"." else above)
                    assert kind == 2
                    continue
                if child not in nodes:
                    nodes[child] = self.node(child)
                node = nodes[child]
                assert stat.S_IFMT(node.mode) == KINDS[kind]
                inner = path + b"/" + name if path else name
                found[inner] = node
                if kind == 2:
                    waiting.append((inner, child, number))
        assert self.inodes == len(nodes)
        self._check_used()
        return found

    def _check_used(self) -> None:
        """Check that no two things share bytes, and that all other bytes are zeros."""
        at = 0
        for begin, end in sorted(self.used):
            assert at <= begin <= end <= self.end
            assert not self.image[at:begin].strip(b"\0")
            at = end
        assert not self.image[at:].strip(b"\0")

    def node(self, number: int) -> Node:
        at = self.meta + 32 * number
        assert number > 1  # tools take 0 and 1 for something else
        (form, words, mode, zero, size, data, low, uid, gid, seconds, nanoseconds, links) = (
            struct.unpack_from("<HHHHQIIIIqII", self.image, at)
        )
        assert self.image[at + 48 : at + 64] == bytes(16)
        assert form & 1
        assert not zero
        assert low == number
        assert 0 <= nanoseconds < 10**9
        node = Node(number, mode, uid, gid, seconds * 10**9 + nanoseconds, links, size)
        end = at + 64
        if words:
            end = self._read_xattrs(node, end, 12 + 4 * (words - 1))
        self.used.append((at, end))
        layout = form >> 1
        kind = stat.S_IFMT(mode)
        if layout in (PLAIN, INLINE):
            if kind == stat.S_IFREG:
                assert (layout, size, data) == (PLAIN, 0, 0)
            else:
                self._read_data(node, layout, end, data)
        else:
            assert kind == stat.S_IFREG
            assert size
            read = {EXTENTS: self._read_extents, CHUNKS: self._read_chunks}[layout]
            read(node, end, data)
            assert sum(length for _, _, length in node.pieces) == size
        return node

    def _read_data(self, node: Node, layout: int, end: int, data: int) -> None:
        """Read the data of a folder or a symlink, which is kept as its target for now."""
        begin = end if layout == INLINE else data * self.block
        if layout == INLINE:
            assert not data
            assert begin // self.block == (begin + node.size - 1) // self.block
        else:
            assert begin >= self.meta
        assert node.size
        self.used.append((begin, begin + node.size))
        node.target = self.image[begin : begin + node.size]
        assert len(node.target) == node.size
        if stat.S_ISLNK(node.mode):
            assert b"\0" not in node.target

    def entries(self, folder: Node) -> list[tuple[bytes, int, int]]:
        """Return the entries of a folder: name, inode number and kind."""
        found = []
        for begin in range(0, folder.size, self.block):
            block = folder.target[begin : begin + self.block]
            (first,) = struct.unpack_from("<H", block, 8)
            assert first
            assert first % 12 == 0
            rows = [struct.unpack_from("<QHBB", block, at) for at in range(0, first, 12)]
            places = [place for _, place, _, _ in rows]
            ends = [*places[1:], len(block)]
            for (child, place, kind, zero), end in zip(rows, ends, strict=True):
                name = block[place:end]
                if end == len(block):
                    name = name.rstrip(b"\0")
                assert not zero
                assert 0 < len(name) <= 255
                assert b"\0" not in name
                assert b"/" not in name
                found.append((name, child, kind))
        names = [name for name, _, _ in found]
        assert names == sorted(set(names))
        assert {b".", b".."} <= set(names)
        return found

    # ---- contents ----------------------------------------------------------------------------

    def _read_extents(self, node: Node, end: int, blocks: int) -> None:
        assert self.block == 4096
        assert blocks == -(-node.size // self.block)
        at = -(-end // 8) * 8
        count, advice, zero = struct.unpack_from("<IHH", self.image, at)
        assert not zero
        width = 4 << (advice >> 1 & 3)
        assert advice == {16: 1 | 2 << 1, 32: 1 | 3 << 1}[width]
        assert width == (32 if node.size >> 32 else 16)
        self.used.append((at, at + 8))
        at = -(-(at + 8) // width) * width
        self.used.append((at, at + count * width))
        rows = self.image[at : at + count * width]
        assert len(rows) == count * width
        until = 0
        for length, position, offset, *zeros in struct.iter_unpack(
            {16: "<IQI", 32: "<IQQIII"}[width], rows
        ):
            assert not any(zeros)
            assert 0 < length <= MAX_EXTENT
            assert offset == until
            until += length
            node.pieces.append(self._place(position, length))

    def _place(self, position: int, length: int) -> tuple[int, int, int]:
        """Return the device of an extent, whose blocks must all be complete."""
        if position < self.end:
            assert self.tails <= position
            assert position + length <= self.end
            return IN_IMAGE, position, length
        device = bisect_right(self.firsts, position) - 1
        offset = position - self.firsts[device]
        assert -(-(offset + length) // self.block) * self.block <= self.sizes[device]
        return device, offset, length

    def _read_chunks(self, node: Node, end: int, data: int) -> None:
        assert self.block == 512
        assert data == 0x20 | 31
        chunk = self.block << 31
        at = -(-end // 8) * 8
        count = -(-node.size // chunk)
        self.used.append((at, at + 8 * count))
        for row in range(count):
            zero, device, block = struct.unpack_from("<HHI", self.image, at + 8 * row)
            assert not zero
            length = min(chunk, node.size - row * chunk)
            whole = -(-length // self.block) * self.block
            assert block * self.block + whole <= self.sizes[device - 1]
            node.pieces.append((device - 1, block * self.block, length))

    # ---- extended attributes -----------------------------------------------------------------

    def _read_xattrs(self, node: Node, at: int, size: int) -> int:
        shared: int
        filter_, shared, zero = struct.unpack_from("<III", self.image, at)
        assert not filter_
        assert not zero
        assert shared <= 255
        assert size > 12  # the kernel refuses a header alone
        listed = at + 12 + 4 * shared
        for number in struct.unpack_from(f"<{shared}I", self.image, at + 12):
            begin = self.shared + 4 * number
            assert self._read_xattr(node, begin) <= self.tails
        while listed < at + size:
            listed = self._read_xattr(node, listed)
        assert listed == at + size
        return listed

    def _read_xattr(self, node: Node, at: int) -> int:
        """Read one attribute; return where the next one begins."""
        length: int
        size: int
        length, prefix, size = struct.unpack_from("<BBH", self.image, at)
        assert prefix == 1
        name = b"user." + self.image[at + 4 : at + 4 + length]
        assert name not in node.xattrs
        end = at + 4 + length + size
        node.xattrs[name] = self.image[at + 4 + length : end]
        return -(-end // 4) * 4

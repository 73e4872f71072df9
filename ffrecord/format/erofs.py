"""Bytes of an EROFS file system whose files lie in other files: the kernel back end mounts such.

EROFS is a read-only file system of Linux. Its definition is fs/erofs/erofs_fs.h in the kernel. The
image here has only metadata. The contents of files stay in the archive, which the kernel opens as
an additional device. All numbers are little endian:

    +----------+------------+---------+---------------------------------------+----------------+
    | 1024     | superblock | devices | inodes, each followed by its payload  | blocks of      |
    | zeros    | 128        | 128 each| (xattr header, extents, small folder) | data           |
    +----------+------------+---------+---------------------------------------+----------------+
                                       <----------- numbered by 32 ---------->

An inode's number is its offset in the part with the inodes, divided by 32. There are two layouts:

- `EXTENTS` has blocks of 4096 bytes. A file is a list of extents, which begin at any byte. The
  kernel calls them encoded extents (Linux 6.15). It reads whole blocks and copies out the bytes.
- `CHUNKS` has blocks of 512 bytes. A file is one run of blocks, so it must begin at a multiple of
  512. The kernel reads straight into the pages of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints, Mask

MAGIC = 0xE0F5E1E2
TYPE = "erofs"
SLOT = 32  # bytes; inode numbers count in this unit
HEAD = 4096
"""Bytes in front of the first inode if there are few devices. The kernel reads its first page."""

LARGEST_XATTR = (1 << 16) - 1  # bytes of a value: a 16-bit number
MOST_SHARED = 255  # shared extended attributes of one inode: an 8-bit number
MOST_INLINE = 4 * ((1 << 16) - 2)  # bytes after an inode's xattr header: a 16-bit number of words
MOST_DEVICES = (1 << 16) - 1
SMALL_FILE = 1 << 32
"""Files of this size and more have extents with 64-bit offsets."""

_SUPERBLOCK = struct.Struct("<II I BBH Q QII II 16s 16s I HHH BB I 32x")
_SUPERBLOCK_AT = 1024
_DEVICES_AT = 1280  # a multiple of 128, behind the superblocks of all kernels
_HAS_MTIMES = 2  # compatible feature: inodes have times of their own
_ZERO_PADDING, _CHUNKED_FILES, _DEVICE_TABLE = 1, 4, 8  # incompatible features

DEVICE = np.dtype([
    ("tag", "V64"),
    ("blocks", "<u4"),
    ("first", "<u4"),  # its first block in the address space of all devices; 0: none
    ("zero", "V56"),
])  # fmt: skip
INODE = np.dtype([
    ("format", "<u2"),  # 1 (the long form) and the `DataLayout`
    ("xattrs", "<u2"),  # 0, or 1 and the number of words after the xattr header
    ("mode", "<u2"),
    ("zero", "<u2"),
    ("size", "<u8"),
    ("data", "<u4"),  # first block, number of blocks, or format of chunks: see `DataLayout`
    ("number", "<u4"),  # unused by 64-bit kernels
    ("uid", "<u4"),
    ("gid", "<u4"),
    ("seconds", "<i8"),
    ("nanoseconds", "<u4"),
    ("links", "<u4"),
    ("reserved", "V16"),
])  # fmt: skip
DIRENT = np.dtype([
    ("inode", "<u8"),
    ("name", "<u2"),  # offset of its name in the block
    ("kind", "u1"),
    ("zero", "u1"),
])  # fmt: skip
EXTENT = np.dtype([("length", "<u4"), ("position", "<u8"), ("offset", "<u4")])
LONG_EXTENT = np.dtype([("length", "<u4"), ("position", "<u8"), ("offset", "<u8"), ("zero", "V12")])
CHUNK = np.dtype([("zero", "<u2"), ("device", "<u2"), ("block", "<u4")])
XATTR_HEADER = np.dtype([("filter", "<u4"), ("shared", "<u4"), ("zero", "<u4")])
XATTR = np.dtype([("name", "u1"), ("prefix", "u1"), ("value", "<u2")])

EXTENTS_HEADER = 8
USER_PREFIX = 1  # stands for "user." in front of an attribute's name
_HAS_EXTENTS = 1
_EXTENT_OF_16, _EXTENT_OF_32 = 2 << 1, 3 << 1  # the size of an extent is 4 << this
ONE_CHUNK = 0x20 | 31
"""Format of chunks: with devices, and as long as possible."""
CHUNK_BITS = 9 + 31  # in the layout with blocks of 512 bytes

# The sizes are part of the format.
for _row, _size in (
    (DEVICE, 128), (INODE, 64), (DIRENT, 12), (EXTENT, 16), (LONG_EXTENT, 32), (CHUNK, 8),
    (XATTR_HEADER, 12), (XATTR, 4),
):  # fmt: skip
    assert _row.itemsize == _size, _row
assert _SUPERBLOCK.size == 128

DIRENT_KINDS = np.zeros(16, np.uint8)
"""The kind of an entry, by the first four bits of its inode's mode."""
DIRENT_KINDS[[0o10, 0o4, 0o12]] = 1, 2, 7  # file, folder, symlink


class DataLayout:
    """Values of an inode's format: where its data is."""

    PLAIN = 1 | 0 << 1  # in blocks of the image; `data` is the first
    EXTENTS = 1 | 1 << 1  # in extents, listed behind the inode; `data` is the number of blocks
    INLINE = 1 | 2 << 1  # behind the inode, in the same block
    CHUNKS = 1 | 4 << 1  # in chunks, listed behind the inode; `data` is their format


@dataclass(frozen=True, slots=True)
class Layout:
    """The block size and the features of an image."""

    name: str
    block_bits: int
    features: int
    files: int  # the `DataLayout` of files

    @property
    def block(self) -> int:
        return 1 << self.block_bits

    def blocks(self, size: int) -> int:
        """Return how many blocks have room for `size` bytes."""
        return -(-size // self.block)


EXTENTS = Layout("extents", 12, _ZERO_PADDING | _DEVICE_TABLE, DataLayout.EXTENTS)
CHUNKS = Layout("chunks", 9, _CHUNKED_FILES | _DEVICE_TABLE, DataLayout.CHUNKS)


@dataclass(frozen=True, slots=True)
class Places:
    """The places of an image's parts, in blocks, and its counts."""

    inodes: int  # number of inodes
    root: int  # inode number of the root folder
    meta: int  # first block of the part with the inodes
    xattrs: int  # first block of the shared extended attributes
    end: int  # number of blocks of the image


def head(layout: Layout, places: Places, device_sizes: Sequence[int]) -> bytes:
    """Return the beginning of an image: its superblock and its devices."""
    superblock = _SUPERBLOCK.pack(
        MAGIC, 0, _HAS_MTIMES, layout.block_bits, 0, places.root, places.inodes, 0, 0, places.end,
        places.meta, places.xattrs, bytes(16), b"ffrecord", layout.features, 0, len(device_sizes),
        _DEVICES_AT // DEVICE.itemsize, 0, 0, 0,
    )  # fmt: skip
    devices = np.zeros(len(device_sizes), DEVICE)
    devices["blocks"] = [layout.blocks(size) for size in device_sizes]
    if layout is EXTENTS:  # chunks name their device, extents do not
        devices["first"] = first_blocks(layout, places.end, device_sizes)[:-1]
    between = bytes(_DEVICES_AT - _SUPERBLOCK_AT - len(superblock))
    return bytes(_SUPERBLOCK_AT) + superblock + between + devices.tobytes()


def head_size(devices: int) -> int:
    """Return the number of bytes in front of the first inode."""
    return max(HEAD, -(-(_DEVICES_AT + DEVICE.itemsize * devices) // HEAD) * HEAD)


def first_blocks(layout: Layout, end: int, device_sizes: Sequence[int]) -> list[int]:
    """Return the first block of each device in the address space of all, then the end of all.

    The image is the first device. It has `end` blocks.
    """
    firsts = [end]
    for size in device_sizes:
        firsts.append(firsts[-1] + layout.blocks(size))
    return firsts


def extents_header(count: Ints, is_long: Mask) -> npt.NDArray[np.uint64]:
    """Return the numbers in front of lists of extents, eight bytes each."""
    kind = np.where(is_long, _HAS_EXTENTS | _EXTENT_OF_32, _HAS_EXTENTS | _EXTENT_OF_16)
    header: npt.NDArray[np.uint64] = count.astype("<u8") | kind.astype("<u8") << np.uint64(32)
    return header

"""Turn results and errors into replies to the kernel: bytes with a header in front.

Most functions return one `bytes` object. For file data, `framed` returns a view of a frame, and
`data` returns the buffers of one writev. Every byte of a reply is set here: old contents of a
buffer are never sent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ffrecord.archive.index import Status
from ffrecord.format.index import BLOCK
from ffrecord_fuse.filesystem import Listing, Space
from ffrecord_fuse.wire import abi

HEADER = abi.OUT_HEADER.size
FRONT = 4096
"""Bytes before the content in a frame: one page, so that the content begins at a page. The kernel
copies page by page, and needs two steps for a page whose bytes lie in two pages of the frame."""

MOST_BACKGROUND, CONGESTION = 256, 192
"""The most asynchronous requests (read-ahead, O_DIRECT) in flight, and the number from which the
kernel sends fewer."""
MOST_PAGES = 256  # of one read: 1 MiB
MOST_WRITTEN = 4096  # bytes; the kernel's minimum, because the mount is read-only

_SECOND = 1_000_000_000
_U64 = (1 << 64) - 1
_FOREVER = abi.FOREVER
_ENTRY_SIZE = abi.ENTRY_REPLY.size
_entry_reply = abi.ENTRY_REPLY.pack
_header = abi.OUT_HEADER.pack


def failure(unique: int, code: int) -> bytes:
    """Return the reply for an errno."""
    return _header(HEADER, -code, unique)


def unique_of(answer: bytes | memoryview) -> int:
    """Return the number of the request to which a reply belongs."""
    unique: int = abi.OUT_HEADER.unpack_from(answer)[2]
    return unique


def success(unique: int, payload: bytes = b"") -> bytes:
    return _header(HEADER + len(payload), 0, unique) + payload


def data(unique: int, content: memoryview) -> tuple[bytes, memoryview]:
    """Return the header and a file's bytes, without copying them."""
    return _header(HEADER + len(content), 0, unique), content


def framed(frame: memoryview, unique: int, begin: int, count: int) -> memoryview:
    """Return a view of the frame: the header, then `count` bytes of content from `begin` on.

    A frame has FRONT free bytes before its content. The header overwrites the bytes directly before
    `begin`.
    """
    end = FRONT + begin + count
    at = FRONT + begin - HEADER
    abi.OUT_HEADER.pack_into(frame, at, HEADER + count, 0, unique)
    return frame[at:end]


def attributes(unique: int, found: Status) -> bytes:
    """Return the reply to GETATTR."""
    inode, mode, links, uid, gid, size, mtime_ns = found
    # Times before 1970: the kernel reads the unsigned seconds as a signed number.
    seconds, nanoseconds = mtime_ns // _SECOND & _U64, mtime_ns % _SECOND
    packed = abi.ATTR_OUT.pack(
        _FOREVER, 0, inode + abi.ROOT_ID, size, found.blocks, seconds, seconds, seconds,
        nanoseconds, nanoseconds, nanoseconds, mode, links, uid, gid, 0, BLOCK, 0,
    )  # fmt: skip
    return success(unique, packed)


def entry(unique: int, found: Status) -> bytes:
    """Return the reply to a LOOKUP that found an inode."""
    inode, mode, links, uid, gid, size, mtime_ns = found
    node, seconds, nanoseconds = inode + abi.ROOT_ID, mtime_ns // _SECOND & _U64, mtime_ns % _SECOND
    # Written out for speed: one reply is made for every file.
    return _entry_reply(
        _ENTRY_SIZE, 0, unique, node, 0, _FOREVER, _FOREVER, 0, 0,
        node, size, (size + 511) // 512, seconds, seconds, seconds,
        nanoseconds, nanoseconds, nanoseconds, mode, links, uid, gid, 0, BLOCK, 0,
    )  # fmt: skip


def no_entry(unique: int) -> bytes:
    """Return the reply to a LOOKUP that found nothing.

    It is an entry without a node. The kernel caches it for ever, because an archive never changes.
    """
    return _entry_reply(_ENTRY_SIZE, 0, unique, 0, 0, _FOREVER, *bytes(19))


def space(unique: int, found: Space) -> bytes:
    return success(
        unique,
        abi.STATFS_OUT.pack(
            found.blocks, 0, 0, found.files, 0, found.block_size, found.longest_name,
            found.block_size,
        ),
    )  # fmt: skip


def xattr_size(unique: int, size: int) -> bytes:
    return success(unique, abi.GETXATTR_OUT.pack(size))


def init(unique: int, minor: int, max_readahead: int, flags: int) -> bytes:
    """Return the reply to INIT: the version, flags and limits of this file system."""
    return success(
        unique,
        abi.INIT_OUT.pack(
            abi.MAJOR, minor, max_readahead, flags & 0xFFFFFFFF, MOST_BACKGROUND, CONGESTION,
            MOST_WRITTEN, 1, MOST_PAGES, 0, flags >> 32,
        ),
    )  # fmt: skip


def resend() -> bytes:
    """Return the notice that makes the kernel send all unanswered requests again."""
    return _header(HEADER, abi.NOTIFY_RESEND, 0)


class Rendered:
    """Consecutive entries of a folder in the byte layout of READDIR or READDIRPLUS."""

    def __init__(self, listing: Listing, *, plus: bool) -> None:
        dtype = abi.DIRENTPLUS if plus else abi.DIRENT
        # Each entry is padded to a multiple of 8 bytes.
        sizes = dtype.itemsize + (listing.lengths + 7 & -8)
        self.first = listing.first
        self._ends = np.cumsum(sizes)
        begins = self._ends - sizes
        words = np.zeros(int(self._ends[-1]) // 8, np.uint64)
        heads = _heads(listing, dtype, plus=plus).view(np.uint64).reshape(len(sizes), -1)
        words[begins[:, None] // 8 + np.arange(heads.shape[1])] = heads
        names_at = np.cumsum(listing.lengths) - listing.lengths
        shift = np.repeat(begins + dtype.itemsize - names_at, listing.lengths)
        raw = words.view(np.uint8)
        raw[shift + np.arange(len(shift))] = listing.names
        self._bytes = raw.tobytes()

    def __len__(self) -> int:
        return len(self._ends)

    def part(self, position: int, size: int) -> bytes:
        """Return as many entries as fit into `size` bytes, from `position` in the folder on."""
        row = position - self.first
        begin = int(self._ends[row - 1]) if row else 0
        stop = int(self._ends.searchsorted(begin + size, side="right"))
        end = int(self._ends[stop - 1]) if stop else 0
        return self._bytes[begin:end]

    @property
    def size(self) -> int:
        return len(self._bytes)


def _heads(listing: Listing, dtype: np.dtype[np.void], *, plus: bool) -> npt.NDArray[np.void]:
    heads = np.zeros(len(listing.inodes), dtype)
    numbers = listing.inodes + abi.ROOT_ID
    heads["dirent_ino"] = numbers
    heads["offset"] = np.arange(listing.first + 1, listing.first + 1 + len(heads))
    heads["name_length"] = listing.lengths
    heads["kind"] = listing.modes >> 12
    if plus:
        # With nodeid 0, the kernel does not count a lookup of "." or "..".
        heads["nodeid"] = np.where(listing.dots, 0, numbers)
        heads["entry_valid"] = heads["attr_valid"] = abi.FOREVER
        heads["ino"] = numbers
        heads["size"] = listing.sizes
        heads["blocks"] = -(-listing.sizes // 512)
        seconds, nanoseconds = np.divmod(listing.mtimes, _SECOND)
        for time in ("atime", "mtime", "ctime"):
            heads[time] = seconds.view(np.uint64)
            heads[f"{time}_ns"] = nanoseconds
        heads["mode"], heads["links"] = listing.modes, listing.links
        heads["uid"], heads["gid"] = listing.uids, listing.gids
        heads["block_size"] = BLOCK
    return heads

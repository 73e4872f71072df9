"""The kernel's end of a FUSE descriptor, for tests: requests and replies as literal bytes.

This module must not use the package, because its bytes are compared with the package's. The numbers
come from include/uapi/linux/fuse.h.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.patience import PATIENCE

IN_HEADER = struct.Struct("=IIQQIIIHH")  # length opcode unique node uid gid pid extensions padding
OUT_HEADER = struct.Struct("=IiQ")
INIT_IN = struct.Struct("=IIIII11I")
READ_IN = struct.Struct("=QQIIQII")  # handle offset size read_flags lock_owner flags padding
XATTR_IN = struct.Struct("=II")
ATTR = struct.Struct("=6Q10I")
ENTRY = struct.Struct("=4Q2I")
DIRENT = struct.Struct("=QQII")

LOOKUP, FORGET, GETATTR, READLINK, READ, STATFS = 1, 2, 3, 5, 15, 17
GETXATTR, LISTXATTR, INIT, READDIR, NOTIFY_REPLY = 22, 23, 26, 28, 41
BATCH_FORGET, READDIRPLUS = 42, 44
RELEASE, RELEASEDIR, DESTROY, IOCTL = 18, 29, 38, 39
CHANGES = {
    "setattr": 4, "symlink": 6, "mknod": 8, "mkdir": 9, "unlink": 10, "rmdir": 11, "rename": 12,
    "link": 13, "write": 16, "setxattr": 21, "removexattr": 24, "create": 35, "fallocate": 43,
    "rename2": 45, "copy_file_range": 47, "tmpfile": 51,
}  # fmt: skip
UNKNOWN = {
    "open": 14, "fsync": 20, "flush": 25, "init": 26, "opendir": 27, "fsyncdir": 30, "getlk": 31,
    "setlk": 32, "setlkw": 33, "access": 34, "interrupt": 36, "bmap": 37, "poll": 40, "lseek": 46,
    "setupmapping": 48, "removemapping": 49, "syncfs": 50, "statx": 52, "none": 0, "gap": 7,
    "after the last": 53, "cuse_init": 4096, "large": 0x7FFFFFFF, "largest": 0xFFFFFFFF,
}  # fmt: skip
UNANSWERED = (FORGET, BATCH_FORGET, NOTIFY_REPLY)

FOREVER = (1 << 63) - 1
BLOCK_SIZE = 128 << 10
FENCE = 0x0F0F_0F0F_0F0F
LIMIT = PATIENCE
"""Seconds after which a test is considered to hang."""


# ---- requests ------------------------------------------------------------------------------


def request(opcode: int, node: int = 1, body: bytes = b"", unique: int = 2) -> bytes:
    length = IN_HEADER.size + len(body)
    return IN_HEADER.pack(length, opcode, unique, node, 0, 0, 1234, 0, 0) + body


def lookup(node: int, name: bytes, unique: int = 2) -> bytes:
    return request(LOOKUP, node, name + b"\0", unique)


def getattr_(node: int, unique: int = 2) -> bytes:
    return request(GETATTR, node, struct.pack("=IIQ", 0, 0, 0), unique)


def read(node: int, offset: int, size: int, unique: int = 2, opcode: int = READ) -> bytes:
    return request(opcode, node, READ_IN.pack(0, offset, size, 0, 0, 0, 0), unique)


def readdir(node: int, offset: int, size: int, *, plus: bool, unique: int = 2) -> bytes:
    return read(node, offset, size, unique, READDIRPLUS if plus else READDIR)


def getxattr(node: int, name: bytes, size: int, unique: int = 2) -> bytes:
    return request(GETXATTR, node, XATTR_IN.pack(size, 0) + name + b"\0", unique)


def listxattr(node: int, size: int, unique: int = 2) -> bytes:
    return request(LISTXATTR, node, XATTR_IN.pack(size, 0), unique)


def init(major: int, minor: int, flags: int, readahead: int = 131_072, unique: int = 2) -> bytes:
    """Return INIT as kernels with INIT_EXT send it (5.17 and later); older ones end after flags."""
    low, high = flags & 0xFFFFFFFF, flags >> 32
    return request(
        INIT, 0, INIT_IN.pack(major, minor, readahead, low, high, *[0] * 11), unique
    )  # fmt: skip


def old_init(major: int, minor: int, flags: int, readahead: int = 131_072) -> bytes:
    return request(INIT, 0, struct.pack("=IIII", major, minor, readahead, flags))


# ---- replies -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    unique: int
    error: int  # 0, or an errno
    payload: bytes = b""


def parsed(raw: bytes) -> Reply:
    """Parse a reply as strictly as the kernel: fuse_dev_do_write, include/linux/errno.h."""
    assert len(raw) >= OUT_HEADER.size, raw
    length, error, unique = OUT_HEADER.unpack_from(raw)
    assert length == len(raw), (length, len(raw))
    assert -512 < error <= 0, error
    assert error == 0 or length == OUT_HEADER.size, "a reply with an error must have no payload"
    return Reply(unique, -error, raw[OUT_HEADER.size :])


def packed_attr(status: os.stat_result, node: int) -> bytes:
    """Pack struct fuse_attr from lstat(2). The size of a folder is 4096, as in an archive."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    seconds &= (1 << 64) - 1
    size = 4096 if stat.S_ISDIR(status.st_mode) else status.st_size
    return ATTR.pack(
        node, size, (size + 511) // 512, seconds, seconds, seconds,
        nanoseconds, nanoseconds, nanoseconds, status.st_mode, status.st_nlink,
        status.st_uid, status.st_gid, 0, BLOCK_SIZE, 0,
    )  # fmt: skip


def packed_entry(attr: bytes, node: int) -> bytes:
    """Pack struct fuse_entry_out."""
    return ENTRY.pack(node, 0, FOREVER, FOREVER, 0, 0) + attr


def packed_dirent(name: bytes, number: int, kind: int, position: int) -> bytes:
    """Pack struct fuse_dirent with its name, padded to a multiple of 8 bytes."""
    raw = DIRENT.pack(number, position + 1, len(name), kind) + name
    return raw + bytes(-len(raw) % 8)


def fitting(entries: Sequence[bytes], size: int) -> bytes:
    """Join as many whole entries as fit into `size` bytes."""
    answer = b""
    for each in entries:
        if len(answer) + len(each) > size:
            break
        answer += each
    return answer


# ---- a conversation ------------------------------------------------------------------------


@dataclass
class Kernel:
    """Sends requests to a session in another thread, over a socket that keeps messages apart."""

    socket: socket.socket
    log: list[str] = field(default_factory=list)

    @property
    def at_once(self) -> int:
        """Number of requests that may wait for their replies at the same time."""
        room = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        return 4 if room >= 4 << 20 else 1

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def receive(self) -> Reply:
        return parsed(self.socket.recv(4 << 20))

    def replies(self, raw: bytes) -> list[Reply]:
        """Send bytes, then another request; return all replies before the reply to that request."""
        self.send(raw)
        return self.until_fence()

    def until_fence(self) -> list[Reply]:
        self.send(getattr_(1, FENCE))
        found = []
        while (reply := self.receive()).unique != FENCE:
            found.append(reply)
        assert reply.error == 0
        assert len(reply.payload) == 104
        return found

    def ask(self, raw: bytes) -> Reply:
        """Send a request, and return its only reply, however long that takes."""
        self.send(raw)
        reply = self.receive()
        assert reply.unique == IN_HEADER.unpack_from(raw)[2]
        return reply


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the kernel's end of a socket and the session's end, which does not block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(LIMIT)
    theirs.setblocking(False)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        with contextlib.suppress(PermissionError):
            end.setsockopt(socket.SOL_SOCKET, 32, 4 << 20)  # SO_SNDBUFFORCE, for root
    return ours, theirs


@contextlib.contextmanager
def conversation(run: Callable[[int, Callable[[str], None]], None]) -> Iterator[Kernel]:
    """Run `run`, which serves a descriptor and logs, in a thread until the block ends.

    `run` must end with the block. Its exceptions are raised here.
    """
    ours, theirs = socket_pair()
    kernel = Kernel(ours)
    raised: list[BaseException] = []

    def serve() -> None:
        try:
            run(theirs.fileno(), kernel.log.append)
        except BaseException as error:  # raised again by the waiting thread
            raised.append(error)
        finally:
            theirs.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield kernel
    finally:
        ours.close()
        thread.join(LIMIT)
        for error in raised:
            raise error
        assert not thread.is_alive(), "the session's loop does not end"

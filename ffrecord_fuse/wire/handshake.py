"""Answer INIT, the first request of a connection, which settles the version and the flags.

Errors are `MountError` with the mountpoint. The caller unmounts after an error.
"""

from __future__ import annotations

import errno
import os
import select
from dataclasses import dataclass

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mounttable import READ_AHEAD_KIB
from ffrecord_fuse.wire import abi, reply
from ffrecord_fuse.wire.abi import InitFlag, Opcode
from ffrecord_fuse.wire.request import MOST_BYTES, Init, MalformedError, parse

WANTED = (
    InitFlag.ASYNC_READ | InitFlag.EXPORT_SUPPORT | InitFlag.DO_READDIRPLUS | InitFlag.ASYNC_DIO
    | InitFlag.PARALLEL_DIROPS | InitFlag.MAX_PAGES | InitFlag.CACHE_SYMLINKS | InitFlag.INIT_EXT
    | InitFlag.HAS_RESEND
)  # fmt: skip
READ_AHEAD = READ_AHEAD_KIB << 10


@dataclass(frozen=True, slots=True)
class Agreement:
    """The protocol version and flags that the kernel and the mount agreed on."""

    minor: int
    flags: int

    @property
    def may_resend(self) -> bool:
        """True if the kernel can send the requests of a dead worker again."""
        return bool(self.flags & InitFlag.HAS_RESEND)


def agree(fd: int, mountpoint: str, seconds: float = 10.0) -> Agreement:
    """Wait up to `seconds` for INIT on a newly mounted descriptor, and answer it."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    memory = memoryview(bytearray(MOST_BYTES))
    while True:
        if not waiting.poll(seconds * 1000):
            why = f"the kernel sent no request within {seconds:.0f} seconds; `dmesg` may show why"
            raise MountError(mountpoint, errno.ETIMEDOUT, why)
        try:
            request = parse(memory[: os.readv(fd, [memory])])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                continue
            why = f"the mount ended before it was ready: {error.strerror}; mount again"
            raise MountError(mountpoint, error.errno or errno.EIO, why) from error
        except MalformedError as error:  # kernels before 2.6.14 send a shorter INIT
            why = f"the kernel's first request is malformed: {error}; try --backend fusepy"
            raise MountError(mountpoint, errno.EPROTO, why) from None
        if request.opcode != Opcode.INIT:
            os.write(fd, reply.failure(request.unique, errno.EIO))
            continue
        _require_known_version(fd, mountpoint, request.unique, request.argument)
        agreement = _agreement(fd, request.unique, request.argument)
        if agreement is not None:
            return agreement


def _require_known_version(fd: int, mountpoint: str, unique: int, offered: Init) -> None:
    if (offered.major, offered.minor) < (abi.MAJOR, abi.OLDEST_MINOR):
        os.write(fd, reply.failure(unique, errno.EPROTO))
        why = (
            f"this kernel has FUSE {offered.major}.{offered.minor}, but the mount needs "
            f"{abi.MAJOR}.{abi.OLDEST_MINOR} (Linux 5.4) or newer; try --backend fusepy"
        )
        raise MountError(mountpoint, errno.EPROTO, why)


def _agreement(fd: int, unique: int, offered: Init) -> Agreement | None:
    """Answer INIT; return None if the kernel has a newer major version and will ask again."""
    minor = min(offered.minor, abi.MINOR) if offered.major == abi.MAJOR else abi.MINOR
    flags = offered.flags & WANTED
    read_ahead = min(offered.max_readahead, READ_AHEAD) or READ_AHEAD
    os.write(fd, reply.init(unique, minor, read_ahead, flags))
    return Agreement(minor, flags) if offered.major == abi.MAJOR else None

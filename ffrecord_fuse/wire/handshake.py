"""The first request of a connection, INIT, and what is agreed upon in it."""

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
    minor: int
    flags: int

    @property
    def may_resend(self) -> bool:
        """Whether requests that a worker took with it when it died can be had again."""
        return bool(self.flags & InitFlag.HAS_RESEND)


def agree(fd: int, mountpoint: str, seconds: float = 10.0) -> Agreement:
    """Wait for INIT on a descriptor that was just mounted, and answer it."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    memory = memoryview(bytearray(MOST_BYTES))
    while True:
        if not waiting.poll(seconds * 1000):
            why = f"the kernel did not begin to talk within {seconds:.0f} seconds"
            raise MountError(mountpoint, errno.ETIMEDOUT, why)
        try:
            request = parse(memory[: os.readv(fd, [memory])])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                continue
            why = f"the mount ended before it began: {error.strerror}"
            raise MountError(mountpoint, error.errno or errno.EIO, why) from error
        except MalformedError as error:  # kernels before 2.6.14 ask with less
            why = f"the kernel does not speak FUSE as it is known here: {error}"
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
            f"this kernel speaks FUSE {offered.major}.{offered.minor}; "
            f"{abi.MAJOR}.{abi.OLDEST_MINOR} (Linux 5.4) is the oldest that works"
        )
        raise MountError(mountpoint, errno.EPROTO, why)


def _agreement(fd: int, unique: int, offered: Init) -> Agreement | None:
    """None if the kernel has to ask again, with a version that is known here."""
    minor = min(offered.minor, abi.MINOR) if offered.major == abi.MAJOR else abi.MINOR
    flags = offered.flags & WANTED
    read_ahead = min(offered.max_readahead, READ_AHEAD) or READ_AHEAD
    os.write(fd, reply.init(unique, minor, read_ahead, flags))
    return Agreement(minor, flags) if offered.major == abi.MAJOR else None

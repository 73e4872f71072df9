"""System calls that Python has no function for, through the C library.

Each raises OSError as a function of `os` would; ENOSYS where the C library is too old. `syscall`
is the exception: it is called for every read, so it takes addresses and returns -1.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Iterable
from typing import Any

SYS_CACHESTAT = 451  # the same on every architecture

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_FALLOC_FL_INSERT_RANGE = 0x20
_PR_SET_PDEATHSIG = 1
_RENAME_EXCHANGE = 2
_SIGSET_BYTES = 128  # of glibc; musl has as many
_STATX_DIOALIGN = 0x2000

_libc = ctypes.CDLL(None, use_errno=True)

syscall = ctypes.CFUNCTYPE(
    ctypes.c_long,
    ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint,
    use_errno=True,
)(("syscall", _libc))  # fmt: skip


def direct_alignment(fd: int) -> tuple[int, int] | None:
    """Return the alignments of O_DIRECT for memory and offsets; None if the kernel tells none."""
    buffer = (ctypes.c_uint32 * 64)()  # struct statx has 256 bytes
    try:
        _call("statx", fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, ctypes.byref(buffer))
    except OSError:
        return None
    return (buffer[38], buffer[39]) if buffer[0] & _STATX_DIOALIGN else None


def file_system(fd: int) -> int:
    """The magic number of the file system that an open file is in; 0 where nobody says."""
    buffer = (ctypes.c_long * 32)()  # struct statfs has 120 bytes
    try:
        _call("fstatfs", fd, ctypes.byref(buffer))
    except OSError:
        return 0
    return buffer[0]


def insert_range(fd: int, offset: int, length: int) -> None:
    """Put a hole into a file, in front of what is at `offset`. All are multiples of a block."""
    where = ctypes.c_int64(offset), ctypes.c_int64(length)
    name = "fallocate64" if hasattr(_libc, "fallocate64") else "fallocate"
    _call(name, fd, _FALLOC_FL_INSERT_RANGE, *where)


def exchange(one: str, other: str) -> None:
    """Let each of two names have what the other has, in one step."""
    names = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    _call("renameat2", *names, _RENAME_EXCHANGE, paths=(one, None, other))


def syncfs(fd: int) -> None:
    """Have all of the file system on disk that an open file or folder is in."""
    while True:
        try:
            _call("syncfs", fd)
            return
        except InterruptedError:  # Python's own calls are tried again, too
            pass


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends; a no-op in sandboxes that refuse."""
    with contextlib.suppress(OSError):
        _call("prctl", _PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))


def mount(source: str, folder: str, kind: str, flags: int, settings: str) -> None:
    names = source.encode(), os.fsencode(folder), kind.encode()
    _call("mount", *names, ctypes.c_ulong(flags), settings.encode())


def umount(folder: str, flags: int) -> None:
    _call("umount2", os.fsencode(folder), flags)


def signalfd(signals: Iterable[signal.Signals]) -> int:
    """Open a descriptor that is readable while one of these signals, all blocked, is pending."""
    wanted = ctypes.create_string_buffer(_SIGSET_BYTES)
    _call("sigemptyset", wanted)
    for signo in signals:
        _call("sigaddset", wanted, int(signo))
    return _call("signalfd", -1, wanted, os.O_CLOEXEC | os.O_NONBLOCK)


def _call(name: str, *arguments: Any, paths: tuple[str | None, ...] = ()) -> int:
    """Call a function that returns a C int, -1 after a failure; an error names the `paths`."""
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, f"the C library has no {name}", *paths)
    result: int = function(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), *paths)
    return result

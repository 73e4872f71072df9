"""System calls that Python has no function for, made through the C library.

A function raises OSError as a function of `os` does, unless its docstring says otherwise. The error
is ENOSYS if the C library is too old. `syscall` is called for every read, so it takes addresses and
returns -1 after a failure.
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

# <linux/mount.h>. The C library has functions for these calls since glibc 2.36. The numbers are
# the same on every architecture.
_SYS_MOVE_MOUNT, _SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 429, 430, 431, 432
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6
_MOVE_MOUNT_F_EMPTY_PATH = 4

_CAPABILITY_VERSION_3 = 0x20080522
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE, _FALLOC_FL_INSERT_RANGE = 1, 2, 0x20
_PR_SET_PDEATHSIG = 1
_RENAME_EXCHANGE = 2
_SIGSET_BYTES = 128  # in glibc and musl
_STATX_DIOALIGN = 0x2000
_STATX_ATTR_VERITY = 0x100000

_libc = ctypes.CDLL(None, use_errno=True)

syscall = ctypes.CFUNCTYPE(
    ctypes.c_long,
    ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint,
    use_errno=True,
)(("syscall", _libc))  # fmt: skip


def direct_alignment(fd: int) -> tuple[int, int] | None:
    """Return the O_DIRECT alignments of memory and of offsets; None if the kernel has no answer."""
    found = _statx(fd)
    return (found[38], found[39]) if found[0] & _STATX_DIOALIGN else None


def has_verity(fd: int) -> bool:
    """Return True if fs-verity verifies every byte that is read from a file."""
    return bool(_statx(fd)[2] & _STATX_ATTR_VERITY)


def _statx(fd: int) -> ctypes.Array[ctypes.c_uint32]:
    """Return struct statx, 256 bytes, as numbers of 32 bits. All are 0 if the kernel has none."""
    buffer = (ctypes.c_uint32 * 64)()
    with contextlib.suppress(OSError):
        _call("statx", fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, ctypes.byref(buffer))
    return buffer


def file_system(fd: int) -> int:
    """Return the magic number of the file system of an open file; 0 if it is unknown."""
    buffer = (ctypes.c_long * 32)()  # struct statfs has 120 bytes
    try:
        _call("fstatfs", fd, ctypes.byref(buffer))
    except OSError:
        return 0
    return buffer[0]


def insert_range(fd: int, offset: int, length: int) -> None:
    """Insert a hole at `offset` of a file. `offset` and `length` are multiples of a block."""
    _fallocate(fd, _FALLOC_FL_INSERT_RANGE, offset, length)


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Turn bytes of a file into a hole. The size of the file stays the same."""
    _fallocate(fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, offset, length)


def _fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    where = ctypes.c_int64(offset), ctypes.c_int64(length)
    _call("fallocate64" if hasattr(_libc, "fallocate64") else "fallocate", fd, mode, *where)


def exchange(one: str, other: str) -> None:
    """Exchange two names in one step: each then leads to the file or folder of the other."""
    names = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    _call("renameat2", *names, _RENAME_EXCHANGE, paths=(one, None, other))


def syncfs(fd: int) -> None:
    """Write all unwritten data of an open file's or folder's file system to disk."""
    while True:
        try:
            _call("syncfs", fd)
            return
        except InterruptedError:  # retried, as Python retries its own calls
            pass


def die_with_parent() -> None:
    """Tell the kernel to kill this process when its parent ends; a no-op if a sandbox refuses."""
    with contextlib.suppress(OSError):
        _call("prctl", _PR_SET_PDEATHSIG, *map(ctypes.c_ulong, (signal.SIGKILL, 0, 0, 0)))


def lay_down_capability(number: int) -> None:
    """Remove a capability from those that this thread uses. Needs no rights."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then their higher bits
    _call("capget", header, sets)
    sets[3 * (number // 32)] &= ~(1 << number % 32)
    _call("capset", header, sets)


def mount(source: str, folder: str, kind: str, flags: int, settings: str) -> None:
    names = source.encode(), os.fsencode(folder), kind.encode()
    _call("mount", *names, ctypes.c_ulong(flags), settings.encode())


def fsopen(kind: str) -> int:
    """Begin to mount a file system of this kind; return a descriptor for `fsconfig`."""
    return _call("syscall", _SYS_FSOPEN, kind.encode(), _FSOPEN_CLOEXEC)


def fsconfig(fd: int, name: str, value: str | None = None) -> None:
    """Set an option of a file system, with or without a value of at most 255 bytes."""
    command = _FSCONFIG_SET_FLAG if value is None else _FSCONFIG_SET_STRING
    text = None if value is None else os.fsencode(value)
    _call("syscall", _SYS_FSCONFIG, fd, command, name.encode(), text, 0)


def fscreate(fd: int) -> None:
    """Let the kernel open the file system that `fsconfig` has described."""
    _call("syscall", _SYS_FSCONFIG, fd, _FSCONFIG_CMD_CREATE, None, None, 0)


def fsmount(fd: int, attributes: int) -> int:
    """Mount the file system nowhere; return a descriptor of its root folder.

    Closing the descriptor unmounts, unless `move_mount` has given the mount a place.
    """
    return _call("syscall", _SYS_FSMOUNT, fd, _FSMOUNT_CLOEXEC, attributes)


def move_mount(fd: int, folder: str) -> None:
    """Give the mount of `fsmount` its place."""
    empty = ctypes.c_char_p(b"")
    where = _AT_FDCWD, os.fsencode(folder)
    _call("syscall", _SYS_MOVE_MOUNT, fd, empty, *where, _MOVE_MOUNT_F_EMPTY_PATH)


def umount(folder: str, flags: int) -> None:
    _call("umount2", os.fsencode(folder), flags)


def signalfd(signals: Iterable[signal.Signals]) -> int:
    """Open a descriptor that is readable while one of these (blocked) signals is pending."""
    wanted = ctypes.create_string_buffer(_SIGSET_BYTES)
    _call("sigemptyset", wanted)
    for signo in signals:
        _call("sigaddset", wanted, int(signo))
    return _call("signalfd", -1, wanted, os.O_CLOEXEC | os.O_NONBLOCK)


def _call(name: str, *arguments: Any, paths: tuple[str | None, ...] = ()) -> int:
    """Call a C function that returns an int, and raise OSError with `paths` if that is negative."""
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(errno.ENOSYS, f"the C library has no {name}", *paths)
    result: int = function(*arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), *paths)
    return result

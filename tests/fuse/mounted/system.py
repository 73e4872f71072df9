"""System calls that Python does not offer.

They read extended attributes into short buffers, seek in folders, and open files by handles.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)


class _Dirent(ctypes.Structure):
    """struct dirent of glibc and musl on 64-bit machines."""

    _fields_ = (
        ("d_ino", ctypes.c_uint64),
        ("d_off", ctypes.c_int64),
        ("d_reclen", ctypes.c_uint16),
        ("d_type", ctypes.c_uint8),
        ("d_name", ctypes.c_char * 256),
    )


_libc.getxattr.argtypes = (
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t,
)  # fmt: skip
_libc.getxattr.restype = ctypes.c_ssize_t
_libc.listxattr.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_libc.listxattr.restype = ctypes.c_ssize_t
_libc.opendir.argtypes = (ctypes.c_char_p,)
_libc.opendir.restype = ctypes.c_void_p
_libc.readdir.argtypes = (ctypes.c_void_p,)
_libc.readdir.restype = ctypes.POINTER(_Dirent)
_libc.telldir.argtypes = (ctypes.c_void_p,)
_libc.telldir.restype = ctypes.c_long
_libc.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)
_libc.seekdir.restype = None
_libc.rewinddir.argtypes = (ctypes.c_void_p,)
_libc.rewinddir.restype = None
_libc.closedir.argtypes = (ctypes.c_void_p,)


def _failure() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def get_xattr(path: Path, name: str, size: int) -> bytes | int:
    """Return the result of getxattr(2) with a buffer of `size` bytes; for 0, the needed size."""
    memory = ctypes.create_string_buffer(size) if size else None
    count: int = _libc.getxattr(os.fsencode(path), os.fsencode(name), memory, size)
    if count < 0:
        raise _failure()
    return count if memory is None else memory.raw[:count]


def list_xattrs(path: Path, size: int) -> bytes | int:
    """Return the result of listxattr(2), as `get_xattr` does for getxattr(2)."""
    memory = ctypes.create_string_buffer(size) if size else None
    count: int = _libc.listxattr(os.fsencode(path), memory, size)
    if count < 0:
        raise _failure()
    return count if memory is None else memory.raw[:count]


class Entry(NamedTuple):
    name: bytes
    inode: int
    kind: int  # DT_REG and so on


class Folder:
    """A folder that is read with readdir(3), telldir(3) and seekdir(3)."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def read(self) -> Entry | None:
        """Return the next entry; None at the end."""
        ctypes.set_errno(0)
        found = _libc.readdir(self._stream)
        if found:
            entry = found.contents
            return Entry(entry.d_name, entry.d_ino, entry.d_type)
        if ctypes.get_errno():
            raise _failure()
        return None

    def rest(self) -> list[Entry]:
        found = []
        while (entry := self.read()) is not None:
            found.append(entry)
        return found

    def tell(self) -> int:
        place: int = _libc.telldir(self._stream)
        return place

    def seek(self, place: int) -> None:
        _libc.seekdir(self._stream, place)

    def rewind(self) -> None:
        _libc.rewinddir(self._stream)


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[Folder]:
    stream = _libc.opendir(os.fsencode(path))
    if not stream:
        raise _failure()
    try:
        yield Folder(stream)
    finally:
        _libc.closedir(stream)


class _Handle(ctypes.Structure):
    """struct file_handle, with room for the longest handle."""

    _fields_ = (
        ("handle_bytes", ctypes.c_uint),
        ("handle_type", ctypes.c_int),
        ("f_handle", ctypes.c_char * 128),
    )


_AT_FDCWD = -100


def handle_of(path: Path) -> bytes:
    """Return the handle of a file, which an NFS server gives its clients."""
    handle, mount_id = _Handle(handle_bytes=128), ctypes.c_int()
    code = _libc.name_to_handle_at(
        _AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount_id), 0
    )
    if code != 0:
        raise _failure()
    return bytes(handle)


def open_handle(mountpoint: Path, handle: bytes) -> int:
    """Open a file of the mounted file system by its handle, and return the descriptor."""
    folder = os.open(mountpoint, os.O_RDONLY)
    try:
        given = _Handle.from_buffer_copy(handle)
        fd: int = _libc.open_by_handle_at(folder, ctypes.byref(given), os.O_RDONLY)
    finally:
        os.close(folder)
    if fd < 0:
        raise _failure()
    return fd

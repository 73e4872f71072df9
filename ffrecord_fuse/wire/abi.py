"""Structs, opcodes and flags of the kernel's FUSE protocol 7.x.

This is the only module that knows the byte layout. Everything is in the machine's byte order. Names
are the kernel's (include/uapi/linux/fuse.h) without the FUSE_ prefix. Sizes are asserted when the
module is loaded: a struct that is off by a byte would be a mount that answers nonsense.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct

import numpy as np

MAJOR = 7
MINOR = 45
OLDEST_MINOR = 31
"""Linux 5.4. Older kernels lack features that the mount needs (max_pages, no_opendir)."""

ROOT_ID = 1
FOREVER = (1 << 63) - 1
"""Seconds that an answer stays valid. The kernel reduces this to the longest time it supports."""


class Opcode(IntEnum):
    """The operations that the kernel can ask for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52


class InitFlag(IntFlag):
    """The flags of INIT that the mount asks for. Bits 32 to 63 are sent in flags2."""

    ASYNC_READ = 1 << 0
    EXPORT_SUPPORT = 1 << 4
    DO_READDIRPLUS = 1 << 13
    ASYNC_DIO = 1 << 15
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    INIT_EXT = 1 << 30
    HAS_RESEND = 1 << 39


NOTIFY_RESEND = 7
"""The notice that makes the kernel send all unanswered requests again."""

DEV_IOC_CLONE = 0x8004E500
"""_IOR(229, 0, u32): turns a newly opened /dev/fuse into another descriptor of a connection."""

IN_HEADER = Struct("=IIQQ16x")  # length opcode unique nodeid; the caller's ids are ignored
OUT_HEADER = Struct("=IiQ")  # length error unique

INIT_IN = Struct("=IIIII44x")  # major minor max_readahead flags flags2
INIT_IN_OLD = Struct("=IIII")  # before INIT_EXT
# major minor max_readahead flags max_background congestion_threshold max_write time_granularity
# max_pages map_alignment flags2
INIT_OUT = Struct("=IIIIHHIIHHI28x")
READ_IN = Struct("=8xQI20x")  # offset size
GETXATTR_IN = Struct("=I4x")  # size
GETXATTR_OUT = Struct("=I4x")  # size
# blocks free available files files_free block_size longest_name fragment_size
STATFS_OUT = Struct("=QQQQQIII28x")

# ino size blocks atime mtime ctime | their nanoseconds | mode links uid gid rdev block_size flags
_ATTR = "QQQQQQIIIIIIIIII"
ATTR_OUT = Struct(f"=QI4x{_ATTR}")  # valid, nanoseconds, attr
# nodeid generation entry_valid attr_valid, their nanoseconds, attr
ENTRY_OUT = Struct(f"=QQQQII{_ATTR}")
ENTRY_REPLY = Struct(OUT_HEADER.format + ENTRY_OUT.format[1:])

ATTR_COLUMNS = [
    ("ino", "u8"), ("size", "u8"), ("blocks", "u8"),
    ("atime", "u8"), ("mtime", "u8"), ("ctime", "u8"),
    ("atime_ns", "u4"), ("mtime_ns", "u4"), ("ctime_ns", "u4"),
    ("mode", "u4"), ("links", "u4"), ("uid", "u4"), ("gid", "u4"), ("rdev", "u4"),
    ("block_size", "u4"), ("flags", "u4"),
]  # fmt: skip
ENTRY_COLUMNS = [
    ("nodeid", "u8"), ("generation", "u8"), ("entry_valid", "u8"), ("attr_valid", "u8"),
    ("entry_valid_ns", "u4"), ("attr_valid_ns", "u4"),
]  # fmt: skip
DIRENT_COLUMNS = [
    ("dirent_ino", "u8"), ("offset", "u8"), ("name_length", "u4"), ("kind", "u4"),
]  # fmt: skip
DIRENT = np.dtype(DIRENT_COLUMNS)
DIRENTPLUS = np.dtype(ENTRY_COLUMNS + ATTR_COLUMNS + DIRENT_COLUMNS)
"""The bytes before the name of each entry in answers to READDIR and READDIRPLUS."""

for _what, _size in (
    (IN_HEADER, 40), (OUT_HEADER, 16), (INIT_IN, 64), (INIT_IN_OLD, 16), (INIT_OUT, 64),
    (READ_IN, 40), (GETXATTR_IN, 8), (GETXATTR_OUT, 8), (STATFS_OUT, 80),
    (ATTR_OUT, 104), (ENTRY_OUT, 128), (ENTRY_REPLY, 144),
):  # fmt: skip
    assert _what.size == _size, (_what.format, _what.size, _size)
assert (DIRENT.itemsize, DIRENTPLUS.itemsize) == (24, 152)

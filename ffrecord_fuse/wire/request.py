"""Parse the kernel's requests: bytes to typed values.

A request is malformed if it is too short for its opcode, or if its length differs from the length
in its header. The kernel never sends such a request. If one comes, it is answered with an error, or
ignored if its number cannot be read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ffrecord_fuse.wire import abi
from ffrecord_fuse.wire.abi import Opcode

HEADER = abi.IN_HEADER.size
MOST_BYTES = 68 << 10
"""The size of the buffer for one request. The kernel demands 8192 bytes, and room for a header and
max_write. In a larger buffer, one BATCH_FORGET has more inodes."""


class Request(NamedTuple):
    """A parsed request. `unique` is its number, `node` the inode's number on the wire."""

    opcode: int
    unique: int
    node: int
    argument: Any  # the result of the opcode's parser; None for an opcode without a parser


class Span(NamedTuple):
    """The arguments of READ, READDIR and READDIRPLUS."""

    offset: int
    size: int


class Xattr(NamedTuple):
    """The arguments of GETXATTR and LISTXATTR. A size of 0 asks for the length of the value."""

    size: int
    name: bytes


class Init(NamedTuple):
    """The arguments of INIT."""

    major: int
    minor: int
    max_readahead: int
    flags: int


class MalformedError(Exception):
    """A malformed request. `unique` is its number, or 0 if the number cannot be read."""

    def __init__(self, unique: int, what: str) -> None:
        super().__init__(what)
        self.unique = unique


def parse(raw: memoryview) -> Request:
    """Return the request in the bytes of one read(2)."""
    if len(raw) < HEADER:
        raise MalformedError(0, f"it has {len(raw)} bytes, but a header has {HEADER}")
    length, opcode, unique, node = abi.IN_HEADER.unpack_from(raw)
    if length != len(raw):
        raise MalformedError(unique, f"it has {len(raw)} bytes, but its header says {length}")
    parser = _PARSERS.get(opcode)
    if parser is None:
        return Request(opcode, unique, node, None)
    try:
        return Request(opcode, unique, node, parser(raw))
    except (IndexError, ValueError, struct.error) as error:
        raise MalformedError(unique, f"opcode {opcode} with {len(raw)} bytes: {error}") from None


def _name(raw: memoryview, at: int = HEADER) -> bytes:
    """Return the name that ends the request, without its NUL."""
    if raw[-1] or len(raw) - at < 2:
        raise ValueError("the name is missing")
    return bytes(raw[at:-1])


def _span(raw: memoryview) -> Span:
    return Span(*abi.READ_IN.unpack_from(raw, HEADER))


def _named_xattr(raw: memoryview) -> Xattr:
    (size,) = abi.GETXATTR_IN.unpack_from(raw, HEADER)
    return Xattr(size, _name(raw, HEADER + abi.GETXATTR_IN.size))


def _xattrs(raw: memoryview) -> Xattr:
    (size,) = abi.GETXATTR_IN.unpack_from(raw, HEADER)
    return Xattr(size, b"")


def _init(raw: memoryview) -> Init:
    if len(raw) < HEADER + abi.INIT_IN.size:
        return Init._make(abi.INIT_IN_OLD.unpack_from(raw, HEADER))
    major, minor, max_readahead, flags, flags2 = abi.INIT_IN.unpack_from(raw, HEADER)
    if flags & abi.InitFlag.INIT_EXT:
        flags |= flags2 << 32
    return Init(major, minor, max_readahead, flags)


_PARSERS: dict[int, Callable[[memoryview], Any]] = {
    Opcode.LOOKUP: _name,
    Opcode.READ: _span,
    Opcode.READDIR: _span,
    Opcode.READDIRPLUS: _span,
    Opcode.GETXATTR: _named_xattr,
    Opcode.LISTXATTR: _xattrs,
    Opcode.INIT: _init,
}

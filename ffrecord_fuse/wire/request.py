"""Requests of the kernel: bytes to typed values.

A request is malformed when it is shorter than its opcode needs or says another length than it
has. The kernel never sends such a one; what does is answered with an error or, where not even
that is possible, left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ffrecord_fuse.wire import abi
from ffrecord_fuse.wire.abi import Opcode

HEADER = abi.IN_HEADER.size
MOST_BYTES = 68 << 10
"""Room for one: at least 8192, and what a header and max_write need; more for BATCH_FORGET."""


class Request(NamedTuple):
    opcode: int
    unique: int
    node: int
    argument: Any  # what the parser of its opcode makes; None for those that need nothing


class Span(NamedTuple):
    """The arguments of READ, READDIR and READDIRPLUS."""

    offset: int
    size: int


class Xattr(NamedTuple):
    """The arguments of GETXATTR and LISTXATTR: a size of 0 asks how much there is."""

    size: int
    name: bytes


class Init(NamedTuple):
    major: int
    minor: int
    max_readahead: int
    flags: int


class MalformedError(Exception):
    """`unique` is the request's, or 0 where it has none."""

    def __init__(self, unique: int, what: str) -> None:
        super().__init__(what)
        self.unique = unique


def parse(raw: memoryview) -> Request:
    """The request in a read's bytes."""
    if len(raw) < HEADER:
        raise MalformedError(0, f"a request of {len(raw)} bytes")
    length, opcode, unique, node = abi.IN_HEADER.unpack_from(raw)
    if length != len(raw):
        raise MalformedError(unique, f"{len(raw)} bytes that claim to be {length}")
    parser = _PARSERS.get(opcode)
    if parser is None:
        return Request(opcode, unique, node, None)
    try:
        return Request(opcode, unique, node, parser(raw))
    except (IndexError, ValueError, struct.error) as error:
        raise MalformedError(unique, f"opcode {opcode} with {len(raw)} bytes: {error}") from None


def _name(raw: memoryview, at: int = HEADER) -> bytes:
    """A name with a NUL after it."""
    if raw[-1] or len(raw) - at < 2:
        raise ValueError("no name")
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

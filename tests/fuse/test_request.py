"""Requests: handmade bytes, and their parsed values."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord_fuse.wire.request import Init, MalformedError, Request, Span, Xattr, parse
from tests.support import kernel

NEEDED = {  # opcode: the length of its shortest valid body
    kernel.LOOKUP: 2,
    kernel.READ: 40,
    kernel.READDIR: 40,
    kernel.READDIRPLUS: 40,
    kernel.GETXATTR: 10,
    kernel.LISTXATTR: 8,
    kernel.INIT: 16,
}


def taken(raw: bytes) -> Request:
    return parse(memoryview(raw))


def test_a_lookup_has_a_name_without_its_nul() -> None:
    assert taken(kernel.lookup(7, b"a name", 99)) == Request(1, 99, 7, b"a name")


def test_a_read_has_an_offset_and_a_size() -> None:
    asked = Span((1 << 64) - 1, (1 << 32) - 1)
    for opcode in (kernel.READ, kernel.READDIR, kernel.READDIRPLUS):
        assert taken(kernel.read(7, *asked, 99, opcode)) == Request(opcode, 99, 7, asked)


def test_requests_for_extended_attributes_have_a_name_and_a_size() -> None:
    assert taken(kernel.getxattr(7, b"user.x", 64)) == Request(22, 2, 7, Xattr(64, b"user.x"))
    assert taken(kernel.listxattr(7, 0)) == Request(23, 2, 7, Xattr(0, b""))


def test_the_upper_flags_of_an_init_count_only_with_init_ext() -> None:
    announced = 1 << 30
    both = kernel.init(7, 45, announced | 1 << 39 | 1)
    assert taken(both).argument == Init(7, 45, 131_072, announced | 1 << 39 | 1)
    without = kernel.init(7, 45, 1 << 39 | 1)
    assert taken(without).argument == Init(7, 45, 131_072, 1)


def test_an_init_of_an_old_kernel_is_shorter() -> None:
    assert taken(kernel.old_init(7, 31, 0x00FFFFFF)).argument == Init(7, 31, 131_072, 0x00FFFFFF)


def test_an_opcode_without_arguments_accepts_any_body() -> None:
    for opcode in set(range(64)) - set(NEEDED):
        assert taken(kernel.request(opcode, 3, b"whatever", 5)) == Request(opcode, 5, 3, None)


@pytest.mark.parametrize("length", range(40))
def test_a_request_shorter_than_its_header_has_no_number(length: int) -> None:
    with pytest.raises(MalformedError) as caught:
        taken(kernel.request(kernel.GETATTR, unique=77)[:length])
    assert caught.value.unique == 0


@pytest.mark.parametrize("claimed", [0, 1, 39, 41, 4096, 0xFFFFFFFF])
def test_a_wrong_length_in_the_header_is_malformed(claimed: int) -> None:
    raw = bytearray(kernel.request(kernel.GETATTR, unique=77))
    struct.pack_into("=I", raw, 0, claimed)
    with pytest.raises(MalformedError) as caught:
        taken(bytes(raw))
    assert caught.value.unique == 77


@pytest.mark.parametrize("opcode", NEEDED)
def test_only_a_body_that_is_too_short_is_malformed(opcode: int) -> None:
    for length in range(64):
        raw = kernel.request(opcode, 1, (b"x" * length)[:-1] + b"\0" * bool(length), 77)
        if length >= NEEDED[opcode]:
            assert taken(raw).unique == 77
        else:
            with pytest.raises(MalformedError) as caught:
                taken(raw)
            assert caught.value.unique == 77


def test_a_name_without_a_nul_is_malformed() -> None:
    with pytest.raises(MalformedError):
        taken(kernel.request(kernel.LOOKUP, 1, b"name"))
    with pytest.raises(MalformedError):
        taken(kernel.request(kernel.GETXATTR, 1, struct.pack("=II", 9, 0) + b"user.x"))


@given(st.binary(max_size=200), st.booleans(), st.integers(0, 70))
def test_any_bytes_are_a_request_or_malformed(raw: bytes, mend: bool, opcode: int) -> None:
    if mend and len(raw) >= 8:
        raw = struct.pack("=II", len(raw), opcode) + raw[8:]
    try:
        unique = taken(raw).unique
    except MalformedError as error:
        unique = error.unique
    assert unique in (0, int.from_bytes(raw[8:16], "little"))

"""Replies: every byte, compared with bytes packed by hand."""

from __future__ import annotations

import errno
import stat
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.archive.index import Status
from ffrecord_fuse.filesystem import Listing, Space
from ffrecord_fuse.wire import reply
from tests.support import kernel

UNIQUE = 0x1122334455667788
FOREVER = 0x7FFFFFFFFFFFFFFF

FILE = Status(41, 0o100644, 3, 1000, 1001, 100_000, 1_600_000_000_123_456_789)
FILE_ATTR = struct.pack(
    "=6Q10I",
    42, 100_000, 196, 1_600_000_000, 1_600_000_000, 1_600_000_000,
    123_456_789, 123_456_789, 123_456_789, 0o100644, 3, 1000, 1001, 0, 131_072, 0,
)  # fmt: skip


def answer(payload: bytes) -> bytes:
    return struct.pack("=IiQ", 16 + len(payload), 0, UNIQUE) + payload


def test_an_error_is_a_negative_number_and_nothing_else() -> None:
    assert reply.failure(UNIQUE, errno.ENOENT) == struct.pack("=IiQ", 16, -2, UNIQUE)


def test_a_success_has_its_length_in_the_header() -> None:
    assert reply.success(UNIQUE) == answer(b"")
    assert reply.success(UNIQUE, b"payload") == answer(b"payload")


def test_data_is_not_copied() -> None:
    content = memoryview(b"some bytes")
    header, same = reply.data(UNIQUE, content)
    assert same is content
    assert header == struct.pack("=IiQ", 26, 0, UNIQUE)


@pytest.mark.parametrize(("begin", "count"), [(0, 10), (0, 100), (7, 1), (99, 1), (50, 0)])
def test_framed_data_has_its_header_right_before_it(begin: int, count: int) -> None:
    content = bytes(range(100, 200))
    frame = memoryview(bytearray(bytes(reply.FRONT) + content + b"\xdb" * 100))
    raw = reply.framed(frame, UNIQUE, begin, count)
    assert bytes(raw) == answer(content[begin : begin + count])


def test_attributes_are_valid_for_ever() -> None:
    due = struct.pack("=QII", FOREVER, 0, 0) + FILE_ATTR
    assert reply.attributes(UNIQUE, FILE) == answer(due)


def test_an_entry_is_a_node_and_its_attributes() -> None:
    due = struct.pack("=4Q2I", 42, 0, FOREVER, FOREVER, 0, 0) + FILE_ATTR
    assert reply.entry(UNIQUE, FILE) == answer(due)


def test_a_missing_name_is_an_entry_without_a_node() -> None:
    due = struct.pack("=4Q2I", 0, 0, FOREVER, 0, 0, 0) + bytes(88)
    assert reply.no_entry(UNIQUE) == answer(due)


def test_a_time_before_1970_is_a_negative_number_of_seconds() -> None:
    early = FILE._replace(mtime_ns=-1)
    raw = reply.attributes(UNIQUE, early)
    assert struct.unpack_from("=3q3I", raw, 16 + 16 + 24) == (-1, -1, -1, *[999_999_999] * 3)


@pytest.mark.parametrize(
    ("size", "blocks"), [(0, 0), (1, 1), (512, 1), (513, 2), (1 << 62, 1 << 53)]
)
def test_blocks_are_of_512_bytes_rounded_up(size: int, blocks: int) -> None:
    raw = reply.attributes(UNIQUE, FILE._replace(size=size))
    assert struct.unpack_from("=QQ", raw, 16 + 16 + 8) == (size, blocks)


def test_space_has_nothing_free() -> None:
    due = struct.pack("=5Q3I", 1000, 0, 0, 77, 0, 4096, 255, 4096) + bytes(28)
    assert reply.space(UNIQUE, Space(1000, 77, 4096, 255)) == answer(due)


def test_the_size_of_an_attribute_is_padded_with_zeros() -> None:
    assert reply.xattr_size(UNIQUE, 300) == answer(struct.pack("=II", 300, 0))


def test_an_init_reply_has_the_flags_in_two_halves() -> None:
    raw = reply.init(UNIQUE, 45, 1 << 20, 1 << 39 | 1 << 30 | 1)
    due = struct.pack(
        "=IIIIHHIIHHI", 7, 45, 1 << 20, 1 << 30 | 1, 256, 192, 4096, 1, 256, 0, 1 << 7
    )  # fmt: skip
    assert raw == answer(due + bytes(28))


def test_the_resend_notice_has_no_unique() -> None:
    assert reply.resend() == struct.pack("=IiQ", 16, 7, 0)


# ---- folders -------------------------------------------------------------------------------

U32 = st.integers(0, (1 << 32) - 1)
KINDS = st.sampled_from([stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK])
ROWS = st.tuples(
    st.binary(min_size=1, max_size=255),
    st.integers(0, (1 << 32) - 2),  # inode
    st.builds(int.__or__, KINDS, st.integers(0, 0o7777)),
    U32,  # links
    U32,  # uid
    U32,  # gid
    st.integers(0, (1 << 62)),  # size
    st.integers(-(1 << 62), (1 << 62)),  # mtime
)


def listing_of(rows: list[Any], first: int, dots: int) -> Listing:
    names, *columns = zip(*rows, strict=True)
    inodes, *others = (np.array(column, np.int64) for column in columns)
    return Listing(
        first, np.frombuffer(b"".join(names), np.uint8), np.array([len(name) for name in names]),
        inodes, np.arange(len(rows)) < dots, *others,
    )  # fmt: skip


def one_by_one(rows: list[Any], first: int, dots: int, plus: bool) -> list[bytes]:
    entries = []
    for place, (name, inode, mode, links, uid, gid, size, mtime) in enumerate(rows):
        raw = kernel.packed_dirent(name, inode + 1, mode >> 12, first + place)
        if plus:
            seconds, nanoseconds = mtime // 10**9 % (1 << 64), mtime % 10**9
            attr = kernel.ATTR.pack(
                inode + 1, size, (size + 511) // 512, *[seconds] * 3, *[nanoseconds] * 3,
                mode, links, uid, gid, 0, 131_072, 0,
            )  # fmt: skip
            node = 0 if place < dots else inode + 1
            raw = kernel.packed_entry(attr, node) + raw
        entries.append(raw)
    return entries


@given(st.lists(ROWS, min_size=1, max_size=12), st.integers(0, 1 << 20), st.booleans(), st.data())
def test_a_rendered_folder_is_its_entries_packed_one_by_one(
    rows: list[Any], first: int, plus: bool, data: st.DataObject
) -> None:
    dots = data.draw(st.integers(0, min(2, len(rows))))
    rendered = reply.Rendered(listing_of(rows, first, dots), plus=plus)
    entries = one_by_one(rows, first, dots, plus)
    assert len(rendered) == len(rows)
    assert rendered.first == first
    assert rendered.size == sum(map(len, entries))
    for row in range(len(rows)):
        most = sum(map(len, entries[row:]))
        for size in {0, 4096, (1 << 32) - 1, most, data.draw(st.integers(0, most + 8))}:
            due = kernel.fitting(entries[row:], size)
            assert rendered.part(first + row, size) == due


@pytest.mark.parametrize("plus", [False, True])
def test_a_buffer_that_is_a_byte_too_small_leaves_out_the_last_entry(plus: bool) -> None:
    rows = [(b"n" * length, length, 0o100644, 1, 0, 0, 5, 0) for length in range(1, 18)]
    rendered = reply.Rendered(listing_of(rows, 2, 0), plus=plus)
    entries = one_by_one(rows, 2, 0, plus)
    for count in range(1, len(rows) + 1):
        whole = b"".join(entries[:count])
        assert rendered.part(2, len(whole)) == whole
        assert rendered.part(2, len(whole) - 1) == b"".join(entries[: count - 1])

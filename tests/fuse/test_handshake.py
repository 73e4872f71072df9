"""INIT requests of old and new kernels, and the replies to them."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.wire.handshake import Agreement, agree
from tests.support import kernel

INIT_EXT = 1 << 30
HAS_RESEND = 1 << 39
# The wanted flags: async_read, export_support, do_readdirplus, async_dio, parallel_dirops,
# max_pages, cache_symlinks.
LOWER = 1 << 0 | 1 << 4 | 1 << 13 | 1 << 15 | 1 << 18 | 1 << 22 | 1 << 23
EVERYTHING = (1 << 64) - 1


class Answer(NamedTuple):
    major: int
    minor: int
    readahead: int
    flags: int
    max_background: int
    congestion: int
    max_write: int
    granularity: int
    max_pages: int
    map_alignment: int
    flags2: int


Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = kernel.socket_pair()
    with ours, theirs:
        yield ours, theirs


def agreed(ends: Ends, *requests: bytes) -> Agreement:
    for raw in requests:
        ends[0].sendall(raw)
    return agree(ends[1].fileno(), "/mnt", seconds=1)


def answer(ends: Ends) -> Answer:
    raw = ends[0].recv(1 << 16)
    reply = kernel.parsed(raw)
    assert (reply.unique, reply.error, len(reply.payload)) == (2, 0, 64)
    assert reply.payload[36:] == bytes(28), "unknown fields must be 0"
    return Answer._make(struct.unpack("=IIIIHHIIHHI", reply.payload[:36]))


def test_a_current_kernel_gets_all_wanted_flags(ends: Ends) -> None:
    agreement = agreed(ends, kernel.init(7, 45, EVERYTHING, 1 << 17))
    found = answer(ends)
    assert found.flags == LOWER | INIT_EXT
    assert found.flags2 == HAS_RESEND >> 32
    assert (found.major, found.minor, found.readahead) == (7, 45, 1 << 17)
    assert (found.max_pages, found.granularity, found.map_alignment) == (256, 1, 0)
    assert found.max_background >= 64
    assert 0 < found.congestion <= found.max_background
    assert found.max_write >= 4096
    assert agreement == Agreement(45, LOWER | INIT_EXT | HAS_RESEND)
    assert agreement.may_resend


@pytest.mark.parametrize("bit", range(64))
def test_only_offered_flags_are_answered(ends: Ends, bit: int) -> None:
    agreed(ends, kernel.init(7, 45, 1 << bit))
    found = answer(ends)
    known = (LOWER | INIT_EXT) & 1 << bit  # without INIT_EXT, the upper half does not count
    assert (found.flags, found.flags2) == (known, 0)


def test_without_init_ext_the_upper_flags_are_ignored(ends: Ends) -> None:
    agreement = agreed(ends, kernel.init(7, 45, EVERYTHING & ~INIT_EXT))
    found = answer(ends)
    assert (found.flags, found.flags2) == (LOWER, 0)
    assert not agreement.may_resend


def test_a_kernel_that_cannot_resend_is_not_asked_to(ends: Ends) -> None:
    agreement = agreed(ends, kernel.init(7, 39, EVERYTHING & ~HAS_RESEND))
    assert answer(ends).flags2 == 0
    assert not agreement.may_resend


def test_linux_5_4_sends_an_init_of_16_bytes(ends: Ends) -> None:
    agreement = agreed(ends, kernel.old_init(7, 31, 0x00FFFFFF))
    found = answer(ends)
    assert (found.major, found.minor, found.flags, found.flags2) == (7, 31, LOWER, 0)
    assert agreement.minor == 31


def test_a_newer_minor_version_is_answered_with_ours(ends: Ends) -> None:
    assert agreed(ends, kernel.init(7, 200, EVERYTHING)).minor == 45
    assert answer(ends).minor == 45


@pytest.mark.parametrize(("offered", "due"), [(4096, 4096), (1 << 30, 1 << 20), (0, 1 << 20)])
def test_read_ahead_has_the_kernels_limit_and_ours(ends: Ends, offered: int, due: int) -> None:
    agreed(ends, kernel.init(7, 45, EVERYTHING, offered))
    assert answer(ends).readahead == due


@pytest.mark.parametrize(("major", "minor"), [(7, 30), (7, 0), (6, 99), (0, 0)])
def test_a_kernel_that_is_too_old_is_named(ends: Ends, major: int, minor: int) -> None:
    with pytest.raises(MountError) as caught:
        agreed(ends, kernel.old_init(major, minor, 0))
    assert f"FUSE {major}.{minor}" in str(caught.value)
    assert "Linux 5.4" in str(caught.value)
    assert kernel.parsed(ends[0].recv(4096)).error == errno.EPROTO


def test_a_kernel_with_a_newer_major_version_gets_ours_and_asks_again(ends: Ends) -> None:
    agreement = agreed(
        ends, kernel.init(8, 0, EVERYTHING), kernel.init(7, 45, INIT_EXT | HAS_RESEND | 1)
    )
    first, second = answer(ends), answer(ends)
    assert (first.major, first.minor) == (7, 45)
    assert (second.major, second.minor, second.flags) == (7, 45, INIT_EXT | 1)
    assert agreement == Agreement(45, INIT_EXT | HAS_RESEND | 1)


def test_requests_before_init_are_refused(ends: Ends) -> None:
    agreed(ends, kernel.getattr_(1, 44), kernel.init(7, 45, EVERYTHING))
    assert kernel.parsed(ends[0].recv(4096)) == kernel.Reply(44, errno.EIO)
    assert answer(ends).major == 7


@pytest.mark.parametrize("length", [8, 39, 40, 48, 55])
def test_a_truncated_init_is_an_error(ends: Ends, length: int) -> None:
    raw = kernel.init(7, 45, EVERYTHING)[:length]
    if length >= 40:
        raw = struct.pack("=I", length) + raw[4:]
    with pytest.raises(MountError):
        agreed(ends, raw)


def test_a_silent_kernel_is_an_error_after_the_time_limit(ends: Ends) -> None:
    with pytest.raises(MountError) as caught:
        agree(ends[1].fileno(), "/mnt", seconds=0.01)
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_mount_that_ends_before_init_is_a_mount_error() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(MountError) as caught:
            agree(writing, "/mnt", seconds=0.01)
        assert caught.value.errno in (errno.ETIMEDOUT, errno.EBADF)
        os.close(reading)
        reading = -1
        with pytest.raises(MountError) as caught:  # poll says readable, but reading fails
            agree(writing, "/mnt", seconds=1)
        assert caught.value.errno == errno.EBADF
    finally:
        os.close(writing)
        if reading >= 0:
            os.close(reading)

"""A session without a mount: a bad request, damage or a defect harms one request at most."""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord.errors import FFRecordError
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.reading import Reading
from tests.support import archives, kernel
from tests.support.kernel import Kernel, Reply
from tests.support.session import BLOCK, FILES, NODES, NOWHERE, POISON, ColdReading, is_well, talk

# ---- requests that the kernel never sends --------------------------------------------------

SOUND = {
    kernel.LOOKUP: b"a.txt\0",
    kernel.READ: kernel.READ_IN.pack(0, 0, 100, 0, 0, 0, 0),
    kernel.READDIR: kernel.READ_IN.pack(0, 0, 4096, 0, 0, 0, 0),
    kernel.READDIRPLUS: kernel.READ_IN.pack(0, 0, 4096, 0, 0, 0, 0),
    kernel.GETXATTR: kernel.XATTR_IN.pack(64, 0) + b"user.colour\0",
    kernel.LISTXATTR: kernel.XATTR_IN.pack(64, 0),
    kernel.INIT: kernel.INIT_IN.pack(7, 45, 1 << 17, 0xFFFFFFFF, 0xFF, *[0] * 11),
}
OPCODES = [*range(61), 4096, 65535, 1 << 31, (1 << 32) - 1]


@pytest.mark.parametrize("opcode", OPCODES)
def test_a_request_truncated_at_any_byte_harms_nothing(
    warm: Kernel, tree: Path, opcode: int
) -> None:
    whole = kernel.request(opcode, 2, SOUND.get(opcode, bytes(16)), 99)
    for length in range(1, len(whole)):
        cut = whole[:length]
        replies = warm.replies(cut)  # the header's length is too large
        assert replies == ([Reply(99, errno.EINVAL)] if length >= 40 else [])
        if length < 40:
            continue
        mended = struct.pack("=I", length) + cut[4:]
        for reply in warm.replies(mended):  # shorter than the opcode needs
            assert reply.unique == 99
    assert is_well(warm, tree)


@pytest.mark.parametrize("claimed", [0, 1, 39, 40, 47, 49, 65536, (1 << 31), (1 << 32) - 1])
@pytest.mark.parametrize("opcode", [1, 3, 15, 44, 2, 77])
def test_a_wrong_length_is_malformed_for_every_opcode(
    warm: Kernel, tree: Path, opcode: int, claimed: int
) -> None:
    raw = struct.pack("=I", claimed) + kernel.request(opcode, 2, bytes(8), 99)[4:]
    assert warm.replies(raw) == [Reply(99, errno.EINVAL)]
    assert warm.log
    assert is_well(warm, tree)


def test_a_malformed_request_without_a_unique_gets_no_reply(warm: Kernel, tree: Path) -> None:
    assert warm.replies(kernel.lookup(1, b"", 0)) == []
    assert is_well(warm, tree)


EXTREMES = (
    0, 1, 7, 255, 4096, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1,
)  # fmt: skip


def mutated(generator: random.Random) -> bytes:
    """Return a request of any opcode, changed in a few places or not at all."""
    opcode = generator.choice([*SOUND] if generator.random() < 0.6 else OPCODES)
    body = bytearray(SOUND.get(opcode) or generator.randbytes(generator.randrange(80)))
    for _ in range(generator.choice((0, 0, 0, 1, 1, 2, 3))):
        if len(body) >= 8:
            at = generator.randrange(len(body) - 7)
            struct.pack_into("=Q", body, at, generator.choice(EXTREMES))
    if generator.random() < 0.1:
        body[generator.randrange(len(body) + 1) :] = generator.randbytes(generator.randrange(60))
    node = generator.choice([*NODES.values()] if generator.random() < 0.8 else NOWHERE)
    raw = bytearray(kernel.request(opcode, node, bytes(body), generator.getrandbits(63) | 1))
    if generator.random() < 0.1:
        struct.pack_into("=I", raw, 0, generator.choice(EXTREMES) & 0xFFFFFFFF)
    if generator.random() < 0.2:
        raw[generator.randrange(len(raw))] ^= 1 << generator.randrange(8)
    if generator.random() < 0.1:
        del raw[1 + generator.randrange(len(raw)) :]
    return bytes(raw)


def may_have_poison(raw: bytes) -> bool:
    """Return True if the reply to a request may contain the bytes of the file `poison`."""
    return raw[4:8] == struct.pack("=I", kernel.READ) and raw[16:24] == struct.pack(
        "=Q", NODES["poison"]
    )


def fill_buffers_with_poison(talking: Kernel) -> None:
    assert talking.replies(kernel.request(kernel.BATCH_FORGET, 1, bytes([POISON]) * 60_000)) == []
    filled = talking.ask(kernel.read(NODES["poison"], 0, 140_000)).payload
    assert filled == bytes([POISON]) * 140_000


def storm(talking: Kernel, tree: Path, count: int, seed: int) -> int:
    """Send mutated requests; return the number of replies with a payload."""
    generator = random.Random(seed)
    answered = 0
    for number in range(0, count, talking.at_once):
        if number % 100 == 0:
            fill_buffers_with_poison(talking)
        asked = [mutated(generator) for _ in range(talking.at_once)]
        for raw, reply in answers(talking, asked):
            answered += bool(reply.payload)
            if not may_have_poison(raw):
                assert POISON not in reply.payload, (seed, number)
        if number % 1000 == 0:
            assert is_well(talking, tree), (seed, number)
    assert is_well(talking, tree), seed
    return answered


def answers(talking: Kernel, asked: list[bytes]) -> Iterator[tuple[bytes, Reply]]:
    """Yield requests with their replies. A second or a foreign reply is a KeyError."""
    waiting = {unique_of(raw): raw for raw in asked if len(raw) >= 40}
    for raw in asked:
        talking.send(raw)
    for reply in talking.until_fence():
        yield waiting.pop(reply.unique), reply
    while any(map(is_sound_read, waiting.values())):  # their data comes from the disk, in any order
        reply = talking.receive()
        yield waiting.pop(reply.unique), reply


def unique_of(raw: bytes) -> int:
    return int(struct.unpack_from("=Q", raw, 8)[0])


def is_sound_read(raw: bytes) -> bool:
    """Return True for a valid read, which is always answered, perhaps later."""
    return len(raw) >= 80 and struct.unpack_from("=II", raw) == (len(raw), kernel.READ)


def test_ten_thousand_mutated_requests_do_not_end_the_loop(talking: Kernel, tree: Path) -> None:
    assert storm(talking, tree, 10_000, seed=1) > 800


@pytest.mark.long
def test_half_a_million_mutated_requests_do_not_end_the_loop(talking: Kernel, tree: Path) -> None:
    for seed in range(2, 52):
        storm(talking, tree, 10_000, seed)
        talking.log.clear()


def test_replies_contain_no_old_bytes_of_a_buffer(talking: Kernel, tree: Path) -> None:
    asked = [kernel.lookup(1, b"a.txt"), kernel.lookup(1, b"missing"), kernel.getattr_(3)]
    asked += [kernel.request(opcode, 5) for opcode in (kernel.READLINK, kernel.STATFS)]
    asked += [kernel.readdir(1, 0, 4096, plus=plus) for plus in (False, True)]
    asked += [kernel.listxattr(2, size) for size in (0, 100)]
    asked += [kernel.getxattr(2, b"user.ffrecord.crc32", size) for size in (0, 100)]
    asked += [
        kernel.read(NODES[name], offset, size)
        for name in FILES
        for offset in (0, 1, 4095, 4999, BLOCK - 1, 3 * BLOCK)
        for size in (1, 511, 5000, BLOCK)
    ]
    for raw in asked:
        fill_buffers_with_poison(talking)
        reply = talking.ask(raw)
        assert reply.error == 0
        assert POISON not in reply.payload, raw


def test_the_poison_is_where_the_tests_expect_it(warm: Kernel, tree: Path) -> None:
    assert stat.S_ISREG(os.lstat(tree / "poison").st_mode)
    assert warm.ask(kernel.read(NODES["poison"], 5, 3)).payload == bytes([POISON]) * 3


# ---- failures of one request -----------------------------------------------------------------


def test_a_handler_that_raises_answers_eio_and_the_loop_continues(
    warm: Kernel, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(self: Filesystem, inode: int) -> bytes:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Filesystem, "readlink", defect)
    assert warm.ask(kernel.request(kernel.READLINK, 5)) == Reply(2, errno.EIO)
    assert any("a defect" in line for line in warm.log)
    assert is_well(warm, tree)


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), FFRecordError("a defect")])
def test_a_check_that_raises_answers_eio_and_the_loop_continues(
    talking: Kernel, tree: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def defect(self: CheckedContent, piece: object, memory: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(CheckedContent, "check", defect)
        assert talking.ask(kernel.read(NODES["a.txt"], 0, 100)) == Reply(2, errno.EIO)
    assert any("a defect" in line for line in talking.log)
    assert talking.ask(kernel.read(NODES["a.txt"], 0, 100)).payload == b"hello, kernel\n"
    assert is_well(talking, tree)


@pytest.fixture
def own_copy(packed: Path, tmp_path: Path) -> Path:
    """Return a copy of the archive that a test may damage."""
    copy = tmp_path / "copy.ffr"
    copy.write_bytes(packed.read_bytes())
    return copy


@pytest.mark.parametrize("reading", [Reading, ColdReading])
def test_damage_is_an_error_and_a_line_in_the_log_for_that_file_only(
    own_copy: Path, tree: Path, reading: type[Reading]
) -> None:
    archives.damage(own_copy, "sub/deep", 17)
    archives.damage(own_copy, "big", BLOCK + 5)
    whole = (tree / "big").read_bytes()
    with talk(own_copy, reading=reading) as talking:
        for _ in range(2):
            for offset, size in ((0, 1), (17, 1), (0, 5000), (4999, 1)):
                asked = kernel.read(NODES["sub/deep"], offset, size)
                assert talking.ask(asked) == Reply(2, errno.EIO)
            assert talking.ask(kernel.read(NODES["big"], 0, BLOCK)).payload == whole[:BLOCK]
            assert talking.ask(kernel.read(NODES["big"], BLOCK - 1, 2)) == Reply(2, errno.EIO)
            assert (
                talking.ask(kernel.read(NODES["big"], 2 * BLOCK, 9)).payload
                == (whole[2 * BLOCK : 2 * BLOCK + 9])
            )
            assert talking.ask(kernel.read(NODES["a.txt"], 0, 99)).payload == b"hello, kernel\n"
        lines = [line for line in talking.log if line.startswith("damaged: ")]
        assert len(lines) == len(talking.log) == 2
        assert "/sub/deep (record " in lines[0]
        assert "of copy.ffr)" in lines[0]
        assert "/big (record " in lines[1]
        assert is_well(talking, tree)


@pytest.mark.parametrize("reading", [Reading, ColdReading])
def test_a_file_truncated_while_it_is_served_is_an_error_and_not_a_crash(
    own_copy: Path, tree: Path, reading: type[Reading]
) -> None:
    with talk(own_copy, reading=reading) as talking:
        assert talking.ask(kernel.read(NODES["sub/deep"], 0, 9)).error == 0
        os.truncate(own_copy, 90)  # the first record begins at 84
        for name in ("a.txt", "big", "sub/deep"):
            assert talking.ask(kernel.read(NODES[name], 0, 100)) == Reply(2, errno.EIO)
        assert sum(line.startswith("damaged: ") for line in talking.log) == 3
        assert is_well(talking, tree)


def test_statfs_describes_the_open_archive_even_if_it_was_deleted(own_copy: Path) -> None:
    blocks = -(-own_copy.stat().st_size // 4096)
    with talk(own_copy) as talking:
        own_copy.unlink()
        reply = talking.ask(kernel.request(kernel.STATFS))
        assert reply.error == 0
        assert struct.unpack_from("=Q", reply.payload)[0] == blocks

"""`ffrecord.format.checksum` against zlib."""

from __future__ import annotations

import os
import threading
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.format import checksum
from tests.support import handmade

Bytes = npt.NDArray[np.uint8]


def arrays(sizes: list[int]) -> list[Bytes]:
    return [np.frombuffer(r, np.uint8) for r in handmade.random_records(sizes)]


def zlib_many(buffers: list[Bytes]) -> list[int]:
    return [zlib.crc32(buffer.tobytes()) for buffer in buffers]


@given(st.binary(max_size=5000))
def test_crc32_equals_the_crc32_of_zlib(data: bytes) -> None:
    assert checksum.crc32(data) == zlib.crc32(data)


@given(st.binary(max_size=500), st.binary(max_size=500))
def test_crc32_continues_from_an_earlier_one(head: bytes, tail: bytes) -> None:
    assert checksum.crc32(tail, checksum.crc32(head)) == zlib.crc32(head + tail)


@given(st.lists(st.integers(0, 3000), max_size=40))
def test_many_checksums_are_in_order(sizes: list[int]) -> None:
    buffers = arrays(sizes)
    assert checksum.crc32_many(buffers) == zlib_many(buffers)
    assert checksum.crc32_many_shared(buffers) == zlib_many(buffers)


@pytest.mark.parametrize("sizes", [[64 << 10] * 64, [4 << 20], [3 << 20, 0], [1 << 20] * 3])
def test_checksums_from_two_cores_are_in_order(sizes: list[int]) -> None:
    buffers = arrays(sizes)
    assert checksum.crc32_many_shared(buffers) == zlib_many(buffers)


def test_a_large_batch_is_shared_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    here, threads = threading.get_ident(), set[int]()

    def crc32(buffer: Bytes) -> int:
        threads.add(threading.get_ident())
        return zlib.crc32(buffer.tobytes())

    monkeypatch.setattr(checksum, "crc32", crc32)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    checksum.crc32_many_shared(arrays([100] * 50))
    checksum.crc32_many_shared(arrays([1 << 10] * (4 << 10)))  # many bytes, but small records
    assert threads == {here}
    checksum.crc32_many_shared(arrays([64 << 10] * 64))
    assert len(threads) == 2


def test_one_core_gets_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    monkeypatch.setattr(checksum, "_the_helper", lambda: pytest.fail("asked for a helper"))
    buffers = arrays([64 << 10] * 64)
    assert checksum.crc32_many_shared(buffers) == zlib_many(buffers)


def test_a_forked_child_starts_its_own_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    buffers = arrays([64 << 10] * 64)
    expected = zlib_many(buffers)
    assert checksum.crc32_many_shared(buffers) == expected
    child = os.fork()
    if child == 0:
        os._exit(0 if checksum.crc32_many_shared(buffers) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert checksum.crc32_many_shared(buffers) == expected


def test_large_batches_are_computed_while_the_interpreter_shuts_down() -> None:
    """Threads cannot be started then, so the work must stay on one core."""
    script = """
import atexit, os, zlib
import numpy as np
from ffrecord.format import checksum
os.sched_getaffinity = lambda pid: {0, 1}
buffers = [np.full(64 << 10, i, np.uint8) for i in range(64)]
def at_exit():
    right = checksum.crc32_many_shared(buffers) == [zlib.crc32(b.tobytes()) for b in buffers]
    print("right" if right else "wrong")
atexit.register(at_exit)
"""
    out, err = handmade.python(script).communicate()
    assert out == "right\n", err

"""`ffrecord.disk.libc`: a failed call raises the same error as Python's own functions."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ffrecord.disk import libc


def test_two_names_are_exchanged(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.mkdir()
    libc.exchange(str(one), str(other))
    assert one.is_dir()
    assert other.read_text() == "1"


def test_a_failed_exchange_names_both_paths(tmp_path: Path) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    with pytest.raises(FileNotFoundError) as caught:
        libc.exchange(one, other)
    assert (caught.value.filename, caught.value.filename2) == (one, other)
    assert caught.value.strerror == os.strerror(errno.ENOENT)


def test_a_hole_is_inserted_in_front_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    fd = os.open(path, os.O_RDWR)
    block = os.fstat(fd).st_blksize
    try:
        libc.insert_range(fd, 0, block)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system cannot insert holes; ext4 and XFS can")
    finally:
        os.close(fd)
    assert path.read_bytes() == bytes(block) + b"x" * 5000


@pytest.mark.parametrize("call", [libc.syncfs, lambda fd: libc.insert_range(fd, 0, 4096)])
def test_a_closed_descriptor_raises_the_systems_error(call: Callable[[int], None]) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
        call(-1)
    assert caught.value.errno == errno.EBADF


def test_syncing_is_retried_after_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        calls = 0

        def syncfs(self, _fd: int) -> int:
            self.calls += 1
            ctypes.set_errno(errno.EINTR)
            return -1 if self.calls < 3 else 0

    library = Interrupted()
    monkeypatch.setattr(libc, "_libc", library)
    libc.syncfs(0)
    assert library.calls == 3


def test_an_old_c_library_raises_enosys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "_libc", object())
    with pytest.raises(OSError, match="the C library has no renameat2") as caught:
        libc.exchange("one", "other")
    assert caught.value.errno == errno.ENOSYS
    assert libc.direct_alignment(0) is None


def test_a_pending_signal_makes_its_descriptor_readable() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    fd = libc.signalfd({signal.SIGUSR2})
    try:
        with pytest.raises(BlockingIOError):
            os.read(fd, 128)
        signal.raise_signal(signal.SIGUSR2)  # for this thread only: other threads do not block it
        assert int.from_bytes(os.read(fd, 128)[:4], "little") == signal.SIGUSR2
    finally:
        os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

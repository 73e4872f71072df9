"""The inbox of a worker: spinning, sleeping, and keeping cores awake."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord_fuse.serve import inbox
from ffrecord_fuse.serve.inbox import BUSY, FEW, MOST_WORTH, Idling, Inbox
from tests.support.patience import PATIENCE

SECONDS = PATIENCE


class Recorded(Idling):
    """An `Idling` that records its calls; `halted` is set by the first halt."""

    def __init__(self) -> None:
        super().__init__("halt")
        self.asked: list[str] = []
        self.halted = threading.Event()

    def poll(self) -> None:
        self.asked.append("poll")

    def halt(self) -> None:
        self.asked.append("halt")
        self.halted.set()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, int]]:
    """Yield the socket that sends requests, and the descriptor that receives them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs.fileno()


@pytest.fixture
def eventfd() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def test_cores_stay_awake_only_when_requests_keep_coming(
    kernel: tuple[socket.socket, int], eventfd: int
) -> None:
    send, fd = kernel
    recorded, memory = Recorded(), memoryview(bytearray(8))
    inbox = Inbox(fd, eventfd, SECONDS, recorded)
    for number in range(2 * BUSY):
        send.send(b"%7d" % number)
        assert inbox.wait(memory) == 7
        assert memory[:7] == b"%7d" % number
        assert recorded.asked == ([] if number + 1 < BUSY else ["poll"])
    inbox.close()
    assert recorded.asked == ["poll", "halt"]


def test_cores_may_halt_before_a_worker_sleeps(
    kernel: tuple[socket.socket, int], eventfd: int
) -> None:
    send, fd = kernel
    recorded, memory = Recorded(), memoryview(bytearray(8))
    inbox = Inbox(fd, eventfd, 1e-6, recorded)

    def answer_when_told() -> None:
        assert recorded.halted.wait(SECONDS)
        send.send(b"at last")

    sender = threading.Thread(target=answer_when_told)
    sender.start()
    # Without a halt before the sleep, the request would never be sent.
    assert inbox.wait(memory) == 7
    sender.join()
    inbox.close()


class Disk:
    """A disk that reads nothing. The test writes to its eventfd."""

    def __init__(self, eventfd: int) -> None:
        self.eventfd = eventfd

    def has_landed(self) -> bool:
        return False

    def clear_event(self) -> None:
        os.eventfd_read(self.eventfd)


def test_cores_may_halt_before_a_worker_sleeps_on_the_disk(
    kernel: tuple[socket.socket, int], eventfd: int
) -> None:
    _, fd = kernel
    recorded = Recorded()
    inbox = Inbox(fd, eventfd, 1e-6, recorded)

    def land_when_told() -> None:
        recorded.halted.wait(SECONDS)
        os.eventfd_write(eventfd, 1)

    lander = threading.Thread(target=land_when_told)
    lander.start()
    inbox.wait_for_anything(Disk(eventfd))
    assert recorded.asked == ["halt"]
    lander.join()
    inbox.close()


def test_one_late_request_ends_the_busy_phase(
    kernel: tuple[socket.socket, int], eventfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, fd = kernel
    recorded, memory = Recorded(), memoryview(bytearray(8))
    inbox = Inbox(fd, eventfd, 0.5, recorded)
    now, step = 0.0, 0.0

    def clock() -> float:
        nonlocal now
        now += step
        return now

    monkeypatch.setattr(time, "perf_counter", clock)
    for number in range(4 * BUSY):
        step = 1.0 if number % BUSY == BUSY - 1 else 1e-6
        send.send(b"request")
        inbox.wait(memory)
    assert "poll" not in recorded.asked
    inbox.close()


def test_a_worker_stops_spinning_when_it_does_not_pay_off(
    kernel: tuple[socket.socket, int], eventfd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, fd = kernel
    recorded, memory = Recorded(), memoryview(bytearray(8))
    looks = 0

    class Watched(Inbox):
        def _spin_until(self, deadline: float, disk: inbox.Disk | None) -> bool:
            nonlocal looks
            looks += 1
            return super()._spin_until(deadline, disk)

    inbox = Watched(fd, eventfd, 0.5, recorded)
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    for _ in range(3 * MOST_WORTH):
        send.send(b"request")
        inbox.wait(memory)
    assert looks == MOST_WORTH
    inbox.close()


def test_a_worker_does_not_sleep_on_a_request_that_another_has_taken(
    kernel: tuple[socket.socket, int], eventfd: int
) -> None:
    """If the worker slept, cores would stay awake until the next request."""
    send, fd = kernel
    recorded, memory = Recorded(), memoryview(bytearray(8))

    class Slower(Inbox):
        def _spin_until(self, deadline: float, disk: inbox.Disk | None) -> bool:
            found = super()._spin_until(deadline, disk)
            assert os.read(fd, 8) == b"request"
            return found

    inbox = Slower(fd, eventfd, SECONDS, recorded)
    send.send(b"request")
    later = threading.Timer(SECONDS, send.send, [b"another"])
    later.start()
    assert inbox.wait(memory) is None
    later.cancel()
    inbox.close()


def test_a_worker_that_does_not_spin_leaves_cores_alone(
    kernel: tuple[socket.socket, int], eventfd: int
) -> None:
    send, fd = kernel
    recorded, memory = Recorded(), memoryview(bytearray(8))
    inbox = Inbox(fd, eventfd, 0.0, recorded)
    for _ in range(2 * BUSY):
        send.send(b"request")
        inbox.wait(memory)
    assert recorded.asked == []
    inbox.close()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpu_dma_latency"
    path.write_bytes(b"")
    monkeypatch.setattr(inbox, "DEVICE", str(path))
    return path


def _open_here(path: Path) -> int:
    """Return the number of this process's descriptors of a file."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == str(path)
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def test_cores_poll_as_long_as_the_device_is_open(device: Path) -> None:
    wish = Idling("poll")
    assert not _open_here(device)
    wish.poll()
    wish.poll()  # the second call changes nothing
    assert device.read_bytes() == struct.pack("=i", 0)
    assert _open_here(device) == 1
    wish.halt()
    wish.halt()
    assert not _open_here(device)
    wish.poll()
    assert _open_here(device) == 1
    wish.halt()


@pytest.mark.parametrize(
    ("idle", "cores", "polls"),
    [
        (None, FEW, True),
        (None, FEW + 1, False),  # polling would affect all cores
        ("poll", 128, True),
        ("halt", 1, False),
    ],
)
def test_many_cores_poll_only_when_asked_to(
    device: Path, monkeypatch: pytest.MonkeyPatch, idle: str | None, cores: int, polls: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    wish = Idling(idle)
    wish.poll()
    assert bool(_open_here(device)) == polls
    wish.halt()


def test_without_permission_polling_is_a_no_op(device: Path) -> None:
    device.unlink()
    wish = Idling("poll")
    wish.poll()
    device.write_bytes(b"")  # the device is not opened again
    wish.poll()
    assert not _open_here(device)

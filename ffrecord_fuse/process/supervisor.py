"""The process above the workers of a mount: it starts them, and starts them again.

Each worker has a descriptor of its own for the connection (FUSE_DEV_IOC_CLONE), and the
supervisor keeps all of them open. So when a worker dies, the requests that it had taken are not
lost with its descriptor: a notice makes the kernel hand them out again (FUSE_NOTIFY_RESEND), and
whoever waits for one only waits. Kernels before 6.9 cannot do that; there the descriptor is
closed, and those requests, no others, fail.

When the supervisor itself is killed, the workers die with it (PR_SET_PDEATHSIG) and the kernel
aborts the connection: the mount point answers ENOTCONN, and does not look like an empty folder.

Signals are waited for, not handled: SIGTERM, SIGINT and SIGHUP unmount. So does the end of the
program that a mount belongs to, if it belongs to one (`lifeline`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from ffrecord.disk.libc import die_with_parent
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mount import is_unmounted, unmount
from ffrecord_fuse.mounting.mounttable import connection_at
from ffrecord_fuse.process.events import Events
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.inbox import DEFAULT_SPIN, Idling
from ffrecord_fuse.serve.report import RESTARTS, Counters
from ffrecord_fuse.serve.session import Session
from ffrecord_fuse.wire import abi, reply
from ffrecord_fuse.wire.handshake import Agreement

MOST_WORKERS = 4
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WAITED_FOR = {signal.SIGCHLD, *ENDING}
SHORT_LIFE = 0.2  # seconds
LONGEST_PAUSE = 1.0
GARBAGE = 50_000  # objects between two looks for garbage
_CRASHED = 70


def default_workers() -> int:
    """Enough for several clients, and cores left for those."""
    return max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // 2))


@dataclass(frozen=True, slots=True)
class Served:
    """The archive that the workers of a mount serve, and how."""

    filesystem: Filesystem
    content: CheckedContent
    counters: Counters
    spin: int | None = None
    idle: str | None = None


@dataclass(slots=True)
class _Worker:
    number: int
    fd: int
    pid: int = 0
    started: float = 0.0
    failures: int = 0  # in a row, soon after the start


class Supervisor:
    """Serves a mount until it is unmounted.

    Args:
        fd: of the connection, after INIT; closed at the end.
        mountpoint: where it is mounted.
        served: what is served.
        agreement: what INIT has settled.
        workers: how many processes.
        log: takes a line.
        connection: the number of the connection, where the mount can be seen.
        caller: the program that the mount belongs to; None if it is to outlive its maker.
    """

    def __init__(
        self, fd: int, mountpoint: str, served: Served, agreement: Agreement, *, workers: int,
        log: Callable[[str], None], connection: int | None = None, caller: Caller | None = None,
    ) -> None:  # fmt: skip
        self._fd = fd
        self._mountpoint = mountpoint
        self._served = served
        self._agreement = agreement
        self._log = log
        self._workers = [_Worker(number, -1) for number in range(workers)]
        self._ending = False
        self._connection = connection
        self._caller = caller

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Start the workers, say that they are, and return when the mount has gone."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
        try:
            ended = () if self._caller is None else self._caller.descriptors
            with contextlib.closing(Events(WAITED_FOR, ended)) as events:
                self._start_all()
                ready()
                while any(worker.pid for worker in self._workers):
                    self._heed(events.wait(), events)
                    self._reap(events)
        finally:
            self.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start_all(self) -> None:
        try:
            for worker in self._workers:
                self._start(worker)
        except OSError as error:
            self.close()  # first: there may be no descriptor left to unmount with
            self._log(f"cannot serve {self._mountpoint}: {error}")
            self._unmount()  # nobody was told that it is there
            raise

    def _heed(self, signo: int | None, events: Events) -> None:
        """Unmount if a signal says so, or the caller's end."""
        if signo in ENDING and not self._ending:
            self._log(f"unmounting {self._mountpoint}: {signal.Signals(signo).name}")
            self._unmount()
        if self._caller is not None and self._caller.has_ended():
            events.signals_only()
            self._caller.release(self._mountpoint, self._connection, self._log)
            self._caller = None

    def _reap(self, events: Events) -> None:
        """Start others for the workers that have ended: several, it may be, for one SIGCHLD."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for worker in self._workers:
                if worker.pid == pid:
                    self._ended(worker, status, events)

    def _ended(self, worker: _Worker, status: int, events: Events) -> None:
        worker.pid = 0
        code = os.waitstatus_to_exitcode(status)
        if code == 0 or self._ending:  # it was unmounted: the others find out as well
            self._ending = True
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        self._log(f"worker {worker.number} {how}, starting another")
        self._pause(worker)
        self._served.counters.row(worker.number)[RESTARTS] += 1
        if not self._agreement.may_resend:
            os.close(worker.fd)  # what it had taken fails now, and does not wait for ever
            worker.fd = -1
        self._restart(worker, events)
        if self._agreement.may_resend:
            self._resend()

    def _restart(self, worker: _Worker, events: Events) -> None:
        """There may be no memory or no process to be had just now: whoever reads waits for it."""
        while not self._ending:
            if is_unmounted(self._fd):  # no worker that lives can tell
                self._ending = True
                return
            try:
                self._start(worker)
                return
            except OSError as error:
                self._log(f"worker {worker.number} cannot be started yet: {error.strerror}")
            self._heed(events.wait(LONGEST_PAUSE), events)

    def _pause(self, worker: _Worker) -> None:
        """Not at once again and again, when a worker cannot live."""
        if time.monotonic() - worker.started > SHORT_LIFE:
            worker.failures = 0
            return
        worker.failures += 1
        if worker.failures > 3:
            time.sleep(min(0.01 * 2 ** (worker.failures - 3), LONGEST_PAUSE))

    def _resend(self) -> None:
        """Requests of other workers are handed out again as well: their replies get ENOENT."""
        try:
            os.write(self._fd, reply.resend())
        except OSError as error:
            if error.errno != errno.ENODEV:  # unmounted meanwhile
                self._log(f"requests could not be had again: {error.strerror}")

    def _start(self, worker: _Worker) -> None:
        if worker.fd < 0:
            worker.fd = clone(self._fd)
        worker.started = time.monotonic()
        supervisor = os.getpid()
        worker.pid = os.fork()
        if not worker.pid:
            self._work(worker, supervisor)

    def _work(self, worker: _Worker, supervisor: int) -> None:
        """The life of a worker: never returns."""
        code = _CRASHED
        try:
            die_with_parent()
            if os.getppid() != supervisor:  # it has died before that: nobody would tell us
                os._exit(code)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to the whole group
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self._close_those_of_others(worker)
            # What is there stays, and hardly anything that requests leave behind is in circles.
            gc.freeze()
            gc.set_threshold(GARBAGE)
            served = self._served
            # The session is not closed: that would wait for a disk that may never answer.
            spin = DEFAULT_SPIN if served.spin is None else served.spin
            Session(
                worker.fd, served.filesystem, served.content,
                spin=0 if worker.number else spin,  # one that stays awake is enough
                idling=Idling(served.idle),
                counts=served.counters.row(worker.number), log=self._log,
            ).run()  # fmt: skip
            code = 0
        except Exception as error:
            self._log(f"worker {worker.number} failed: {error!r}")
        finally:
            os._exit(code)

    def _close_those_of_others(self, worker: _Worker) -> None:
        """So that the supervisor's copy of a worker's descriptor is the last when that has died:
        where requests cannot be sent again, they fail only then."""
        for other in self._workers:
            if other is not worker and other.fd >= 0:
                os.close(other.fd)

    def _unmount(self) -> None:
        """Busy or not, here or in the namespace of a container that has a copy of it: whoever
        still reads gets errors from now on."""
        self._ending = True
        # After a lazy unmount somebody may have mounted something else there.
        if self._connection is None or self._connection == connection_at(self._mountpoint):
            try:
                unmount(self._mountpoint)
            except MountError:
                with contextlib.suppress(MountError):
                    unmount(self._mountpoint, lazy=True)
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the workers; close the descriptors, and with the last of them the connection."""
        for worker in self._workers:
            if worker.pid:
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
                worker.pid = 0
            if worker.fd >= 0:
                os.close(worker.fd)
                worker.fd = -1
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def clone(fd: int) -> int:
    """Another descriptor for the same connection, with a queue of its own."""
    new = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(new, abi.DEV_IOC_CLONE, struct.pack("=I", fd))
    except OSError:
        os.close(new)
        raise
    return new

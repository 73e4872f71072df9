"""The supervisor of a mount: starts the workers, and restarts a worker that dies.

Each worker has its own descriptor of the connection (FUSE_DEV_IOC_CLONE). The supervisor keeps all
of these descriptors open, so a dead worker's requests are not lost. The supervisor asks the kernel
to send these requests again (FUSE_NOTIFY_RESEND), and the programs behind them only wait longer.
Kernels before 6.9 cannot send requests again. There the supervisor closes the dead worker's
descriptor, and only the dead worker's requests fail.

When the supervisor itself is killed, the workers die with it (PR_SET_PDEATHSIG) and the kernel
aborts the connection. The mountpoint then answers ENOTCONN and does not look like an empty folder.

SIGTERM, SIGINT and SIGHUP unmount. The supervisor waits for them and installs no handlers. If the
mount belongs to a program (`lifeline`), the end of that program unmounts too.
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
from ffrecord.machine import processors
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mount import is_unmounted, unmount
from ffrecord_fuse.mounting.mounttable import connection_at
from ffrecord_fuse.process.events import ENDING, Events
from ffrecord_fuse.serve import warm
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.inbox import DEFAULT_SPIN, Idling
from ffrecord_fuse.serve.report import RESTARTS, Counters
from ffrecord_fuse.serve.session import Session
from ffrecord_fuse.wire import abi, reply
from ffrecord_fuse.wire.handshake import Agreement

MOST_WORKERS = 4  # by default
WAITED_FOR = {signal.SIGCHLD, *ENDING}
SHORT_LIFE = 0.2  # seconds; a worker that dies sooner counts as a failed start
LONGEST_PAUSE = 1.0  # seconds between two starts of a worker
GARBAGE = 50_000  # objects between two garbage collections
_CRASHED = 70  # exit code of a worker that failed


def default_workers() -> int:
    """Return half the number of cores, at most 4: the clients need cores too."""
    return max(1, min(MOST_WORKERS, processors.available() // 2))


@dataclass(frozen=True, slots=True)
class Served:
    """The archive that the workers serve, with its counters and options."""

    filesystem: Filesystem
    content: CheckedContent
    counters: Counters
    spin: int | None = None
    idle: str | None = None
    warm: bool = False


@dataclass(slots=True)
class _Worker:
    number: int
    fd: int
    pid: int = 0
    started: float = 0.0
    failures: int = 0  # consecutive deaths soon after the start


class Supervisor:
    """Serves a mount until it is unmounted.

    Args:
        fd: the descriptor of the connection, after INIT; closed at the end.
        mountpoint: the folder of the mount.
        served: the archive to serve.
        agreement: the result of INIT.
        workers: the number of worker processes.
        log: called with each line for the log.
        connection: the number of the connection; None if the mount cannot be seen from here.
        caller: the program that the mount belongs to; None if the mount shall stay.
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

    def moved(self, mountpoint: str, connection: int | None) -> None:
        """Take another mount for the one to unmount: an overlay that ends this one with it."""
        self._mountpoint = mountpoint
        self._connection = connection

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Start the workers, call `ready`, and return when the file system is unmounted."""
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
            self.close()  # first: unmounting may need a free descriptor
            self._log(f"{self._mountpoint}: cannot start the workers: {error}")
            self._unmount()  # nobody was told that the mount exists: `ready` was not called
            raise

    def _heed(self, signo: int | None, events: Events) -> None:
        """Unmount after an ending signal, or when the caller has ended."""
        if signo in ENDING and not self._ending:
            self._log(f"unmounting {self._mountpoint}: received {signal.Signals(signo).name}")
            self._unmount()
        if self._caller is not None and self._caller.has_ended():
            events.signals_only()
            self._caller.release(self._mountpoint, self._connection, self._log)
            self._caller = None

    def _reap(self, events: Events) -> None:
        """Replace all workers that have ended. One SIGCHLD can stand for several workers."""
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
        if code == 0 or self._ending:  # unmounted; the other workers end by themselves
            self._ending = True
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._log(f"worker {worker.number} {how}; starting another")
        self._pause(worker)
        self._served.counters.row(worker.number)[RESTARTS] += 1
        if not self._agreement.may_resend:
            os.close(worker.fd)  # the worker's requests fail now instead of waiting for ever
            worker.fd = -1
        self._restart(worker, events)
        if self._agreement.may_resend:
            self._resend()

    def _restart(self, worker: _Worker, events: Events) -> None:
        """Start a worker again. Retry while the system lacks memory or processes.

        Meanwhile the programs that read wait.
        """
        while not self._ending:
            if is_unmounted(self._fd):  # perhaps no worker is alive that would notice it
                self._ending = True
                return
            try:
                self._start(worker)
                return
            except OSError as error:
                self._log(f"worker {worker.number} cannot start: {error.strerror}; trying again")
            self._heed(events.wait(LONGEST_PAUSE), events)

    def _pause(self, worker: _Worker) -> None:
        """Pause before the next start if a worker keeps dying soon after its start."""
        if time.monotonic() - worker.started > SHORT_LIFE:
            worker.failures = 0
            return
        worker.failures += 1
        if worker.failures > 3:
            time.sleep(min(0.01 * 2 ** (worker.failures - 3), LONGEST_PAUSE))

    def _resend(self) -> None:
        """Make the kernel send all unanswered requests again.

        Requests that living workers are processing are sent again too. A reply to the first
        sending then fails with ENOENT, and the second sending is answered.
        """
        try:
            os.write(self._fd, reply.resend())
        except OSError as error:
            if error.errno != errno.ENODEV:  # ENODEV: unmounted meanwhile
                self._log(f"cannot resend the requests of a dead worker: {error.strerror}")

    def _start(self, worker: _Worker) -> None:
        if worker.fd < 0:
            worker.fd = clone(self._fd)
        worker.started = time.monotonic()
        supervisor = os.getpid()
        worker.pid = os.fork()
        if not worker.pid:
            self._work(worker, supervisor)

    def _work(self, worker: _Worker, supervisor: int) -> None:
        """Run a worker in the forked child. Never returns."""
        code = _CRASHED
        try:
            die_with_parent()
            if os.getppid() != supervisor:  # the supervisor died before die_with_parent
                os._exit(code)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            self._close_other_descriptors(worker)
            # Collect garbage rarely: existing objects stay for ever, and requests make few cycles.
            gc.freeze()
            gc.set_threshold(GARBAGE)
            served = self._served
            # In one worker, not in the supervisor: a process that forks must have no threads.
            if served.warm and not worker.number:
                warm.start(served.filesystem.archive, self._log)
            # The session is not closed: that would wait for a disk that may never answer.
            spin = DEFAULT_SPIN if served.spin is None else served.spin
            Session(
                worker.fd, served.filesystem, served.content,
                spin=0 if worker.number else spin,  # one worker that stays awake is enough
                idling=Idling(served.idle),
                counts=served.counters.row(worker.number), log=self._log,
                tell_disk=served.counters.tell_disk,
            ).run()  # fmt: skip
            code = 0
        except Exception as error:
            self._log(f"worker {worker.number} failed: {error!r}")
        finally:
            os._exit(code)

    def _close_other_descriptors(self, worker: _Worker) -> None:
        """Close the descriptors of the other workers.

        When a worker dies, the supervisor must hold the only copy of the worker's descriptor. On
        kernels that cannot send requests again, the requests fail only when that copy is closed.
        """
        for other in self._workers:
            if other is not worker and other.fd >= 0:
                os.close(other.fd)

    def _unmount(self) -> None:
        """Unmount and kill the workers, even if the mount is busy.

        Programs that still read get errors from now on, also in containers with a copy of the
        mount.
        """
        self._ending = True
        # After a lazy unmount, another file system may be mounted there.
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
        """Kill the workers and close all descriptors. Closing the last one ends the connection."""
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
    """Return another descriptor of the same connection, with its own queue."""
    new = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.ioctl(new, abi.DEV_IOC_CLONE, struct.pack("=I", fd))
    except OSError:
        os.close(new)
        raise
    return new

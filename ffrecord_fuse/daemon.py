"""Mounting an archive and serving it: in the foreground, or as a daemon once it answers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ffrecord.archive import Archive
from ffrecord.names import absolute
from ffrecord.wording import counted
from ffrecord_fuse import fusepy_adapter
from ffrecord_fuse.content import Content
from ffrecord_fuse.counters import Counters
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem, Ownership
from ffrecord_fuse.handshake import Agreement, agree
from ffrecord_fuse.lifeline import Caller
from ffrecord_fuse.log import Log
from ffrecord_fuse.mounting import mount, unmount
from ffrecord_fuse.mounttable import READ_AHEAD_KIB, connection_at, set_read_ahead
from ffrecord_fuse.options import Options
from ffrecord_fuse.supervisor import ENDING, Served, Supervisor, default_workers

Run: TypeAlias = Callable[[Callable[[], None]], None]
"""Serves a mount until it has gone; calls what it is given when it is ready."""

READY = b"+"
SPARE_DESCRIPTORS = 16
"""Open files that serving takes, beyond one for each worker."""


def serve(
    archive: str,
    mountpoint: str,
    options: Options,
    *,
    foreground: bool = False,
    caller: Caller | None = None,
) -> int:
    """Mount and serve; returns when the mount has gone or, as a daemon, when it answers.

    Whatever stands in the way is raised before anything is left in the background. The mount ends
    with the `caller`, if there is one.
    """
    archive, mountpoint = absolute(archive), absolute(mountpoint)
    by_libfuse = options.backend == "fusepy"
    workers = 1 if by_libfuse else options.workers or default_workers()
    served = _opened(archive, options, workers)
    log_path = None if options.log is None else os.path.abspath(options.log)
    log = Log(log_path, foreground=foreground)
    _require_descriptors(mountpoint, workers + SPARE_DESCRIPTORS)
    inodes = len(served.filesystem.archive.index)
    facts = f"{inodes} inodes, {counted(workers, 'worker')}, verify={options.verify}"

    def logged(run: Run) -> Run:
        return _logged(run, log, f"mounted {archive} on {mountpoint}: {facts}", mountpoint)

    if by_libfuse:
        what = (served.filesystem, served.content, served.counters.row(0), log.line, caller)
        run = logged(fusepy_adapter.prepare(archive, mountpoint, options, *what))
        if foreground:
            run(lambda: None)  # libfuse sees to its signals
        else:
            with _undone_if_interrupted(mountpoint):
                in_background(run, mountpoint)
        return 0
    with _undone_if_interrupted(mountpoint):
        fd, agreement, connection = _mount(archive, mountpoint, options)
        watch = Supervisor(
            fd, mountpoint, served, agreement, workers=workers, log=log.line,
            connection=connection, caller=caller,
        )  # fmt: skip
        _run(logged(watch.run), watch, mountpoint, foreground=foreground)
    return 0


def _require_descriptors(mountpoint: str, count: int) -> None:
    """Raise before anything is mounted if there are too few open files left to serve with."""
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(count):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            why = f"serving takes {count} more open files: {error.strerror}; raise `ulimit -n`"
            raise MountError(mountpoint, error.errno or errno.EMFILE, why) from None


def _run(run: Run, watch: Supervisor, mountpoint: str, *, foreground: bool) -> None:
    """Serve; if that cannot even begin, leave no dead mount."""
    is_ready = False

    def ready() -> None:
        nonlocal is_ready
        is_ready = True

    try:
        if foreground:
            run(ready)
        else:
            in_background(run, mountpoint)
    except BaseException:
        watch.close()  # first: there may be no descriptor left to unmount with
        if not is_ready:
            _unmount_quietly(mountpoint)
        raise
    finally:
        watch.close()


def _unmount_quietly(mountpoint: str) -> None:
    with contextlib.suppress(MountError, OSError):
        unmount(mountpoint, lazy=True)


def _opened(path: str, options: Options, workers: int) -> Served:
    """An archive as it is to be served."""
    archive = Archive.open(path)
    counters = Counters(workers)
    keeper = os.getuid() if options.allow_root else None
    ownership = Ownership(options.uid, options.gid, options.umask, keeper)
    filesystem = Filesystem(archive, ownership, counters)
    content = Content(archive, options.verify)
    return Served(filesystem, content, counters, options.spin, options.idle)


def _logged(run: Run, log: Log, what: str, mountpoint: str) -> Run:
    """Serve, and have the log say when that begins and ends."""

    def run_and_log(ready: Callable[[], None]) -> None:
        def mounted() -> None:
            log.line(what)
            ready()

        run(mounted)
        log.line(f"unmounted {mountpoint}")

    return run_and_log


@contextlib.contextmanager
def _undone_if_interrupted(mountpoint: str) -> Iterator[None]:
    """A Ctrl-C and the like wait until it is mounted, or is not: in between nobody could undo it.
    A mount that serves in the foreground takes them as the order to end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
        if signal.sigpending() & set(ENDING):
            _unmount_quietly(mountpoint)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _mount(archive: str, mountpoint: str, options: Options) -> tuple[int, Agreement, int | None]:
    """Mount; the descriptor, what INIT has settled, and the connection if it can be seen."""
    fd = mount(archive, mountpoint, options)
    try:
        agreement = agree(fd, mountpoint)
        connection = connection_at(mountpoint)
    except BaseException:
        os.close(fd)
        _unmount_quietly(mountpoint)
        raise
    set_read_ahead(mountpoint, READ_AHEAD_KIB)
    return fd, agreement, connection


def in_background(run: Run, mountpoint: str) -> None:
    """Go on in a process of its own; returns when that says that it is ready."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        with open(told, "rb") as pipe:
            said = pipe.read(1)  # workers keep it open: it has no end when all is well
            if said == READY:
                return
            said += pipe.read()
        why = os.fsdecode(said) or "the daemon ended before it was ready"
        raise MountError(mountpoint, errno.EIO, why)
    os.close(told)
    waiting = open(tell, "wb", buffering=0)  # noqa: SIM115
    code = 1
    try:
        os.setsid()  # from here on it has no terminal that could interrupt it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.chdir("/")
        _forget_terminal()

        def ready() -> None:
            waiting.write(READY)
            waiting.close()

        run(ready)
        code = 0
    except MountError as error:
        if not waiting.closed:  # whoever waits for it to be ready can still be told
            waiting.write(os.fsencode(error.strerror or ""))
    finally:
        os._exit(code)


def _forget_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+")  # noqa: SIM115

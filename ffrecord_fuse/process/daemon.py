"""Mounting an archive and serving it: in the foreground, or as a daemon once it answers."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from ffrecord.archive.archive import Archive
from ffrecord.archive.names import absolute
from ffrecord.text import counted
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem, Ownership
from ffrecord_fuse.libfuse import fusepy_adapter
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mount import inherited_descriptor, mount, unmount
from ffrecord_fuse.mounting.mounttable import READ_AHEAD_KIB, connection_at, set_read_ahead
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.process.supervisor import ENDING, Served, Supervisor, default_workers
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.report import NOWHERE, Counters, Log
from ffrecord_fuse.wire.handshake import Agreement, agree

Run: TypeAlias = Callable[[Callable[[], None]], None]
"""Serves a mount until it has gone; calls what it is given when it is ready."""

READY = b"+"
SPARE_DESCRIPTORS = 16
"""Open files that serving takes, beyond one for each worker."""
ANSWER_SECONDS = 2.0
"""How long a mount may take to answer before it is taken for one that lives."""


def serve(
    archive: str, mountpoint: str, options: Options, *, foreground: bool = False,
    caller: Caller | None = None, warn: Callable[[str], None] = lambda text: None,
) -> int:  # fmt: skip
    """Mount and serve; returns when the mount has gone or, as a daemon, when it answers.

    Whatever stands in the way is raised before anything is left in the background. The mount ends
    with the `caller`, if there is one. `warn` is told where the log is, if that is a surprise.
    """
    archive, mountpoint = absolute(archive), absolute(mountpoint)
    by_libfuse = options.backend == "fusepy"
    workers = 1 if by_libfuse else options.workers or default_workers()
    opened = Archive.open(archive)
    _require_descriptors(mountpoint, workers + SPARE_DESCRIPTORS)
    log = Log(None if options.log is None else absolute(options.log), foreground=foreground)
    served = _served(opened, options, workers, log.place)
    facts = f"{len(opened.index)} inodes, {counted(workers, 'worker')}, verify={options.verify}"
    logged = partial(_logged, log, f"mounted {archive} on {mountpoint}: {facts}", mountpoint)
    # In the foreground libfuse sees to its signals.
    is_left_alone = by_libfuse and foreground
    with contextlib.nullcontext() if is_left_alone else _undone_if_interrupted(mountpoint):
        if by_libfuse:
            what = (served.filesystem, served.content, served.counters.row(0), log.line, caller)
            run = logged(fusepy_adapter.prepare(archive, mountpoint, options, *what))
            if foreground:
                run(lambda: None)
            else:
                in_background(run, mountpoint)
        else:
            fd, agreement, connection = _mount(archive, mountpoint, options)
            watch = Supervisor(
                fd, mountpoint, served, agreement, workers=workers, log=log.line,
                connection=connection, caller=caller,
            )  # fmt: skip
            _run(logged(watch.run), watch, mountpoint, foreground=foreground)
        if log.is_our_choice:
            where = "nothing is logged" if log.place == NOWHERE else f"the log is {log.place}"
            warn(f"there is no syslog here (/dev/log): {where}; --log FILE names another file")
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
    with contextlib.closing(watch), contextlib.ExitStack() as on_failure:
        on_failure.callback(_unmount_quietly, mountpoint)
        on_failure.callback(watch.close)  # before it: there may be no descriptor to unmount with

        def ready() -> None:
            on_failure.pop_all()

        if foreground:
            run(ready)
        else:
            in_background(run, mountpoint)
            ready()


def _unmount_quietly(mountpoint: str) -> None:
    with contextlib.suppress(MountError, OSError):
        unmount(mountpoint, lazy=True)


def _served(archive: Archive, options: Options, workers: int, log_place: str) -> Served:
    """An archive as it is to be served."""
    counters = Counters(workers)
    keeper = os.getuid() if options.allow_root else None
    ownership = Ownership(options.uid, options.gid, options.umask, keeper)
    filesystem = Filesystem(archive, ownership, counters.json, log_place)
    content = CheckedContent(archive, options.verify)
    return Served(filesystem, content, counters, options.spin, options.idle)


def _logged(log: Log, what: str, mountpoint: str, run: Run) -> Run:
    """Serve, and have the log say when that begins and how it ends."""

    def run_and_log(ready: Callable[[], None]) -> None:
        connection = None

        def mounted() -> None:
            nonlocal connection
            connection = connection_at(mountpoint)
            log.line(what)
            ready()

        run(mounted)
        log.line(_ending(mountpoint, connection))

    return run_and_log


def _ending(mountpoint: str, connection: int | None) -> str:
    """Tell how a mount ended, in a line for the log. One that was aborted is still there, dead:
    it is removed."""
    if inherited_descriptor(mountpoint) is not None:
        return f"{mountpoint} has ended: it was unmounted, or its connection aborted"
    if connection is None or connection_at(mountpoint) != connection or not _is_dead(mountpoint):
        return f"unmounted {mountpoint}"
    try:
        unmount(mountpoint, lazy=True)
    except MountError as error:
        return f"the connection of {mountpoint} was aborted; a dead mount is left: {error.strerror}"
    return f"the connection of {mountpoint} was aborted; unmounted it"


def _is_dead(mountpoint: str) -> bool:
    """Whether a mount has no daemon. By a process that can be killed: another file system may have
    been mounted there meanwhile, one that does not answer yet."""
    child = os.fork()
    if not child:
        code = 1
        try:
            os.statvfs(mountpoint)
        except OSError as error:
            code = 0 if error.errno in (errno.ENOTCONN, errno.ECONNABORTED) else 1
        finally:
            os._exit(code)
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


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
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(_unmount_quietly, mountpoint)
        on_failure.callback(os.close, fd)
        agreement = agree(fd, mountpoint)
        connection = connection_at(mountpoint)
        on_failure.pop_all()
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

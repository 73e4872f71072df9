"""Mount an archive and serve it, in the foreground or as a daemon.

Errors before the mount answers are raised in the process that called `serve`. Later problems go to
the log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit
from ffrecord.archive.index import ROOT
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.names import absolute, to_bytes
from ffrecord.records.damage import find_damage
from ffrecord.remote.urls import is_url
from ffrecord.text import counted
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem, Ownership, Separated, Subfolder
from ffrecord_fuse.libfuse import fusepy_adapter
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mount import inherited_descriptor, mount, unmount
from ffrecord_fuse.mounting.mounttable import READ_AHEAD_KIB, connection_at, set_read_ahead
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.mounting.overlay import Place
from ffrecord_fuse.process import opening
from ffrecord_fuse.process.covering import Run, covered, covered_by_thread, place_of
from ffrecord_fuse.process.events import ENDING
from ffrecord_fuse.process.kernel_mount import NO_PINS, ByKernel
from ffrecord_fuse.process.supervisor import Served, Supervisor, default_workers
from ffrecord_fuse.process.undoing import undone_if_interrupted, unmount_quietly
from ffrecord_fuse.serve import inbox
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.report import Counters, Log, tell_place
from ffrecord_fuse.wire.handshake import Agreement, agree

READY = b"+"
REMOTE_WORKERS = 1
"""By default, for a URL. Each worker has its own connections and windows, so several would fetch
bytes twice. One is as fast as most networks."""
SPARE_DESCRIPTORS = 16
"""Open files that serving needs, besides one for each worker."""
ANSWER_SECONDS = 2.0
"""Seconds to wait for an answer of a mount. A mount that has not answered by then counts as alive,
because a dead mount fails at once."""


def serve(
    archive: str, mountpoint: str, options: Options, *, foreground: bool = False,
    caller: Caller | None = None, note: Callable[[str], None] = lambda text: None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Mount and serve. Return when unmounted or, for a daemon, as soon as the mount answers.

    If mounting fails, an error is raised and no process is left in the background. The mount ends
    with the `caller`, if there is one. If there is no syslog, `note` is called with the place of
    the log. `storage_options` are for a URL.
    """
    archive = archive if is_url(archive) else absolute(archive)
    mountpoint = absolute(mountpoint)
    by_libfuse = options.backend == "fusepy"
    opened, archive = opening.opened(archive, options, storage_options)
    default = default_workers() if opened.is_local else REMOTE_WORKERS
    workers = 1 if by_libfuse else options.workers or default
    root = _root(opened, mountpoint, options.subdir)
    _require_descriptors(mountpoint, workers + SPARE_DESCRIPTORS)
    log = Log(None if options.log is None else absolute(options.log), foreground=foreground)
    if options.verify == "before":
        _verify_all(opened)
    with place_of(opened, archive, mountpoint, options, root) as place:
        if options.backend in ("kernel", "auto"):
            copy = None if opened.is_local else opening.pinned(opened)
            by_kernel = ByKernel(
                opened if copy is None else copy.archive, archive, place, root, log, caller, note,
                NO_PINS if copy is None else copy.pins,
            )  # fmt: skip
            if by_kernel.serve(foreground=foreground):
                return 0
        served = _served(opened, place, workers, log.place, root)
        facts = f"{len(opened.index)} inodes, {counted(workers, 'worker')}"
        facts += f", verify={_verify(options, opened)}{place.facts}"
        logged = partial(_logged, log, f"mounted {archive} on {mountpoint}: {facts}", place)
        # In the foreground, libfuse itself handles the signals.
        is_left_alone = by_libfuse and foreground
        with contextlib.nullcontext() if is_left_alone else undone_if_interrupted(mountpoint):
            if by_libfuse:
                what = (served.filesystem, served.content, served.counters, log.line, caller)
                run = fusepy_adapter.prepare(archive, place.lower, place.options, *what)
                run = logged(covered_by_thread(run, place, caller, log.line))
                if foreground:
                    run(lambda: None)
                else:
                    in_background(run, mountpoint)
            else:
                _warn_if_idle_halts(options, mountpoint, log, note)
                fd, agreement, connection = _mount(archive, place.lower, place.options)
                watch = Supervisor(
                    fd, place.lower, served, agreement, workers=workers, log=log.line,
                    connection=connection, caller=caller,
                )  # fmt: skip
                _run(logged(covered(watch, place)), watch, place, foreground=foreground)
            tell_place(log, note)
    return 0


def _warn_if_idle_halts(
    options: Options, mountpoint: str, log: Log, note: Callable[[str], None]
) -> None:
    """Say that `idle=poll` has no effect, if this user cannot make idle cores poll."""
    if options.idle == "poll" and not inbox.can_poll():
        what = f"{mountpoint}: idle=poll has no effect, because {inbox.DEVICE} cannot be opened"
        log.line(what)
        note(f"{what}; mount as root")


def _require_descriptors(mountpoint: str, count: int) -> None:
    """Raise MountError if this process cannot open `count` more files."""
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(count):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            why = f"serving needs {count} more open files: {error.strerror}; raise `ulimit -n`"
            raise MountError(mountpoint, error.errno or errno.EMFILE, why) from None


def _run(run: Run, watch: Supervisor, place: Place, *, foreground: bool) -> None:
    """Serve. If serving cannot start, unmount, so that no dead mount is left."""
    with contextlib.closing(watch), contextlib.ExitStack() as on_failure:
        on_failure.callback(unmount_quietly, place.lower)
        on_failure.callback(watch.close)  # runs first: unmounting may need a free descriptor

        def ready() -> None:
            on_failure.pop_all()

        if foreground:
            run(ready)
        else:
            in_background(run, place.mountpoint)
            ready()


def _served(archive: Archive, place: Place, workers: int, log_place: str, root: int) -> Served:
    """Return the archive with its counters and options, as the workers need them."""
    options = place.options
    counters = Counters(workers, is_remote=not archive.is_local)
    keeper = os.getuid() if options.allow_root else None
    ownership = Ownership(options.uid, options.gid, options.umask, root, keeper)
    filesystem = Filesystem(archive, ownership, counters.json, log_place)
    if place.separates_links:
        filesystem = Separated(filesystem)
    if root != ROOT:
        filesystem = Subfolder(filesystem, root)
    content = CheckedContent(archive, _verify(options, archive))
    return Served(filesystem, content, counters, options.spin, options.idle, options.warm)


def _verify(options: Options, archive: Archive) -> str:
    """Return when a FUSE mount verifies.

    Over the network, bytes that were right the first time may arrive damaged the next time.
    """
    if options.verify not in (None, "before", "first"):
        return options.verify
    return "first" if archive.is_local else "always"


def _root(archive: Archive, mountpoint: str, subdir: str | None) -> int:
    """Return the inode of the folder to mount."""
    if subdir is None:
        return ROOT
    try:
        if os.path.normpath(subdir.lstrip("/")).split("/")[0] == os.pardir:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        root = resolve(archive.index, to_bytes(subdir))
    except OSError as error:
        why = f"the archive has no folder {subdir}: {error.strerror}; `ffrecord ls` lists folders"
        raise MountError(mountpoint, error.errno or errno.ENOENT, why) from None
    if not stat.S_ISDIR(archive.index.mode(root)):
        why = f"{subdir} is not a folder of the archive; `ffrecord ls` lists folders"
        raise MountError(mountpoint, errno.ENOTDIR, why)
    return root


def _verify_all(archive: Archive) -> None:
    """Check the index, and all records on all cores; raise the error of the first damaged one."""
    audit(archive)
    for _, error in find_damage(archive.reader, shown=None):
        raise error


def _logged(log: Log, what: str, place: Place, run: Run) -> Run:
    """Wrap `run`, so that the log says when serving starts and how it ends."""

    def run_and_log(ready: Callable[[], None]) -> None:
        connection = None

        def mounted() -> None:
            nonlocal connection
            connection = connection_at(place.mountpoint)
            log.line(what)
            ready()

        run(mounted)
        log.line(_ending(place, connection))

    return run_and_log


def _ending(place: Place, connection: int | None) -> str:
    """Return the log line for the end of a mount. Remove the dead mount that an abort leaves.

    An overlay that is left answers, but without the archive. A dead one is a dead fuse-overlayfs,
    and stays, as any mount whose daemon was killed.
    """
    mountpoint = place.mountpoint
    if inherited_descriptor(mountpoint) is not None:
        return f"{mountpoint}: the mount was unmounted, or its connection was aborted"
    if connection is None or connection_at(mountpoint) != connection:
        return f"unmounted {mountpoint}"
    is_dead = _is_dead(mountpoint)
    if is_dead and place.has_overlay:
        return f"{mountpoint}: fuse-overlayfs has ended; a dead mount is left"
    if not is_dead and not place.has_overlay:
        return f"unmounted {mountpoint}"
    try:
        unmount(mountpoint, lazy=True)
    except MountError as error:
        return f"{mountpoint}: the connection was aborted; a dead mount is left: {error.strerror}"
    return f"{mountpoint}: the connection was aborted; the dead mount was unmounted"


def _is_dead(mountpoint: str) -> bool:
    """Return True if a mount has no daemon.

    Meanwhile another file system, which does not answer yet, may have been mounted there. So a
    child process asks: it can be killed if no answer comes.
    """
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


def _mount(archive: str, mountpoint: str, options: Options) -> tuple[int, Agreement, int | None]:
    """Mount; return the descriptor, the result of INIT, and the connection's number if known."""
    fd = mount(archive, mountpoint, options)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(unmount_quietly, mountpoint)
        on_failure.callback(os.close, fd)
        agreement = agree(fd, mountpoint)
        connection = connection_at(mountpoint)
        on_failure.pop_all()
    set_read_ahead(mountpoint, READ_AHEAD_KIB)
    return fd, agreement, connection


def in_background(run: Run, mountpoint: str) -> None:
    """Call `run` in a daemon process; return when the daemon is ready."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        with open(told, "rb") as pipe:
            said = pipe.read(1)  # read() would wait for the workers, which inherit the pipe
            if said == READY:
                return
            said += pipe.read()
        silent = "the daemon ended before it was ready; run `ffrecord mount -f` to see why"
        why = os.fsdecode(said) or silent
        raise MountError(mountpoint, errno.EIO, why)
    os.close(told)
    waiting = open(tell, "wb", buffering=0)  # noqa: SIM115
    code = 1
    try:
        os.setsid()  # without a terminal, no Ctrl-C can interrupt the daemon
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.chdir("/")
        _forget_terminal()

        def ready() -> None:
            waiting.write(READY)
            waiting.close()

        run(ready)
        code = 0
    except MountError as error:
        if not waiting.closed:  # the parent still waits for a result
            waiting.write(os.fsencode(error.strerror or ""))
    finally:
        os._exit(code)


def _forget_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+")  # noqa: SIM115

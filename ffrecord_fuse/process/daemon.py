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
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit
from ffrecord.archive.index import ROOT
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.names import absolute, to_bytes, to_text
from ffrecord.records.damage import find_damage
from ffrecord.text import counted
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem, Ownership, Separated, Subfolder
from ffrecord_fuse.kernel import mount as kernel
from ffrecord_fuse.kernel.probe import Refused
from ffrecord_fuse.libfuse import fusepy_adapter
from ffrecord_fuse.mounting.changes import Origin, Top
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mount import inherited_descriptor, mount, unmount
from ffrecord_fuse.mounting.mounttable import (
    READ_AHEAD_KIB,
    connection_at,
    connection_of,
    set_read_ahead,
)
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.mounting.overlay import Overlay, Place, with_owner
from ffrecord_fuse.process import watch
from ffrecord_fuse.process.events import ENDING
from ffrecord_fuse.process.supervisor import Served, Supervisor, default_workers
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.report import NOWHERE, Counters, Log
from ffrecord_fuse.wire.handshake import Agreement, agree

Run: TypeAlias = Callable[[Callable[[], None]], None]
"""A function that serves until the file system is unmounted. It calls its argument when ready."""

READY = b"+"
VERIFIED = {
    None: "not verified",
    "verified": "verified before mounting",
    "verity": "verified by fs-verity",
}
SPARE_DESCRIPTORS = 16
"""Open files that serving needs, besides one for each worker."""
ANSWER_SECONDS = 2.0
"""Seconds to wait for an answer of a mount. A mount that has not answered by then counts as alive,
because a dead mount fails at once."""


def serve(
    archive: str, mountpoint: str, options: Options, *, foreground: bool = False,
    caller: Caller | None = None, note: Callable[[str], None] = lambda text: None,
) -> int:  # fmt: skip
    """Mount and serve. Return when unmounted or, for a daemon, as soon as the mount answers.

    If mounting fails, an error is raised and no process is left in the background. The mount ends
    with the `caller`, if there is one. If there is no syslog, `note` is called with the place of
    the log.
    """
    archive, mountpoint = absolute(archive), absolute(mountpoint)
    by_libfuse = options.backend == "fusepy"
    workers = 1 if by_libfuse else options.workers or default_workers()
    opened = Archive.open(archive, memory=options.memory)
    root = _root(opened, mountpoint, options.subdir)
    if options.verify == "before":
        _verify_all(opened)
    with _place(opened, archive, mountpoint, options, root) as place:
        if options.backend in ("kernel", "auto"):
            log = Log(None if options.log is None else absolute(options.log), foreground=foreground)
            if _serve_by_kernel(opened, archive, place, root, log, caller, note,
                foreground=foreground,
            ):  # fmt: skip
                return 0
        _require_descriptors(mountpoint, workers + SPARE_DESCRIPTORS)
        log = Log(None if options.log is None else absolute(options.log), foreground=foreground)
        served = _served(opened, place, workers, log.place, root)
        facts = f"{len(opened.index)} inodes, {counted(workers, 'worker')}, "
        facts += f"verify={_verify(options)}{place.facts}"
        logged = partial(_logged, log, f"mounted {archive} on {mountpoint}: {facts}", place)
        # In the foreground, libfuse itself handles the signals.
        is_left_alone = by_libfuse and foreground
        with contextlib.nullcontext() if is_left_alone else _undone_if_interrupted(mountpoint):
            if by_libfuse:
                what = (served.filesystem, served.content, served.counters.row(0), log.line, caller)
                run = fusepy_adapter.prepare(archive, place.lower, place.options, *what)
                run = logged(_covered_by_thread(run, place, caller, log))
                if foreground:
                    run(lambda: None)
                else:
                    in_background(run, mountpoint)
            else:
                fd, agreement, connection = _mount(archive, place.lower, place.options)
                watch = Supervisor(
                    fd, place.lower, served, agreement, workers=workers, log=log.line,
                    connection=connection, caller=caller,
                )  # fmt: skip
                run = logged(_covered(watch, place))
                _run(run, watch, place, foreground=foreground)
            _tell_place(log, note)
    return 0


def _place(archive: Archive, path: str, mountpoint: str, options: Options, root: int) -> Place:
    """Return where to mount an archive, with the overlay that the options ask for."""
    if options.overlay is None:
        return Place(mountpoint, options)
    options = with_owner(replace(options, overlay=absolute(options.overlay)))
    ownership = Ownership(options.uid, options.gid, options.umask, root)
    found = ownership.applied(archive.index.status(root))
    top = Top(found.mode, found.uid, found.gid, found.mtime_ns, archive.index.xattrs(root))
    origin = Origin(path, archive.reader.fingerprint, to_text(archive.index.inode_path(root)))
    return Overlay(mountpoint, options, origin, top)


def _covered(watch: Supervisor, place: Place) -> Run:
    """Return a function that serves, and mounts the overlay before it reports to be ready."""

    def run(ready: Callable[[], None]) -> None:
        def serving() -> None:
            if place.has_overlay:
                place.cover()
                watch.moved(place.mountpoint, connection_at(place.mountpoint))
            ready()

        watch.run(serving)

    return run


def _covered_by_thread(run: Run, place: Place, caller: Caller | None, log: Log) -> Run:
    """Do the same for libfuse, whose only thread must answer requests meanwhile."""

    def run_and_cover(ready: Callable[[], None]) -> None:
        failures = []

        def finish() -> None:
            if caller is not None:
                fusepy_adapter.release_after(caller, place.mountpoint, log.line)
            ready()

        def cover() -> None:
            try:
                place.cover()
                finish()
            except MountError as error:
                failures.append(error)
                _unmount_quietly(place.lower)  # libfuse then ends

        def serving() -> None:
            if place.has_overlay:
                threading.Thread(target=cover, daemon=True).start()
            else:
                finish()

        run(serving)
        if failures:
            raise failures[0]

    return run_and_cover


def _tell_place(log: Log, note: Callable[[str], None]) -> None:
    """Tell the user where the log is, if it is where nobody expects it."""
    if log.is_our_choice:
        place = "none; choose a file with --log FILE" if log.place == NOWHERE else log.place
        note(f"log: {place} (no syslog here)")


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
        on_failure.callback(_unmount_quietly, place.lower)
        on_failure.callback(watch.close)  # runs first: unmounting may need a free descriptor

        def ready() -> None:
            on_failure.pop_all()

        if foreground:
            run(ready)
        else:
            in_background(run, place.mountpoint)
            ready()


def _unmount_quietly(mountpoint: str) -> None:
    with contextlib.suppress(MountError, OSError):
        unmount(mountpoint, lazy=True)


def _served(archive: Archive, place: Place, workers: int, log_place: str, root: int) -> Served:
    """Return the archive with its counters and options, as the workers need them."""
    options = place.options
    counters = Counters(workers)
    keeper = os.getuid() if options.allow_root else None
    ownership = Ownership(options.uid, options.gid, options.umask, root, keeper)
    filesystem = Filesystem(archive, ownership, counters.json, log_place)
    if place.separates_links:
        filesystem = Separated(filesystem)
    if root != ROOT:
        filesystem = Subfolder(filesystem, root)
    content = CheckedContent(archive, _verify(options))
    return Served(filesystem, content, counters, options.spin, options.idle, options.warm)


def _verify(options: Options) -> str:
    """Return when a FUSE mount verifies."""
    return "first" if options.verify in (None, "before") else options.verify


def _root(archive: Archive, mountpoint: str, subdir: str | None) -> int:
    """Return the inode of the folder to mount."""
    if subdir is None:
        return ROOT
    try:
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


def _serve_by_kernel(
    opened: Archive, archive: str, place: Place, root: int, log: Log,
    caller: Caller | None, note: Callable[[str], None], *, foreground: bool,
) -> bool:  # fmt: skip
    """Let the kernel serve an archive; return False if another back end must do it."""
    mountpoint, options = place.mountpoint, place.options
    try:
        with _undone_if_interrupted(mountpoint):
            mounted = kernel.mount(opened, archive, place.lower, options, root)
            place.cover()
            number = connection_of(mountpoint)
    except Refused as refused:
        if options.backend == "kernel":
            raise kernel.refusal(mountpoint, refused) from None
        log.line(f"{mountpoint}: the kernel back end is not used: {refused}")
        return False
    facts = f"{len(opened.index)} inodes, by the kernel ({mounted.layout}){place.facts}"
    log.line(f"mounted {archive} on {mountpoint}: {facts}, {VERIFIED[mounted.verified]}")
    if mounted.verified is None:
        note(f"{mountpoint}: the kernel serves this mount; its bytes are not verified")
    if mounted.left_out is not None:
        log.line(f"{mountpoint}: {mounted.left_out}")
        note(f"{mountpoint}: {mounted.left_out}")
    if caller is not None:
        watch.start(mountpoint, number, options.log or "", caller)
    _tell_place(log, note)
    if foreground:
        watch.watch(mountpoint, number, log.line)
        log.line(f"unmounted {mountpoint}")
    return True


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


@contextlib.contextmanager
def _undone_if_interrupted(mountpoint: str) -> Iterator[None]:
    """Delay Ctrl-C and other ending signals while the block mounts; unmount if one has arrived.

    A signal in the middle of mounting would leave a mount behind. In the foreground, the supervisor
    receives these signals while it serves, and unmounts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
        if signal.sigpending() & set(ENDING):
            _unmount_quietly(mountpoint)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _mount(archive: str, mountpoint: str, options: Options) -> tuple[int, Agreement, int | None]:
    """Mount; return the descriptor, the result of INIT, and the connection's number if known."""
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

"""Mounting an archive and serving it: in the foreground, or as a daemon once it answers."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from dataclasses import replace

from ffrecord.archive import Archive
from ffrecord_fuse.content import Content
from ffrecord_fuse.counters import Counters
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem, Ownership
from ffrecord_fuse.handshake import agree
from ffrecord_fuse.log import Log
from ffrecord_fuse.mounting import mount, set_read_ahead, unmount
from ffrecord_fuse.options import Options
from ffrecord_fuse.supervisor import Served, Supervisor, default_workers

READ_AHEAD_KIB = 1024


def serve(archive: str, mountpoint: str, options: Options, *, foreground: bool = False) -> int:
    """Mount and serve; returns when the mount has gone or, as a daemon, when it answers.

    Whatever stands in the way is raised before anything is left in the background.
    """
    archive, mountpoint = os.path.abspath(archive), os.path.abspath(mountpoint)
    opened = Archive.open(archive)
    if options.log is not None:
        options = replace(options, log=os.path.abspath(options.log))
    log = Log(options.log, foreground=foreground)
    if options.backend == "fusepy":
        from ffrecord_fuse import fusepy_adapter

        return fusepy_adapter.serve(opened, mountpoint, options, log, foreground=foreground)
    fd = mount(archive, mountpoint, options)
    try:
        agreement = agree(fd, mountpoint)
    except BaseException:
        os.close(fd)
        with contextlib.suppress(MountError):
            unmount(mountpoint, lazy=True)
        raise
    set_read_ahead(mountpoint, READ_AHEAD_KIB)
    workers = options.workers or default_workers()
    counters = Counters(workers)
    keeper = os.getuid() if options.allow_root else None
    ownership = Ownership(options.uid, options.gid, options.umask, keeper)
    served = Served(
        Filesystem(opened, ownership, counters), Content(opened, options.verify), counters,
        options.spin,
    )  # fmt: skip
    supervisor = Supervisor(fd, mountpoint, served, agreement, workers=workers, log=log.line)

    def run(ready: Callable[[], None]) -> None:
        log.line(f"mounted {archive} on {mountpoint}: {len(opened.index)} inodes, "
                 f"{workers} workers, verify={options.verify}")  # fmt: skip
        supervisor.run(ready)
        log.line(f"unmounted {mountpoint}")

    if foreground:
        run(lambda: None)
    else:
        in_background(run, mountpoint)
        os.close(fd)
    return 0


def in_background(run: Callable[[Callable[[], None]], None], mountpoint: str) -> None:
    """Go on in a process of its own; returns when that says that it is ready."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        with open(told, "rb") as pipe:
            if pipe.read(1) == b"+":
                return
        raise MountError(mountpoint, errno.EIO, "the daemon ended before it was ready")
    os.close(told)
    code = 1
    try:
        os.setsid()
        os.chdir("/")
        _forget_terminal()

        def ready() -> None:
            os.write(tell, b"+")
            os.close(tell)

        run(ready)
        code = 0
    finally:
        os._exit(code)


def _forget_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+")  # noqa: SIM115

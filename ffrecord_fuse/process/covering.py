"""Serve an archive under an overlay: the archive's mount must answer before the overlay exists."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ffrecord.archive.archive import Archive
from ffrecord.archive.names import absolute, to_text
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Ownership
from ffrecord_fuse.libfuse import fusepy_adapter
from ffrecord_fuse.mounting.changes import Origin, Top
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.mounttable import connection_at
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.mounting.overlay import Overlay, Place, with_owner
from ffrecord_fuse.process.supervisor import Supervisor
from ffrecord_fuse.process.undoing import unmount_quietly

Run: TypeAlias = Callable[[Callable[[], None]], None]
"""A function that serves until the file system is unmounted. It calls its argument when ready."""


def place_of(archive: Archive, path: str, mountpoint: str, options: Options, root: int) -> Place:
    """Return where to mount an archive, with the overlay that the options ask for.

    `root` is the inode of the folder to show.
    """
    if options.overlay is None:
        return Place(mountpoint, options)
    options = with_owner(replace(options, overlay=absolute(options.overlay)))
    ownership = Ownership(options.uid, options.gid, options.umask, root)
    found = ownership.applied(archive.index.status(root))
    top = Top(found.mode, found.uid, found.gid, found.mtime_ns, archive.index.xattrs(root))
    origin = Origin(path, archive.reader.fingerprint, to_text(archive.index.inode_path(root)))
    return Overlay(mountpoint, options, origin, top)


def covered(supervisor: Supervisor, place: Place) -> Run:
    """Return a function that serves, and mounts the overlay before it reports to be ready."""

    def run(ready: Callable[[], None]) -> None:
        def serving() -> None:
            if place.has_overlay:
                place.cover()
                supervisor.moved(place.mountpoint, connection_at(place.mountpoint))
            ready()

        supervisor.run(serving)

    return run


def covered_by_thread(
    run: Run, place: Place, caller: Caller | None, log: Callable[[str], None]
) -> Run:
    """Do the same for libfuse, whose only thread must answer requests meanwhile.

    Then let the mount end with the `caller`, if there is one.
    """

    def run_and_cover(ready: Callable[[], None]) -> None:
        failures = []

        def finish() -> None:
            if caller is not None:
                fusepy_adapter.release_after(caller, place.mountpoint, log)
            ready()

        def cover() -> None:
            try:
                place.cover()
                finish()
            except MountError as error:
                failures.append(error)
                unmount_quietly(place.lower)  # libfuse then ends

        def serving() -> None:
            if place.has_overlay:
                threading.Thread(target=cover, daemon=True).start()
            else:
                finish()

        run(serving)
        if failures:
            raise failures[0]

    return run_and_cover

"""`ffrecord umount MOUNTPOINT`: unmount an archive, even if the mount is busy or dead.

`ffrecord umount --list` lists the mountpoints.
"""

from __future__ import annotations

import argparse
import errno
import sys

from ffrecord.cli.quoting import print_names, quoted
from ffrecord.remote.urls import is_url
from ffrecord.terminal import complain
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import MountEntry, archives

HOW = {
    None: "the kernel serves it, not verified",
    "verified": "the kernel serves it, verified before mounting",
    "verity": "the kernel serves it, verified by fs-verity",
}


def run(options: argparse.Namespace) -> int:
    if options.list and options.mountpoint is None:
        raw = not sys.stdout.isatty()
        places = [_line(each, raw) for each in archives()]
        print_names(places, raw=raw)
        return 0
    if options.list or options.mountpoint is None:
        options.parser.error("name one MOUNTPOINT, or use --list alone")
    try:
        unmount(options.mountpoint)
    except MountError as error:
        if error.errno != errno.EBUSY:
            raise
        unmount(options.mountpoint, lazy=True)
        where = f"{options.mountpoint}: unmounted"
        what = "but still in use; the mount ends when its last open file is closed"
        complain(f"{where}, {what}", warning=True)
    return 0


def _line(entry: MountEntry, raw: bool) -> str:
    """Return the mountpoint and, for people, its URL, its changes, and how the kernel serves it."""
    if raw:
        return entry.mountpoint
    facts = [quoted(entry.archive)] if is_url(entry.archive) else []
    if entry.changes is not None:
        facts.append(f"changes in {quoted(entry.changes)}")
    if entry.is_kernel:
        facts.append(HOW[entry.verified])
    return quoted(entry.mountpoint) + (f"  ({', '.join(facts)})" if facts else "")

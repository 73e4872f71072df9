"""`ffrecord umount MOUNTPOINT`: unmount an archive, even if the mount is busy or dead.

`ffrecord umount --list` lists the mountpoints.
"""

from __future__ import annotations

import argparse
import errno
import sys

from ffrecord.cli.quoting import print_names, quoted
from ffrecord.terminal import complain
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import TYPE, unmount
from ffrecord_fuse.mounting.mounttable import mount_points


def run(options: argparse.Namespace) -> int:
    if options.list and options.mountpoint is None:
        raw = not sys.stdout.isatty()
        places = mount_points(TYPE)
        print_names([each if raw else quoted(each) for each in places], raw=raw)
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

"""`ffrecord umount MOUNTPOINT`: also of a busy or a dead mount."""

from __future__ import annotations

import argparse
import errno

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting import unmount


def run(options: argparse.Namespace) -> int:
    try:
        unmount(options.mountpoint)
    except MountError as error:
        if error.errno != errno.EBUSY:
            raise
        unmount(options.mountpoint, lazy=True)
    return 0

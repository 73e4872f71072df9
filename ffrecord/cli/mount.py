"""`ffrecord mount ARCHIVE MOUNTPOINT`: mount a packed folder as a directory."""

from __future__ import annotations

import argparse

from ffrecord.cli.common import refuse_datasets
from ffrecord.errors import FFRecordError, RemoteError
from ffrecord.remote.urls import is_url
from ffrecord_fuse.cli import run as mount
from ffrecord_fuse.errors import MountError, OptionError


def run(options: argparse.Namespace) -> int:
    if not is_url(options.archive):
        refuse_datasets(options.archive)
        return mount(options)
    try:
        return mount(options)
    except (RemoteError, OptionError, MountError):
        raise
    except (FFRecordError, OSError):
        # Asked only now: most URLs are archives, and asking takes a round trip.
        refuse_datasets(options.archive)
        raise

"""`ffrecord mount ARCHIVE MOUNTPOINT`: mount a packed folder as a directory."""

from __future__ import annotations

import argparse

from ffrecord.cli.common import refuse_datasets
from ffrecord_fuse.cli import run as mount


def run(options: argparse.Namespace) -> int:
    refuse_datasets(options.archive)
    return mount(options)

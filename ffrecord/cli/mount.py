"""`ffrecord mount ARCHIVE MOUNTPOINT`: a packed folder as a directory."""

from __future__ import annotations

import argparse

from ffrecord.cli import datasets
from ffrecord_fuse.cli import run as mount


def run(options: argparse.Namespace) -> int:
    datasets.refuse(options.archive)
    return mount(options)

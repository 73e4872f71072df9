"""`ffrecord mount ARCHIVE MOUNTPOINT`: a packed folder as a directory."""

from __future__ import annotations

from typing import Any

from ffrecord_fuse.cli import add_arguments, run


def add_command(commands: Any) -> None:
    parser = commands.add_parser("mount", help="a packed folder as a read-only directory")
    add_arguments(parser)
    parser.set_defaults(run=run)

"""`ffrecord pack FOLDER OUT.ffr`: a whole folder into one archive."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ffrecord.pack import PackReport, pack_folder, parse_size
from ffrecord.terminal import EXIT_USAGE, counted, human, printable


def add_command(commands: Any) -> None:
    parser = commands.add_parser("pack", help="a whole folder into one archive")
    parser.add_argument("folder", help="what to pack")
    parser.add_argument("out", help="the archive; with --shard-size a new folder")
    parser.add_argument("--jobs", type=_count, metavar="N", help="files to read at once (8)")
    parser.add_argument(
        "-L", "--dereference", action="store_true", help="pack what symlinks point to"
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="PATTERN",
        help="leave out names like *.tmp or paths like logs/*; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--shard-size", type=size_argument, metavar="SIZE",
        help="several files of about this size, such as 10GB, and one index",
    )  # fmt: skip
    parser.add_argument(
        "--ignore-changed", action="store_true",
        help="only warn of files that change or go away meanwhile",
    )  # fmt: skip
    parser.add_argument(
        "--no-legacy-index", action="store_true",
        help="leave out the index that the original FFRecord reads",
    )  # fmt: skip
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        report = _pack(options)
    except ValueError as error:  # a shard size that makes too many shards
        print(f"ffrecord: {printable(error)}", file=sys.stderr)
        return EXIT_USAGE
    print(printable(f"{options.out}: {summary(report)}"))
    return 0


def _pack(options: argparse.Namespace) -> PackReport:
    return pack_folder(
        options.folder,
        options.out,
        verbose=sys.stderr.isatty() and not options.no_progress,
        jobs=options.jobs,
        dereference=options.dereference,
        exclude=options.exclude,
        legacy_index=not options.no_legacy_index,
        ignore_changed=options.ignore_changed,
        shard_size=options.shard_size,
    )


def summary(report: PackReport) -> str:
    """`3 files, 1 folder, 12.0 kB`, and what else there was."""
    counts = {
        "file": report.files,
        "folder": report.folders,
        "symlink": report.symlinks,
        "hard link": report.hard_links,
        "shard": report.shards,
    }
    parts = [counted(count, kind) for kind, count in counts.items() if count or kind == "file"]
    return ", ".join([*parts, human(report.bytes)])


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return number


def size_argument(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None

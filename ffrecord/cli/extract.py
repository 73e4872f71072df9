"""`ffrecord extract ARCHIVE [-C DEST] [PATH…]`: an archive's files back into a folder."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tqdm import tqdm

from ffrecord.archive import Archive
from ffrecord.errors import FFRecordError, SampleChecksumError
from ffrecord.extract import extract
from ffrecord.terminal import counted, human, printable


def add_command(commands: Any) -> None:
    parser = commands.add_parser("extract", help="an archive's files back into a folder")
    parser.add_argument("archive", help="a packed folder, or the folder of its shards")
    parser.add_argument("path", nargs="*", help="files or folders in it; everything if left out")
    parser.add_argument(
        "-C", "--directory", default=".", metavar="DEST", help="where to; made if it is not there"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.set_defaults(run=run, more_paths="path")


def run(options: argparse.Namespace) -> int:
    quiet = options.no_progress or not sys.stderr.isatty()
    with (
        Archive.open(options.archive) as archive,
        tqdm(unit="B", unit_scale=True, desc="extracting", leave=False, disable=quiet) as bar,
    ):
        report = extract(
            archive, options.directory, options.path or None, overwrite=options.overwrite,
            on_damage=_say, progress=lambda files, size: bar.update(size),
        )  # fmt: skip
    counts = [
        counted(report.files, "file"),
        counted(report.folders, "folder"),
        counted(report.symlinks, "symlink"),
        human(report.bytes),
    ]
    print(printable(f"{options.directory}: {', '.join(counts)}"))
    if report.damaged:
        what = counted(report.damaged, "damaged file")
        print(f"ffrecord: left out or incomplete: {what}", file=sys.stderr)
        return SampleChecksumError.exit_code
    return 0


def _say(path: str, error: FFRecordError) -> None:
    print(printable(f"ffrecord: {path}: damaged: {error}"), file=sys.stderr)

"""`ffrecord cat ARCHIVE PATH…`: files of a packed folder, or a record, to standard output."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ffrecord.folder import PackedFolder
from ffrecord.reader import FileReader


def add_command(commands: Any) -> None:
    parser = commands.add_parser("cat", help="write files, or a record, to standard output")
    parser.add_argument("file", help="a packed folder or a record file, or a folder of shards")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("path", nargs="*", default=[], help="files in a packed folder")
    what.add_argument("--record", type=int, metavar="N", help="a record; -1 is the last")
    parser.set_defaults(run=run, more_paths="path")


def run(options: argparse.Namespace) -> int:
    if options.record is not None:
        with FileReader(options.file) as reader:
            sys.stdout.buffer.write(reader.read_one(options.record).data)
        return 0
    with PackedFolder(options.file) as folder:
        for path in options.path:
            for piece in folder.stream(path):
                sys.stdout.buffer.write(piece.data)
    return 0

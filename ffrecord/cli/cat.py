"""`ffrecord cat FILE --record N`: a record's bytes to standard output."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ffrecord.reader import FileReader


def add_command(commands: Any) -> None:
    parser = commands.add_parser("cat", help="write a record's bytes to standard output")
    parser.add_argument("file", help="a record file, or a folder of them")
    parser.add_argument(
        "--record", type=int, required=True, metavar="N", help="which one; -1 is the last"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with FileReader(options.file) as reader:
        sys.stdout.buffer.write(reader.read_one(options.record).data)
    return 0

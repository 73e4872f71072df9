"""`ffrecord cat ARCHIVE PATH…`: files of a packed folder, or a record, to standard output."""

from __future__ import annotations

import argparse
import sys

from ffrecord.cli import datasets
from ffrecord.folder import PackedFolder
from ffrecord.reader import FileReader


def run(options: argparse.Namespace) -> int:
    if options.record is not None:
        datasets.refuse(options.file, "and has a file of records for each field: name one")
        with FileReader(options.file) as reader:
            sys.stdout.buffer.write(reader.read_one(options.record).data)
        return 0
    datasets.refuse(options.file)
    with PackedFolder(options.file) as folder:
        for path in options.path:
            for piece in folder.stream(path):
                sys.stdout.buffer.write(piece.data)
    return 0

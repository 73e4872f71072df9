"""`ffrecord cat ARCHIVE PATH…`: write files of a packed folder, or a record, to standard output."""

from __future__ import annotations

import argparse
import sys

from ffrecord.archive.folder import PackedFolder
from ffrecord.cli.common import errors_naming, refuse_datasets, refuse_records_of_datasets
from ffrecord.records.reader import FileReader


def run(options: argparse.Namespace) -> int:
    if options.record is not None and options.path:
        options.parser.error("name files or use --record N, not both")
    if options.record is not None:
        refuse_records_of_datasets(options.file)
        with FileReader(options.file, unfinished=options.unfinished) as reader:
            sys.stdout.buffer.write(reader.read_one(options.record).data)
        return 0
    if options.unfinished:
        options.parser.error("--unfinished needs --record N")
    if not options.path:
        options.parser.error(
            "nothing to write: name files in the packed folder, or a record with --record N"
        )
    refuse_datasets(options.file)
    with PackedFolder(options.file) as folder:
        folder.archive.refuse_lone(options.file)
        for path in options.path:
            with errors_naming(options.file, folder.archive.index, path, options):
                pieces = folder.stream(path)
            for piece in pieces:
                sys.stdout.buffer.write(piece.data)
    return 0

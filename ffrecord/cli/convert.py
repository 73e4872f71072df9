"""`ffrecord convert SRC… DST`: from one format to another."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from ffrecord.cli.pack import size_argument
from ffrecord.convert import FORMATS, ConversionReport, convert
from ffrecord.convert.recordio import CODECS
from ffrecord.terminal import EXIT_USAGE, counted, printable

_NAMES = [*FORMATS, "webdataset"]
KINDS = {"Records": "record", "Files": "file", "Rows": "row"}


def add_command(commands: Any) -> None:
    names = ", ".join(FORMATS)
    parser = commands.add_parser(
        "convert", help="from one format to another", description=f"The formats: {names}."
    )
    parser.add_argument(
        "paths", nargs="+", metavar="SRC… DST", help="what to convert, and where to"
    )
    parser.add_argument(
        "--from", dest="source", choices=_NAMES, metavar="FORMAT", help="if SRC does not tell it"
    )
    parser.add_argument(
        "--to", dest="target", choices=_NAMES, metavar="FORMAT", help="if the name does not tell it"
    )
    parser.add_argument("--field", metavar="NAME", help="the field to take, or to make of records")
    parser.add_argument(
        "--type", action="append", default=[], type=_type, metavar="FIELD=TYPE",
        help="of a field that is made of files or records; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--drop-names", action="store_true", help="files may become records, which have no names"
    )
    parser.add_argument(
        "--codec", choices=CODECS, metavar="CODEC", help="of RecordIO: none, snappy or gzip"
    )
    parser.add_argument(
        "--shard-size", type=size_argument, metavar="SIZE",
        help="a folder of tars of about this size, such as 1GB",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--json", action="store_true", help="a summary for scripts")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.set_defaults(run=run, more_paths="paths")


def run(options: argparse.Namespace) -> int:
    if len(options.paths) < 2:
        print("ffrecord: convert needs what to convert, and where to", file=sys.stderr)
        return EXIT_USAGE
    *sources, target = options.paths
    report = convert(
        sources, target,
        source_format=options.source, target_format=options.target,
        field=options.field, types=dict(options.type), drop_names=options.drop_names,
        codec=options.codec, shard_size=options.shard_size, force=options.force,
        verbose=sys.stderr.isatty() and not options.no_progress,
    )  # fmt: skip
    if options.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        print(printable(f"{target}: {summary(report)}"))
    return 0


def summary(report: ConversionReport) -> str:
    """`10 records (tfrecord) became 10 files (tar)`, and what is different."""
    source, target = FORMATS[report.source_format], FORMATS[report.target_format]
    text = (
        f"{counted(report.read, KINDS[source.shape.__name__])} ({source.name}) became "
        f"{counted(report.written, KINDS[target.shape.__name__])} ({target.name})"
    )
    return f"{text}, {report.replaced:,} replaced" if report.replaced else text


def _type(text: str) -> tuple[str, str]:
    field, equals, type_ = text.partition("=")
    if not (field and equals and type_):
        raise argparse.ArgumentTypeError(f"must be FIELD=TYPE, not {text!r}")
    return field, type_

"""`ffrecord convert SRC… DST`: from one format to another."""

from __future__ import annotations

import argparse
import dataclasses
import json

from ffrecord.convert import FORMATS, ConversionReport, convert
from ffrecord.terminal import counted, printable, shows_progress

KINDS = {"Records": "record", "Files": "file", "Rows": "row"}


def run(options: argparse.Namespace) -> int:
    if len(options.paths) < 2:
        options.parser.error("convert needs what to convert, and where to")
    *sources, target = options.paths
    report = convert(
        sources, target,
        source_format=options.source, target_format=options.target,
        field=options.field, types=dict(options.type), drop_names=options.drop_names,
        codec=options.codec, shard_size=options.shard_size, force=options.force,
        verbose=shows_progress(options.no_progress),
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

"""`ffrecord convert SRC… DST`: convert files from one format to another."""

from __future__ import annotations

import argparse
import dataclasses
import json

from ffrecord.archive.counts import Counts
from ffrecord.cli.common import describe_counts, refuse_dash, shows_progress
from ffrecord.convert import FORMATS, ConversionReport, convert
from ffrecord.remote.urls import shown
from ffrecord.terminal import printable
from ffrecord.text import counted


def run(options: argparse.Namespace) -> int:
    if len(options.paths) < 2:
        options.parser.error(
            "DST is missing: name the files to convert, then the file or folder to write"
        )
    *sources, target = options.paths
    refuse_dash(options, target)
    report = convert(
        sources, target,
        source_format=options.source, target_format=options.target,
        field=options.field, types=dict(options.type), drop_names=options.drop_names,
        codec=options.codec, shard_size=options.shard_size, align=options.align,
        force=options.force, shard_per_source=options.shard_per_source,
        verbose=shows_progress(options.no_progress),
    )  # fmt: skip
    if options.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        print(printable(f"{shown(target)}: {summary(report)}"))
    return 0


def summary(report: ConversionReport) -> str:
    """Return `10 records (tfrecord) became 10 files, 12.0 kB (tar)`.

    If later items replaced earlier ones of the same name, their number follows. If files stay files
    and none is lost, they are counted once: `10 files, 12.0 kB (folder became tar)`.
    """
    source, target = report.source_format, report.target_format
    before = _counted(report.read, source, report.source_contents)
    after = _counted(report.written, target, report.target_contents)
    if report.source_contents == report.target_contents is not None:
        return f"{after} ({source} became {target})"
    text = f"{before} ({source}) became {after} ({target})"
    return f"{text}, {report.replaced:,} replaced" if report.replaced else text


def _counted(items: int, format_name: str, contents: Counts | None) -> str:
    if contents is not None:
        return describe_counts(contents)
    return counted(items, FORMATS[format_name].shape.item_name)

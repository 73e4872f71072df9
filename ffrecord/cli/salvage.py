"""`ffrecord salvage BROKEN OUT.ffr`: the whole records of a damaged or unfinished file."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from ffrecord.salvage import SalvageReport, salvage_file
from ffrecord.terminal import EXIT_DAMAGED, EXIT_USAGE, counted, human, printable


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "salvage", help="the whole records of a damaged file; exit 1 if some are lost"
    )
    parser.add_argument("broken", help="a damaged record file, or a writer's .NAME.partial")
    parser.add_argument("out", help="the new record file")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there")
    parser.add_argument("--json", action="store_true", help="for scripts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        report = salvage_file(options.broken, options.out, overwrite=options.force)
    except ValueError as error:  # into itself
        print(f"ffrecord: {printable(error)}", file=sys.stderr)
        return EXIT_USAGE
    if options.json:
        print(json.dumps({"file": options.broken, "out": options.out, **asdict(report)}, indent=2))
    else:
        _print(options.out, report)
    return EXIT_DAMAGED if report.lost else 0


def _print(out: str, report: SalvageReport) -> None:
    for each in report.lost:
        print(printable(f"LOST: record {each.record}: {each.reason}"))
    if not report.header_whole:
        print("the header or journal is damaged; records were found by their checksums")
    if report.in_place:
        print("a packed folder: lost records keep their places, so that names lead to the others")
    lost = f", {len(report.lost)} lost" if report.lost else ""
    kept = f"{report.kept:,} of {counted(report.records, 'record')}"
    print(printable(f"{out}: {kept}, {human(report.bytes)}{lost}"))

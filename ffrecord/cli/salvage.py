"""`ffrecord salvage BROKEN OUT.ffr`: copy the undamaged records of a damaged or unfinished file."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ffrecord.archive.names import json_facts
from ffrecord.cli.common import refuse_dash, shows_progress
from ffrecord.errors import FFRecordError
from ffrecord.progress import bar
from ffrecord.records.salvage import SalvageReport, salvage_file
from ffrecord.terminal import EXIT_DAMAGED, EXIT_USAGE, complain, printable
from ffrecord.text import counted, human

SHOWN = 20
"""Number of lost records that are listed: a truncated file may have lost millions."""

# (names are kept, records are lost) -> message
NAMES = {
    (True, False): "packed folder: all names are kept",
    (True, True): "packed folder: all names are kept, but reading a lost file still fails; "
    "`ffrecord verify` lists the lost files",
    (False, True): "packed folder: its names are lost; its files are now records without names",
}

NAMES_MAY_BE_LOST = (
    "the last record is lost; if this was a packed folder, its names were in that record"
)


def run(options: argparse.Namespace) -> int:
    refuse_dash(options, options.out)
    try:
        report = _salvage(options)
    except FFRecordError:
        raise
    except ValueError as error:  # OUT is BROKEN itself
        complain(error)
        return EXIT_USAGE
    if options.json:
        places = {**json_facts("file", options.broken), **json_facts("out", options.out)}
        print(json.dumps({**places, **asdict(report)}, indent=2))
    else:
        _print(options.out, report, len(report.lost) if options.verbose else SHOWN)
    return EXIT_DAMAGED if report.lost else 0


def _salvage(options: argparse.Namespace) -> SalvageReport:
    shown = shows_progress(options.no_progress)
    with bar(shown=shown, unit=" records", unit_scale=True, leave=False) as drawn:

        def progress(doing: str, done: int, total: int) -> None:
            drawn.total = total
            drawn.set_description(doing, refresh=False)
            drawn.update(done - drawn.n)  # negative when the next step starts at 0

        return salvage_file(options.broken, options.out, overwrite=options.force, progress=progress)


def _print(out: str, report: SalvageReport, shown: int) -> None:
    for each in report.lost[:shown]:
        print(printable(f"LOST: record {each.record}: {each.reason}"))
    if len(report.lost) > shown:
        print(f"LOST: and {len(report.lost) - shown:,} more; --verbose lists them all")
    if not report.header_whole:
        print("the header or journal is damaged; records were found by their checksums")
    if report.names_kept is not None:
        print(NAMES[report.names_kept, bool(report.lost)])
    elif report.lost and report.lost[-1].record == report.records - 1:
        print(NAMES_MAY_BE_LOST)
    lost = f", {len(report.lost):,} lost" if report.lost else ""
    if report.padding:
        lost += f", {report.padding:,} of padding left out"
    kept = f"{report.kept:,} of {counted(report.records, 'record')}"
    print(printable(f"{out}: {kept}, {human(report.bytes)}{lost}"))

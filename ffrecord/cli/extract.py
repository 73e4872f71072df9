"""`ffrecord extract ARCHIVE [-C DEST] [PATH…]`: extract files of an archive into a folder."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from ffrecord.archive.archive import Archive
from ffrecord.archive.extract import extract
from ffrecord.archive.index.resolve import require
from ffrecord.archive.names import json_facts, to_bytes
from ffrecord.cli.common import describe_counts, errors_naming, refuse_datasets, shows_progress
from ffrecord.errors import FFRecordError, SampleChecksumError
from ffrecord.progress import bar
from ffrecord.terminal import complain, printable
from ffrecord.text import counted


def run(options: argparse.Namespace) -> int:
    damaged: list[dict[str, Any]] = []

    def on_damage(path: str, error: FFRecordError) -> None:
        damaged.append({**json_facts("path", path), "error": str(error)})
        complain(f"{path}: {error}")

    refuse_datasets(options.archive)
    shown = shows_progress(options.no_progress)
    with (
        Archive.open(options.archive) as archive,
        bar(shown=shown, unit="B", unit_scale=True, desc="extracting", leave=False) as drawn,
    ):
        for path in options.path:
            with errors_naming(options.archive, archive.index, path, options):
                require(archive.index, [to_bytes(path)])
        report = extract(
            archive, options.directory, options.path or None,
            overwrite=options.force, sparse=options.sparse,
            on_damage=on_damage, progress=lambda files, size: drawn.update(size),
        )  # fmt: skip
    if options.json:
        where = json_facts("directory", options.directory)
        print(json.dumps({**where, **asdict(report), "damaged_files": damaged}, indent=2))
    else:
        print(printable(f"{options.directory}: {describe_counts(report)}"))
    if report.damaged:
        files = counted(report.damaged, "damaged file")
        complain(f"{files} left out or incomplete, named above")
        return SampleChecksumError.exit_code
    return 0

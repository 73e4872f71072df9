"""`ffrecord extract ARCHIVE [-C DEST] [PATH…]`: an archive's files back into a folder."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from ffrecord.archive import Archive
from ffrecord.cli import datasets
from ffrecord.errors import FFRecordError, SampleChecksumError
from ffrecord.extract import ExtractReport, extract
from ffrecord.names import json_facts
from ffrecord.sizes import human
from ffrecord.terminal import complain, counted, printable, shows_progress


def run(options: argparse.Namespace) -> int:
    damaged: list[dict[str, Any]] = []

    def on_damage(path: str, error: FFRecordError) -> None:
        damaged.append({**json_facts("path", path), "error": str(error)})
        complain(f"{path}: damaged: {error}")

    datasets.refuse(options.archive)
    quiet = not shows_progress(options.no_progress)
    with (
        Archive.open(options.archive) as archive,
        tqdm(unit="B", unit_scale=True, desc="extracting", leave=False, disable=quiet) as bar,
    ):
        report = extract(
            archive, options.directory, options.path or None, overwrite=options.force,
            on_damage=on_damage, progress=lambda files, size: bar.update(size),
        )  # fmt: skip
    if options.json:
        facts = {"directory": options.directory, **asdict(report), "damaged_files": damaged}
        print(json.dumps(facts, indent=2))
    else:
        print(printable(f"{options.directory}: {summary(report)}"))
    if report.damaged:
        complain(f"left out or incomplete: {counted(report.damaged, 'damaged file')}")
        return SampleChecksumError.exit_code
    return 0


def summary(report: ExtractReport) -> str:
    """`3 files, 1 folder, 0 symlinks, 12.0 kB`."""
    counts = {"file": report.files, "folder": report.folders, "symlink": report.symlinks}
    parts = [counted(count, kind) for kind, count in counts.items()]
    return ", ".join([*parts, human(report.bytes)])

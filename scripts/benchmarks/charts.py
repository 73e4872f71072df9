"""The charts of docs/benchmarks/: each answers one question with a few bars from the JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import plot, report
from .headline import LIMITS

Document = dict[str, Any]

OURS = "FFRecord"
FASTER, SHORTER = "longer bars are faster", "shorter bars are faster"


@dataclass(frozen=True, slots=True)
class Chart:
    """A question, and the figures that answer it.

    `contestants` are names in the document with their labels: `OURS` stands out, and labels that
    begin with it are variants of ours. Contestants that a case lacks are left out.
    """

    benchmark: str
    question: str
    unit: str
    contestants: Mapping[str, str]
    panels: Mapping[str, tuple[str, str]]
    """Title of a panel -> case and metric."""
    columns: int = 2
    over: str | None = None
    """The contestant to which the figures are ratios."""

    def of(self, document: Document) -> list[plot.Panel]:
        """Return the panels that have our figure."""
        found = (self._panel(document, title, *place) for title, place in self.panels.items())
        return [
            panel
            for panel in found
            if any(bar.value for bar in panel.bars if bar.kind is plot.Kind.OURS)
        ]

    def _panel(self, document: Document, title: str, case: str, metric: str) -> plot.Panel:
        medians: dict[str, dict[str, float | None]] = document["medians"].get(case, {})
        figures = medians if self.over is None else document["ratios"][self.over].get(case, {})
        bars = [
            plot.Bar(label, figures[name].get(metric), _kind(name, label), _note(medians[name]))
            for name, label in self.contestants.items()
            if name in figures
        ]
        return plot.Panel(title, bars)


def _kind(name: str, label: str) -> plot.Kind:
    if label == OURS:
        return plot.Kind.OURS
    if label.startswith(OURS):
        return plot.Kind.VARIANT
    return plot.Kind.LIMIT if name in LIMITS else plot.Kind.PEER


def _note(metrics: Mapping[str, float | None]) -> str:
    share = metrics.get("share")
    return "(stopped)" if share is not None and share < report.WHOLE else ""


def update(results: Path) -> None:
    """Draw every chart again from the JSON files in the folder `results`."""
    for benchmark in dict.fromkeys(chart.benchmark for chart in CHARTS.values()):
        document = json.loads((results / f"{benchmark}.json").read_text("utf-8"))
        draw(document, results)


def draw(document: Document, folder: Path) -> None:
    """Draw the charts of one benchmark. A run of some cases draws what it has."""
    for name, chart in CHARTS.items():
        if chart.benchmark == document["benchmark"] and (panels := chart.of(document)):
            plot.draw(
                panels, chart.question, chart.unit, folder / f"{name}.png",
                columns=chart.columns, one_scale=chart.over is not None,
            )  # fmt: skip


RECORDS, SAMPLES, FILES, ROWS = "records_per_s", "samples_per_s", "files_per_s", "rows_per_s"
FUSE = {"ours": OURS, **{name: name for name in ("squashfuse_ll", "ratarmount", "fuse-zip")}}
KERNEL = {
    "ours, kernel, aligned": OURS, "ours, kernel": f"{OURS}, not aligned",
    "squashfs, kernel": "squashfs, loop", "erofs, kernel": "erofs, loop",
    "source folder": "plain folder",
}  # fmt: skip
MOUNTED = {
    "archive in memory": ("small files, two cores", FILES),
    "cold, 8 programs": ("cold, 8 clients", FILES),
}
CHARTS = {
    "read": Chart(
        "read", "How many random records does one process read in a second?",
        f"records/s; {FASTER}",
        {
            "ours": OURS, "array_record": "array_record", "LMDB (no checksum)": "LMDB",
            "h5py (flat + offsets)": "h5py", "WebDataset (sequential)": "WebDataset (in order)",
            "plain files": "plain files",
        },
        {
            f"{size.replace('kB', ' kB')}, {state}": (f"{state} {size}", RECORDS)
            for state in ("cold", "warm")
            for size in ("110kB", "10kB", "1kB")
        },
        columns=3,
    ),
    "disks": Chart(
        "disks", "How near does an epoch in random order come to reading the file in order?",
        f"speed, relative to the same file read once in order; records of 10 kB; {FASTER}",
        {
            "ours": OURS, "LMDB (no checksum)": "LMDB", "array_record": "array_record",
            "plain files": "plain files",
        },
        {
            disk: (f"{disk}, records of 10kB", RECORDS)
            for disk in ("hard disk", "cloud volume", "fast volume")
        },
        columns=3, over="file read once in order",
    ),
    "remote": Chart(
        "remote", "How fast is training from a bucket, 20 ms away?",
        f"records/s; {FASTER}",
        {
            "ours, block shuffle, cache": OURS,
            "ours, full shuffle": f"{OURS}, full shuffle, no cache",
            "MosaicML streaming": "MosaicML streaming", "WebDataset": "WebDataset",
        },
        {
            f"{size.replace('kB', ' kB')}, {epoch} epoch": (f"epochs of {size}", metric)
            for size in ("10kB", "110kB")
            for epoch, metric in {"first": SAMPLES, "second": "second_samples_per_s"}.items()
        },
    ),
    "pack": Chart(
        "pack", "How long does it take to pack a folder?",
        f"seconds; FFRecord waits until the data is on the disk, the others do not; {SHORTER}",
        {"ours": OURS, **{name: name for name in ("tar", "mksquashfs", "zip -0", "cp -r")}},
        {
            f"{what}, {state}": (f"{state} {case}", "seconds")
            for case, what in {
                "small files": "50,000 × 10 kB", "large files": "2 GB in 8 files",
            }.items()
            for state in ("cold", "warm")
        },
    ),
    "mount": Chart(
        "mount", "How many files of 10 kB does a program read through FUSE in a second?",
        f"files/s; {FASTER}", FUSE,
        {**MOUNTED, "cold, in order": ("cold, in the order of names", FILES)},
        columns=3,
    ),
    "mount-kernel": Chart(
        "mount", "How many files of 10 kB does a program read in a second if the kernel serves?",
        f"files/s; {FASTER}", KERNEL,
        {**MOUNTED, "read again": ("small files, two cores", "again_files_per_s")},
        columns=3,
    ),
    "loader": Chart(
        "loader", "How many images of 110 kB does a training loader deliver in a second?",
        f"samples/s, with 2 workers; {FASTER}",
        {
            "ours": OURS, "ours, torch's DataLoader": f"{OURS}, torch's DataLoader",
            "ours, mounted": f"{OURS}, mounted", "plain folder": "plain folder",
            "WebDataset": "WebDataset", "array_record": "array_record",
        },
        {state: (state, SAMPLES) for state in ("cold", "warm")},
    ),
    "dataset": Chart(
        "dataset", "How many samples of five fields are read in a second?",
        f"samples/s, in random batches of 64; {FASTER}",
        {
            "ours, none": OURS, "ours, zstd:6": f"{OURS}, zstd", "granular": "granular",
            "HDF5, none": "HDF5", "HDF5, gzip": "HDF5, gzip",
        },
        {state: (state, SAMPLES) for state in ("cold", "warm")},
    ),
    "cluster": Chart(
        "cluster", "How many files does an engine read in a second?",
        f"files/s, on two cores; {FASTER}",
        {
            "ours, archive": OURS, "read_webdataset": "read_webdataset",
            "read_binary_files": "read_binary_files", "binaryFile": "binaryFile",
            "Parquet": "Parquet",
        },
        {
            f"{engine}, {size}": (f"{engine}, {size}", ROWS)
            for size in ("10 kB", "110 kB")
            for engine in ("Ray", "Spark")
        },
    ),
}  # fmt: skip

"""The short tables of docs/benchmarks.md: a few figures of each benchmark, and the goals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import report

Document = dict[str, Any]

NOTHING = report.number(None)
MOST_MISSES = 3
"""Missed goals that the page names; the page of the benchmark has all."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The place of a figure in a document: a median, or with `over` a ratio to a contestant."""

    case: str
    contestant: str
    metric: str
    factor: float = 1.0
    digits: int = 0
    over: str | None = None

    def cell(self, document: Document) -> str:
        """Return the figure as a cell of a table."""
        medians = document["medians"] if self.over is None else document["ratios"][self.over]
        found = medians.get(self.case, {}).get(self.contestant, {})
        value = found.get(self.metric)
        is_speed = self.over is None and self.metric.endswith("_per_s") and value is not None
        if is_speed and "share" in found:
            return report.partial_rate(value, found["share"])
        return report.scaled(value, self.factor, self.digits)


Row = tuple[str, list[Figure]]


def of(document: Document) -> str:
    """Return the short table of a benchmark, without rows and columns that have no figure."""
    header, rows = TABLES[document["benchmark"]]()
    cells = [[label, *(figure.cell(document) for figure in figures)] for label, figures in rows]
    lines = [line for line in cells if set(line[1:]) != {NOTHING}]
    columns = [
        column for column in zip(header, *lines, strict=True) if set(column[1:]) != {NOTHING}
    ]
    header, *lines = map(list, zip(*columns, strict=True))
    return report.table(header, lines)


def goals(document: Document) -> str:
    """Return how many goals of a benchmark were met, and the worst misses."""
    judged = [goal for goal in document["goals"] if goal["value"] is not None]
    missed = sorted((goal for goal in judged if goal["verdict"] != "PASS"), key=_reached)
    text = f"Goals met: {len(judged) - len(missed)} of {len(judged)}."
    if not missed:
        return text
    named = "; ".join(_miss(goal) for goal in missed[:MOST_MISSES])
    more = len(missed) - MOST_MISSES
    return f"{text} Missed: {named}{f'; and {more} more' if more > 0 else ''}."


def _reached(goal: dict[str, Any]) -> float:
    """Return the part of a missed goal that was reached: below 1."""
    value: float = goal["value"]
    reached: float = value / goal["threshold"] if "threshold" in goal else goal["most"] / value
    return reached


def _miss(goal: dict[str, Any]) -> str:
    what = f"{goal['case']}: {goal['contestant']} {goal['value']:.2f}"
    if "most" in goal:
        return f"{what} {goal['metric']} (at most {goal['most']:g})"
    return f"{what} × {goal['over']} in {goal['metric']} (goal {goal['threshold']:.3g})"


def _read() -> tuple[list[str], list[Row]]:
    sizes = {"110kB": "110 kB × 64", "10kB": "10 kB × 256", "1kB": "1 kB × 512"}

    def row(label: str, state: str, contestant: str, over: str | None = None) -> Row:
        metric = "bytes_per_s" if over and over.startswith("fio") else "records_per_s"
        digits = 2 if over else 0
        cases = (f"{state} {size}" for size in sizes)
        return label, [Figure(case, contestant, metric, 1, digits, over) for case in cases]

    fio = "fio, O_DIRECT, depth 64"
    rows = [
        row("cold, `read`, records/s", "cold", "ours"),
        row("cold, `read_async`, records/s", "cold", "ours, read_async"),
        row("… × fio on the same disk (bytes)", "cold", "ours, read_async", fio),
        row("warm, `read`, records/s", "warm", "ours"),
        row('warm, `mode="mmap"`, records/s', "warm", "ours, mmap"),
        row("LMDB without checksums, records/s", "warm", "LMDB (no checksum)"),
    ]
    return ["", *sizes.values()], rows


def _disks() -> tuple[list[str], list[Row]]:
    disks = ("hard disk", "cloud volume", "fast volume", "bare disk")
    limit = "file read once in order"

    def row(label: str, case: str, contestant: str, over: str | None = None) -> Row:
        cases = (f"{disk}, {case}" for disk in disks)
        digits = 2 if over else 0
        figures = [Figure(one, contestant, "records_per_s", 1, digits, over) for one in cases]
        return label, figures

    records, files = "records of 10kB", "files of 10kB"
    rows = [
        row("10 kB, `read`, records/s", records, "ours"),
        row("… × limit", records, "ours", limit),
        row("1 kB, `read`, × limit", "records of 1kB", "ours", limit),
        row("110 kB, `read`, × limit", "records of 110kB", "ours", limit),
        row("10 kB, loader with 2 workers, × limit", records, "ours, loader, 2 workers", limit),
        row("10 kB, LMDB, records/s", records, "LMDB (no checksum)"),
        row("10 kB, mounted, 8 clients, files/s", files, "ours"),
        row("10 kB, squashfuse_ll, 8 clients, files/s", files, "squashfuse_ll"),
    ]
    return ["", *disks], rows


def _remote() -> tuple[list[str], list[Row]]:
    loaders = {
        "ours, block shuffle, cache": "ours", "ours, whole blocks, cache": "ours, whole blocks",
        "ours, full shuffle": "ours, full shuffle, no cache", "litdata": "litdata",
        "MosaicML streaming": "MosaicML streaming", "WebDataset": "WebDataset",
        "s3fs + zip": "s3fs + zip",
    }  # fmt: skip
    metrics = {
        "first_batch_s": ("first batch, s", 2),
        "samples_per_s": ("first epoch", 0),
        "second_samples_per_s": ("second epoch", 0),
    }
    columns = [
        (f"epochs of {size}kB", f"{size} kB: {what}", metric, digits)
        for size in (10, 110)
        for metric, (what, digits) in metrics.items()
    ]
    rows = [
        (label, [Figure(case, name, metric, 1, digits) for case, _, metric, digits in columns])
        for name, label in loaders.items()
    ]
    return ["epochs in records/s, 20 ms away", *(title for _, title, _, _ in columns)], rows


def _folder() -> tuple[list[str], list[Row]]:
    ways = {"1,000,000 files": "ours", "pickle, 1,000,000 files": "the original's pickled index"}
    metrics = {"ms": "ms", "private_mb": "private MB", "shared_mb": "MB that forked workers share"}
    rows = [
        (f"archive of 1,000,000 files opened, {state}, {label}", [
            Figure(f"{state} open", way, metric) for way in ways
        ])
        for state in ("cold", "warm")
        for metric, label in metrics.items()
        if state == "cold" or metric == "ms"
    ]  # fmt: skip
    return ["", *ways.values()], rows


def _mount() -> tuple[list[str], list[Row]]:
    mounters = {
        "ours": "ours", "ours, kernel, aligned": "ours, kernel, aligned",
        "squashfs, kernel": "squashfs, kernel", "squashfuse_ll": "squashfuse_ll",
        "ratarmount": "ratarmount", "fuse-zip": "fuse-zip", "source folder": "ext4 itself",
    }  # fmt: skip

    def row(label: str, case: str, metric: str, factor: float = 1.0, digits: int = 0) -> Row:
        return label, [Figure(case, mounter, metric, factor, digits) for mounter in mounters]

    one, two = "small files, one core", "small files, two cores"
    listed, ordered = "listed, then read, two cores", "cold, in the order of names"
    rows = [
        row("files/s, client and daemon on one core", one, "files_per_s"),
        row("files/s, on two cores", two, "files_per_s"),
        row("files/s, on two cores, all folders listed before", listed, "files_per_s"),
        row("files/s, cold disk, 8 clients", "cold, 8 clients", "files_per_s"),
        row("files/s, cold disk, in the order of names", ordered, "files_per_s"),
        row("files/s, read again", two, "again_files_per_s"),
        row("walk with stat of 50,000, s", "walk, two cores", "seconds", 1, 2),
        row("one 2 GB file, MB/s", "large file", "bytes_per_s", 1e-6),
        row("archive of 1,000,000 files mounted, s", "mounting many files", "mount_s", 1, 2),
    ]
    return ["", *mounters.values()], rows


def _cluster() -> tuple[list[str], list[Row]]:
    columns = [f"{engine}, {size}" for engine in ("Ray", "Spark") for size in ("10 kB", "110 kB")]
    readers = (
        "ours, records", "ours, archive", "read_webdataset", "read_binary_files", "binaryFile",
        "Parquet",
    )  # fmt: skip
    rows = [(name, [Figure(case, name, "rows_per_s") for case in columns]) for name in readers]
    return ["rows/s", *columns], rows


TABLES: dict[str, Callable[[], tuple[list[str], list[Row]]]] = {
    "read": _read,
    "disks": _disks,
    "remote": _remote,
    "folder": _folder,
    "mount": _mount,
    "cluster": _cluster,
}

"""The table of README.md: FFRecord beside the fastest peer of each benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import report

Document = dict[str, Any]

# Limits of the disk and of the file system, not formats that a user could choose instead.
NOT_PEERS = ("ours", "fio", "the disk alone", "source folder", "file read once in order")

# The peers of our FUSE mount. The kernel's own file systems need root, and verify nothing.
FUSE = {name: name for name in ("squashfuse_ll", "ratarmount", "fuse-zip")}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the same work by FFRecord and by its peers."""

    label: str
    benchmark: str
    case: str
    metric: str
    digits: int = 0
    ours: str = "ours"
    peers: dict[str, str] | None = None
    """The peers to choose from, with their names in the table; None for all peers of the case."""

    def cells(self, document: Document) -> list[str]:
        """Return the label, our figure, the fastest peer with its figure, and the ratio.

        A peer that was stopped does not count: it might have become faster.
        """
        figures = {
            name: metrics[self.metric]
            for name, metrics in document["medians"][self.case].items()
            if metrics.get(self.metric) is not None
            and (metrics.get("share") or 1.0) >= report.WHOLE
        }
        less_is_better = not self.metric.endswith("_per_s")
        others = {name: name for name in figures if not name.startswith(NOT_PEERS)}
        names = {name: as_ for name, as_ in (self.peers or others).items() if name in figures}
        choose: Callable[..., str] = min if less_is_better else max
        peer = choose(names, key=figures.__getitem__)
        mine, theirs = figures[self.ours], figures[peer]
        ratio = theirs / mine if less_is_better else mine / theirs
        return [
            self.label,
            report.scaled(mine, 1, self.digits),
            f"{report.scaled(theirs, 1, self.digits)}, {names[peer]}",
            f"{ratio:.1f} ×",
        ]


ROWS = (
    Row("records of 110 kB, cold, records/s", "read", "cold 110kB", "records_per_s"),
    Row("records of 10 kB, cold, records/s", "read", "cold 10kB", "records_per_s"),
    Row("records of 1 kB, cold, records/s", "read", "cold 1kB", "records_per_s"),
    Row(  # not larger records: LMDB is stopped there before the end of its epoch
        "the same, disk of 200 requests/s, records/s", "disks", "hard disk, records of 1kB",
        "records_per_s",
    ),
    Row("records of 10 kB, warm, records/s", "read", "warm 10kB", "records_per_s"),
    Row(
        "files of 10 kB through FUSE, files/s", "mount", "small files, two cores", "files_per_s",
        peers=FUSE,
    ),
    Row(
        "the same, cold, in order, files/s", "mount", "cold, in the order of names", "files_per_s",
        peers=FUSE,
    ),
    Row("pack 50,000 files, cold, seconds", "pack", "cold small files", "seconds", digits=2),
    Row(
        "open an archive of 1,000,000 files, cold, ms", "folder", "cold open", "ms",
        ours="1,000,000 files", peers={"pickle, 1,000,000 files": "the original"},
    ),
    Row("train on 110 kB images, cold, samples/s", "loader", "cold", "samples_per_s"),
    Row("the same, warm, samples/s", "loader", "warm", "samples_per_s"),
    Row(
        "typed samples of 74 kB, cold, samples/s", "dataset", "cold", "samples_per_s",
        ours="ours, none", peers={"granular": "granular", "HDF5, none": "HDF5"},
    ),
)  # fmt: skip


def table(document: Callable[[str], Document]) -> str:
    """Return the table; `document` loads a benchmark's JSON by name."""
    rows = [row.cells(document(row.benchmark)) for row in ROWS]
    return report.table(["work", "FFRecord", "fastest peer", ""], rows)

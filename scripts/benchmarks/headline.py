"""The tables of README.md and docs/benchmarks.md with FFRecord beside the fastest peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import report

Document = dict[str, Any]

# What the disk and the file system can do at most: not formats that a user could choose instead.
LIMITS = ("fio", "the disk alone", "source folder", "file read once in order")

# The peers of our FUSE mount. The kernel's own file systems need root, and verify nothing.
FUSE = {name: name for name in ("squashfuse_ll", "ratarmount", "fuse-zip")}
KERNEL = {f"{name}, kernel": f"{name}, loop device" for name in ("squashfs", "erofs")}
SECTIONS = {
    "read": "random-batches-from-one-file", "disks": "slow-disks", "remote": "a-network",
    "pack": "packing-a-folder", "folder": "a-million-files", "mount": "a-mount",
    "loader": "an-epoch-of-a-loader", "dataset": "samples-of-typed-fields",
    "cluster": "ray-spark-and-packing-in-tasks",
}  # fmt: skip
"""The section of docs/benchmarks.md about a benchmark."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tables: the same work by FFRecord and by its peers."""

    label: str
    benchmark: str
    case: str
    metric: str
    digits: int = 0
    ours: str = "ours"
    peers: dict[str, str] | None = None
    """The peers to choose from, with their names in the table; None for all peers of the case."""
    in_readme: bool = True

    def cells(self, document: Document) -> list[str] | None:
        """Return the label, our figure, the fastest peer with its figure, and the ratio.

        A peer that was stopped does not count: it might have become faster. None if a run has no
        figure of ours or of a peer.
        """
        figures = {
            name: metrics[self.metric]
            for name, metrics in document["medians"].get(self.case, {}).items()
            if metrics.get(self.metric) is not None
            and (metrics.get("share") or 1.0) >= report.WHOLE
        }
        less_is_better = not self.metric.endswith("_per_s")
        others = {name: name for name in figures if not name.startswith(("ours", *LIMITS))}
        names = {name: as_ for name, as_ in (self.peers or others).items() if name in figures}
        if self.ours not in figures or not names:
            return None
        choose: Callable[..., str] = min if less_is_better else max
        peer = choose(names, key=figures.__getitem__)
        mine, theirs = figures[self.ours], figures[peer]
        ratio = theirs / mine if less_is_better else mine / theirs
        return [
            self.label,
            report.scaled(mine, 1, self.digits),
            f"{report.scaled(theirs, 1, self.digits)}, {names[peer]}",
            f"{ratio:.2f} ×" if 0.95 <= ratio < 1.05 else f"{ratio:.1f} ×",  # not 1.0 for 0.96
        ]


ROWS = (
    Row("records of 110 kB, cold, records/s", "read", "cold 110kB", "records_per_s"),
    Row("records of 10 kB, cold, records/s", "read", "cold 10kB", "records_per_s"),
    Row("records of 1 kB, cold, records/s", "read", "cold 1kB", "records_per_s"),
    Row("records of 10 kB, warm, records/s", "read", "warm 10kB", "records_per_s"),
    Row(  # not larger records: LMDB is stopped there before the end of its epoch
        "records of 1 kB, disk of 200 requests/s, records/s", "disks", "hard disk, records of 1kB",
        "records_per_s",
    ),
    Row(
        "records of 10 kB, disk of 3,000 requests/s, records/s", "disks",
        "cloud volume, records of 10kB", "records_per_s", in_readme=False,
    ),
    Row(
        "files of 10 kB through FUSE, disk of 200 requests/s, files/s", "disks",
        "hard disk, files of 10kB", "records_per_s", in_readme=False,
    ),
    Row(
        "train from a bucket, 10 kB, first batch, s", "remote", "epochs of 10kB", "first_batch_s",
        digits=2, ours="ours, block shuffle, cache", in_readme=False,
    ),
    Row(
        "train from a bucket, 10 kB, first epoch, records/s", "remote", "epochs of 10kB",
        "samples_per_s", ours="ours, block shuffle, cache",
    ),
    Row(
        "the same, second epoch, from the cache, records/s", "remote", "epochs of 10kB",
        "second_samples_per_s", ours="ours, block shuffle, cache",
    ),
    Row(
        "train from a bucket, 110 kB, first epoch, records/s", "remote", "epochs of 110kB",
        "samples_per_s", ours="ours, block shuffle, cache", in_readme=False,
    ),
    Row("pack 50,000 files, cold, s", "pack", "cold small files", "seconds", digits=2),
    Row(
        "pack 50,000 files, warm, s", "pack", "warm small files", "seconds", digits=2,
        in_readme=False,
    ),
    Row(
        "pack 2 GB in 8 files, cold, s", "pack", "cold large files", "seconds", digits=2,
        in_readme=False,
    ),
    Row(
        "open an archive of 1,000,000 files, cold, ms", "folder", "cold open", "ms",
        ours="1,000,000 files", peers={"pickle, 1,000,000 files": "the original"},
    ),
    Row(
        "files of 10 kB through FUSE, files/s", "mount", "small files, two cores", "files_per_s",
        peers=FUSE,
    ),
    Row(
        "the same, cold, in order, files/s", "mount", "cold, in the order of names", "files_per_s",
        peers=FUSE,
    ),
    Row(
        "the same, cold, 8 programs, files/s", "mount", "cold, 8 clients", "files_per_s",
        peers=FUSE, in_readme=False,
    ),
    Row(
        "files of 10 kB, the kernel serves, files/s", "mount", "small files, two cores",
        "files_per_s", ours="ours, kernel, aligned", peers=KERNEL,
    ),
    Row("train on 110 kB images, cold, samples/s", "loader", "cold", "samples_per_s"),
    Row("the same, warm, samples/s", "loader", "warm", "samples_per_s"),
    Row(
        "typed samples of 74 kB, cold, samples/s", "dataset", "cold", "samples_per_s",
        ours="ours, none", peers={"granular": "granular", "HDF5, none": "HDF5"},
    ),
    Row(
        "one integer of each sample, warm, samples/s", "dataset", "warm", "samples_per_s",
        ours="ours, none: label",
        peers={"granular: label": "granular", "HDF5, none: label": "HDF5"}, in_readme=False,
    ),
    Row("Ray reads files of 10 kB, files/s", "cluster", "Ray, 10 kB", "rows_per_s",
        ours="ours, archive"),
    Row("Spark reads files of 10 kB, files/s", "cluster", "Spark, 10 kB", "rows_per_s",
        ours="ours, archive"),
)  # fmt: skip


def table(document: Callable[[str], Document], *, links: bool) -> str:
    """Return the table of README.md or, with `links`, that of docs/benchmarks.md.

    `document` loads a benchmark's JSON by name.
    """
    rows = []
    for row in ROWS:
        cells = row.cells(document(row.benchmark)) if links or row.in_readme else None
        if cells is not None:
            if links:
                cells[0] = f"[{cells[0]}](#{SECTIONS[row.benchmark]})"
            rows.append(cells)
    return report.table(["work", "FFRecord", "fastest peer", ""], rows)

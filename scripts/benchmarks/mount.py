"""Reading a packed folder through a mount, against squashfs, erofs, ratarmount and fuse-zip."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from . import datasets, machine, mounters, packers, report, rounds
from .benchmark import Benchmark, Outcome
from .mount_cases import (
    CLIENTS,
    COLD,
    COLD_ALONE,
    COLD_MEDIUM,
    COLD_MEDIUM_ALONE,
    DEPTH,
    DIRECT,
    FULL,
    IDLE,
    IN_ORDER,
    LARGE,
    LISTED_PINNED,
    LISTED_UNPINNED,
    MEMORY,
    MOUNT_MANY,
    PINNED,
    QUICK,
    UNPINNED,
    WALK_PINNED,
    WALK_UNPINNED,
    Plan,
    Run,
    prepare,
    samples,
)
from .results import Goal, Limit, Results

FILES = "files_per_s"
AGAIN = "again_files_per_s"
ENTRIES = "entries_per_s"
BYTES = "bytes_per_s"
BYTES_AGAIN = "again_bytes_per_s"
READS = "reads_per_s"
MOUNT = "mount_s"
READ = "read_per_byte"
PACKAGES = ("ffrecord", "numpy", "isal", "libaio", "mfusepy", "ratarmount")

OURS = mounters.OURS.name
KERNEL = mounters.OURS_KERNEL.name
ALIGNED = mounters.OURS_ALIGNED.name
SQUASHFUSE = mounters.SQUASHFUSE.name
RATARMOUNT = mounters.RATARMOUNT.name
SOURCE = mounters.SOURCE.name
REFERENCES = (SQUASHFUSE, RATARMOUNT, SOURCE)

TICK_MS = 10
"""One tick of the clock that usually counts processor time."""
FLAT_MB = 1
# For the kernel and an aligned archive: cases, metrics, and shares of the source folder's speed.
KERNEL_GOALS = (
    (PINNED, FILES, 0.4),
    (UNPINNED, FILES, 0.4),
    (PINNED, AGAIN, 0.9),
    (UNPINNED, AGAIN, 0.9),
    (WALK_PINNED, ENTRIES, 0.5),
    (WALK_UNPINNED, ENTRIES, 0.5),
    (LARGE, BYTES_AGAIN, 0.9),
    (COLD_ALONE, FILES, 0.9),
    (COLD, FILES, 0.9),
    (COLD_MEDIUM_ALONE, FILES, 0.9),
    (COLD_MEDIUM, FILES, 0.9),
)
UNALIGNED_SHARE = 0.7
"""The least speed of the kernel with an archive as it is, × the speed with an aligned one."""
GOALS: tuple[Goal | Limit, ...] = (
    Goal(PINNED, OURS, SQUASHFUSE, FILES, 2),
    Goal(PINNED, OURS, RATARMOUNT, FILES, 5),
    Goal(UNPINNED, OURS, SQUASHFUSE, FILES, 3),
    Goal(LISTED_PINNED, OURS, SQUASHFUSE, FILES, 2),
    Goal(LISTED_PINNED, OURS, RATARMOUNT, FILES, 5),
    Goal(LISTED_UNPINNED, OURS, SQUASHFUSE, FILES, 3),
    Goal(PINNED, OURS, SOURCE, AGAIN, 0.9),
    Goal(UNPINNED, OURS, SOURCE, AGAIN, 0.9),
    # In times: at most 1.5 times as long.
    Goal(WALK_PINNED, OURS, SQUASHFUSE, ENTRIES, 1 / 1.5),
    Goal(WALK_UNPINNED, OURS, SQUASHFUSE, ENTRIES, 1 / 1.5),
    Goal(COLD, OURS, SQUASHFUSE, FILES, 1.5),
    Goal(IN_ORDER, OURS, SQUASHFUSE, FILES, 1.5),
    Goal(IN_ORDER, OURS, SOURCE, FILES, 1),
    Goal(LARGE, OURS, SQUASHFUSE, BYTES, 2),
    Limit(COLD, OURS, READ, 1.1),
    Limit(MOUNT_MANY, OURS, MOUNT, 0.5),
    Limit(MOUNT_MANY, OURS, "mounted_mb", 100),
    Limit(MEMORY, OURS, "growth_mb", FLAT_MB),
    Limit(IDLE, OURS, "cpu_ms", TICK_MS),
    *(Goal(case, ALIGNED, SOURCE, metric, share) for case, metric, share in KERNEL_GOALS),
    *(Goal(case, KERNEL, ALIGNED, metric, UNALIGNED_SHARE) for case, metric, _ in KERNEL_GOALS),
    Limit(MOUNT_MANY, KERNEL, MOUNT, 1.5),
)

# For each case: metrics, headings of their columns, factors, and digits.
Columns = dict[str, tuple[str, float, int]]
READ_COLUMNS: Columns = {
    FILES: ("files/s", 1, 0),
    AGAIN: ("again, files/s", 1, 0),
    "client_us": ("client, µs", 1, 1),
    "daemon_us": ("daemon, µs", 1, 1),
}
LISTED_COLUMNS: Columns = {FILES: ("files/s", 1, 0), "listing_s": ("listing, s", 1, 3)}
WALK_COLUMNS: Columns = {ENTRIES: ("entries/s", 1, 0), "seconds": ("s", 1, 3)}
COLD_COLUMNS: Columns = {FILES: ("files/s", 1, 0), READ: ("read", 1, 2)}
COLUMNS: dict[str, Columns] = {
    PINNED: READ_COLUMNS,
    UNPINNED: READ_COLUMNS,
    LISTED_PINNED: LISTED_COLUMNS,
    LISTED_UNPINNED: LISTED_COLUMNS,
    WALK_PINNED: WALK_COLUMNS,
    WALK_UNPINNED: WALK_COLUMNS,
    COLD_ALONE: COLD_COLUMNS,
    COLD: COLD_COLUMNS,
    COLD_MEDIUM_ALONE: COLD_COLUMNS,
    COLD_MEDIUM: COLD_COLUMNS,
    IN_ORDER: COLD_COLUMNS,
    LARGE: {
        BYTES: ("MB/s", 1e-6, 0),
        BYTES_AGAIN: ("again, MB/s", 1e-6, 0),
        "seconds": ("s", 1, 2),
        "client_s": ("client's CPU, s", 1, 2),
    },
    DIRECT: {READS: ("reads/s", 1, 0)},
    MOUNT_MANY: {
        MOUNT: ("mount, ms", 1e3, 0),
        "python_s": ("python -c pass, ms", 1e3, 0),
        "beyond_python_s": ("beyond that, ms", 1e3, 0),
        "mounted_mb": ("MB", 1, 1),
    },
    MEMORY: {
        "mounted_mb": ("mounted, MB", 1, 1),
        "once_mb": ("read once, MB", 1, 1),
        "growth_mb": ("read twice, more MB", 1, 2),
        "most_mb": ("most MB", 1, 1),
        "shared_mb": ("shared MB", 1, 1),
        "processes": ("processes", 1, 0),
    },
    IDLE: {"cpu_ms": ("CPU, ms", 1, 2)},
}
METRICS = tuple(dict.fromkeys(metric for columns in COLUMNS.values() for metric in columns))

FOOTNOTES = f"""
- Every measurement has a fresh mount, with its archive in the page cache unless it is cold. The
  client is a fresh process that times only its own reading.
- The ratios compare the first column: they are medians of each repeat's own ratio.
- {SOURCE}: the packed files on the disk's own file system, also in the page cache.
- {KERNEL}: `ffrecord mount --backend kernel`; aligned: of an archive packed with `--align 512`.
  The kernel reads such an archive past the page cache, and does not verify checksums. FUSE does.
- {mounters.SQUASHFS.name}; {mounters.EROFS.name}: images of mksquashfs and mkfs.erofs, mounted with
  `mount -o loop`. These file systems do not verify either.
- Without a daemon, its columns are empty. The kernel's own threads are not in any column.
- Contestants that no goal of a case compares are measured in half of the repeats, rounded down, but
  at least once. Ours are measured in all of them.
- one core: client and daemon share it. two cores: both may run on either.
- again: the same client reads the same files again, as often as half a second allows; the large
  file once.
- client, daemon: processor time for a file at its first read, including the kernel's part.
- listed: os.walk lists all folders, which does not count for files/s. Then files are read as above.
- cold: caches are dropped after mounting, when all clients wait for the start. In the order of
  names: one client reads neighbours one after another, as tar and grep -r do.
- read: bytes read from the disk, by the daemon or the clients, for each byte of the files. For a
  loop device, no process is charged for them.
- O_DIRECT: fio reads random 4 KiB pages of the large file with libaio, {DEPTH} at a time. Mounts
  read them from the page cache of the archive, the source folder from the disk.
- mounting many files: time from the start of the command until a stat of a file in it succeeds.
- memory: PSS of all processes that serve the mount. Read once: after a walk over all names and a
  sample of the files. Read twice: after the same with other files. Caches are dropped before each,
  so that the kernel asks the daemon for everything. shared MB: shared mappings of memory, which PSS
  counts only as far as their pages are mapped.
- idle: processor time of all processes that serve the mount, while no client uses it.
- Archives: tar cf; mksquashfs {" ".join(packers.SQUASHFS_OPTIONS)}; zip -0 -r;
  mkfs.erofs. ratarmount has its index from an earlier mount.
- Goals are for the full amounts: --quick only shows that everything works.
"""


def measure(options: argparse.Namespace) -> Outcome:
    """Create the data that is missing, measure, and report."""
    plan = QUICK if options.quick else FULL
    plan = replace(plan, repeats=options.repeats or plan.repeats)
    load = rounds.load_before()
    measuring = prepare(plan, options.data.resolve(), GOALS)
    results = Results(samples(measuring))
    document = _document(results, measuring, load)
    return Outcome(_text(results, measuring), document, measuring.data)


BENCHMARK = Benchmark(
    "mount",
    summary="reading a packed folder through a mount",
    description=__doc__,
    quick="a tenth of the data, fewer cases, 2 repeats",
    measure=measure,
)


def _text(results: Results, measured: Run) -> str:
    tables = [
        report.section(f"{name}: {_amount(name, measured.plan)}", _table(results, name))
        for name in COLUMNS
        if name in results.cases()
    ]
    skipped = (f"{name} was skipped: {why}" for name, why in measured.skipped.items())
    return report.page(*tables, FOOTNOTES, *skipped, report.goals(results, GOALS))


def _amount(name: str, plan: Plan) -> str:
    """Return the amount that a case reads, as text."""
    if name == LARGE:
        return f"{plan.large.payload / 1e6:,.0f} MB"
    if name == DIRECT:
        return f"{DEPTH} at a time, {plan.direct} s"
    if name == MOUNT_MANY:
        return f"{plan.many.count:,}"
    if name == MEMORY:
        return f"{plan.many.count:,} names, {plan.sampled:,} files each time, {CLIENTS} clients"
    if name == IDLE:
        return f"{plan.idle:g} s"
    tree = plan.medium if name in (COLD_MEDIUM, COLD_MEDIUM_ALONE) else plan.small
    files = f"{tree.count:,} × {tree.mean / 1e3:g} kB"
    reads = plan.reads_of(tree)
    whole = reads == tree.count or name in (WALK_PINNED, WALK_UNPINNED)
    return files if whole else f"{reads:,} of {files}"


def _table(results: Results, name: str) -> str:
    columns = COLUMNS[name]
    references = [one for one in REFERENCES if one in results.contestants(name)]
    header = ["contestant", *(head for head, _, _ in columns.values())]
    if _is_speed(columns):
        header += [f"× {one}" for one in references]
    order = [one for one in mounters.MOUNTERS if one in results.contestants(name)]
    return report.table(header, [_row(results, name, one, references) for one in order])


def _row(results: Results, name: str, mounter: str, references: Sequence[str]) -> list[str]:
    columns = COLUMNS[name]
    cells = [report.contestant(results, name, mounter)]
    for metric, (_, factor, digits) in columns.items():
        cells.append(report.scaled(results.median(name, mounter, metric), factor, digits))
    if _is_speed(columns):
        first = next(iter(columns))
        ratios = (results.ratio(name, mounter, one, first) for one in references)
        cells += [report.number(ratio, 2) for ratio in ratios]
    return cells


def _is_speed(columns: Columns) -> bool:
    """Return True if ratios of the first column make sense."""
    return next(iter(columns)) in (FILES, ENTRIES, BYTES, READS)


def _document(results: Results, measured: Run, load: float) -> dict[str, Any]:
    """Return everything that is needed to check the tables or to run the benchmark again."""
    described = machine.describe(measured.data, PACKAGES)
    parameters = {**asdict(measured.plan), "sigma": datasets.SIGMA, "seed": datasets.SEED}
    return {
        "machine": {**described, "programs": mounters.versions(), "load_before": load},
        "parameters": {**parameters, "clients": CLIENTS},
        "skipped": measured.skipped,
        **report.as_document(results, GOALS, REFERENCES, (*METRICS, MOUNT)),
    }

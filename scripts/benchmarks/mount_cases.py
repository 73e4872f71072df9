"""The cases of `mount`, and the loop over them in the parent process."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import folder_archives, harness, mount_archives, mount_worker, mounters, rounds, trees
from .folder_archives import FolderArchive
from .mounters import MOUNTERS, Mounter
from .results import Goal, Limit, Sample
from .rounds import Contestant, Values
from .trees import FileTree

CREATE_TIMEOUT = 1800.0
MEASURE_TIMEOUT = 1200.0

ONE_CORE = 1
TWO_CORES = 2
CLIENTS = 8
ROUNDS = 2
"""Rounds over all names and some files, to see whether memory grows."""
DEPTH = 16
"""Number of O_DIRECT reads in flight."""
IDLE_FILES = 100
"""Files that are read before a mount becomes idle."""

PINNED = "small files, one core"
UNPINNED = "small files, two cores"
LISTED_PINNED = "listed, then read, one core"
LISTED_UNPINNED = "listed, then read, two cores"
WALK_PINNED = "walk, one core"
WALK_UNPINNED = "walk, two cores"
LARGE = "large file"
DIRECT = "large file, random pages, O_DIRECT"
IDLE = "idle"
MOUNT_MANY = "mounting many files"
MEMORY = "memory, many files"
COLD = "cold, 8 clients"
COLD_ALONE = "cold, 1 client"
COLD_MEDIUM = "cold, larger files, 8 clients"
COLD_MEDIUM_ALONE = "cold, larger files, 1 client"
IN_ORDER = "cold, in the order of names"

RIVALS = (mounters.OURS, mounters.SQUASHFUSE, mounters.RATARMOUNT, mounters.SOURCE)
"""The contestants that have goals with FUSE. Slow cases measure only these."""
OURS_IN_KERNEL = (mounters.OURS_KERNEL, mounters.OURS_ALIGNED)
IN_KERNEL = (*OURS_IN_KERNEL, mounters.SQUASHFS, mounters.EROFS)
ALWAYS = (mounters.OURS, *OURS_IN_KERNEL)
"""The contestants that every repeat measures, whether they have goals or not."""
DIRECT_READERS = (mounters.OURS, mounters.OURS_FUSEPY, mounters.SQUASHFUSE, mounters.SOURCE)
OWN = (mounters.OURS, mounters.OURS_FUSEPY)
"""The contestants with a daemon that can read an archive that was made without its files."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured.

    `reads` are random files of the small ones, `sampled` of the many; all medium ones are read.
    `idle` and `direct` are the seconds of rest and of O_DIRECT reads. The cases of `left_out` are
    not measured.
    """

    repeats: int
    small: FileTree
    reads: int
    medium: FileTree
    large: FileTree
    many: FolderArchive
    sampled: int
    idle: float
    direct: int
    left_out: tuple[str, ...] = ()

    @property
    def trees(self) -> tuple[FileTree, ...]:
        """The trees that the measured cases read."""
        if {COLD_MEDIUM, COLD_MEDIUM_ALONE} <= {*self.left_out}:
            return (self.small, self.large)
        return (self.small, self.medium, self.large)

    def reads_of(self, tree: FileTree) -> int:
        """Return the number of files of a tree that a measurement reads."""
        return min(self.reads, tree.count)


FULL = Plan(
    repeats=5,
    small=FileTree("small files", 10_000, 50_000, 500),
    reads=10_000,
    medium=FileTree("larger files", 110_000, 5_000, 100),
    large=FileTree("large file", 2_000_000_000, 1, 1),
    many=FolderArchive(1_000, 1_000),
    sampled=200_000,
    idle=3.0,
    direct=5,
)
QUICK = Plan(
    repeats=2,
    small=FileTree("small files", 10_000, 5_000, 50),
    reads=2_000,
    medium=FileTree("larger files", 110_000, 1_000, 100),
    large=FileTree("large file", 200_000_000, 1, 1),
    many=FolderArchive(100, 1_000),
    sampled=5_000,
    idle=1.0,
    direct=1,
    # Other cases run the same code, with other cores or other files.
    left_out=(LISTED_PINNED, WALK_PINNED, COLD_MEDIUM, COLD_MEDIUM_ALONE),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A plan, the folder of its data, the contestants, and the goals for them."""

    plan: Plan
    data: Path
    taking_part: tuple[Mounter, ...]
    skipped: dict[str, str]
    """Contestants that do not take part, with the reason."""
    judged: frozenset[tuple[str, str]]
    """Cases and contestants that goals compare. Others are measured less often."""

    @property
    def point(self) -> Path:
        return self.data / "mounted"


def prepare(plan: Plan, data: Path, goals: Iterable[Goal | Limit]) -> Run:
    """Create missing trees and archives, and find the contestants that can mount them."""
    for tree in plan.trees:
        rounds.say(f"{tree.name}: {tree.count:,} of {tree.mean:,} bytes")
        harness.call_fresh(trees.create, CREATE_TIMEOUT, root=str(data), **asdict(tree))
    judged = frozenset(
        (goal.case, name) for goal in goals for name in (goal.contestant, goal.over) if name
    )
    everyone = Run(plan, data, tuple(MOUNTERS.values()), {}, judged)
    skipped = {m.name: why for m in everyone.taking_part if (why := _reason_not_to(m, everyone))}
    for name, why in skipped.items():
        rounds.say(f"{name} is skipped: {why}")
    taking_part = tuple(m for m in everyone.taking_part if m.name not in skipped)
    if any(m in OWN for m in taking_part):
        rounds.say(f"archive of {plan.many.count:,} files")
        arguments = asdict(plan.many)
        harness.call_fresh(folder_archives.create, CREATE_TIMEOUT, root=str(data), **arguments)
    return Run(plan, data, taking_part, skipped, judged)


def samples(run: Run) -> Iterator[Sample]:
    """Measure every case. Cases that need an empty page cache come last."""
    plan = run.plan
    small, everyone = plan.small, run.taking_part
    for name, cores in ((PINNED, ONE_CORE), (UNPINNED, TWO_CORES)):
        reading = partial(_read, run, mount_worker.read_small, cores=cores)
        yield from _interleaved(run, name, everyone, reading)
    for name, cores in ((LISTED_PINNED, ONE_CORE), (LISTED_UNPINNED, TWO_CORES)):
        reading = partial(_read, run, mount_worker.read_listed, cores=cores)
        yield from _interleaved(run, name, RIVALS, reading)
    entries = small.count + -(-small.count // small.per_folder)
    for name, cores in ((WALK_PINNED, ONE_CORE), (WALK_UNPINNED, TWO_CORES)):
        walking = partial(
            _measure, run, mount_worker.walk, small, cores, name=small.path(0), entries=entries
        )
        yield from _interleaved(run, name, everyone, walking)
    yield from _interleaved(run, LARGE, everyone, partial(_read_large, run))
    if shutil.which("fio") is not None:
        yield from _interleaved(run, DIRECT, DIRECT_READERS, partial(_read_direct, run))
    yield from _interleaved(run, IDLE, OWN, partial(_idle, run))
    mounting = (*OWN, mounters.OURS_KERNEL)
    yield from _interleaved(run, MOUNT_MANY, mounting, partial(_mount_many, run))
    if "cold" in rounds.states():
        reading = partial(_read_in_order, run)
        yield from _interleaved(run, IN_ORDER, (*RIVALS, *OURS_IN_KERNEL), reading)
        rivals = (*RIVALS, *IN_KERNEL)
        for name, tree, clients, contestants in (
            (COLD_ALONE, small, 1, rivals),
            (COLD, small, CLIENTS, everyone),
            (COLD_MEDIUM_ALONE, plan.medium, 1, rivals),
            (COLD_MEDIUM, plan.medium, CLIENTS, rivals),
        ):
            reading = partial(_read_cold, run, tree, clients)
            yield from _interleaved(run, name, contestants, reading)
        remembering = partial(_remember, run)
        yield from _interleaved(run, MEMORY, (mounters.OURS,), remembering, repeats=1)


def _reason_not_to(mounter: Mounter, run: Run) -> str | None:
    """Return the reason why a contestant cannot take part; None if it can.

    The trial also lets a contestant build the files that it keeps between mounts, such as
    ratarmount's index.
    """
    for tree in run.plan.trees:
        witness = tree.path(0)
        arguments = {
            "mounter": mounter.name,
            "archive": str(mount_archives.file(mounter, tree, run.data)),
            "point": str(run.point),
            "witness": witness,
            "source": str(tree.top(run.data) / witness),
        }
        try:
            harness.call_fresh(
                mount_archives.create,
                CREATE_TIMEOUT,
                mounter=mounter.name,
                root=str(run.data),
                **asdict(tree),
            )
            harness.call_fresh(mount_worker.try_out, MEASURE_TIMEOUT, **arguments)
        except harness.MeasurementError as error:
            return str(error).replace(str(harness.ROOT), ".")  # the message goes into the JSON
        finally:
            mounters.clear(run.point)
    return None


def _interleaved(
    run: Run,
    case: str,
    mounting: Sequence[Mounter],
    measure: Callable[[Mounter, int], Values],
    repeats: int | None = None,
) -> Iterator[Sample]:
    """Measure a case with the contestants of `mounting` that take part."""
    if case in run.plan.left_out:
        return
    contestants: list[Contestant] = [
        (mounter.name, partial(measure, mounter))
        for mounter in mounting
        if mounter in run.taking_part
    ]
    seldom = {
        mounter.name
        for mounter in mounting
        if mounter not in ALWAYS and (case, mounter.name) not in run.judged
    }
    if contestants:
        yield from rounds.interleaved(case, contestants, repeats or run.plan.repeats, seldom)


def _read(
    run: Run,
    function: Callable[..., Values],
    mounter: Mounter,
    repeat: int,
    *,
    cores: int,
) -> Values:
    tree = run.plan.small
    what = _chosen(tree, _drawn(run, tree, repeat))
    return _measure(run, function, tree, cores, mounter, repeat, **what)


def _read_cold(run: Run, tree: FileTree, clients: int, mounter: Mounter, repeat: int) -> Values:
    return _read_numbers_cold(run, tree, _drawn(run, tree, repeat), clients, mounter, repeat)


def _read_in_order(run: Run, mounter: Mounter, repeat: int) -> Values:
    """Read neighbouring files in order, like a program that reads a whole folder."""
    tree, reads = run.plan.small, run.plan.reads
    first = repeat * reads % (tree.count - reads + 1)
    return _read_numbers_cold(run, tree, range(first, first + reads), 1, mounter, repeat)


def _read_numbers_cold(
    run: Run, tree: FileTree, numbers: Sequence[int], clients: int, mounter: Mounter, repeat: int
) -> Values:
    what = {**_chosen(tree, numbers), "clients": clients, "most": int(tree.sizes().max()) + 1}
    return _measure(run, mount_worker.read_cold, tree, TWO_CORES, mounter, repeat, **what)


def _drawn(run: Run, tree: FileTree, repeat: int) -> list[int]:
    """Return the files that a repeat reads, in random order."""
    return random.Random(repeat).sample(range(tree.count), run.plan.reads_of(tree))


def _chosen(tree: FileTree, numbers: Sequence[int]) -> dict[str, Any]:
    size = int(tree.sizes()[np.array(numbers)].sum())
    return {"names": [tree.path(number) for number in numbers], "size": size}


def _read_large(run: Run, mounter: Mounter, repeat: int) -> Values:
    tree = run.plan.large
    what: dict[str, Any] = {"name": tree.path(0), "size": tree.payload}
    return _measure(run, mount_worker.read_large, tree, TWO_CORES, mounter, repeat, **what)


def _read_direct(run: Run, mounter: Mounter, repeat: int) -> Values:
    tree = run.plan.large
    what: dict[str, Any] = {"name": tree.path(0), "seconds": run.plan.direct, "depth": DEPTH}
    return _measure(run, mount_worker.read_direct, tree, TWO_CORES, mounter, repeat, **what)


def _idle(run: Run, mounter: Mounter, repeat: int) -> Values:
    tree = run.plan.small
    names = [tree.path(number) for number in range(IDLE_FILES)]
    what: dict[str, Any] = {"names": names, "seconds": run.plan.idle}
    return _measure(run, mount_worker.idle, tree, TWO_CORES, mounter, repeat, **what)


def _mount_many(run: Run, mounter: Mounter, repeat: int) -> Values:
    many = run.plan.many
    what: dict[str, Any] = {"name": many.path(random.Random(repeat).randrange(many.count))}
    return _measure(run, mount_worker.mount_many, many, TWO_CORES, mounter, repeat, **what)


def _remember(run: Run, mounter: Mounter, repeat: int) -> Values:
    many, sampled = run.plan.many, run.plan.sampled
    drawn = random.Random(repeat).sample(range(many.count), ROUNDS * sampled)
    shares = [drawn[first::ROUNDS] for first in range(ROUNDS)]
    lengths = many.records.lengths()
    what: dict[str, Any] = {
        "names": [[many.path(number) for number in share] for share in shares],
        "sizes": [int(lengths[np.array(share)].sum()) for share in shares],
        "entries": many.count + many.folders,
        "clients": CLIENTS,
    }
    return _measure(run, mount_worker.remember, many, TWO_CORES, mounter, repeat, **what)


def _measure(
    run: Run,
    function: Callable[..., Values],
    packed: FileTree | FolderArchive,
    cores: int,
    mounter: Mounter,
    repeat: int,
    **more: Any,
) -> Values:
    del repeat  # arguments that depend on the repeat are in `more`
    if isinstance(packed, FolderArchive):
        archive = packed.file(run.data)
    else:
        archive = mount_archives.file(mounter, packed, run.data)
    try:
        values: Values = harness.call_fresh(
            function,
            MEASURE_TIMEOUT,
            mounter=mounter.name,
            archive=str(archive),
            point=str(run.point),
            cores=cores,
            **more,
        )
    finally:
        mounters.clear(run.point)  # a process that ran out of time was killed and could not unmount
    return values

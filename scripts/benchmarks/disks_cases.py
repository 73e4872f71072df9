"""The cases of `disks`, and the loop over them in the parent process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from . import (
    disks_worker,
    harness,
    mount_archives,
    mounters,
    peers,
    read_cases,
    rounds,
    throttle,
    trees,
)
from .datasets import RecordSet
from .mounters import Mounter
from .read_cases import Size
from .read_worker import file_of
from .results import Sample
from .rounds import Contestant, Values
from .throttle import NotPermittedError, Rates
from .trees import FileTree

CREATE_TIMEOUT = 1800.0
GRACE = 90.0
"""Seconds beyond its patience after which a measurement counts as hanging."""

READAHEAD = 128
"""KiB of the kernel's readahead, as most disks have it. It decides how mapped files are read."""
CLIENTS = 8
WORKERS = (0, 2)
MEMORY_SHARE = 4
"""A file is this many times as large as the memory in which it is read."""

CHANGED = "another program changed the disk's readahead"
LIMIT = "file read once in order"
LOADERS = {workers: f"ours, loader, {workers} workers" for workers in WORKERS}

READERS = (
    peers.OURS,
    peers.OURS_AIO,
    peers.OURS_MMAP,
    peers.LMDB,
    peers.ARRAY_RECORD,
    peers.PLAIN_FILES,
)
STEADY = (peers.OURS_AIO.name, peers.ARRAY_RECORD.name)
"""Contestants that read only the records themselves. They are as fast at first as later."""
FILES = (peers.PLAIN_FILES.name, mounters.SOURCE.name)
"""Contestants that become faster once folders and inodes are in memory, which takes minutes."""
MOUNTED = (mounters.OURS, mounters.SQUASHFUSE, mounters.SOURCE)

RECORDS, MOUNT, MEMORY = "records", "mount", "memory"
PARTS = (RECORDS, MOUNT, MEMORY)


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk. No contestant reads from it for longer than `patience` seconds."""

    name: str
    rates: Rates | None
    """None: as fast as the disk is."""
    patience: float

    def records(self, size: Size) -> str:
        """Return the name of the case in which records are read."""
        return f"{self.name}, records of {size.name}"

    def files(self, tree: FileTree) -> str:
        """Return the name of the case in which mounted files are read."""
        return f"{self.name}, {tree.name}"

    def in_little_memory(self, size: Size) -> str:
        """Return the name of the case in which the file does not fit into memory."""
        return f"{self.name}, records of {size.name}, memory for a quarter"


HARD = Disk("hard disk", Rates(200, 150_000_000), 35.0)
CLOUD = Disk("cloud volume", Rates(3_000, 125_000_000), 15.0)
FAST = Disk("fast volume", Rates(16_000, 1_000_000_000), 10.0)
BARE = Disk("bare disk", None, 10.0)
DISKS = (HARD, CLOUD, FAST, BARE)

SIZES = (
    Size(RecordSet("1kB", 1_000, 400_000), 256),
    Size(RecordSet("10kB", 10_000, 60_000), 256),
    Size(RecordSet("110kB", 110_000, 5_000), 256),
)
TREES = (
    FileTree("files of 10kB", 10_000, 20_000, 500),
    FileTree("files of 110kB", 110_000, 5_000, 500),
)
SMALL_MEMORY = (CLOUD, SIZES[1])
"""The disk and the records that are also read in a quarter of their size as memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured."""

    repeats: int
    disks: tuple[Disk, ...] = DISKS
    sizes: tuple[Size, ...] = SIZES
    trees: tuple[FileTree, ...] = TREES
    parts: tuple[str, ...] = PARTS
    steady: float = 3.0
    files: float = 8.0
    """Seconds after which contestants of STEADY and FILES are stopped."""

    def patience(self, disk: Disk, contestant: str) -> float:
        """Return the seconds after which a contestant is stopped."""
        if contestant in STEADY:
            return min(self.steady, disk.patience)
        return min(self.files, disk.patience) if contestant in FILES else disk.patience


FULL = Plan(repeats=1)
QUICK = Plan(
    repeats=1,
    disks=(CLOUD, BARE),
    sizes=tuple(size.scaled(0.1) for size in SIZES if size.name == "10kB"),
    trees=(FileTree("files of 10kB", 10_000, 2_000, 500),),
    steady=1.0,
    files=1.0,
)


@dataclass(slots=True)
class Run:
    """A plan, the folder of its data, and facts found before and during the measurements."""

    plan: Plan
    data: Path
    unwritten: dict[str, str] = field(default_factory=dict)
    """Reasons why a layout of records, or the archive of a mounter, does not exist."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Disks and other parts that were not measured, with the reason."""

    @property
    def point(self) -> Path:
        return self.data / "mounted"

    def skip(self, name: str, why: object) -> None:
        """Note that something is not measured."""
        rounds.say(f"{name} is skipped: {why}")
        self.skipped[name] = str(why).replace(str(harness.ROOT), ".")


def prepare(plan: Plan, data: Path) -> Run:
    """Create missing files and archives."""
    run = Run(plan, data)
    if RECORDS in plan.parts or MEMORY in plan.parts:
        for size in plan.sizes:
            run.unwritten |= read_cases.create(size, data, READERS)
    if MOUNT in plan.parts:
        for tree in plan.trees:
            rounds.say(f"{tree.name}: {tree.count:,}")
            harness.call_fresh(trees.create, CREATE_TIMEOUT, root=str(data), **asdict(tree))
            for mounter in MOUNTED:
                _pack(run, mounter, tree)
    return run


def samples(run: Run) -> Iterator[Sample]:
    """Measure every case. The machine is as before when this ends, also after an error."""
    with throttle.ended_in_order(), ExitStack() as stack:
        try:
            device = throttle.disk(run.data)
            set_again = stack.enter_context(throttle.readahead(device, READAHEAD))
        except NotPermittedError as error:
            for disk in run.plan.disks:
                run.skip(disk.name, error)
            return
        for disk in run.plan.disks:
            try:
                for sample in _on(disk, device, run):
                    yield replace(sample, values={}, error=CHANGED) if set_again() else sample
            except NotPermittedError as error:
                run.skip(disk.name, error)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a measurement: those of a disk, and of the memory."""

    disk: Disk
    device: str
    memory: int | None = None

    @contextmanager
    def groups(self) -> Iterator[list[str]]:
        """Provide new cgroups with these limits; raise NotPermittedError if they cannot be made.

        Each measurement has its own: nothing of the one before counts, and no process of it stays.
        """
        with ExitStack() as stack:
            found = []
            if self.disk.rates is not None:
                slow = throttle.slow_disk(self.device, self.disk.rates)
                found.append(stack.enter_context(slow))
            if self.memory is not None:
                found.append(stack.enter_context(throttle.small_memory(self.memory)))
            yield list(map(str, found))

    def check(self) -> None:
        """Raise NotPermittedError if the limits cannot be set."""
        with self.groups():
            pass


def _on(disk: Disk, device: str, run: Run) -> Iterator[Sample]:
    """Measure all cases of one disk."""
    plan, limits = run.plan, Limits(disk, device)
    limits.check()
    if RECORDS in plan.parts:
        for size in plan.sizes:
            readers = [*_readers(READERS, limits, size, run), *_loaders(limits, size, run)]
            readers.append(_limit(_our_file(size, run), size.records.count, limits))
            yield from rounds.interleaved(disk.records(size), readers, plan.repeats)
    if MOUNT in plan.parts:
        for tree in plan.trees:
            clients = _clients(limits, tree, run)
            yield from rounds.interleaved(disk.files(tree), clients, plan.repeats)
    if MEMORY in plan.parts:
        yield from _in_little_memory(limits, run)


def _in_little_memory(limits: Limits, run: Run) -> Iterator[Sample]:
    """Measure ours with and without pieces where the file does not fit into memory."""
    chosen, only = SMALL_MEMORY
    for size in run.plan.sizes:
        if limits.disk is not chosen or size.name != only.name:
            continue
        small = replace(limits, memory=_our_file(size, run).stat().st_size // MEMORY_SHARE)
        case = limits.disk.in_little_memory(size)
        try:
            small.check()
        except NotPermittedError as error:
            run.skip(case, error)
            continue
        ours = [*_readers((peers.OURS, peers.OURS_AIO), small, size, run)]
        yield from rounds.interleaved(case, ours, run.plan.repeats)


def _readers(
    those: Sequence[peers.Peer], limits: Limits, size: Size, run: Run
) -> Iterator[Contestant]:
    for peer in those:
        if peer.layout in run.unwritten:
            yield peer.name, partial(read_cases.give_up, run.unwritten[peer.layout])
            continue
        patience = run.plan.patience(limits.disk, peer.name)
        what = {**_records(size, run), "peer": peer.name}
        yield peer.name, partial(_epoch, disks_worker.read_records, limits, patience, what)


def _loaders(limits: Limits, size: Size, run: Run) -> Iterator[Contestant]:
    patience = limits.disk.patience
    for workers, name in LOADERS.items():
        what = {**_records(size, run), "workers": workers}
        yield name, partial(_epoch, disks_worker.load_records, limits, patience, what)


def _records(size: Size, run: Run) -> dict[str, Any]:
    """Return the arguments that every way to read records has."""
    return {"root": str(run.data), **asdict(size.records), "batch": size.batch}


def _epoch(
    function: Callable[..., Values],
    limits: Limits,
    patience: float,
    what: dict[str, Any],
    repeat: int,
) -> Values:
    """Measure one epoch in an order that depends on the repeat."""
    return _measure(function, limits, patience, {**what, "seed": repeat})


def _measure(
    function: Callable[..., Values], limits: Limits, patience: float, what: dict[str, Any]
) -> Values:
    with limits.groups() as groups:
        values: Values = harness.call_fresh(
            function, patience + GRACE, groups=groups, patience=patience, **what
        )
    return values


def _limit(file: Path, count: int, limits: Limits) -> Contestant:
    """Return the contestant that shows how fast the disk gives the whole file."""
    what = {"file": str(file), "count": count}
    return LIMIT, lambda repeat: _measure(disks_worker.read_in_order, limits, GRACE, what)


def _clients(limits: Limits, tree: FileTree, run: Run) -> list[Contestant]:
    """Return the contestants that read a tree through a mount, and their limit."""
    contestants: list[Contestant] = []
    for mounter in MOUNTED:
        if mounter.name in run.unwritten:
            measure = partial(read_cases.give_up, run.unwritten[mounter.name])
        else:
            measure = partial(_read_files, limits, tree, run, mounter)
        contestants.append((mounter.name, measure))
    archive = mount_archives.file(mounters.OURS, tree, run.data)
    return [*contestants, _limit(archive, tree.count, limits)]


def _read_files(limits: Limits, tree: FileTree, run: Run, mounter: Mounter, repeat: int) -> Values:
    sizes = tree.sizes().tolist()
    order = random.Random(repeat).sample(range(tree.count), tree.count)
    what = {
        "mounter": mounter.name,
        "archive": str(mount_archives.file(mounter, tree, run.data)),
        "point": str(run.point),
        "names": [tree.path(number) for number in order],
        "sizes": [sizes[number] for number in order],
        "clients": CLIENTS,
    }
    patience = run.plan.patience(limits.disk, mounter.name)
    try:
        return _measure(disks_worker.read_files, limits, patience, what)
    finally:
        mounters.clear(run.point)  # a process that ran out of time was killed and could not unmount


def _our_file(size: Size, run: Run) -> Path:
    return file_of(peers.OURS, size.records, run.data)


def _pack(run: Run, mounter: Mounter, tree: FileTree) -> None:
    arguments = {"mounter": mounter.name, "root": str(run.data), **asdict(tree)}
    try:
        harness.call_fresh(mount_archives.create, CREATE_TIMEOUT, **arguments)
    except harness.MeasurementError as error:
        run.unwritten[mounter.name] = f"packing failed: {error}"

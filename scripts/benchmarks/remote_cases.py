"""The cases of `remote`, and the loop over them in the parent process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import (
    folder_archives,
    harness,
    remote_archives,
    remote_fsspec,
    remote_loaders,
    remote_readers,
    remote_worker,
    rounds,
)
from .datasets import RecordSet
from .remote_server import Server, serving
from .results import Sample
from .rounds import Values

CREATE_TIMEOUT = 900.0
MEASURE_TIMEOUT = 45.0
"""Seconds. A loader that stalls for longer has failed: its wait is not a speed."""

RANDOM_LAYOUTS = tuple({reader.layout for reader in remote_readers.READERS.values()})
CAT_LAYOUTS = (remote_archives.PACKED, remote_archives.ZIP)

BATCHES, EPOCHS, OTHERS = "batches", "epochs", "others"
PARTS = (BATCHES, EPOCHS, OTHERS)
"""Parts that can be measured alone. The last one is memory and fsspec."""

MEMORY, LISTING = "memory", "a million files"
OBSTORE = "obstore, no delay"
FFR = "ours, fsspec"


@dataclass(frozen=True, slots=True)
class Large:
    """A sparse object for the measurement of memory."""

    count: int
    mean: int = 10_000

    @property
    def name(self) -> str:
        return f"object of {self.count * self.mean / 1e9:g} GB"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured. An epoch is stopped after `budget` seconds."""

    repeats: int
    sizes: tuple[RecordSet, ...]
    """Records of the epochs."""
    larger: tuple[RecordSet, ...]
    """Records from which random batches are drawn: so many that they are no neighbours."""
    budget: float
    most_batches: int
    parts: tuple[str, ...] = PARTS
    only_fast: bool = False
    """Leave out epochs of which a single batch takes many seconds."""
    delay: float = 0.02
    batch: int = 256
    workers: int = 2
    probes: int = 4_000
    """Requests with which the server's own capacity is measured."""
    large: tuple[Large, ...] = (Large(20_000), Large(2_000_000))
    large_batches: int = 40
    cat_batches: int = 30
    folders: int = 1_000
    per_folder: int = 1_000


FULL = Plan(
    repeats=3,
    sizes=(RecordSet("10kB", 10_000, 40_960), RecordSet("110kB", 110_000, 5_120)),
    larger=(RecordSet("10kB", 10_000, 100_000), RecordSet("110kB", 110_000, 10_000)),
    budget=8.0,
    most_batches=8,
)
QUICK = Plan(
    repeats=1,
    sizes=(RecordSet("110kB", 110_000, 1_280),),
    larger=(RecordSet("110kB", 110_000, 5_000),),
    budget=5.0,
    most_batches=4,
    only_fast=True,
    large=(Large(2_000_000),),
    large_batches=10,
    cat_batches=10,
)


def capacity_of(size: str) -> str:
    """Return the name of a case of the server's own speed."""
    return f"server, {size}"


def cat_of(size: str) -> str:
    """Return the name of a case of `cat`."""
    return f"cat, {size}"


def batches_of(size: str) -> str:
    """Return the name of a case of random batches."""
    return f"random batches of {size}"


def epochs_of(size: str) -> str:
    """Return the name of a case of epochs."""
    return f"epochs of {size}"


def folder(data: Path) -> Path:
    """Return the folder of this benchmark's files, which the server serves."""
    return data / "remote"


def samples(plan: Plan, data: Path) -> Iterator[Sample]:
    """Create missing files and measure every case."""
    root = folder(data)
    unwritten = _create(plan, data)
    with serving(root, 0.0) as prompt, serving(root, plan.delay) as server:
        for size, larger in zip(plan.sizes, plan.larger, strict=True):
            if BATCHES in plan.parts:
                _warm([(larger, layout) for layout in RANDOM_LAYOUTS], root)
                yield from _capacity(plan, larger, root, prompt)
                yield from _batches(plan, larger, root, server, unwritten)
            if EPOCHS in plan.parts:
                _warm([(size, layout) for layout in remote_archives.LAYOUTS], root)
                yield from _epochs(plan, size, root, server, unwritten)
        if OTHERS in plan.parts:
            yield from _memory(plan, root, server)
    if OTHERS in plan.parts:
        yield from _fsspec(plan, data)


def _create(plan: Plan, data: Path) -> dict[str, str]:
    """Make every layout of every size; return the failures by layout."""
    unwritten: dict[str, str] = {}
    wanted = {
        BATCHES: [(size, layout) for size in plan.larger for layout in RANDOM_LAYOUTS],
        EPOCHS: [(size, layout) for size in plan.sizes for layout in remote_archives.LAYOUTS],
        OTHERS: [(size, layout) for size in plan.sizes for layout in CAT_LAYOUTS],
    }
    for size, layout in dict.fromkeys(each for part in plan.parts for each in wanted[part]):
        rounds.say(f"{size.name} × {size.count:,}: files of {layout}")
        arguments = {"layout": layout, "root": str(folder(data)), **asdict(size)}
        try:
            harness.call_fresh(remote_archives.create, CREATE_TIMEOUT, **arguments)
        except harness.MeasurementError as error:
            unwritten[layout] = f"writing failed: {error}"
    if OTHERS in plan.parts:
        rounds.say(f"archive of {plan.folders * plan.per_folder:,} files")
        many = {"root": str(data), "folders": plan.folders, "per_folder": plan.per_folder}
        harness.call_fresh(folder_archives.create, CREATE_TIMEOUT, **many)
    return unwritten


def _warm(those: Sequence[tuple[RecordSet, str]], root: Path) -> None:
    """Bring files into the page cache: the server must not wait for its disk."""
    for size, layout in those:
        harness.read_through(size.folder(root / remote_archives.BUCKET, layout))


def _capacity(plan: Plan, size: RecordSet, root: Path, server: Server) -> Iterator[Sample]:
    take = partial(
        _call, remote_worker.capacity, url=server.url, root=str(root), **asdict(size),
        requests=plan.probes,
    )  # fmt: skip
    yield from rounds.interleaved(
        capacity_of(size.name), [(OBSTORE, _seedless(take))], plan.repeats
    )


def _batches(
    plan: Plan, size: RecordSet, root: Path, server: Server, unwritten: dict[str, str]
) -> Iterator[Sample]:
    fixed = {
        "url": server.url, "answers": str(server.answers), "root": str(root), **asdict(size),
        "batch": plan.batch, "budget": plan.budget, "most_batches": plan.most_batches,
    }  # fmt: skip
    contestants = [
        (name, partial(_seeded, remote_worker.random_batches, {"reader": name, **fixed}))
        for name, reader in remote_readers.READERS.items()
        if reader.layout not in unwritten
    ]
    slow = (remote_readers.ZIP.name,)
    yield from rounds.interleaved(batches_of(size.name), contestants, plan.repeats, slow)


def _epochs(
    plan: Plan, size: RecordSet, root: Path, server: Server, unwritten: dict[str, str]
) -> Iterator[Sample]:
    fixed = {
        "url": server.url, "answers": str(server.answers), "root": str(root), **asdict(size),
        "batch": plan.batch, "workers": plan.workers, "budget": plan.budget,
    }  # fmt: skip

    def take(contestant: remote_loaders.Contestant, repeat: int) -> Values:
        if contestant.layout in unwritten:
            raise harness.MeasurementError(unwritten[contestant.layout])
        return _seeded(remote_worker.epochs, {"contestant": contestant.name, **fixed}, repeat)

    contestants = [(name, partial(take, one)) for name, one in remote_loaders.CONTESTANTS.items()]
    slow = (remote_loaders.ZIP.name,)
    if plan.only_fast:
        contestants = [one for one in contestants if one[0] not in slow]
    yield from rounds.interleaved(epochs_of(size.name), contestants, plan.repeats, slow)


def _memory(plan: Plan, root: Path, server: Server) -> Iterator[Sample]:
    contestants = []
    for large in plan.large:
        key = remote_archives.create_large(str(root), large.mean, large.count)
        fixed = {
            "url": server.url, "root": str(root), "file": key, "batch": plan.batch,
            "number": plan.large_batches,
        }  # fmt: skip
        contestants.append((large.name, partial(_seeded, remote_worker.peak_memory, fixed)))
    yield from rounds.interleaved(MEMORY, contestants, 1)


def _fsspec(plan: Plan, data: Path) -> Iterator[Sample]:
    many = {"root": str(data), "folders": plan.folders, "per_folder": plan.per_folder}
    take = _seedless(partial(_call, remote_fsspec.listing, **many))
    yield from rounds.interleaved(LISTING, [(FFR, take)], plan.repeats)
    for size in plan.sizes:
        yield from _cat(plan, size, folder(data))


def _cat(plan: Plan, size: RecordSet, root: Path) -> Iterator[Sample]:
    fixed = {"root": str(root), **asdict(size), "batch": plan.batch, "number": plan.cat_batches}
    ways = (remote_fsspec.CAT, remote_fsspec.READ, remote_fsspec.ZIP)
    contestants = [
        (way, partial(_seeded, remote_fsspec.cat, {"way": way, **fixed})) for way in ways
    ]
    yield from rounds.interleaved(cat_of(size.name), contestants, plan.repeats)


def _seeded(function: Callable[..., Any], fixed: dict[str, Any], repeat: int) -> Values:
    return _call(function, seed=repeat, **fixed)


def _seedless(take: Callable[[], Values]) -> Callable[[int], Values]:
    return lambda repeat: take()


def _call(function: Callable[..., Any], **arguments: Any) -> Values:
    values: Values = harness.call_fresh(function, MEASURE_TIMEOUT, **arguments)
    return values

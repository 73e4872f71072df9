"""The cases of `read`, and the loop over them in the parent process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from . import datasets, fio, harness, peers, rounds
from .datasets import RecordSet
from .read_worker import measure, rehearsal
from .results import Sample
from .rounds import Contestant, Values

FIO = f"fio, O_DIRECT, depth {fio.QUEUE_DEPTH}"

CREATE_TIMEOUT = 1800.0
MEASURE_TIMEOUT = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """A set of records, and the size of the batches."""

    records: RecordSet
    batch: int

    @property
    def name(self) -> str:
        return self.records.name

    def scaled(self, share: float) -> Size:
        """Return this size with a share of the records."""
        return Size(self.records.first(int(self.records.count * share)), self.batch)

    def case(self, state: str) -> str:
        """Return the name of a case: state and size."""
        return f"{state} {self.name}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured. A measurement ends after `budget` seconds or `most_batches`."""

    repeats: int
    budget: float
    most_batches: int
    fio_seconds: int
    share: float


SIZES = (
    Size(RecordSet("110kB", 110_000, 20_000), 64),
    Size(RecordSet("10kB", 10_000, 200_000), 256),
    Size(RecordSet("1kB", 1_000, 500_000), 512),
)
FULL = Plan(repeats=7, budget=1.0, most_batches=4000, fio_seconds=2, share=1.0)
QUICK = Plan(repeats=3, budget=0.5, most_batches=1000, fio_seconds=1, share=0.1)


def samples(sizes: Sequence[Size], plan: Plan, data: Path) -> Iterator[Sample]:
    """Create missing files and measure every case."""
    states = rounds.states()
    for size in sizes:
        unwritten = create(size, data, peers.CONTESTANTS)
        for state in states:
            contestants = _contestants(size, state, plan, data, unwritten)
            yield from rounds.interleaved(size.case(state), contestants, plan.repeats)


def create(size: Size, data: Path, contestants: Iterable[peers.Peer]) -> dict[str, str]:
    """Create every layout of a set and of its rehearsal; return the failures by layout."""
    unwritten: dict[str, str] = {}
    for peer in {peer.layout: peer for peer in contestants}.values():
        rounds.say(f"{size.name}: files of {peer.layout}")
        for records in (rehearsal(size.records, size.batch), datasets.stored(peer, size.records)):
            arguments = {"peer": peer.name, "root": str(data), **asdict(records)}
            try:
                harness.call_fresh(datasets.create, CREATE_TIMEOUT, **arguments)
            except harness.ChildError as error:
                unwritten[peer.layout] = f"writing failed: {error}"
    return unwritten


def _contestants(
    size: Size, state: str, plan: Plan, data: Path, unwritten: dict[str, str]
) -> list[Contestant]:
    """Return all contestants of a case."""
    contestants: list[Contestant] = []
    for peer in peers.CONTESTANTS:
        if peer.layout in unwritten:
            contestants.append((peer.name, partial(give_up, unwritten[peer.layout])))
        else:
            contestants.append((peer.name, partial(_measure, peer, size, state, plan, data)))
    if state == "cold":
        contestants.append((FIO, partial(_disk_limit, size, plan, data)))
    return contestants


def _measure(
    peer: peers.Peer, size: Size, state: str, plan: Plan, data: Path, repeat: int
) -> Values:
    values: Values = harness.call_fresh(
        measure,
        MEASURE_TIMEOUT,
        peer=peer.name,
        root=str(data),
        **asdict(size.records),
        batch=size.batch,
        cold=state == "cold",
        seed=repeat,
        budget=plan.budget,
        most_batches=plan.most_batches,
    )
    return values


def _disk_limit(size: Size, plan: Plan, data: Path, repeat: int) -> Values:
    """Measure fio on our own file: the same disk, the same extents."""
    del repeat  # fio draws its own random offsets
    file = size.records.folder(data, peers.OURS.layout) / peers.OURS.file
    return fio.random_read(file, fio.block_size(size.records.mean), plan.fio_seconds)


def give_up(reason: str, repeat: int) -> Values:
    """Fail in the place of a contestant whose file could not be written."""
    del repeat
    raise harness.ChildError(reason)

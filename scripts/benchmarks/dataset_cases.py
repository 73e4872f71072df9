"""The cases of `dataset`, and the loop over them in the parent process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import dataset_peers, harness, rounds
from .dataset_peers import CONTESTANTS, GRANULAR, HDF5, OURS, Peer
from .dataset_samples import SMALL_FIELD, SampleSet
from .dataset_worker import create, measure, rehearsal
from .results import Sample
from .rounds import Contestant, Values

BATCH = 64
SIZE = "size"
"""The case of each contestant's bytes on disk."""

CREATE_TIMEOUT = 900.0
MEASURE_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant that reads all fields, or only the small one."""

    peer: Peer
    masked: bool = False

    @property
    def name(self) -> str:
        return masked(self.peer) if self.masked else self.peer.name


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured. A measurement ends after `budget` seconds or `most_batches`."""

    repeats: int
    budget: float
    most_batches: int
    count: int


FULL = Plan(repeats=5, budget=1.0, most_batches=4000, count=10_000)
QUICK = Plan(repeats=3, budget=0.5, most_batches=1000, count=2_000)


def masked(peer: Peer) -> str:
    """Return the name of a contestant that reads only the small field."""
    return f"{peer.name}: {SMALL_FIELD}"


ENTRIES = (
    *(Entry(peer) for peer in CONTESTANTS),
    *(Entry(peer, masked=True) for peer in (OURS, GRANULAR, HDF5)),
)


def samples(plan: Plan, data: Path) -> Iterator[Sample]:
    """Create missing files and measure every case."""
    stored = SampleSet(plan.count)
    sizes = list(_create(stored, data))
    yield from sizes
    unwritten = {size.contestant: size.error for size in sizes if size.error is not None}
    for state in rounds.states():
        contestants: list[Contestant] = []
        for entry in ENTRIES:
            if entry.peer.name in unwritten:
                take = partial(_give_up, unwritten[entry.peer.name])
            else:
                take = partial(_measure, entry, state, plan, data)
            contestants.append((entry.name, take))
        yield from rounds.interleaved(state, contestants, plan.repeats)


def _create(stored: SampleSet, data: Path) -> Iterator[Sample]:
    """Create every layout, in full and for rehearsals; yield the size of each on disk."""
    for layout in dataset_peers.formats():
        rounds.say(f"{stored.count:,} samples: files of {layout.layout}")
        sharing = [peer.name for peer in CONTESTANTS if peer.layout == layout.layout]
        arguments = {"peer": layout.name, "root": str(data), "batch": BATCH}
        try:
            for some in (rehearsal(stored, BATCH), stored):
                values = harness.call_fresh(create, CREATE_TIMEOUT, count=some.count, **arguments)
        except harness.ChildError as error:
            reason = f"writing failed: {error}"
            yield from (Sample(SIZE, name, 0, error=reason) for name in sharing)
        else:
            values["bytes_each"] = values["bytes"] / stored.count
            yield from (Sample(SIZE, name, 0, values) for name in sharing)


def _measure(entry: Entry, state: str, plan: Plan, data: Path, repeat: int) -> Values:
    values: Values = harness.call_fresh(
        measure,
        MEASURE_TIMEOUT,
        peer=entry.peer.name,
        fields=[SMALL_FIELD] if entry.masked else None,
        root=str(data),
        count=plan.count,
        batch=BATCH,
        cold=state == "cold",
        seed=repeat,
        budget=plan.budget,
        most_batches=plan.most_batches,
    )
    return values


def _give_up(reason: str, repeat: int) -> Values:
    del repeat
    raise harness.ChildError(reason)

"""The cases of `loader`, and the loop over them in the parent process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from . import decode, harness, loader_archives, loader_worker, mounters, rounds
from .loaders import CONTESTANTS, Contestant
from .pictures import PictureSet
from .results import Sample
from .rounds import Values

CREATE_TIMEOUT = 1800.0
MEASURE_TIMEOUT = 300.0

LAYOUTS = (
    loader_archives.FOLDER,  # first, because the others are made from it
    loader_archives.PACKED,
    loader_archives.ALIGNED,
    loader_archives.SHARDS,
    loader_archives.ARRAY_RECORD,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured, and the cost of decoding a sample."""

    repeats: int
    pictures: PictureSet
    batch: int = 64
    workers: int = 2
    decode_us: float = 50.0


FULL = Plan(repeats=7, pictures=PictureSet(110_000, 10_000, 100))
QUICK = Plan(repeats=2, pictures=PictureSet(110_000, 2_000, 100))


@dataclass(frozen=True, slots=True)
class Run:
    """A plan, the folder of its data, and facts found before the first measurement."""

    plan: Plan
    data: Path
    loops: int
    """Loops of work that stand for decoding a sample."""
    unwritten: dict[str, str]
    """Layouts that could not be made, with the reason."""

    @property
    def point(self) -> Path:
        return self.data / "mounted"


def prepare(plan: Plan, data: Path) -> Run:
    """Create missing data, and measure how fast this machine decodes."""
    unwritten = {}
    for layout in LAYOUTS:
        rounds.say(f"{plan.pictures.count:,} pictures: {layout}")
        arguments = {"layout": layout, "root": str(data), **asdict(plan.pictures)}
        try:
            harness.call_fresh(loader_archives.create, CREATE_TIMEOUT, **arguments)
        except harness.MeasurementError as error:
            unwritten[layout] = f"writing failed: {error}"
    loops: int = harness.call_fresh(decode.calibrate, MEASURE_TIMEOUT, microseconds=plan.decode_us)
    return Run(plan, data, loops, unwritten)


def samples(run: Run) -> Iterator[Sample]:
    """Measure every case; a case is cold or warm."""
    for state in rounds.states():
        contestants = [
            (contestant.name, partial(_measure, run, state, contestant))
            for contestant in CONTESTANTS.values()
        ]
        yield from rounds.interleaved(state, contestants, run.plan.repeats)


def _measure(run: Run, state: str, contestant: Contestant, repeat: int) -> Values:
    if contestant.layout in run.unwritten:
        raise harness.MeasurementError(run.unwritten[contestant.layout])
    try:
        values: Values = harness.call_fresh(
            loader_worker.measure,
            MEASURE_TIMEOUT,
            contestant=contestant.name,
            root=str(run.data),
            point=str(run.point),
            **asdict(run.plan.pictures),
            batch=run.plan.batch,
            workers=run.plan.workers,
            loops=run.loops,
            cold=state == "cold",
            seed=repeat,
        )
    finally:
        mounters.clear(run.point)  # a process that ran out of time was killed and could not unmount
    return values

"""The cases of `folder`, and the loop over them in the parent process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from . import folder_archives, harness, rounds
from .folder_archives import FolderArchive
from .folder_worker import open_and_stat, read, unpickle
from .results import Sample
from .rounds import Contestant, Values

CREATE_TIMEOUT = 1800.0
MEASURE_TIMEOUT = 300.0

THOUSAND = "1,000 files"
MILLION = "1,000,000 files"
ARCHIVES = {THOUSAND: FolderArchive(10, 100), MILLION: FolderArchive(1_000, 1_000)}
PICKLE = "pickle, "

OPEN = "open"
READ = "read"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured: `batches` by name, and the same number by record number."""

    repeats: int
    batches: int
    batch: int = 256


FULL = Plan(repeats=7, batches=1000)
QUICK = Plan(repeats=3, batches=200)


def case(state: str, what: str) -> str:
    """Return the name of a case."""
    return f"{state} {what}"


def samples(plan: Plan, data: Path) -> Iterator[Sample]:
    """Create missing archives and measure every case."""
    for name, archive in ARCHIVES.items():
        rounds.say(f"archive of {name}")
        harness.call_fresh(
            folder_archives.create, CREATE_TIMEOUT, root=str(data), **asdict(archive)
        )
    for state in rounds.states():
        opening: list[Contestant] = [
            (f"{prefix}{name}", partial(_measure, function, archive, state, data))
            for prefix, function in (("", open_and_stat), (PICKLE, unpickle))
            for name, archive in ARCHIVES.items()
        ]
        yield from rounds.interleaved(case(state, OPEN), opening, plan.repeats)
        amount = {"batches": plan.batches, "batch": plan.batch}
        reading = partial(_measure, read, ARCHIVES[MILLION], state, data, **amount)
        yield from rounds.interleaved(case(state, READ), [(MILLION, reading)], plan.repeats)


def _measure(
    function: Callable[..., Values],
    archive: FolderArchive,
    state: str,
    data: Path,
    repeat: int,
    **more: int,
) -> Values:
    values: Values = harness.call_fresh(
        function,
        MEASURE_TIMEOUT,
        root=str(data),
        **asdict(archive),
        cold=state == "cold",
        seed=repeat,
        **more,
    )
    return values

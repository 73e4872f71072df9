"""The cases of `view`: an archive of a million files, and one of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from . import folder_archives, harness, loader_archives, rounds
from .folder_archives import FolderArchive
from .loader_archives import FOLDER, PACKED
from .pictures import PictureSet
from .results import Sample
from .rounds import Values
from .view_worker import look

CREATE_TIMEOUT = 1800.0
MEASURE_TIMEOUT = 300.0

PAGE = "page"
MILLION = "1,000,000 files"
PICTURES = "2,000 JPEGs of 110 kB"
ONE_FOLDER = FolderArchive(1, 1_000_000)
JPEGS = PictureSet(110_000, 2_000, 2_000)
SETS = {MILLION: ONE_FOLDER, PICTURES: JPEGS}


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured."""

    repeats: int
    steps: int = 60
    """Small steps of scrolling; a fifth as many jumps follow."""


FULL = Plan(repeats=5)
QUICK = Plan(repeats=1)


def samples(plan: Plan, data: Path) -> Iterator[Sample]:
    """Create missing archives and measure both cases."""
    rounds.say("archives")
    make = partial(harness.call_fresh, timeout=CREATE_TIMEOUT, root=str(data))
    make(folder_archives.create, **asdict(ONE_FOLDER))
    for layout in (FOLDER, PACKED):
        make(loader_archives.create, layout=layout, **asdict(JPEGS))
    places = {
        MILLION: (ONE_FOLDER.file(data), Path(ONE_FOLDER.path(0)).parts[0]),
        PICTURES: (loader_archives.source(PACKED, JPEGS, data), Path(JPEGS.path(0)).parts[0]),
    }
    for case, (file, folder) in places.items():
        take = partial(_measure, file, folder, case == PICTURES, plan.steps)
        yield from rounds.interleaved(case, [(PAGE, take)], plan.repeats)


def _measure(file: Path, folder: str, pictures: bool, steps: int, repeat: int) -> Values:
    values: Values = harness.call_fresh(
        look, MEASURE_TIMEOUT, file=str(file), folder=folder, pictures=pictures, steps=steps
    )
    return values

"""The lines that `compare` measures, and the loop over them in the parent process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import (
    batches,
    compare_worker,
    datasets,
    folder_archives,
    folder_cases,
    harness,
    loader_archives,
    loader_cases,
    mount_archives,
    mount_cases,
    mounters,
    peers,
    read_cases,
    rounds,
    trees,
)
from .folder_archives import FolderArchive
from .pictures import PictureSet
from .read_cases import Size
from .results import Sample
from .rounds import Values
from .trees import FileTree

CREATE_TIMEOUT = 1800.0
MEASURE_TIMEOUT = 300.0

Arguments = dict[str, Any]

BEFORE = "before"
AFTER = "after"

NAMES = 256
"""Files of a packed folder in one batch."""
MOST_NAMES = 200_000
"""Names drawn from a packed folder: more than a cold measurement can read in its time."""
REHEARSED = 8
"""Batches that the workers of a loader load before the clock starts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured: a `share` of the records of `read`, `reads` files of a mount."""

    repeats: int
    budget: float
    share: float
    small: FileTree
    reads: int
    folder: FolderArchive
    pictures: PictureSet


# An even number of repeats lets each tree come first equally often.
FULL = Plan(
    repeats=8,
    budget=1.0,
    share=1.0,
    small=mount_cases.FULL.small,
    reads=mount_cases.FULL.reads,
    folder=folder_cases.ARCHIVES[folder_cases.MILLION],
    pictures=loader_cases.FULL.pictures,
)
QUICK = Plan(
    repeats=4,
    budget=0.5,
    share=0.1,
    small=mount_cases.QUICK.small,
    reads=mount_cases.QUICK.reads,
    folder=mount_cases.QUICK.many,
    pictures=loader_cases.QUICK.pictures,
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a function of `compare_worker`, and its arguments in each repeat."""

    name: str
    function: Callable[..., Values]
    arguments: Callable[[int], Arguments]


def prepare(only: Sequence[str], plan: Plan, data: Path) -> list[Line]:
    """Create the missing data with the code of this tree; both trees read it."""
    states = rounds.states()
    found = [line for name in only for line in GROUPS[name](plan, data, states)]
    # Warm lines come first, so that files dropped from the page cache are read back only once.
    return sorted(found, key=lambda line: "cold" in line.name)


def samples(lines: Sequence[Line], sides: Mapping[str, Path], repeats: int) -> Iterator[Sample]:
    """Measure all lines in every repeat, so that a noisy minute spoils one repeat of each."""
    for repeat in range(repeats):
        for line in lines:
            rounds.say(f"repeat {repeat + 1} of {repeats}: {line.name}")
            for side in in_turn(list(sides), repeat):
                yield _sample(line, side, sides[side], repeat)


def in_turn(sides: Sequence[str], repeat: int) -> list[str]:
    """Return A B, then B A, then A B, so that neither tree always comes second."""
    return list(reversed(sides)) if repeat % 2 else list(sides)


def _sample(line: Line, side: str, tree: Path, repeat: int) -> Sample:
    arguments = line.arguments(repeat)
    try:
        values = harness.call_fresh(line.function, MEASURE_TIMEOUT, tree=str(tree), **arguments)
    except harness.MeasurementError as error:
        # The message goes into the JSON, which must not name folders of this machine.
        return Sample(line.name, side, repeat, error=str(error).replace(str(tree), side))
    finally:
        if "point" in arguments:
            mounters.clear(Path(arguments["point"]))
    return Sample(line.name, side, repeat, values)


def _read(plan: Plan, data: Path, states: Sequence[str]) -> Iterator[Line]:
    for size in (one.scaled(plan.share) for one in read_cases.SIZES):
        _create(datasets.create, data, peer=peers.OURS.name, **asdict(size.records))
        file = size.records.folder(data, peers.OURS.layout) / peers.OURS.file
        for state in states:
            name = f"read, {size.batch} × {size.records.mean / 1e3:g} kB, {state}"
            arguments = partial(_records, size, file, plan.budget, state)
            yield Line(name, compare_worker.read, arguments)


def _records(size: Size, file: Path, budget: float, state: str, repeat: int) -> Arguments:
    rows = batches.shuffled(size.records.count, size.batch, repeat)
    return {
        "packed": False,
        "file": str(file),
        "keys": rows.tolist(),
        "sizes": size.records.lengths()[rows].sum(axis=1).tolist(),
        "cold": state == "cold",
        "budget": budget,
    }


def _folder(plan: Plan, data: Path, states: Sequence[str]) -> Iterator[Line]:
    _create(folder_archives.create, data, **asdict(plan.folder))
    for state in states:
        name = f"folder, {NAMES} of {plan.folder.count:,} names, {state}"
        yield Line(name, compare_worker.read, partial(_named, plan, data, state))


def _named(plan: Plan, data: Path, state: str, repeat: int) -> Arguments:
    archive = plan.folder
    rows = batches.shuffled(archive.count, NAMES, repeat)[: MOST_NAMES // NAMES]
    return {
        "packed": True,
        "file": str(archive.file(data)),
        "keys": [[archive.path(number) for number in row] for row in rows.tolist()],
        "sizes": archive.records.lengths()[rows].sum(axis=1).tolist(),
        "cold": state == "cold",
        "budget": plan.budget,
    }


def _mount(plan: Plan, data: Path, states: Sequence[str]) -> Iterator[Line]:
    _create(trees.create, data, **asdict(plan.small))
    _create(mount_archives.create, data, mounter=mounters.OURS.name, **asdict(plan.small))
    cases = [(mount_cases.PINNED, 1, 0), (mount_cases.UNPINNED, 2, 0)]
    if "cold" in states:
        cases.append((mount_cases.COLD, 2, mount_cases.CLIENTS))
    for name, cores, clients in cases:
        arguments = partial(_mounted, plan, data, cores, clients)
        yield Line(f"mount, {name}", compare_worker.read_mounted, arguments)


def _mounted(plan: Plan, data: Path, cores: int, clients: int, repeat: int) -> Arguments:
    tree = plan.small
    drawn = random.Random(repeat).sample(range(tree.count), plan.reads)
    return {
        "archive": str(mount_archives.file(mounters.OURS, tree, data)),
        "point": str(data / "mounted"),
        "cores": cores,
        "names": [tree.path(number) for number in drawn],
        "size": int(tree.sizes()[np.array(drawn)].sum()),
        "clients": clients,
    }


def _loader(plan: Plan, data: Path, states: Sequence[str]) -> Iterator[Line]:
    # The folder comes first, because it is packed into the archive.
    for layout in (loader_archives.FOLDER, loader_archives.PACKED):
        _create(loader_archives.create, data, layout=layout, **asdict(plan.pictures))
    for state in states:
        name = f"loader, {loader_cases.FULL.workers} workers, {state}"
        yield Line(name, compare_worker.load, partial(_epoch, plan, data, state))


def _epoch(plan: Plan, data: Path, state: str, repeat: int) -> Arguments:
    pictures, usual = plan.pictures, loader_cases.FULL
    drawn = np.random.default_rng(repeat)
    order = drawn.permutation(pictures.count)
    rehearsed = drawn.permutation(pictures.count)[: REHEARSED * usual.batch]
    return {
        "archive": str(loader_archives.source(loader_archives.PACKED, pictures, data)),
        "order": order.tolist(),
        "rehearsed": rehearsed.tolist(),
        "checksums": pictures.checksums(data)[order].tolist(),
        "batch": usual.batch,
        "workers": usual.workers,
        "cold": state == "cold",
    }


def _create(function: Callable[..., None], data: Path, **arguments: Any) -> None:
    harness.call_fresh(function, CREATE_TIMEOUT, root=str(data), **arguments)


GROUPS: dict[str, Callable[[Plan, Path, Sequence[str]], Iterator[Line]]] = {
    "read": _read,
    "mount": _mount,
    "folder": _folder,
    "loader": _loader,
}
"""The lines of each benchmark whose work `compare` repeats."""

"""The cases of `pack`, and the loop over them in the parent process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from . import harness, packers, rounds, trees
from .pack_worker import measure
from .packers import Packer
from .results import Sample
from .rounds import Contestant, Values
from .trees import FileTree

CREATE_TIMEOUT = 1800.0
MEASURE_TIMEOUT = 600.0

SMALL = "small files"
LARGE = "large files"

EVERYWHERE = (
    packers.OURS,
    packers.OURS_COMMAND,
    packers.TAR,
    packers.TAR_DURABLE,
    packers.SQUASHFS,
    packers.ZIP,
)
COPYING = (packers.CP, packers.CP_DURABLE, packers.DISK)


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount that is measured."""

    repeats: int
    trees: tuple[FileTree, ...]


FULL = Plan(5, (FileTree(SMALL, 10_000, 50_000, 500), FileTree(LARGE, 250_000_000, 8, 4)))
QUICK = Plan(3, (FileTree(SMALL, 10_000, 5_000, 50), FileTree(LARGE, 25_000_000, 8, 4)))


def case(tree: FileTree, state: str) -> str:
    """Return the name of a case."""
    return f"{state} {tree.name}"


def samples(plan: Plan, data: Path) -> Iterator[Sample]:
    """Create missing trees and measure every case."""
    states = rounds.states()
    command_line = packers.has_command_line()
    if not command_line:
        rounds.say(f"{packers.OURS_COMMAND.name} is skipped: this version has no `ffrecord pack`")
    for tree in plan.trees:
        rounds.say(f"{tree.name}: {tree.count:,} files")
        harness.call_fresh(trees.create, CREATE_TIMEOUT, root=str(data), **asdict(tree))
        for state in states:
            contestants = _contestants(tree, state, data, command_line)
            yield from rounds.interleaved(case(tree, state), contestants, plan.repeats)


def _contestants(tree: FileTree, state: str, data: Path, command_line: bool) -> list[Contestant]:
    """Return all contestants of a case."""
    taking_part = [*EVERYWHERE, *(COPYING if tree.name == LARGE else ())]
    return [
        (packer.name, partial(_measure, packer, tree, state, data))
        for packer in taking_part
        if command_line or packer is not packers.OURS_COMMAND
    ]


def _measure(packer: Packer, tree: FileTree, state: str, data: Path, repeat: int) -> Values:
    del repeat  # the work is the same in each repeat
    values: Values = harness.call_fresh(
        measure,
        MEASURE_TIMEOUT,
        packer=packer.name,
        folder=str(tree.top(data)),
        out=str(data / "packed"),
        payload=tree.payload,
        cold=state == "cold",
    )
    return values

"""Receipts of tasks, and the state of a plan: what the two kinds of work places share."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ffrecord.errors import PlanError
from ffrecord.plan.values import Plan
from ffrecord.text import Advised, counted

SHOWN = 20  # ranges of missing tasks in a message
KEY_BYTES = 4
WHOLE, BEGINNING = 1 << 16, 64
"""Files of up to `WHOLE` bytes are compared as a whole. Of larger ones the first bytes are enough,
because a record file begins with the checksum of its header, which has those of all records."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a task has written its shard."""

    task: int
    attempt: str
    """Name of the shard in the work folder."""
    count: int
    """Rows in the shard."""
    bytes: int
    """Size of the shard's files."""
    checksums: dict[str, int]
    """CRC of the header of each of the shard's files."""
    details: dict[str, Any]
    """Facts for the index that only the task knows."""
    files: dict[str, list[int]] = field(default_factory=dict)
    """Size and CRC of each file, see `files_of`. The work place adds them."""


@dataclass(frozen=True, slots=True)
class Status:
    """State of a plan."""

    tasks: int
    missing: list[int]
    """Numbers of the tasks without a receipt."""
    is_committed: bool
    litter: list[str]
    """Paths that the next commit removes: abandoned attempts, and work places of other plans."""
    has_ended: bool = False
    """True if there is no work place for the tasks any more. Then no task is missing."""


def new_key() -> str:
    """Return the key of a new plan."""
    return os.urandom(KEY_BYTES).hex()


def compared(size: int) -> int:
    """Return how many of the first bytes of a file are compared."""
    return size if size <= WHOLE else BEGINNING


def files_of(path: str) -> dict[str, list[int]]:
    """Return the size of each file of a shard, and the CRC of its first bytes.

    A shard that is one file has an empty name. Without a shard, there are no files.
    """
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            return {entry.name: _facts(entry.path) for entry in sorted(entries, key=_name)}
    return {"": _facts(path)} if os.path.lexists(path) else {}


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _facts(path: str) -> list[int]:
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        return [size, zlib.crc32(file.read(compared(size)))]


def require_all(plan: Plan, receipts: Mapping[int, Receipt]) -> None:
    """Raise PlanError unless there is a receipt of each task, for the rows of the plan."""
    missing = sorted(set(range(len(plan.parts))) - receipts.keys())
    if missing:
        shown = ranges(missing)
        of_all = f"{len(missing):,} of {counted(len(plan.parts), 'task')}"
        how = f"`ffrecord pack --task {missing[0]} PLAN`"
        if len(missing) == 1:
            what, them = f"{of_all} has no receipt: task {shown}", "it"
        else:
            what, them = f"{of_all} have no receipt: tasks {shown}", "them"
            how += ", then the others"
        before = f"{plan.name}: not committed: {what}; run "
        raise PlanError(Advised(before, them, how, ", then commit again"))
    for number, part in enumerate(plan.parts):
        receipt = receipts[number]
        if (receipt.task, receipt.count) != (number, part.count):
            raise PlanError(
                f"{plan.name}: the receipt of task {number} is for {receipt.count} rows of "
                f"task {receipt.task}, but the plan has {part.count}; make a new plan"
            )


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as a list of ranges, which Slurm's --array accepts: `0-3,7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(_range(*each) for each in found[:SHOWN]) + ("…" if len(found) > SHOWN else "")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def wrong_shard(plan: Plan, number: int, receipt: str) -> PlanError:
    """Return the error for a shard that is not the one of its receipt."""
    return PlanError(
        f"{plan.name}: the shard of task {number} is missing, or is not the one of its receipt; "
        f"remove {receipt}, and run the task again"
    )


def parsed(text: bytes, shown: str) -> Receipt:
    """Return the receipt of a text. `shown` is its place for messages.

    Raises:
        PlanError: the receipt is damaged.
    """
    try:
        found = Receipt(**json.loads(text))
        sizes, crcs = [found.task, found.count, found.bytes], [*found.checksums.values()]
        for size, crc in found.files.values():
            sizes.append(size)
            crcs.append(crc)
        if not all(type(each) is int and each >= 0 for each in (*sizes, *crcs)):
            raise ValueError("a number is wrong")
        if max(sizes) >= 1 << 63 or max(crcs, default=0) >= 1 << 32:
            raise ValueError("a number is too large")
        if not (isinstance(found.attempt, str) and isinstance(found.details, dict)):
            raise ValueError("its attempt or its details are wrong")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_receipt(shown) from error
    return found


def damaged_receipt(path: str) -> PlanError:
    """Return the error for a receipt that cannot be read."""
    return PlanError(f"{path}: this receipt is damaged; remove it, and run its task again")

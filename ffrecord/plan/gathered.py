"""A commit of the receipts that an engine has gathered, when the plan did not know its tasks.

Engines number their tasks, run some of them twice, and say which attempts count. So the commit gets
receipts. Tasks without rows have no shard. In a folder, shards are numbered in the order of the
tasks. A store cannot rename, so there each shard keeps the number of its task.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ffrecord.errors import PlanError
from ffrecord.plan.receipts import Receipt, files_of
from ffrecord.plan.values import Part, Plan, WritePlan
from ffrecord.plan.work import Work
from ffrecord.plan.work_folder import RECEIPT, WorkFolder
from ffrecord.remote.urls import is_remote

if TYPE_CHECKING:
    from ffrecord.remote.options import RemoteOptions


class GatheredWork(Work, Protocol):
    """The work place of a plan whose shards are those of some receipts."""

    def is_published(self) -> bool:
        """Return True if the target has the shards of the receipts."""


@dataclass(frozen=True)
class GatheredPlan(WritePlan):
    """A plan whose shards have the numbers of their tasks."""

    tasks: tuple[int, ...] = ()

    def shard_name(self, number: int) -> str:
        return super().shard_name(self.tasks[number] if self.tasks else number)

    @property
    def gaps(self) -> list[str]:
        """Names of the shards that tasks without rows would have had, before the last shard."""
        used = set(self.tasks)
        return [
            super(GatheredPlan, self).shard_name(number)
            for number in range(max(used, default=0)) if number not in used
        ]  # fmt: skip


def with_rows(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return the receipts of shards, in the order of the tasks, one for each task."""
    by_task = {receipt.task: receipt for receipt in receipts if receipt.count}
    return [by_task[task] for task in sorted(by_task)]


def gathered(
    plan: WritePlan, chosen: list[Receipt], remote: RemoteOptions
) -> tuple[WritePlan, GatheredWork]:
    """Return the plan of the shards of some receipts, and its work place.

    Args:
        plan: the plan that the tasks had.
        chosen: the receipts, in the order of the shards.
        remote: options of a target behind a URL.
    """
    parts = _parts_of(chosen)
    if not is_remote(plan.target, remote):
        plan = replace(plan, parts=parts)
        return plan, GatheredFolder(plan, chosen)
    from ffrecord.plan.gathered_prefix import GatheredPrefix  # needed for URLs only

    tasks = tuple(receipt.task for receipt in chosen)
    plan = GatheredPlan(plan.target, plan.key, parts, plan.kind, plan.spec, tasks)
    return plan, GatheredPrefix(plan, chosen, remote)


def _parts_of(chosen: Iterable[Receipt]) -> tuple[Part, ...]:
    parts, first = [], 0
    for receipt in chosen:
        parts.append(Part(first, receipt.count, bytes=receipt.bytes))
        first += receipt.count
    return tuple(parts)


def matched(plan: Plan, shard: int, chosen: Receipt, written: Receipt | None) -> Receipt:
    """Return the receipt that a task has written, as that of its shard, with all details.

    Raises:
        PlanError: it is not the receipt that the engine returned.
    """
    due = chosen.files, chosen.checksums
    if written is None or (written.files, written.checksums) != due:
        raise PlanError(
            f"{plan.name}: the shard of task {chosen.task} is not the one of its receipt; write "
            "the rows again"
        )
    return replace(written, task=shard)


class GatheredFolder(WorkFolder):
    """The work folder of a plan whose shards are those of some receipts."""

    def __init__(self, plan: Plan, chosen: list[Receipt]) -> None:
        super().__init__(plan)
        self._chosen = chosen

    def receipts(self) -> dict[int, Receipt]:
        """Return the receipt of each shard, as its task has written it into the folder.

        A commit that was killed while it cleaned up may have removed some of them.
        """
        found = {}
        for shard, chosen in enumerate(self._chosen):
            path = os.path.join(self._folder(shard), chosen.attempt + RECEIPT)
            with contextlib.suppress(FileNotFoundError):
                found[shard] = matched(self._plan, shard, chosen, self._receipt(path))
        return found

    def _folder(self, number: int) -> str:
        return super()._folder(self._chosen[number].task)

    def is_published(self) -> bool:
        return os.path.isdir(self.target) and all(
            files_of(os.path.join(self.target, self._plan.shard_name(shard))) == chosen.files
            for shard, chosen in enumerate(self._chosen)
        )

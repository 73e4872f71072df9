"""A commit of the receipts that an engine has gathered, when the plan did not know its tasks.

Engines number their tasks, run some of them twice, and say which attempts count. So the commit gets
receipts, and shards are numbered in the order of the tasks. Tasks without rows have no shard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace

from ffrecord.plan.values import Part, Plan
from ffrecord.plan.work import _RECEIPT, Receipt, Work


def with_rows(receipts: Iterable[Receipt]) -> list[Receipt]:
    """Return the receipts of shards, in the order of the tasks, one for each task."""
    by_task = {receipt.task: receipt for receipt in receipts if receipt.count}
    return [by_task[task] for task in sorted(by_task)]


def parts_of(chosen: Iterable[Receipt]) -> tuple[Part, ...]:
    """Return the parts of the plan whose shards these are."""
    parts, first = [], 0
    for receipt in chosen:
        parts.append(Part(first, receipt.count, bytes=receipt.bytes))
        first += receipt.count
    return tuple(parts)


class GatheredWork(Work):
    """The work folder of a plan whose shards are those of some receipts.

    Args:
        plan: has a part for each receipt.
        chosen: the receipts, in the order of the shards.
    """

    def __init__(self, plan: Plan, chosen: list[Receipt]) -> None:
        super().__init__(plan)
        self._chosen = chosen

    def receipts(self) -> dict[int, Receipt]:
        """Return the receipt of each shard, as its task has written it into the folder.

        A commit that was killed while it cleaned up may have removed some of them.
        """
        found = {}
        for shard, chosen in enumerate(self._chosen):
            path = os.path.join(self._folder(shard), chosen.attempt + _RECEIPT)
            with contextlib.suppress(FileNotFoundError):
                found[shard] = replace(self._receipt(path), task=shard)
        return found

    def _folder(self, number: int) -> str:
        return super()._folder(self._chosen[number].task)

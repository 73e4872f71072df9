"""A commit of the receipts that an engine has gathered, to a target in a store."""

from __future__ import annotations

from ffrecord.errors import PlanError
from ffrecord.plan.gathered import matched
from ffrecord.plan.receipts import Receipt
from ffrecord.plan.values import Plan
from ffrecord.plan.work_prefix import WorkPrefix
from ffrecord.remote.answers import Place
from ffrecord.remote.options import RemoteOptions


class GatheredPrefix(WorkPrefix):
    """The work prefix of a plan whose shards are those of some receipts.

    The store keeps the first receipt of a task. A second attempt returns that one.
    """

    def __init__(self, plan: Plan, chosen: list[Receipt], remote: RemoteOptions) -> None:
        super().__init__(plan, remote)
        self._chosen = chosen

    def receipts(self) -> dict[int, Receipt]:
        """Return the receipt of each shard, as its task has put it into the store."""
        written = self._receipts_of([chosen.task for chosen in self._chosen])
        return {
            shard: matched(self._plan, shard, chosen, written.get(chosen.task))
            for shard, chosen in enumerate(self._chosen)
        }

    def _receipt_place(self, number: int) -> Place:
        """Return the receipt of a shard."""
        return super()._receipt_place(self._chosen[number].task)

    def is_published(self) -> bool:
        try:
            there = self._objects()
            self._compare(dict(enumerate(self._chosen)), there)
        except PlanError:
            return False
        return bool(there)

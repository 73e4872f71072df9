"""`Sink`: the interface between the kinds of targets and the engines."""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import pyarrow as pa

from ffrecord.atomic.folder import check_new_folder
from ffrecord.cluster.columns import Batches, in_batches
from ffrecord.errors import FFRecordError, PlanError
from ffrecord.plan.gathered import GatheredWork, parts_of, with_rows
from ffrecord.plan.values import Part, WritePlan
from ffrecord.plan.work import Receipt, Work, new_key

AnySink = TypeVar("AnySink", bound="Sink")


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The counts of what a commit has published."""

    target: str
    shards: int
    rows: int
    bytes: int
    """Size of the shards' files."""


@dataclass(frozen=True)
class Sink(ABC):
    """A target to write. Begin it on the driver, write on workers, and commit on the driver."""

    KIND: ClassVar[str] = "records"

    target: str
    """An absolute path."""
    key: str = ""
    """Names the work folder. `begin` sets it."""

    def begin(self: AnySink) -> AnySink:
        """Make the work folder; return the sink for the workers.

        Raises:
            FileExistsError: the target exists. Nothing is ever overwritten.
        """
        check_new_folder(self.target, "shards need a")
        begun = replace(self, key=new_key())
        Work(begun._plan()).begin()
        return begun

    def write(self, task: int, batches: Batches) -> Receipt:
        """Write the rows of a task as a shard, on a worker; return its receipt.

        `task` is a number of 0 or more that differs for every task. Shards are in the order of
        these numbers. A task without rows writes nothing. If the rows raise an error, nothing
        stays. A task that has left a receipt before returns that one.
        """
        rows = in_batches(batches)
        first = next(rows, None)
        if first is None:
            return Receipt(task, "", 0, 0, {}, {})
        rows = itertools.chain([first], rows)
        receipt = Work(self._plan()).run(
            task, lambda path: self._write_shard(task, first.schema, rows, path)
        )
        # The details stay in the work folder: they may be large, and the driver needs them once.
        return replace(receipt, details={})

    def commit(self, receipts: Iterable[Receipt]) -> WriteReport:
        """Publish the shards of these receipts, one for each task. May be repeated."""
        chosen = with_rows(receipts)
        if not chosen:
            self._require_spec()
        plan = self._plan(parts_of(chosen))

        def is_committed(_: Mapping[int, Receipt]) -> bool:
            return self._is_committed(plan, chosen)

        def finish(folder: str, written: Mapping[int, Receipt]) -> None:
            self._compare(plan, folder, chosen)
            self._finish(plan, folder, written)

        GatheredWork(plan, chosen).commit(is_committed, finish)
        rows, size = sum(each.count for each in chosen), sum(each.bytes for each in chosen)
        return WriteReport(self.target, len(chosen), rows, size)

    def abort(self) -> None:
        """Remove the work folder with all attempts. Does nothing after a commit."""
        Work(self._plan()).discard()

    def _plan(self, parts: tuple[Part, ...] = ()) -> WritePlan:
        return WritePlan(self.target, self.key, parts, self.KIND)

    @abstractmethod
    def _write_shard(
        self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: str
    ) -> Receipt:
        """Write the rows of a task to a path; return the receipt when they are on disk."""

    @abstractmethod
    def _finish(self, plan: WritePlan, folder: str, receipts: Mapping[int, Receipt]) -> None:
        """Add what a target has besides its shards. May be called again after a kill."""

    @abstractmethod
    def _checksums(self, path: str) -> dict[str, int]:
        """Return the checksums of a shard as in its receipt."""

    @abstractmethod
    def _require_spec(self) -> None:
        """Raise an error if a target without rows cannot be written."""

    def _compare(self, plan: WritePlan, folder: str, chosen: list[Receipt]) -> None:
        """Raise PlanError unless the shards in a folder are those of the receipts."""
        for number, receipt in enumerate(chosen):
            if self._checksums(os.path.join(folder, plan.shard_name(number))) != receipt.checksums:
                raise PlanError(
                    f"{self.target}: the shard of task {receipt.task} is not the one of its "
                    "receipt; write the rows again"
                )

    def _is_committed(self, plan: WritePlan, chosen: list[Receipt]) -> bool:
        try:
            self._compare(plan, self.target, chosen)
        except (OSError, FFRecordError):
            return False
        return os.path.isdir(self.target)

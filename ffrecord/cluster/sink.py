"""`Sink`: the interface between the kinds of targets and the engines."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import pyarrow as pa

from ffrecord.cluster.columns import Batches, in_batches
from ffrecord.errors import FFRecordError
from ffrecord.plan.gathered import GatheredWork, gathered, with_rows
from ffrecord.plan.values import WritePlan
from ffrecord.plan.work import Receipt, new_key, require_free, work_of
from ffrecord.remote.options import RemoteOptions
from ffrecord.remote.urls import shown

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
    """An absolute path, or a URL."""
    remote: RemoteOptions = field(default_factory=RemoteOptions, repr=False)
    """Options for a URL. They travel with the sink, and are never stored."""
    key: str = ""
    """Names the work place. `begin` sets it."""

    @property
    def name(self) -> str:
        """The target for messages."""
        return shown(self.target)

    def begin(self: AnySink) -> AnySink:
        """Make the work place; return the sink for the workers.

        Raises:
            FileExistsError: the target exists. Nothing is ever overwritten.
        """
        require_free(self.target, self.remote)
        begun = replace(self, key=new_key())
        work_of(begun._plan(), self.remote).begin()
        return begun

    def write(self, task: int, batches: Batches) -> Receipt:
        """Write the rows of a task as a shard, on a worker; return its receipt.

        `task` is a number of 0 or more that differs for every task. Shards are in the order of
        these numbers. A task without rows writes nothing. If the rows raise an error, nothing
        stays. No attempt takes over the shard of an earlier one: an engine may repeat a task with
        other rows.
        """
        rows = in_batches(batches)
        first = next(rows, None)
        if first is None:
            return Receipt(task, "", 0, 0, {}, {})
        rows = itertools.chain([first], rows)
        receipt = work_of(self._plan(), self.remote).run(
            task, lambda path: self._write_shard(task, first.schema, rows, path), reuse=False
        )
        # The details stay in the work place: they may be large, and the driver needs them once.
        return replace(receipt, details={})

    def commit(self, receipts: Iterable[Receipt]) -> WriteReport:
        """Publish the shards of these receipts, one for each task. May be repeated."""
        chosen = with_rows(receipts)
        if not chosen:
            self._require_spec()
        plan, work = gathered(self._plan(), chosen, self.remote)

        def is_committed(_: Mapping[int, Receipt]) -> bool:
            return _is_published(work)

        def finish(folder: str, written: Mapping[int, Receipt]) -> None:
            self._finish(plan, folder, written)

        work.commit(is_committed, finish)
        rows, size = sum(each.count for each in chosen), sum(each.bytes for each in chosen)
        return WriteReport(self.name, len(chosen), rows, size)

    def abort(self) -> None:
        """Remove all attempts. Does nothing after a commit."""
        work_of(self._plan(), self.remote).discard()

    def _plan(self) -> WritePlan:
        return WritePlan(self.target, self.key, (), self.KIND)

    @abstractmethod
    def _write_shard(
        self, task: int, schema: pa.Schema, batches: Iterator[pa.RecordBatch], path: str
    ) -> Receipt:
        """Write the rows of a task to a path; return the receipt when they are on disk."""

    @abstractmethod
    def _finish(self, plan: WritePlan, folder: str, receipts: Mapping[int, Receipt]) -> None:
        """Write what a target has besides its shards. May be called again after a kill."""

    @abstractmethod
    def _require_spec(self) -> None:
        """Raise an error if a target without rows cannot be written."""


def _is_published(work: GatheredWork) -> bool:
    try:
        return work.is_published()
    except (OSError, FFRecordError):
        return False

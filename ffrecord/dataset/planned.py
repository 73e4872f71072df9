"""Write a dataset in tasks: each task writes one shard, and a commit publishes all of them.

The shards have the same bytes as those of `ShardedDatasetWriter` with the same `shardlen`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from ffrecord.atomic.folder import check_new_folder
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.spec import check_spec, load
from ffrecord.dataset.writer import DatasetWriter
from ffrecord.errors import EncodeError, FFRecordError, PlanError
from ffrecord.plan.executors import run_all
from ffrecord.plan.values import Part, WritePlan
from ffrecord.plan.work import Receipt, Work, new_key, size_of
from ffrecord.records.dump import Indexable


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One task of a plan: the number of its shard, and the rows to write."""

    plan: WritePlan
    """The plan, without the parts of the other tasks."""
    number: int
    encoders: Mapping[str, Encoder] | None = None
    """None for the usual ones, which need not be sent to a worker."""


def begin_plan(directory: str, rows: int, spec: Mapping[str, str], shardlen: int) -> WritePlan:
    """Make the work folder of a new plan to write so many rows."""
    check_new_folder(directory, "shards need a")
    starts = range(0, rows, shardlen)
    parts = tuple(Part(first, min(shardlen, rows - first)) for first in starts)
    plan = WritePlan(directory, new_key(), parts, "dataset", check_spec(spec))
    Work(plan).begin()
    return plan


def task_of(
    plan: WritePlan, number: int, encoders: Mapping[str, Encoder] = codecs.encoders
) -> WriteTask:
    """Return one task of a plan."""
    alone = WritePlan(plan.target, plan.key, (), plan.kind, plan.spec)
    return WriteTask(alone, number, None if encoders is codecs.encoders else encoders)


def write_rows(task: WriteTask, datapoints: Iterable[Mapping[str, Any]]) -> Receipt:
    """Write the shard of a task, unless it has been written; return its receipt.

    A task may be run anywhere, again, and twice at the same time.
    """
    return Work(task.plan).run(task.number, partial(_write_shard, task, datapoints))


def _write_shard(task: WriteTask, datapoints: Iterable[Mapping[str, Any]], path: str) -> Receipt:
    plan, encoders = task.plan, codecs.encoders if task.encoders is None else task.encoders
    try:
        with DatasetWriter(path, plan.spec, encoders) as writer:
            for datapoint in datapoints:
                writer.append(datapoint)
    except EncodeError as error:  # name the shard as the user knows it
        known = os.path.join(plan.target, plan.shard_name(task.number))
        raise EncodeError(str(error).replace(path, known)) from error
    return Receipt(
        task.number, os.path.basename(path), len(writer), size_of(path), load(path).checksums, {}
    )


def _write_some(task: WriteTask, rows: Indexable, first: int, stop: int) -> Receipt:
    return write_rows(task, (rows[row] for row in range(first, stop)))


def write_in_tasks(
    plan: WritePlan,
    rows: Indexable,
    encoders: Mapping[str, Encoder],
    executor: Executor,
    tell: Callable[[int], object],
) -> None:
    """Write all rows with an executor, and commit. A failure removes the work folder."""
    try:
        tasks = (
            (task_of(plan, number, encoders), rows, part.first, part.rows.stop)
            for number, part in enumerate(plan.parts)
        )
        run_all(
            executor, _write_some, tasks, target=plan.target,
            done=lambda receipt: tell(receipt.count),
        )  # fmt: skip
        commit(plan)
    except BaseException:
        Work(plan).discard()
        raise


def commit(plan: WritePlan) -> None:
    """Publish the shards of a plan. A commit may be repeated."""
    Work(plan).commit(partial(is_committed, plan), partial(_check_shards, plan))


def _check_shards(plan: WritePlan, folder: str, receipts: Mapping[int, Receipt]) -> None:
    for number, receipt in receipts.items():
        if load(os.path.join(folder, plan.shard_name(number))).checksums != receipt.checksums:
            raise PlanError(
                f"{plan.target}: the shard of task {number} is not the one of its receipt; make a "
                "new plan"
            )


def is_committed(plan: WritePlan, receipts: Mapping[int, Receipt]) -> bool:
    """Return True if the target has the shards of this plan, and those of the receipts."""
    try:
        for number, part in enumerate(plan.parts):
            there = load(os.path.join(plan.target, plan.shard_name(number)))
            if (there.length, there.spec) != (part.count, plan.spec):
                return False
            if number in receipts and there.checksums != receipts[number].checksums:
                return False
    except (OSError, FFRecordError):
        return False
    return os.path.isdir(plan.target) and len(os.listdir(plan.target)) == len(plan.parts)

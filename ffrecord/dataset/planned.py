"""Write a dataset in tasks: each task writes one shard, and a commit publishes all of them.

The shards have the same bytes as those of `ShardedDatasetWriter` with the same `shardlen`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.remote import load_remote, remote_dataset
from ffrecord.dataset.spec import Manifest, check_spec, load
from ffrecord.dataset.writer import DatasetWriter
from ffrecord.errors import EncodeError, FFRecordError
from ffrecord.plan.executors import run_all
from ffrecord.plan.values import Part, WritePlan
from ffrecord.plan.work import Receipt, new_key, require_free, work_of
from ffrecord.plan.work_folder import size_of
from ffrecord.records.dump import Indexable
from ffrecord.remote.options import RemoteOptions
from ffrecord.remote.urls import is_remote


@dataclass(frozen=True, slots=True)
class WriteTask:
    """One task of a plan: the number of its shard, and the rows to write."""

    plan: WritePlan
    """The plan, without the parts of the other tasks."""
    number: int
    encoders: Mapping[str, Encoder] | None = None
    """None for the usual ones, which need not be sent to a worker."""
    remote: RemoteOptions = field(default_factory=RemoteOptions, repr=False)
    """Options for a target behind a URL. They are never stored."""


def begin_plan(
    directory: str, rows: int, spec: Mapping[str, str], shardlen: int,
    remote: RemoteOptions | None = None,
) -> WritePlan:  # fmt: skip
    """Make the work place of a new plan to write so many rows."""
    require_free(directory, remote or {})
    starts = range(0, rows, shardlen) or range(1)  # without rows, one shard has the spec
    parts = tuple(Part(first, min(shardlen, rows - first)) for first in starts)
    plan = WritePlan(directory, new_key(), parts, "dataset", check_spec(spec))
    work_of(plan, remote).begin()
    return plan


def task_of(
    plan: WritePlan, number: int, encoders: Mapping[str, Encoder] = codecs.encoders,
    remote: RemoteOptions | None = None,
) -> WriteTask:  # fmt: skip
    """Return one task of a plan."""
    own = None if encoders is codecs.encoders else encoders
    return WriteTask(replace(plan, parts=()), number, own, remote or {})


def write_rows(task: WriteTask, datapoints: Iterable[Mapping[str, Any]]) -> Receipt:
    """Write the shard of a task, unless it has been written; return its receipt.

    A task may be run anywhere, again, and twice at the same time.
    """
    work = work_of(task.plan, task.remote)
    return work.run(task.number, partial(_write_shard, task, datapoints))


def _write_shard(task: WriteTask, datapoints: Iterable[Mapping[str, Any]], path: str) -> Receipt:
    plan, encoders = task.plan, codecs.encoders if task.encoders is None else task.encoders
    try:
        with DatasetWriter(path, plan.spec, encoders) as writer:
            for datapoint in datapoints:
                writer.append(datapoint)
    except EncodeError as error:  # name the shard as the user knows it
        known = os.path.join(plan.name, plan.shard_name(task.number))
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
    remote: RemoteOptions,
) -> None:
    """Write all rows with an executor, and commit. A failure removes the work place."""
    receipts: dict[int, Receipt] = {}

    def done(receipt: Receipt) -> None:
        receipts[receipt.task] = receipt
        tell(receipt.count)

    try:
        tasks = (
            (task_of(plan, number, encoders, remote), rows, part.first, part.rows.stop)
            for number, part in enumerate(plan.parts)
        )
        run_all(executor, _write_some, tasks, target=plan.name, done=done)
        commit(plan, remote, receipts)
    except BaseException:
        work_of(plan, remote).discard()
        raise


def commit(
    plan: WritePlan, remote: RemoteOptions | None = None,
    receipts: Mapping[int, Receipt] | None = None,
) -> None:  # fmt: skip
    """Publish the shards of a plan. A commit may be repeated."""
    work_of(plan, remote).commit(partial(is_committed, plan, remote=remote), receipts=receipts)


def is_committed(
    plan: WritePlan, receipts: Mapping[int, Receipt], remote: RemoteOptions | None = None
) -> bool:
    """Return True if the target has the shards of this plan, and those of the receipts."""
    names, manifest = _target(plan, remote)
    try:
        for number, part in enumerate(plan.parts):
            there = manifest(plan.shard_name(number))
            if (there.length, there.spec) != (part.count, plan.spec):
                return False
            if number in receipts and there.checksums != receipts[number].checksums:
                return False
        return len(names()) == len(plan.parts)
    except (OSError, FFRecordError):
        return False


def _target(
    plan: WritePlan, remote: RemoteOptions | None
) -> tuple[Callable[[], list[str]], Callable[[str], Manifest]]:
    """Return functions that list the target, and load the spec of one of its shards."""
    if not is_remote(plan.target, remote):
        return (
            lambda: os.listdir(plan.target),
            lambda name: load(os.path.join(plan.target, name)),
        )
    folder = remote_dataset(plan.target, remote or {})
    return folder.entries, lambda name: load_remote(folder.inside(name))

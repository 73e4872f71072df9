"""Convert many sources into a folder of shards: one task, and one shard, for each source."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace

from ffrecord.archive.counts import Counts
from ffrecord.archive.packer import header_crc
from ffrecord.convert.reports import ConversionReport, joined
from ffrecord.convert.shapes import ConvertOptions
from ffrecord.dataset.spec import load
from ffrecord.errors import ConversionError
from ffrecord.plan.executors import run_all
from ffrecord.plan.values import Part, WritePlan
from ffrecord.plan.work import Receipt, new_key, require_free, work_of
from ffrecord.plan.work_folder import size_of
from ffrecord.progress import bar
from ffrecord.remote.options import RemoteOptions
from ffrecord.remote.urls import shown as shown_path

KINDS = ("records", "dataset")  # formats of targets


@dataclass(frozen=True, slots=True)
class SourceTask:
    """One source to convert."""

    path: str
    source_format: str
    target_format: str
    options: ConvertOptions


def convert_in_tasks(
    tasks: Sequence[SourceTask],
    target: str,
    executor: Executor | None,
    convert_one: Callable[[SourceTask, str], ConversionReport],
    *,
    shown: bool,
    remote: RemoteOptions,
) -> ConversionReport:
    """Convert every source into its shard, and publish the folder. A failure leaves nothing.

    Args:
        tasks: the sources, in the order of the shards.
        target: the new folder, from `plan.work.locate`.
        executor: runs the tasks. Without one, they run here, one after the other.
        convert_one: converts one source to a path. It must be picklable.
        shown: draw a progress bar.
        remote: options of a target behind a URL.
    """
    require_free(target, remote)
    plan = WritePlan(target, new_key(), (), tasks[0].target_format)
    work = work_of(plan, remote)
    work.begin()
    calls = (
        (plan, number, replace(task, options=_alone(task.options)), convert_one, remote)
        for number, task in enumerate(tasks)
    )
    receipts: list[Receipt] = []
    try:
        with bar(shown=shown, total=len(tasks), unit=" sources", desc="converting") as drawn:

            def done(receipt: Receipt) -> None:
                receipts.append(receipt)
                drawn.update()

            if executor is None:
                for call in calls:
                    done(_convert(*call))
            else:
                run_all(executor, _convert, calls, target=plan.name, done=done)
        receipts.sort(key=lambda receipt: receipt.task)
        parts = tuple(Part(0, receipt.count) for receipt in receipts)
        _require_one_spec(receipts, tasks)
        work_of(replace(plan, parts=parts), remote).commit(
            lambda _: False, receipts=dict(enumerate(receipts))
        )
    except BaseException:
        work.discard()
        raise
    return joined([_report(receipt) for receipt in receipts])


def _alone(options: ConvertOptions) -> ConvertOptions:
    """Return options for one task: it counts for itself, and has no executor."""
    return replace(options, executor=None, skipped=type(options.skipped)())


def _convert(
    plan: WritePlan, number: int, task: SourceTask,
    convert_one: Callable[[SourceTask, str], ConversionReport], remote: RemoteOptions,
) -> Receipt:  # fmt: skip
    def write(path: str) -> Receipt:
        report = convert_one(task, path)
        if plan.kind == "dataset":
            checksums, details = load(path).checksums, {"spec": load(path).spec}
        else:
            checksums, details = {plan.shard_name(number): header_crc(path)}, {}
        attempt = os.path.basename(path)
        facts = {"report": asdict(report), **details}
        return Receipt(number, attempt, report.written, size_of(path), checksums, facts)

    return work_of(plan, remote).run(number, write)


def _require_one_spec(receipts: Sequence[Receipt], tasks: Sequence[SourceTask]) -> None:
    first = receipts[0].details.get("spec")
    for receipt, task in zip(receipts, tasks, strict=True):
        if receipt.details.get("spec") != first:
            raise ConversionError(
                f"{shown_path(task.path)}: its fields are {receipt.details['spec']}, but the first "
                f"source has {first}; convert them one by one"
            )


def _report(receipt: Receipt) -> ConversionReport:
    facts = dict(receipt.details["report"])
    for name in ("source_contents", "target_contents"):
        if facts[name] is not None:
            facts[name] = Counts(**facts[name])
    return ConversionReport(**facts)

"""`ffrecord pack --plan`, `--task`, `--commit` and `--status`: pack a folder in a job array."""

from __future__ import annotations

import argparse
import json
import os
import re
from dataclasses import asdict

from ffrecord.archive import planned
from ffrecord.archive.names import json_facts
from ffrecord.archive.pack import plan_pack
from ffrecord.archive.packer import PackReport
from ffrecord.cli.common import describe_counts
from ffrecord.errors import ChangedError, PlanError
from ffrecord.plan.receipts import Receipt, ranges
from ffrecord.plan.values import PackPlan
from ffrecord.plan.work import Status, work_of
from ffrecord.terminal import complain, printable
from ffrecord.text import counted, for_shell, human, there_already

SLURM = "SLURM_ARRAY_TASK_ID"


def run(options: argparse.Namespace) -> int:
    """Do one step of packing by a plan."""
    if options.plan is not None:
        _make(options)
    elif options.task is not None:
        _task(options)
    elif options.commit is not None:
        plan = PackPlan.load(options.commit)
        print_report(plan.target, planned.commit(plan), as_json=options.json)
    else:
        _status(options)
    return 0


def print_report(out: str, report: PackReport, *, as_json: bool) -> None:
    """Print the counts of a finished archive."""
    if as_json:
        print(json.dumps({**json_facts("out", out), **asdict(report)}, indent=2))
    else:
        print(printable(f"{out}: {describe_counts(report, report.shards)}"))


def _make(options: argparse.Namespace) -> None:
    if options.shard_size is None:
        options.parser.error("--plan needs --shard-size, because each task writes one shard")
    if os.path.lexists(options.plan) and not options.force:
        raise there_already(options.plan)
    plan = plan_pack(
        options.folder,
        options.out,
        options.shard_size,
        dereference=options.dereference,
        exclude=options.exclude,
        legacy_index=not options.no_legacy_index,
        ignore_changed=options.ignore_changed,
        align=options.align,
    )
    try:
        plan.save(options.plan)
    except BaseException:
        work_of(plan).discard()  # without its plan, nobody could use it
        raise
    files, size = sum(part.count for part in plan.parts), sum(part.bytes for part in plan.parts)
    tasks = len(plan.parts)
    if options.json:
        facts = {"tasks": tasks, "files": files, "bytes": size}
        print(json.dumps({**json_facts("plan", options.plan), **facts}, indent=2))
        return
    counts = f"{counted(tasks, 'task')}, {counted(files, 'file')}, {human(size)}"
    which = "0" if tasks == 1 else f"0 to {tasks - 1}"
    print(printable(f"{options.plan}: {counts}; run --task {which}, then --commit"))


def _task(options: argparse.Namespace) -> None:
    numbers, path = _numbers(options)
    plan = PackPlan.load(path)
    first, step = numbers
    if step is None:
        plan.require_task(first)
    chosen = [first] if step is None else range(first, len(plan.parts), step)
    if not chosen and not options.json:
        print(f"no shard for {first}/{step}: the plan has {counted(len(plan.parts), 'task')}")
    failed: ChangedError | None = None
    for number in chosen:
        try:
            receipt = planned.run_task(planned.task_of(plan, number, options.jobs))
        except ChangedError as error:  # does not concern the other shards
            if failed is not None:
                complain(for_shell(failed))
            failed = error
        except PlanError:
            if not planned.is_committed(plan, {}):
                raise
            print(printable(f"{plan.target}: committed before; task {number} has nothing to do"))
            return
        else:
            _print_receipt(plan, receipt, as_json=options.json)
    if failed is not None:
        raise failed


def _print_receipt(plan: PackPlan, receipt: Receipt, *, as_json: bool) -> None:
    number, name = receipt.task, plan.shard_name(receipt.task)
    if as_json:
        facts = {"task": number, "shard": name, "files": receipt.count, "bytes": receipt.bytes}
        print(json.dumps(facts))
    else:
        print(f"task {number}: {name}, {counted(receipt.count, 'file')}, {human(receipt.bytes)}")


def _numbers(options: argparse.Namespace) -> tuple[tuple[int, int | None], str]:
    """Return the first task, the distance to the next one if there are several, and the plan."""
    *given, path = options.task
    if len(given) > 1:
        options.parser.error("--task takes one K and one PLAN")
    number = given[0] if given else os.environ.get(SLURM, "")
    match = re.fullmatch(r"(\d+)(?:/([1-9]\d*))?", number, re.ASCII)
    if match is None:
        if given:
            options.parser.error(f"--task takes a number such as 3, or 3/8, not {number!r}")
        what = f"--task needs the number of a task: --task K {path}"
        options.parser.error(f"{what}; without K, {SLURM} must be set")
    assert match is not None
    first, step = int(match[1]), None if match[2] is None else int(match[2])
    if step is not None and first >= step:
        options.parser.error(
            f"--task {number}: K counts from 0, so it must be less than {step}; an array of "
            f"{counted(step, 'task')} is --array={ranges(range(step))}"
        )
    return (first, step), path


def _status(options: argparse.Namespace) -> None:
    plan = PackPlan.load(options.status)
    found = planned.status(plan)
    if options.json:
        print(json.dumps({**json_facts("out", plan.target), **asdict(found)}, indent=2))
    else:
        _print_status(plan, found)
    if found.has_ended:
        raise work_of(plan).gone()


def _print_status(plan: PackPlan, found: Status) -> None:
    if found.is_committed:
        state = "committed"
    elif found.has_ended:
        state = "not committed; no task can run"
    elif found.missing:
        missing = f"{len(found.missing):,} of {counted(found.tasks, 'task')}"
        state = f"not committed; no receipt of {missing}: {ranges(found.missing)}"
    else:
        state = f"not committed; all {counted(found.tasks, 'task')} have receipts"
    print(printable(f"{plan.target}: {state}"))
    for path in found.litter:
        print(printable(f"left behind, removed by the next commit: {path}"))

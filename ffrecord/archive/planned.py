"""Packing by a plan: make it, run its tasks anywhere, and commit their shards.

`pack_folder(executor=…)` and `ffrecord pack --plan` do the same steps. The shards and the index
have the same bytes as those of one process, because both use `Packer` and `write_contents`.
"""

from __future__ import annotations

import os
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from ffrecord.aliases import Bytes, Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.contents import write_contents
from ffrecord.archive.counts import count_index
from ffrecord.archive.index.build import Shard
from ffrecord.archive.index.columns import BlocksOf, XattrsOf
from ffrecord.archive.packer import Packer, PackReport, header_crc
from ffrecord.archive.plan_file import (
    NAME,
    paths_in,
    read_task,
    read_tree,
    write_plan_file,
    xattrs_from_json,
    xattrs_to_json,
)
from ffrecord.archive.scan import Scan, top_path
from ffrecord.errors import ChangedError, FFRecordError
from ffrecord.format import padding
from ffrecord.format.checksum import crc32
from ffrecord.format.index import INDEX_NAME
from ffrecord.plan.receipts import damaged_receipt
from ffrecord.plan.values import PackPlan, Part
from ffrecord.plan.work import Receipt, Status, Work, new_key, work_of
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import ArchiveWriter, FileWriter
from ffrecord.remote.options import RemoteOptions
from ffrecord.text import Advised


@dataclass(frozen=True, slots=True)
class PackTask:
    """One task of a plan: all that a worker needs, in a few hundred bytes."""

    plan: PackPlan
    """The plan, without the parts of the other tasks."""
    number: int
    part: Part
    jobs: int | None = None
    remote: RemoteOptions = field(default_factory=RemoteOptions, repr=False)
    """Options for a target behind a URL. They are never stored."""


def begin_plan(
    scan: Scan, packer: Packer, parts: list[Part], target: str, *, dereference: bool,
    ignore_changed: bool, legacy_index: bool, remote: RemoteOptions | None = None,
) -> PackPlan:  # fmt: skip
    """Make the work place of a new plan, with the files of each task."""
    plan = PackPlan(
        target, new_key(), tuple(parts), os.fsdecode(scan.top), dereference, ignore_changed,
        legacy_index, None if packer.align == padding.UNALIGNED else packer.align,
        crc32(packer.record_sizes()), _tree_crc(scan.tree.names.bytes, scan.tree.mtime),
    )  # fmt: skip
    work = work_of(plan, remote)
    work.begin()
    try:
        with work.new_file(NAME) as path:
            write_plan_file(path, scan, packer.files, parts)
    except BaseException:
        work.discard()
        raise
    return plan


def task_of(
    plan: PackPlan, number: int, jobs: int | None = None, remote: RemoteOptions | None = None
) -> PackTask:
    """Return one task of a plan."""
    plan.require_task(number)
    alone = replace(plan, parts=())
    return PackTask(alone, number, plan.parts[number], jobs, remote or {})


def run_task(task: PackTask) -> Receipt:
    """Write the shard of a task, unless it has been written; return its receipt.

    A task may be run anywhere, again, and twice at the same time.
    """
    work = work_of(task.plan, task.remote)
    return work.run(task.number, lambda path: _write_shard(task, path))


class _Facts:
    """Facts about the files of one shard."""

    def __init__(self) -> None:
        self.xattrs = XattrsOf()
        self.blocks = BlocksOf()
        self.changed: dict[int, bool] = {}  # True: gone


def _write_shard(task: PackTask, path: str) -> Receipt:
    plan, part, align = task.plan, task.part, padding.checked(task.plan.align)
    work = work_of(plan, task.remote)
    files = read_task(
        work.inside(NAME), task.number, part.count, plan.folder, plan.dereference, work.reading
    )
    facts = _Facts()

    def note_change(row: int, gone: bool) -> None:
        if not plan.ignore_changed:
            raise ChangedError(_advice(os.fsdecode(next(files.places([row]))), gone))
        facts.changed[row] = gone or facts.changed.get(row, False)

    with ArchiveWriter(path, part.records, align=align) as writer:
        write_contents(
            writer, files, range(part.count), facts, jobs=task.jobs, align=align,
            changed=note_change, tell=lambda files, size: None,
        )  # fmt: skip
    return Receipt(
        task.number, os.path.basename(path), part.count, os.stat(path).st_size,
        {plan.shard_name(task.number): header_crc(path)}, _to_json(facts),
    )  # fmt: skip


def _advice(file: str, gone: bool) -> Advised:
    """Return the message about a file that changed or disappeared since the plan was made."""
    what = f"{file}: {'disappeared' if gone else 'changed'} while its folder was packed"
    if gone:
        what += ", or this machine does not share the folder; run the task on a machine that does"
        return Advised(f"{what}, or make a new plan")
    how = "ignore_changed=True", "--ignore-changed"
    return Advised(f"{what}; make a new plan, with ", *how, " if such files are to be packed")


def _to_json(facts: _Facts) -> dict[str, object]:
    """Return the facts, with the checksums of blocks as base64: they are many for large files."""
    return {
        "xattrs": [[row, xattrs_to_json(each)] for row, each in facts.xattrs.items()],
        "blocks": [[row, b64encode(each).decode()] for row, each in facts.blocks.items()],
        "changed": sorted(facts.changed.items()),
    }


# ---- the commit --------------------------------------------------------------------------------


def commit(
    plan: PackPlan, packer: Packer | None = None, remote: RemoteOptions | None = None,
    receipts: Mapping[int, Receipt] | None = None,
) -> PackReport:  # fmt: skip
    """Publish the shards of a plan, with their index. A commit may be repeated.

    Without `packer`, the tree is read from the work place, and without `receipts`, so are they.
    """
    made: list[Packer] = []
    work = work_of(plan, remote)

    def finish(folder: str, receipts: Mapping[int, Receipt]) -> None:
        made.append(packer or _packer(plan, work))
        _write_index(plan, made[-1], folder, receipts)

    is_new = work.commit(lambda found: is_committed(plan, found, remote), finish, receipts)
    return made[-1].report if is_new else _report(plan, remote)


def _packer(plan: PackPlan, work: Work) -> Packer:
    tree, skipped, changed = read_tree(plan, work.inside(NAME), work.reading)
    return Packer(
        tree, paths_in(tree, top_path(plan.folder)), align=padding.checked(plan.align),
        skipped=skipped, changed=changed, ignore_changed=plan.ignore_changed,
        legacy_index=plan.legacy_index,
    )  # fmt: skip


def _write_index(
    plan: PackPlan, packer: Packer, folder: str, receipts: Mapping[int, Receipt]
) -> None:
    shards = []
    for number, part in enumerate(plan.parts):
        name, receipt = plan.shard_name(number), receipts[number]
        try:
            _add_facts(packer, receipt, part)
            shards.append(Shard(name.encode(), part.records, receipt.checksums[name]))
        except (LookupError, TypeError, ValueError) as error:
            raise damaged_receipt(f"{plan.name}: task {number}") from error
    packer.report.shards = len(shards)
    with FileWriter(os.path.join(folder, INDEX_NAME), 1) as writer:
        packer.write_index(writer, plan.name, shards)


def _add_facts(packer: Packer, receipt: Receipt, part: Part) -> None:
    """Add the facts of one shard to the tree, with the numbers of its inodes."""

    def inode(row: int) -> int:
        if not 0 <= row < part.count:
            raise IndexError(row)
        return packer.files[part.first + row]

    for row, xattrs in receipt.details["xattrs"]:
        packer.tree.xattrs[inode(row)] = xattrs_from_json(xattrs)
    for row, blocks in receipt.details["blocks"]:
        packer.tree.blocks[inode(row)] = array("I", b64decode(blocks))
    for row, gone in receipt.details["changed"]:
        packer.note_change(inode(row), gone)


def is_committed(
    plan: PackPlan, receipts: Mapping[int, Receipt], remote: RemoteOptions | None = None
) -> bool:
    """Return True if the target has the files of this plan, and the shards of the receipts.

    Nothing in the target names its plan: its bytes are those of one process. So the files are
    compared, because another plan for the same target may have been committed.
    """
    due = []
    for number, part in enumerate(plan.parts):
        name = plan.shard_name(number)
        crc = receipts[number].checksums.get(name) if number in receipts else None
        due.append((name, part.records, crc))
    try:
        with Archive.open(plan.target, **(remote or {})) as archive:
            return _has_shards(archive.reader, due) and _has_files(archive, plan)
    except (OSError, FFRecordError):
        return False


def _has_shards(reader: FileReader, due: list[tuple[str, int, int | None]]) -> bool:
    """Compare the name, the number of records and the header's checksum of each shard."""
    names = [os.path.basename(name) for name in reader.fnames[:-1]]
    return len(names) == len(due) and all(
        (names[file], len(reader.get_checksums(file))) == (name, records)
        and crc in (None, reader.header_crc(file))
        for file, (name, records, crc) in enumerate(due)
    )


def _has_files(archive: Archive, plan: PackPlan) -> bool:
    """Compare the sizes, names and times of all files.

    Files that disappeared have a record, but no name. Then the sizes must suffice.
    """
    if crc32(archive.reader.record_sizes()[:-1]) != plan.sizes:
        return False
    if count_index(archive.index).files < sum(part.count for part in plan.parts):
        return True
    tables = archive.index.tables
    return _tree_crc(tables.names, tables.inodes["mtime"]) == plan.tree


def _tree_crc(names: bytearray | Bytes, times: array[int] | Ints) -> int:
    return crc32(np.asarray(times, np.int64).tobytes(), crc32(names))


def _report(plan: PackPlan, remote: RemoteOptions | None) -> PackReport:
    """Return the counts of a target that was committed before."""
    with Archive.open(plan.target, **(remote or {})) as archive:
        return PackReport(**asdict(count_index(archive.index)), shards=len(plan.parts))


def status(plan: PackPlan, remote: RemoteOptions | None = None) -> Status:
    """Return which tasks of a plan are missing, and what a cancelled job has left."""
    work = work_of(plan, remote)
    return work.status(lambda receipts: is_committed(plan, receipts, remote))

"""Targets: the files that the tasks of a plan share: the plan, its file lists, and receipts."""

from __future__ import annotations

import json
import os
import struct
from base64 import b64decode
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from ffrecord.archive import planned
from ffrecord.archive.index.build import Tree
from ffrecord.archive.pack import plan_pack
from ffrecord.archive.plan_file import NAME, read_task, read_tree
from ffrecord.errors import PlanError
from ffrecord.plan import receipts, work_prefix
from ffrecord.plan.values import PackPlan, Part, Plan, WritePlan
from ffrecord.plan.work_folder import RECEIPT, WorkFolder
from tests.robustness.fuzzing import reference
from tests.robustness.fuzzing.mounts import JSON
from tests.robustness.fuzzing.records import sealed_with_records
from tests.robustness.fuzzing.scratch import Scratch, folder
from tests.robustness.fuzzing.target import Target
from tests.support import trees

PARTS = (Part(0, 3, 3, 100), Part(3, 2, 4, 77))
PLANS: tuple[Plan, ...] = (
    PackPlan("/out/odd\udcff", "0a1b2c3d", PARTS, "/in", dereference=True, align=512),
    PackPlan("s3://bucket/out", "0a", PARTS, "/in"),
    WritePlan("/out", "ffffffff", PARTS, "dataset", {"x": "int", "y": "utf8[]"}),
    WritePlan("/out", "ffffffff", (), "records"),
)


def plans() -> Target:
    def run(data: bytes) -> str:
        kind = PackPlan if b"packing" in data else WritePlan
        plan: Plan = kind.from_json(data)
        facts = json.loads(data)
        rows = zip(*(facts["parts"][name] for name in Part.__slots__), strict=True)
        parts = [(each.first, each.count, each.records, each.bytes) for each in plan.parts]
        assert [*rows] == parts
        assert all(0 <= each < 1 << 63 for part in parts for each in part)
        assert type(plan).from_json(plan.to_json()) == plan
        if not os.path.isabs(plan.target):
            return f"{plan.DOING} to {plan.name.partition('://')[1]}"
        work = WorkFolder(plan)
        assert os.path.dirname(work.path) == os.path.dirname(plan.target)
        for place in (work.path, getattr(plan, "folder", plan.target)):
            with suppress(OSError):  # a name that no file can have is a ValueError
                os.stat(os.path.join(place, "missing"))
        return plan.DOING

    seeds = tuple(plan.to_json().encode() for plan in PLANS)
    tokens = (*JSON, b"packing", b"writing", b"s3://[", b"\\u0000", b"9223372036854775808")
    return Target("plan", run, seeds, tokens=tokens, errors=(PlanError,))


# ---- a plan of three files -------------------------------------------------------------------

FILES = {"a": b"hello\n", "large": trees.content(2 * (128 << 10) + 5, 1), "sub/deep": b"deep"}


def _plan() -> tuple[PackPlan, str]:
    """Return a plan with one task, and the folder for receipts and other files."""
    top = folder()
    trees.plain_tree(top / "tree", FILES)
    (top / "tree/link").symlink_to("a")
    plan = plan_pack(top / "tree", top / "out", 1 << 30)
    return plan, str(top)


# ---- receipts --------------------------------------------------------------------------------


def receipts_() -> Target:
    """Fuzz the receipt of a task: read it, and write the index of its shard."""
    plan, top = _plan()
    work = WorkFolder(plan)
    made = planned.run_task(planned.task_of(plan, 0))
    path = os.path.join(work.inside("attempts"), "0", made.attempt + RECEIPT)
    with open(path, "rb") as file:
        first = json.load(file)
    scratch = Scratch(Path(path))

    def run(data: bytes) -> str:
        if data[:1] == b"o":
            return "an owner" if work_prefix.owner_in(data[1:]) else "nobody"
        scratch.fill(data)
        found = work.receipts()
        receipts.require_all(plan, found)
        index = os.path.join(top, "index")
        os.makedirs(index, exist_ok=True)
        packer = planned._packer(plan, work)
        planned._write_index(plan, packer, index, found)
        _compare(packer.tree, packer.files, json.loads(data)["details"])
        return "committed"

    xattrs = [[0, [["dXNlci5h", "AAE="]]], [2, [["dXNlci5i", ""]]]]
    changes: tuple[dict[str, Any], ...] = (
        {}, {"count": 2}, {"details": first["details"] | {"xattrs": xattrs}},
        {"details": first["details"] | {"xattrs": [[-1, []]]}},
        {"details": first["details"] | {"changed": [[0, False]]}},
    )  # fmt: skip
    seeds = tuple(json.dumps(first | change).encode() for change in changes)
    seeds += (b'o{"plan": "0a1b2c3d"}',)
    tokens = (*JSON, b"[0, ", b"[1, ", b"[-1, ", b'"AAAA"', made.attempt.encode(), b'"blocks": [')
    return Target("receipt", run, seeds, tokens=tokens)


def _compare(tree: Tree, files: Any, details: Any) -> None:
    """Compare the tree with the facts in a receipt. Of two facts about a file, the last counts."""
    for row, xattrs in dict(details["xattrs"]).items():
        assert 0 <= row < len(files)
        due = tuple(tuple(b64decode(each) for each in pair) for pair in xattrs)
        assert dict(tree.xattrs.items())[files[row]] == due


# ---- the file of a plan ----------------------------------------------------------------------


def plan_files() -> Target:
    """Fuzz the file with the names of each task's files, and with the tree."""
    plan, top = _plan()
    with open(WorkFolder(plan).inside(NAME), "rb") as file:
        seed = file.read()
    scratch = Scratch(Path(top) / "files")
    count = plan.parts[0].count

    def run(data: bytes) -> str:
        path = scratch.fill(data)
        try:
            tree, _, _ = read_tree(plan, path, {})
            word = "a tree"
            assert len(tree.inode) == len(tree.parent) == len(tree.names)
            assert all(len(column) == len(tree) for column in tree.columns)
        except PlanError:
            word = "files"
        listed = read_task(path, 0, count, plan.folder, plan.dereference, {})
        assert (list(listed.lengths), [*listed.places(range(count))]) == _task(data, plan.folder)
        return word

    def _task(data: bytes, top: str) -> tuple[list[int], list[bytes]]:
        found = reference.header(data)
        assert found is not None
        record = data[found[1][0] : found[1][1]]
        numbers = struct.unpack_from(f"<{4 * count}q", record)
        names, ends = record[32 * count :], numbers[3 * count :]
        paths = [names[begin:end] for begin, end in pairwise((0, *ends))]
        return list(numbers[:count]), [os.fsencode(top) + b"/" + path for path in paths]

    tokens = (b'"xattrs": [[0, [["', b"[", b"]", b"null", b'"skipped"', b"/", b"\0")
    return Target("planfile", run, (seed,), sealed_with_records, tokens, in_place=True)

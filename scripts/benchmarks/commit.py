"""Plan and commit a packed folder of synthetic files: sizes, processor time and memory.

    python -m scripts.benchmarks.commit 1e7 --data /tmp/commit

The tree is made in memory, and each shard is an empty file of the right size. So only the plan and
the commit are measured, and 10^7 files need a few GB of disk instead of a terabyte. The plan and
the commit run in processes of their own, whose peak memory is reported.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import stat
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.archive import planned
from ffrecord.archive.index.build import Tree
from ffrecord.archive.packer import Packer
from ffrecord.archive.plan_file import NAME
from ffrecord.archive.scan import Scan
from ffrecord.format.index import INDEX_NAME
from ffrecord.plan.values import PackPlan
from ffrecord.plan.work import Receipt
from ffrecord.plan.work_folder import WorkFolder
from ffrecord.text import human

SIZE = 100_000  # bytes of a file
IN_FOLDER = 1000  # files of a folder
IN_SHARD = 10_000  # files of a shard
HEADER = 12  # bytes of a shard's header, and for each of its records


class SyntheticScan:
    """Stands in for a `Scan`: a tree of equal folders, made without a file system."""

    top = b"/data/images"

    def __init__(self, files: int) -> None:
        self.tree = _tree(files // IN_FOLDER)
        self.skipped: dict[str, int] = {}
        self.changed: list[str] = []
        self.lengths = self.tree.length

    def places(self, inodes: Iterable[int]) -> Iterator[bytes]:
        names, parents = self.tree.names, self.tree.parent
        for inode in inodes:
            entry = inode - 1
            yield b"%b/%b/%b" % (self.top, names[parents[entry] - 1], names[entry])

    def identities(self, inodes: array[int]) -> tuple[Ints, Ints]:
        numbers = np.frombuffer(inodes, np.uint32).astype(np.int64)
        return numbers, numbers


def _tree(folders: int) -> Tree:
    """Return a tree whose inodes are the root, the folders, and the files of each folder."""
    tree, files = Tree(), folders * IN_FOLDER
    inodes = 1 + folders + files
    mode = np.full(inodes, stat.S_IFREG | 0o644, np.uint32)
    mode[: 1 + folders] = stat.S_IFDIR | 0o755
    length = np.full(inodes, SIZE, np.uint64)
    length[: 1 + folders] = 0
    owner = np.full(inodes, 1000, np.uint32)
    mtime = np.arange(inodes, dtype=np.int64) + 1_700_000_000_000_000_000
    values: tuple[npt.NDArray[Any], ...] = (mode, owner, owner, mtime, length, 0 * length)
    for column, each in zip(tree.columns, values, strict=True):
        column.frombytes(each.tobytes())
    tree.inode.frombytes(np.arange(1, inodes, dtype=np.uint32).tobytes())
    parent = np.zeros(folders + files, np.uint32)
    parent[folders:] = 1 + np.arange(files, dtype=np.uint32) // IN_FOLDER
    tree.parent.frombytes(parent.tobytes())
    for number in range(folders):
        tree.names.append(b"folder-%07d" % number)
    for _ in range(folders):
        for number in range(IN_FOLDER):
            tree.names.append(b"image-%05d.jpg" % number)
    return tree


def make_plan(files: int, folder: Path, legacy_index: bool) -> dict[str, Any]:
    """Make the plan, and a receipt and an empty shard for each of its tasks."""
    scan = SyntheticScan(files)
    began = time.process_time()
    packer = Packer(
        scan.tree, lambda inode: [], align=1, skipped={}, changed=[], ignore_changed=False,
        legacy_index=legacy_index,
    )  # fmt: skip
    parts = packer.parts(str(folder / "shards"), IN_SHARD * SIZE)
    plan = planned.begin_plan(
        cast(Scan, scan), packer, parts, str(folder / "shards"), dereference=False,
        ignore_changed=False, legacy_index=legacy_index,
    )  # fmt: skip
    plan.save(folder / "plan.json")
    took = time.process_time() - began
    receipts = _write_receipts(plan)
    return {
        "shards": len(parts),
        "plan": human((folder / "plan.json").stat().st_size),
        "list of files": human(os.path.getsize(WorkFolder(plan).inside(NAME))),
        "receipts": human(receipts),
        "planning, s": round(took, 1),
    }


def _write_receipts(plan: PackPlan) -> int:
    """Write a receipt and a shard of holes for each task; return the size of all receipts."""
    work, total = WorkFolder(plan), 0
    for number, part in enumerate(plan.parts):

        def write(path: str, number: int = number, part: Any = part) -> Receipt:
            size = part.bytes + HEADER * (1 + part.count)
            with open(path, "wb") as file:
                file.truncate(size)
            details: dict[str, Any] = {"xattrs": [], "blocks": [], "changed": []}
            crc = {plan.shard_name(number): 0}
            return Receipt(number, os.path.basename(path), part.count, size, crc, details)

        total += len(json.dumps(asdict(work.run(number, write))))
    return total


def commit(files: int, folder: Path, legacy_index: bool) -> dict[str, Any]:
    """Commit the plan, and check the number of files."""
    began = time.process_time()
    report = planned.commit(PackPlan.load(folder / "plan.json"))
    took = time.process_time() - began
    assert report.files == files
    return {
        "commit, s": round(took, 1),
        "index": human((folder / "shards" / INDEX_NAME).stat().st_size),
    }


Step = Callable[[int, Path, bool], dict[str, Any]]


def _measured(step: Step, options: tuple[int, Path, bool]) -> dict[str, Any]:
    found = step(*options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {**found, f"{step.__name__}: MiB of memory": peak}


def main() -> None:
    """Measure, with and without the index of the original FFRecord."""
    parser = argparse.ArgumentParser(description="plan and commit a folder of synthetic files")
    parser.add_argument("files", type=float, help="number of files, a multiple of 1,000")
    parser.add_argument("--data", type=Path, required=True, help="a new folder to work in")
    options = parser.parse_args()
    for legacy_index in (False, True):
        options.data.mkdir()
        given = int(options.files) // IN_FOLDER * IN_FOLDER, options.data.resolve(), legacy_index
        try:
            facts = {"files": given[0], "the original's index": legacy_index}
            for step in (make_plan, commit):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    facts |= pool.apply(_measured, (step, given))
        finally:
            shutil.rmtree(options.data)
        print(json.dumps(facts, indent=2), flush=True)


if __name__ == "__main__":
    main()

"""The file of a plan in its work folder: the files of each task, and the tree for the index.

It is a record file, so every byte is checked. Record K has the files of task K; a task reads no
other. The records after them are the columns of the tree, which only the commit reads.
"""

from __future__ import annotations

import json
import os
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.index.build import Tree, Xattrs
from ffrecord.archive.scan import Scan, opening_flags, top_path
from ffrecord.disk.longpaths import open_path
from ffrecord.errors import FFRecordError, PlanError
from ffrecord.plan.values import PackPlan, Part
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter
from ffrecord.remote.options import RemoteOptions
from ffrecord.remote.urls import shown

NAME = "files"
_WIDTHS = 4  # columns of eight bytes in the record of a task


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """The files of one task. Their numbers begin at 0.

    The device is not compared, as a scan does: machines number the same network disk differently.
    """

    top: bytes
    open_flags: int
    lengths: Sequence[int]
    _numbers: Ints
    _ctimes: Ints
    _ends: Ints
    _paths: memoryview

    def places(self, inodes: Iterable[int]) -> Iterator[bytes]:
        """Yield the paths of files."""
        for row in inodes:
            begin = int(self._ends[row - 1]) if row else 0
            yield b"%b/%b" % (self.top, bytes(self._paths[begin : int(self._ends[row])]))

    def open(self, path: bytes) -> int:
        return open_path(path, self.open_flags)

    def is_unchanged(self, inode: int, now: os.stat_result) -> bool:
        """Return True if this is the file that was found when the plan was made."""
        return (
            now.st_ctime_ns == self._ctimes[inode]
            and now.st_size == self.lengths[inode]
            and now.st_ino == int(self._numbers[inode]) % (1 << 64)
        )


def write_plan_file(path: str, scan: Scan, files: array[int], parts: Sequence[Part]) -> None:
    """Write the files of each task, and the tree."""
    facts = {
        "skipped": dict(scan.skipped),
        "changed": scan.changed,
        "xattrs": [[inode, xattrs_to_json(each)] for inode, each in scan.tree.xattrs.items()],
    }
    columns = [*_columns(scan.tree), json.dumps(facts).encode()]
    with FileWriter(path, len(parts) + len(columns)) as writer:
        for part in parts:
            writer.write_one(_task_record(scan, files[part.first : part.first + part.count]))
        for column in columns:
            writer.write_one(column)


def _task_record(scan: Scan, inodes: array[int]) -> bytes:
    """Return four columns (lengths, inode numbers, ctimes, ends of paths), then the paths."""
    skip = len(scan.top) + 1
    paths = [path[skip:] for path in scan.places(inodes)]
    numbers, ctimes = scan.identities(inodes)
    lengths = np.array([scan.lengths[inode] for inode in inodes], np.int64)
    ends = np.cumsum([len(path) for path in paths], dtype=np.int64)
    columns = (lengths, numbers, ctimes, ends)
    return b"".join([*(column.tobytes() for column in columns), *paths])


def read_task(
    path: str, task: int, count: int, folder: str, dereference: bool, remote: RemoteOptions
) -> ListedFiles:
    """Read the files of one task. `remote` has the options for a URL."""
    with FileReader(path, **remote) as reader:
        record = reader.read_one(task) if task < reader.n else None
    if record is None or len(record) < 8 * _WIDTHS * count:
        raise PlanError(f"{shown(path)}: has other tasks than the plan; make a new plan")
    lengths, numbers, ctimes, ends = record[: 8 * _WIDTHS * count].view(np.int64).reshape(4, count)
    paths = record[8 * _WIDTHS * count :]
    bounds = np.concatenate([[0], ends, [len(paths)]])
    if (lengths < 0).any() or (bounds[1:] < bounds[:-1]).any() or not paths.all():
        raise _damaged(path)
    return ListedFiles(
        top_path(folder), opening_flags(dereference), lengths.tolist(), numbers, ctimes, ends,
        paths.data,
    )  # fmt: skip


def read_tree(
    plan: PackPlan, path: str, remote: RemoteOptions
) -> tuple[Tree, dict[str, int], list[str]]:
    """Read the tree, the counts of skipped things, and the paths that disappeared."""
    tree = Tree()
    columns = _columns(tree)
    first = len(plan.parts)
    try:
        with FileReader(path, **remote) as reader:
            if reader.n != first + len(columns) + 1:
                raise PlanError(f"{shown(path)}: has other tasks than the plan; make a new plan")
            for number, column in enumerate(columns, first):
                record = reader.read_one(number)
                if isinstance(column, array):
                    column.frombytes(record.data)
                else:
                    column += record.data
            facts = json.loads(bytes(reader.read_one(reader.n - 1)))
        for inode, xattrs in facts["xattrs"]:
            tree.xattrs[inode] = xattrs_from_json(xattrs)
        skipped, changed = dict(facts["skipped"]), list(facts["changed"])
    except FFRecordError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise _damaged(path) from error
    lengths = {len(column) for column in (tree.names, tree.inode, tree.parent)}
    if len(lengths) > 1 or any(len(column) != len(tree) for column in tree.columns):
        raise _damaged(path)
    return tree, skipped, changed


def _damaged(path: str) -> PlanError:
    return PlanError(f"{shown(path)}: the files or the tree in it are damaged; make a new plan")


def _columns(tree: Tree) -> list[Any]:
    return [
        *tree.columns, tree.names.bytes, tree.names.ends, tree.inode, tree.parent,
        tree.targets.inodes, tree.targets.texts.bytes, tree.targets.texts.ends,
    ]  # fmt: skip


def xattrs_to_json(xattrs: Xattrs) -> list[list[str]]:
    return [[b64encode(each).decode() for each in pair] for pair in xattrs]


def xattrs_from_json(xattrs: list[list[str]]) -> Xattrs:
    return tuple((b64decode(name), b64decode(value)) for name, value in xattrs)


def paths_in(tree: Tree, top: bytes) -> Callable[[int], list[bytes]]:
    """Return a function that finds all paths of an inode. It is slow, and for a few files only."""
    inodes = np.frombuffer(tree.inode, np.uint32)

    def entry_path(entry: int) -> bytes:
        names = [tree.names[entry]]
        while folder := tree.parent[entry]:
            entry = int((inodes == folder).argmax())
            names.append(tree.names[entry])
        return b"/".join([top, *reversed(names)])

    return lambda inode: [entry_path(each) for each in (inodes == inode).nonzero()[0].tolist()]

"""`ScanInTasks`: walk a large folder in tasks that each list some of the folders of one level.

A `Scan` goes through a tree level by level. The folders of a level do not depend on each other, so
an executor may list them. The results are joined in the order of the folders, which gives the same
tree as one process. A file with hard links in several folders is found by its inode number.

A machine may lack a disk that the others have mounted in the tree. It would list the empty folder
below without an error. So this process compares every folder with its own view before a task enters
it: the inode number, and whether it is on the file system of the top folder.
"""

from __future__ import annotations

import os
import stat
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.index.build import Xattrs
from ffrecord.archive.index.columns import MISSING, Texts, TextsOf
from ffrecord.archive.scan import Scan
from ffrecord.plan.executors import in_order

UNSHARED = ", or the machines do not share it"
TASKS = 64  # for each level; more than most executors have workers
MOST_FOLDERS = 1024  # in a task, so that its result stays small


@dataclass(frozen=True, slots=True)
class FoldersTask:
    """Some folders to list, and the options of the walk."""

    top: str
    dereference: bool
    exclude: Sequence[str]
    leave_out: Sequence[str]
    ignore_changed: bool
    folders: list[tuple[bytes, int, int]]
    """Path, device and inode number of each folder."""
    device: int
    """Device of the top folder. Other machines may number it differently."""


@dataclass(frozen=True, slots=True)
class Listed:
    """The contents of some folders. Numbers below `len(folders)` are these folders."""

    columns: list[array[int]]  # with one value for each new inode
    linked: list[int]  # inodes with several links
    names: Texts
    inode: array[int]  # of each entry
    parent: array[int]
    targets: TextsOf
    xattrs: list[tuple[int, Xattrs]]
    waiting: array[int]  # folders to list next
    skipped: Counter[str]
    changed: list[str]
    warned: list[tuple[str, type[Warning]]]
    followed: list[tuple[int, int, int, bytes]]  # symlinks to folders, which may be loops


class ScanInTasks(Scan):
    """A scan whose folders are listed by the workers of an executor."""

    DOUBT = UNSHARED

    def __init__(
        self, executor: Executor, top: str, *, dereference: bool = False,
        exclude: Iterable[str] = (), leave_out: Iterable[str] = (), ignore_changed: bool = False,
    ) -> None:  # fmt: skip
        self._executor = executor
        if not isinstance(exclude, str):  # a string is an error, which `Scan` raises
            exclude = list(exclude)
        leave_out = list(leave_out)
        self._options = top, dereference, exclude, leave_out, ignore_changed
        super().__init__(
            top, dereference=dereference, exclude=exclude, leave_out=leave_out,
            ignore_changed=ignore_changed,
        )  # fmt: skip

    def _level(self, folders: Sequence[int]) -> None:
        self._keep_rows()
        if len(folders) == 1:  # no work to share
            super()._level(folders)
            return
        folders = [each for each in folders if self._is_here(each)]
        size = max(1, min(MOST_FOLDERS, -(-len(folders) // TASKS)))
        chunks = [folders[at : at + size] for at in range(0, len(folders), size)]
        tasks = ((self._task(each),) for each in chunks)
        results = in_order(self._executor, list_folders, tasks, target=self._options[0])
        for chunk, listed in zip(chunks, results, strict=True):
            self._absorb(np.array(chunk, np.uint32), listed)

    def _is_here(self, folder: int) -> bool:
        """Return True if this process sees the folder that a worker has found."""
        path = self._folder_path(folder)
        flags = os.O_PATH | os.O_CLOEXEC | (0 if self._dereference else os.O_NOFOLLOW)
        fd = self._opened(path, flags)
        if fd is None:
            return False
        try:
            now = os.fstat(fd)
        finally:
            os.close(fd)
        top = self._device[0]
        found = self._number[folder], self._device[folder] == top
        if found != (now.st_ino, now.st_dev == top):
            self._gone(path)
            return False
        return True

    def _task(self, folders: Sequence[int]) -> FoldersTask:
        facts = [(self._folder_path(each), self._device[each], self._number[each])
                 for each in folders]  # fmt: skip
        return FoldersTask(*self._options, facts, self._device[0])

    def _absorb(self, folders: Ints, listed: Listed) -> None:
        """Add the contents of some folders, exactly as `_folder` would one by one."""
        tree, entries = self.tree, len(self.tree.names)
        keep, number = self._numbered(folders, listed)
        for column, values in zip(self._columns, listed.columns, strict=True):
            kept = np.frombuffer(values, column.typecode)[keep]
            if column is self._first_entry:
                kept = kept + np.uint32(entries)
            column.frombytes(kept.tobytes())
        for local in listed.linked:
            inode = int(number[local])
            if keep[local - len(folders)]:
                hashed = hash((self._device[inode], self._number[inode]))
                self._linked.add(hashed, inode)
        _extend(tree.names, listed.names)
        for column, values in ((tree.inode, listed.inode), (tree.parent, listed.parent)):
            column.frombytes(number[np.frombuffer(values, np.uint32)].tobytes())
        for local, target in zip(listed.targets.inodes, listed.targets.texts, strict=True):
            if keep[local - len(folders)]:
                tree.targets[int(number[local])] = target
        for local, xattrs in listed.xattrs:
            tree.xattrs[int(number[local])] = xattrs
        self._waiting.frombytes(number[np.frombuffer(listed.waiting, np.uint32)].tobytes())
        self.skipped.update(listed.skipped)
        self.changed += listed.changed
        for warned in listed.warned:
            self._warn(*warned)
        for local, device, inode_number, name in listed.followed:
            self._here = self._folder_path(int(folders[local]))
            try:
                self._refuse_loop(int(folders[local]), device, inode_number, name)
            except OSError as error:
                error.filename = self._path_here(name)
                raise

    def _numbered(self, folders: Ints, listed: Listed) -> tuple[Ints, Ints]:
        """Return which of the new inodes are kept, and the final number of every inode.

        An inode with hard links may be known from another folder already.
        """
        devices, numbers = listed.columns[-4], listed.columns[-3]
        keep = np.ones(len(devices), bool)
        known = {}
        for local in listed.linked:
            row = local - len(folders)
            inode = self._known(devices[row], numbers[row])
            if inode != MISSING:
                keep[row] = False
                known[row] = inode
        number = np.cumsum(keep) + (len(self.tree) - 1)
        number[list(known)] = list(known.values())
        return keep, np.concatenate([folders, number]).astype(np.uint32)

    def _known(self, device: int, number: int) -> int:
        """Return the inode of a file with hard links that was found before, or MISSING."""

        def is_it(inode: int) -> bool:
            return (self._device[inode], self._number[inode]) == (device, number)

        return self._linked.find(hash((device, number)), is_it)


def _extend(texts: Texts, more: Texts) -> None:
    ends = np.frombuffer(more.ends, np.uint64) + np.uint64(len(texts.bytes))
    texts.bytes += more.bytes
    texts.ends.frombytes(ends.tobytes())


# ---- in the workers ----------------------------------------------------------------------------


def list_folders(task: FoldersTask) -> Listed:
    """List folders, but not the folders in them."""
    return _Part(task).listed()


class _Part(Scan):
    """A walk of some folders, which are its first inodes."""

    DOUBT = UNSHARED

    def __init__(self, task: FoldersTask) -> None:
        self._task = task
        self._several: list[int] = []
        self._warned: list[tuple[str, type[Warning]]] = []
        self._followed: list[tuple[int, int, int, bytes]] = []
        super().__init__(
            task.top, dereference=task.dereference, exclude=task.exclude, leave_out=task.leave_out,
            ignore_changed=task.ignore_changed,
        )  # fmt: skip

    def _run(self) -> None:
        self._here_device = os.stat(self.top).st_dev
        for _, device, number in self._task.folders:
            here = self._here_device if device == self._task.device else device
            self._rows.append((stat.S_IFDIR, 0, 0, 0, 0, 0, here, number, 0, 0))
        self._level(range(len(self._task.folders)))

    def _folder_path(self, folder: int) -> bytes:
        return self._task.folders[folder][0]

    def _add_linked(self, hashed: int, inode: int) -> None:
        super()._add_linked(hashed, inode)
        self._several.append(inode)

    def _warn(self, message: str, kind: type[Warning]) -> None:
        self._warned.append((message, kind))

    def _refuse_loop(self, folder: int, device: int, number: int, name: bytes) -> None:
        self._followed.append((folder, self._as_told(device), number, name))

    def _as_told(self, device: int) -> int:
        """Return a device with the number that it has where the task was made."""
        return self._task.device if device == self._here_device else device

    def listed(self) -> Listed:
        """Return everything that was found, without the listed folders themselves."""
        skip, tree = len(self._task.folders), self.tree
        columns = [column[skip:] for column in self._columns]
        columns[-4] = array("Q", map(self._as_told, columns[-4]))
        return Listed(
            columns, self._several, tree.names, tree.inode, tree.parent, tree.targets,
            list(tree.xattrs.items()), self._waiting, self.skipped, self.changed, self._warned,
            self._followed,
        )  # fmt: skip

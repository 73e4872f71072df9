"""`Scan`: walks a folder that is to be packed, and notes the state of each file.

The walk is breadth first, with names sorted by bytes, so the same folder gives the same `Tree`.
Only folders are opened, one at a time. An opened folder is first compared with the folder that its
parent listed, and its files are then examined relative to it. So if a folder is replaced meanwhile,
nothing from outside gets into the tree.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import re
import stat
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.index.build import Tree, Xattrs
from ffrecord.archive.index.columns import MISSING, RowTable
from ffrecord.disk.longpaths import open_path
from ffrecord.errors import ChangedError, ChangedWarning
from ffrecord.format.index import DEEPEST, LONGEST_NAME
from ffrecord.text import Advised

Excluded: TypeAlias = Callable[[str, bool], bool]

_SKIPPED_KINDS = {
    stat.S_IFSOCK: "socket", stat.S_IFIFO: "fifo",
    stat.S_IFBLK: "block device", stat.S_IFCHR: "character device",
}  # fmt: skip
_LEAVE_OUT = "ignore_changed=True", "--ignore-changed"
_NO_XATTRS = (errno.ENOTSUP, errno.ENODATA, errno.EPERM)
# Errors of a broken symlink or a removed file.
NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LATEST_NS = (1 << 63) - 1  # in the year 2262; the earliest time is as far before 1970
MOST_ROWS = 1024  # rows that wait to be moved into columns
MOST_PATHS = 256  # folder paths that are cached


class Scan:
    """The tree of a folder, and the state of each file, which is used to detect later changes.

    The state takes 28 bytes for each inode, in addition to the columns of the tree.

    Args:
        top: the folder.
        dereference: treat a symlink as the file or folder that it points to.
        exclude: patterns of names to leave out, see `excluder`.
        leave_out: paths to leave out, such as the archive that is being replaced.
        ignore_changed: leave out a file that disappears during the walk, with a warning.
    """

    DOUBT: ClassVar[str] = ""
    """Another reason why a file may have disappeared."""

    def __init__(
        self, top: str, *, dereference: bool = False, exclude: Iterable[str] = (),
        leave_out: Iterable[str] = (), ignore_changed: bool = False,
    ) -> None:  # fmt: skip
        self.tree = Tree()
        self.skipped: Counter[str] = Counter()
        self.changed: list[str] = []  # with ignore_changed: paths that disappeared
        self._top = top_path(top)
        self._dereference = dereference
        self._excluded = excluder(exclude)
        self._leave_out = dict(_places(leave_out))
        self._ignore_changed = ignore_changed
        self.open_flags = opening_flags(dereference)
        self._device = array("Q")
        self._number = array("Q")
        self._ctime = array("q")
        self._first_entry = array("I")  # of each inode
        self._rows: list[tuple[int, ...]] = []
        self._linked = RowTable()  # inodes with several links
        self._waiting = array("I")  # folders to list, in order
        self._paths: dict[int, bytes] = {}  # of some folders
        self._here = self._top  # the folder that is being listed
        self._run()

    @property
    def top(self) -> bytes:
        """The path of the folder."""
        return self._top

    @property
    def lengths(self) -> array[int]:
        """The length of each inode's file."""
        return self.tree.length

    def open(self, path: bytes) -> int:
        """Open the file or folder at a path, which may have been replaced since the walk."""
        return open_path(path, self.open_flags)

    def path(self, inode: int) -> bytes:
        """Return the path on disk at which an inode was found."""
        return next(self.places([inode])) if inode else self._top

    def places(self, inodes: Iterable[int]) -> Iterator[bytes]:
        """Yield the path on disk at which each inode was found. The root must not be among them."""
        return self._places(map(self._first_entry.__getitem__, inodes))

    def paths(self, inode: int) -> list[bytes]:
        """Return all paths of an inode: a file with hard links has several."""
        found = (np.frombuffer(self.tree.inode, np.uint32) == inode).nonzero()[0]
        return list(self._places(found.tolist()))

    def _places(self, entries: Iterable[int]) -> Iterator[bytes]:
        """Yield the paths of entries; fast for entries of the same folder."""
        tree = self.tree
        names, ends, parents = tree.names.bytes, tree.names.ends, tree.parent
        known, prefix = -1, b""
        for entry in entries:
            if parents[entry] != known:
                known = parents[entry]
                prefix = self._folder_path(known) + b"/"
            yield prefix + names[ends[entry - 1] if entry else 0 : ends[entry]]

    def _folder_path(self, folder: int) -> bytes:
        """Return the path of a folder, built on the nearest cached path above it."""
        names: list[bytes] = []
        above, tree, paths = folder, self.tree, self._paths
        while above and above not in paths:
            entry = self._first_entry[above]
            names.append(tree.names[entry])
            above = tree.parent[entry]
        path = b"/".join([paths.get(above, self._top), *reversed(names)])
        if len(self._paths) >= MOST_PATHS:
            self._paths = {}  # not clear(): other threads may be using the old dictionary
        self._paths[folder] = path
        return path

    def identities(self, inodes: array[int]) -> tuple[Ints, Ints]:
        """Return the inode numbers on disk and the ctimes of files."""
        rows = np.frombuffer(inodes, np.uint32)
        number, ctime = (np.frombuffer(each, np.int64) for each in (self._number, self._ctime))
        return number[rows], ctime[rows]

    def forget(self) -> None:
        """Free the columns that are not in the tree. Call this when all files have been read."""
        for column in self._columns[len(self.tree.columns) :]:
            del column[:]

    def is_unchanged(self, inode: int, now: os.stat_result) -> bool:
        """Return True if this is the file that the walk found, with the same contents.

        Every change of a file's contents or attributes changes its ctime.
        """
        return (
            now.st_ctime_ns == self._ctime[inode]
            and now.st_size == self.tree.length[inode]
            and now.st_ino == self._number[inode]
            and now.st_dev == self._device[inode]
        )

    def _run(self) -> None:
        """Fill the tree, level by level."""
        fd = open_path(self._top, os.O_PATH | os.O_CLOEXEC)
        try:
            self._add_inode(os.fstat(fd), 0, b"")
        finally:
            os.close(fd)
        self._waiting.append(0)
        done = depth = 0
        while done < len(self._waiting):
            if depth > DEEPEST:
                self._keep_rows()
                path = self._folder_path(self._waiting[done])
                what = f"more than {DEEPEST} levels deep, too deep to pack; exclude this folder"
                raise OSError(errno.ENAMETOOLONG, what, path)
            level = self._waiting[done:]
            self._level(level)
            done, depth = done + len(level), depth + 1

    def _level(self, folders: Sequence[int]) -> None:
        """Add the contents of all folders of a level."""
        for folder in folders:
            self._keep_rows()
            self._folder(folder)
        self._keep_rows()

    def _opened(self, path: bytes, flags: int) -> int | None:
        """Open a folder. If it is gone, note that and return None."""
        try:
            return open_path(path, flags)
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
            self._gone(path)
            return None

    def _folder(self, folder: int) -> None:
        """Add the contents of a folder."""
        path = self._here = self._folder_path(folder)
        flags = _FOLDER if self._dereference or not folder else _FOLDER | os.O_NOFOLLOW
        fd = self._opened(path, flags)
        if fd is None:
            return
        name = b""
        try:
            now = os.fstat(fd)
            if (now.st_dev, now.st_ino) != (self._device[folder], self._number[folder]):
                self._gone(path)  # another folder has replaced it
                return
            if xattrs := read_xattrs(fd):
                self.tree.xattrs[folder] = xattrs
            for name in sorted(_names(fd)):
                self._entry(folder, fd, name)
        except OSError as error:
            error.filename = self._path_here(name)  # so far it is only the last name
            raise
        finally:
            os.close(fd)

    def _entry(self, folder: int, fd: int, name: bytes) -> None:
        """Add a name in an open folder, and its inode."""
        if len(name) > LONGEST_NAME:  # possible on some foreign file systems
            what = f"the name has more than {LONGEST_NAME} bytes; shorten the name"
            raise OSError(errno.ENAMETOOLONG, what, name)
        try:
            now = os.stat(name, dir_fd=fd, follow_symlinks=self._dereference)
            is_folder = stat.S_ISDIR(now.st_mode)
            if self._excluded is not None:
                below = self._path_here(name)[len(self._top) + 1 :]
                if self._excluded(os.fsdecode(below), is_folder):
                    return
            inode = self._inode(folder, fd, name, now)
        except OSError as error:
            if error.errno not in (*NOWHERE, errno.EINVAL):  # EINVAL: no longer a symlink
                raise
            self._gone(self._path_here(name), _is_symlink(fd, name))
            return
        if inode is None:
            return
        self.tree.add_entry(folder, name, inode)
        if is_folder:
            if self._dereference and _is_symlink(fd, name):
                self._refuse_loop(folder, now.st_dev, now.st_ino, name)
            self._waiting.append(inode)

    def _inode(self, folder: int, fd: int, name: bytes, now: os.stat_result) -> int | None:
        """Return the inode of a name: a new or, for a hard link, a known one; None to skip it."""
        kind = stat.S_IFMT(now.st_mode)
        if kind in _SKIPPED_KINDS:
            self.skipped[_SKIPPED_KINDS[kind]] += 1
            return None
        if self._leave_out and self._is_left_out(folder, fd, name, now):
            return None
        target = os.readlink(name, dir_fd=fd) if kind == stat.S_IFLNK else None
        several = now.st_nlink > 1 and kind != stat.S_IFDIR
        if several:
            hashed = hash((now.st_dev, now.st_ino))
            inode = self._linked.find(hashed, lambda row: self._is_inode(row, now))
            if inode != MISSING:
                return inode
        inode = self._add_inode(now, len(self.tree.names), name)
        if target is not None:
            self.tree.targets[inode] = target
        if several:
            self._add_linked(hashed, inode)
        return inode

    def _add_linked(self, hashed: int, inode: int) -> None:
        self._linked.add(hashed, inode)

    def _is_inode(self, inode: int, now: os.stat_result) -> bool:
        """Return True if `now` is the status of an inode, which may not be in columns yet."""
        waiting = inode - len(self.tree)
        if waiting >= 0:
            return self._rows[waiting][6:8] == (now.st_dev, now.st_ino)
        return (self._device[inode], self._number[inode]) == (now.st_dev, now.st_ino)

    def _is_left_out(self, folder: int, fd: int, name: bytes, now: os.stat_result) -> bool:
        """Return True if a name is one of the paths to leave out, or a followed symlink to one.

        Other hard links of such a file are packed: they keep the old archive when it is replaced.
        A followed symlink is left out, because it would lead to the new archive.
        """
        place = self._leave_out.get((now.st_dev, now.st_ino))
        here = (self._device[folder], self._number[folder], name)
        return place is not None and (place == here or _is_symlink(fd, name))

    def _add_inode(self, now: os.stat_result, entry: int, name: bytes) -> int:
        mtime = now.st_mtime_ns
        if not -LATEST_NS <= mtime <= LATEST_NS:
            self._warn(_too_far(mtime, self._path_here(name)), UserWarning)
            mtime = LATEST_NS if mtime > 0 else -LATEST_NS
        if len(self._rows) >= MOST_ROWS:
            self._keep_rows()
        self._rows.append((
            now.st_mode, now.st_uid, now.st_gid, mtime, now.st_size, 0,
            now.st_dev, now.st_ino, now.st_ctime_ns, entry,
        ))  # fmt: skip
        return len(self.tree) + len(self._rows) - 1

    def _keep_rows(self) -> None:
        """Move waiting rows into columns. This is much faster than one row at a time."""
        for column, values in zip(self._columns, zip(*self._rows, strict=True), strict=False):
            column.extend(values)
        self._rows.clear()

    @property
    def _columns(self) -> tuple[array[int], ...]:
        """The columns with one value for each inode."""
        own = self._device, self._number, self._ctime, self._first_entry
        return *self.tree.columns, *own

    def _refuse_loop(self, folder: int, device: int, number: int, name: bytes) -> None:
        """Raise an error for a symlink to a folder that contains it: the walk would never end."""
        while True:
            if (self._device[folder], self._number[folder]) == (device, number):
                what = "this symlink leads to a folder that contains it; exclude the symlink"
                raise OSError(errno.ELOOP, what, name)
            if folder == 0:
                return
            folder = self.tree.parent[self._first_entry[folder]]

    def _path_here(self, name: bytes) -> bytes:
        return self._here + b"/" + name if name else self._here

    def _gone(self, path: bytes, is_symlink: bool = False) -> None:
        shown = os.fsdecode(path)
        if is_symlink:
            what = f"{shown}: a broken symlink"
            advice = Advised(f"{what}; remove it, or pass ", *_LEAVE_OUT, " to leave it out")
        else:
            what = f"{shown}: disappeared while its folder was packed{self.DOUBT}"
            advice = change_advice(f"{shown}: disappeared", self.DOUBT)
        if not self._ignore_changed:
            raise ChangedError(advice)
        self.changed.append(shown)
        self._warn(f"{what}; left out", ChangedWarning)

    def _warn(self, message: str, kind: type[Warning]) -> None:
        warnings.warn(message, kind, stacklevel=3)


def top_path(folder: str) -> bytes:
    """Return the path of a folder as bytes, to which `/name` can be added."""
    return os.fsencode(folder).rstrip(b"/") or b"/."


def opening_flags(dereference: bool) -> int:
    """Return the flags to open a file that may have been replaced, by a fifo or a symlink."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    return flags if dereference else flags | os.O_NOFOLLOW


def change_advice(what: str, doubt: str = "") -> Advised:
    """Return the message about a file that changed or disappeared, with advice."""
    before = f"{what} while its folder was packed{doubt}; pack the folder again, or pass "
    return Advised(before, *_LEAVE_OUT)


def _names(fd: int) -> list[bytes]:
    """Return the names in an open folder as bytes.

    As text they would depend on the locale, and take more memory in a folder of a million files.
    """
    try:
        return os.listdir(b"/proc/self/fd/%d" % fd)
    except FileNotFoundError:  # /proc is missing
        return [os.fsencode(name) for name in os.listdir(fd)]


def _is_symlink(fd: int, name: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _places(paths: Iterable[str]) -> Iterator[tuple[tuple[int, int], tuple[int, int, bytes]]]:
    """Yield, for each existing path, its device and inode, and its place.

    The place is the device and inode of the folder that contains it, and its name there.

    Files are compared by inode, because the walk may reach a file by another path.
    """
    for path in map(os.path.realpath, paths):
        with contextlib.suppress(OSError):  # missing, or its name is too long
            now, above = os.stat(path), os.stat(os.path.dirname(path))
            name = os.fsencode(os.path.basename(path))
            yield (now.st_dev, now.st_ino), (above.st_dev, above.st_ino, name)


def _too_far(mtime: int, path: bytes) -> str:
    """Return the warning about a time that an archive cannot hold.

    Not an error: clocks can be wrong, and some tools set such times on purpose.
    """
    year = "2262" if mtime > 0 else "1677"
    seconds = mtime // 1_000_000_000
    what = f"{os.fsdecode(path)}: its modification time, {seconds} s since 1970, does not fit into "
    return what + f"an archive; packed with a time in {year}"


def read_xattrs(file: bytes | int) -> Xattrs:
    """Return the user.* extended attributes of a path or descriptor, sorted by name.

    An attribute that is removed meanwhile is left out. The ctime of the file shows the change.
    """
    try:
        names = os.listxattr(file)
    except OSError as error:
        if error.errno not in _NO_XATTRS:
            raise
        return ()
    return tuple(sorted(_users_xattrs(file, names))) if names else ()


def _users_xattrs(file: bytes | int, names: list[str]) -> Iterator[tuple[bytes, bytes]]:
    for name in names:
        if not name.startswith("user."):
            continue
        try:
            value = os.getxattr(file, name)
        except OSError as error:
            if error.errno not in _NO_XATTRS:
                raise
            continue
        yield os.fsencode(name), value


def excluder(patterns: Iterable[str]) -> Excluded | None:
    """Return a function that tells whether a path below the top matches one of the patterns.

    A pattern with a slash is matched against the whole path, a pattern without one against the
    name. A pattern that ends in a slash matches folders only. `*` also matches slashes.
    """
    if isinstance(patterns, str):
        raise TypeError(f"exclude must be a list of patterns; pass [{patterns!r}]")
    rules = []
    for pattern in patterns:
        bare = pattern.strip("/")
        by_path = "/" in bare or pattern.startswith("/")
        rules.append((re.compile(fnmatch.translate(bare)).match, by_path, pattern.endswith("/")))
    if not rules:
        return None

    def excluded(path: str, is_folder: bool) -> bool:
        name = path.rpartition("/")[2]
        return any(
            (is_folder or not folders_only) and match(path if by_path else name)
            for match, by_path, folders_only in rules
        )

    return excluded

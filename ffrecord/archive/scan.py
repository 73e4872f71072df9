"""Walking a folder that is to be packed: what is there, and what each file was like.

Breadth first, each folder's names sorted by bytes, so that the same folder gives the same `Tree`.
Nothing is opened but folders, one at a time. Names are looked at from the open folder, after it
was compared with the folder that was seen from above: whatever takes a folder's place meanwhile,
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
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np

from ffrecord.archive.index.build import Tree, Xattrs
from ffrecord.archive.index.columns import MISSING, RowTable
from ffrecord.disk.longpaths import open_path
from ffrecord.errors import ChangedError, ChangedWarning
from ffrecord.format.index import DEEPEST, LONGEST_NAME

Excluded: TypeAlias = Callable[[str, bool], bool]

_SKIPPED_KINDS = {
    stat.S_IFSOCK: "socket", stat.S_IFIFO: "fifo",
    stat.S_IFBLK: "block device", stat.S_IFCHR: "character device",
}  # fmt: skip
_NO_XATTRS = (errno.ENOTSUP, errno.ENODATA, errno.EPERM)
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # where a symlink may lead
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LATEST_NS = (1 << 63) - 1  # in the year 2262, and as far before 1970
MOST_ROWS = 1024  # that are not in columns yet
MOST_PATHS = 256  # of folders, that are kept


class Scan:
    """A folder's tree, and beside it what tells whether a file is still the one that was seen.

    That is 28 bytes for each inode, beside the tree's columns.

    Args:
        top: the folder.
        dereference: take symlinks for what they point to.
        exclude: patterns of what to leave out, as `excluder` takes them.
        leave_out: paths that are not packed, such as the archive that is replaced.
        ignore_changed: what goes away while it is looked at is left out with a warning.
    """

    def __init__(
        self, top: str, *, dereference: bool = False, exclude: Iterable[str] = (),
        leave_out: Iterable[str] = (), ignore_changed: bool = False,
    ) -> None:  # fmt: skip
        self.tree = Tree()
        self.skipped: Counter[str] = Counter()
        self.changed: list[str] = []  # with ignore_changed: what went away meanwhile
        self._top = os.fsencode(top).rstrip(b"/") or b"/."
        self._dereference = dereference
        self._excluded = excluder(exclude)
        self._leave_out = dict(_places(leave_out))
        self._ignore_changed = ignore_changed
        self.open_flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        if not dereference:
            self.open_flags |= os.O_NOFOLLOW
        self._device = array("Q")
        self._number = array("Q")
        self._ctime = array("q")
        self._first_entry = array("I")  # of each inode
        self._rows: list[tuple[int, ...]] = []
        self._linked = RowTable()  # the inodes that have several links
        self._waiting = array("I")  # folders, in order
        self._paths: dict[int, bytes] = {}  # of some folders
        self._here = self._top  # the folder that is gone through
        self._run()

    def open(self, path: bytes) -> int:
        """A descriptor of the file or folder at a path, or of what has taken its place."""
        return open_path(path, self.open_flags)

    def path(self, inode: int) -> bytes:
        """Where on disk an inode was found."""
        return next(self.places([inode])) if inode else self._top

    def places(self, inodes: Iterable[int]) -> Iterator[bytes]:
        """Where on disk each of some inodes was found; none is the root."""
        return self._places(map(self._first_entry.__getitem__, inodes))

    def paths(self, inode: int) -> list[bytes]:
        """All the places where it was found: a file with hard links has several."""
        found = (np.frombuffer(self.tree.inode, np.uint32) == inode).nonzero()[0]
        return list(self._places(found.tolist()))

    def _places(self, entries: Iterable[int]) -> Iterator[bytes]:
        """The paths of entries: fast for neighbours, as files mostly are."""
        tree = self.tree
        names, ends, parents = tree.names.bytes, tree.names.ends, tree.parent
        known, prefix = -1, b""
        for entry in entries:
            if parents[entry] != known:
                known = parents[entry]
                prefix = self._folder_path(known) + b"/"
            yield prefix + names[ends[entry - 1] if entry else 0 : ends[entry]]

    def _folder_path(self, folder: int) -> bytes:
        """The path of a folder, from the nearest one above it whose path is known."""
        names: list[bytes] = []
        above, tree, paths = folder, self.tree, self._paths
        while above and above not in paths:
            entry = self._first_entry[above]
            names.append(tree.names[entry])
            above = tree.parent[entry]
        path = b"/".join([paths.get(above, self._top), *reversed(names)])
        if len(self._paths) >= MOST_PATHS:
            self._paths = {}  # a new one: other threads go on with the old
        self._paths[folder] = path
        return path

    def forget(self) -> None:
        """Let go of all but the tree, when no file will be read any more."""
        for column in (self._device, self._number, self._ctime, self._first_entry):
            del column[:]

    def is_unchanged(self, inode: int, now: os.stat_result) -> bool:
        """Whether a file is the one that was seen, with the bytes that it had.

        Whatever changes a file's bytes or attributes changes its ctime.
        """
        return (
            now.st_ctime_ns == self._ctime[inode]
            and now.st_size == self.tree.length[inode]
            and now.st_ino == self._number[inode]
            and now.st_dev == self._device[inode]
        )

    def _run(self) -> None:
        """Fill the tree. The folders of one level are gone through before those below them."""
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
                raise OSError(errno.ENAMETOOLONG, f"more than {DEEPEST} levels deep", path)
            level = range(done, len(self._waiting))
            for row in level:
                self._keep_rows()
                self._folder(self._waiting[row])
            done, depth = level.stop, depth + 1
        self._keep_rows()

    def _folder(self, folder: int) -> None:
        """Add what is in a folder."""
        path = self._here = self._folder_path(folder)
        flags = _FOLDER if self._dereference or not folder else _FOLDER | os.O_NOFOLLOW
        try:
            fd = open_path(path, flags)
        except OSError as error:
            if error.errno not in _NOWHERE:
                raise
            self._gone(path)
            return
        name = b""
        try:
            now = os.fstat(fd)
            if (now.st_dev, now.st_ino) != (self._device[folder], self._number[folder]):
                self._gone(path)  # another folder has taken its place
                return
            if xattrs := read_xattrs(fd):
                self.tree.xattrs[folder] = xattrs
            for name in sorted(_names(fd)):
                self._entry(folder, fd, name)
        except OSError as error:
            error.filename = self._path_here(name)  # the system has heard of the name only
            raise
        finally:
            os.close(fd)

    def _entry(self, folder: int, fd: int, name: bytes) -> None:
        """Add a name in a folder, which is open, and the inode that it names."""
        if len(name) > LONGEST_NAME:  # some foreign file systems have such
            raise OSError(errno.ENAMETOOLONG, f"a name of more than {LONGEST_NAME} bytes", name)
        try:
            now = os.stat(name, dir_fd=fd, follow_symlinks=self._dereference)
            is_folder = stat.S_ISDIR(now.st_mode)
            if self._excluded is not None:
                below = self._path_here(name)[len(self._top) + 1 :]
                if self._excluded(os.fsdecode(below), is_folder):
                    return
            inode = self._inode(folder, fd, name, now)
        except OSError as error:
            if error.errno not in (*_NOWHERE, errno.EINVAL):  # EINVAL: no symlink any more
                raise
            self._gone(self._path_here(name), _is_symlink(fd, name))
            return
        if inode is None:
            return
        self.tree.add_entry(folder, name, inode)
        if is_folder:
            if self._dereference and _is_symlink(fd, name):
                self._refuse_loop(folder, now, name)
            self._waiting.append(inode)

    def _inode(self, folder: int, fd: int, name: bytes, now: os.stat_result) -> int | None:
        """The inode of a name, a new one unless it is a hard link; None if it is not packed."""
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
            self._linked.add(hashed, inode)
        return inode

    def _is_inode(self, inode: int, now: os.stat_result) -> bool:
        """Whether an inode, which may not be in columns yet, is the one that stat(2) has found."""
        waiting = inode - len(self.tree)
        if waiting >= 0:
            return self._rows[waiting][6:8] == (now.st_dev, now.st_ino)
        return (self._device[inode], self._number[inode]) == (now.st_dev, now.st_ino)

    def _is_left_out(self, folder: int, fd: int, name: bytes, now: os.stat_result) -> bool:
        """Not every name of the file is: a hard link keeps what it has when an archive is
        replaced. But a symlink that is followed leads to the new one."""
        place = self._leave_out.get((now.st_dev, now.st_ino))
        here = (self._device[folder], self._number[folder], name)
        return place is not None and (place == here or _is_symlink(fd, name))

    def _add_inode(self, now: os.stat_result, entry: int, name: bytes) -> int:
        mtime = now.st_mtime_ns
        if not -LATEST_NS <= mtime <= LATEST_NS:
            mtime = _nearest_time(mtime, self._path_here(name))
        if len(self._rows) >= MOST_ROWS:
            self._keep_rows()
        self._rows.append((
            now.st_mode, now.st_uid, now.st_gid, mtime, now.st_size, 0,
            now.st_dev, now.st_ino, now.st_ctime_ns, entry,
        ))  # fmt: skip
        return len(self.tree) + len(self._rows) - 1

    def _keep_rows(self) -> None:
        """Put some inodes into columns, which is much faster than one by one."""
        columns = (
            *self.tree.columns, self._device, self._number, self._ctime, self._first_entry
        )  # fmt: skip
        for column, values in zip(columns, zip(*self._rows, strict=True), strict=False):
            column.extend(values)
        self._rows.clear()

    def _refuse_loop(self, folder: int, now: os.stat_result, name: bytes) -> None:
        """A symlink to a folder above it would be followed for ever."""
        while True:
            if (self._device[folder], self._number[folder]) == (now.st_dev, now.st_ino):
                raise OSError(errno.ELOOP, "a symlink to a folder that it is in", name)
            if folder == 0:
                return
            folder = self.tree.parent[self._first_entry[folder]]

    def _path_here(self, name: bytes) -> bytes:
        return self._here + b"/" + name if name else self._here

    def _gone(self, path: bytes, is_symlink: bool = False) -> None:
        what = f"{os.fsdecode(path)}: went away while its folder was packed"
        if is_symlink:
            what = f"{os.fsdecode(path)}: a symlink that leads nowhere"
        if not self._ignore_changed:
            raise ChangedError(what)
        self.changed.append(os.fsdecode(path))
        warnings.warn(what, ChangedWarning, stacklevel=2)


def _names(fd: int) -> list[bytes]:
    """The names in an open folder. As text they would depend on the locale, and take more memory
    in a folder of a million."""
    try:
        return os.listdir(b"/proc/self/fd/%d" % fd)
    except FileNotFoundError:  # there is no /proc
        return [os.fsencode(name) for name in os.listdir(fd)]


def _is_symlink(fd: int, name: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _places(paths: Iterable[str]) -> Iterator[tuple[tuple[int, int], tuple[int, int, bytes]]]:
    """Device and inode of each path that is there, and those of its folder with its name in it:
    the walk may come to it by another path."""
    for path in map(os.path.realpath, paths):
        with contextlib.suppress(OSError):  # not there, or with a name that is too long
            now, above = os.stat(path), os.stat(os.path.dirname(path))
            name = os.fsencode(os.path.basename(path))
            yield (now.st_dev, now.st_ino), (above.st_dev, above.st_ino, name)


def _nearest_time(mtime: int, path: bytes) -> int:
    """No reason not to pack a file: clocks are wrong, and some tools set such times on purpose."""
    year = "2262" if mtime > 0 else "1677"
    what = f"{os.fsdecode(path)}: its time is beyond what an archive holds; packed as of {year}"
    warnings.warn(what, stacklevel=2)
    return LATEST_NS if mtime > 0 else -LATEST_NS


def read_xattrs(file: bytes | int) -> Xattrs:
    """The user.* extended attributes of a path or descriptor, sorted by name.

    One that is removed meanwhile is not among them; the file's ctime tells of that.
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
    """Whether a path below the top, a folder or not, matches one of the patterns.

    A pattern with a slash in it is matched against the whole path, one without against the name;
    one that ends in a slash matches folders only. `*` also matches slashes.
    """
    if isinstance(patterns, str):
        raise TypeError("exclude must be a list of patterns, not one str")
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

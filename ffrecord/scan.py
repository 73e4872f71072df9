"""Walking a folder that is to be packed: what is there, and what each file was like.

Breadth first, each folder's names sorted by bytes, so that the same folder gives the same `Tree`.
Nothing is opened but folders.
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

from ffrecord.errors import ChangedError, ChangedWarning
from ffrecord.index.build import Tree, Xattrs
from ffrecord.index.layout import DEEPEST, LONGEST_NAME

Excluded: TypeAlias = Callable[[str, bool], bool]

_SKIPPED_KINDS = {
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "fifo",
    stat.S_IFBLK: "block device",
    stat.S_IFCHR: "character device",
}
_NO_XATTRS = (errno.ENOTSUP, errno.ENODATA, errno.EPERM)
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # where a symlink may lead
LATEST_NS = (1 << 63) - 1  # in the year 2262, and as far before 1970


class Scan:
    """A folder's tree, and beside it what tells whether a file is still the one that was seen.

    Args:
        top: the folder.
        dereference: take symlinks for what they point to.
        exclude: patterns of what to leave out, as `excluder` takes them.
        leave_out: paths that are not packed, such as the archive that is replaced.
        ignore_changed: what goes away while it is looked at is left out with a warning.
    """

    def __init__(
        self,
        top: str,
        *,
        dereference: bool = False,
        exclude: Iterable[str] = (),
        leave_out: Iterable[str] = (),
        ignore_changed: bool = False,
    ) -> None:
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
        self._linked: dict[tuple[int, int], int] = {}
        self._folders: dict[int, bytes] = {}  # the paths of those that have something in them
        self._run()

    def path(self, inode: int) -> bytes:
        """Where on disk an inode was found."""
        if inode == 0:
            return self._top
        entry = self._first_entry[inode]
        return self._folders[self.tree.parent[entry]] + b"/" + self.tree.names[entry]

    def paths(self, inode: int) -> list[bytes]:
        """All the places where it was found: a file with hard links has several."""
        tree = self.tree
        return [
            self._folders[tree.parent[entry]] + b"/" + tree.names[entry]
            for entry, named in enumerate(tree.inode)
            if named == inode
        ]

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
        self._add_inode(os.stat(self._top), 0, self._top)
        self._keep_rows()
        level = [(0, self._top)]
        depth = 0
        while level:
            if depth > DEEPEST:
                raise OSError(errno.ENAMETOOLONG, f"more than {DEEPEST} levels deep", level[0][1])
            below: list[tuple[int, bytes]] = []
            for folder, path in level:
                below += self._folder(folder, path)
                self._keep_rows()
            level, depth = below, depth + 1

    def _folder(self, folder: int, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Add what is in a folder; yield the folders among it and their paths."""
        self._folders[folder] = path
        for entry in self._listed(folder, path):
            if len(entry.name) > LONGEST_NAME:  # some foreign file systems have such
                raise OSError(errno.ENAMETOOLONG, "a name of more than 255 bytes", entry.path)
            try:
                now = entry.stat(follow_symlinks=self._dereference)
            except OSError as error:
                if error.errno not in _NOWHERE:
                    raise
                self._gone(entry.path)
                continue
            is_folder = stat.S_ISDIR(now.st_mode)
            if self._excluded is not None:
                below = os.fsdecode(entry.path[len(self._top) + 1 :])
                if self._excluded(below, is_folder):
                    continue
            try:
                inode = self._add(folder, entry, now)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EINVAL):  # EINVAL: no symlink any more
                    raise
                self._gone(entry.path)
                continue
            if inode is None:
                continue
            self.tree.add_entry(folder, entry.name, inode)
            if is_folder:
                if entry.is_symlink():
                    self._refuse_loop(folder, now, entry.path)
                yield inode, entry.path

    def _listed(self, folder: int, path: bytes) -> list[os.DirEntry[bytes]]:
        """What is in a folder, by name, if it is still the one that was seen; its attributes are
        added."""
        try:
            xattrs = read_xattrs(path)
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            now = os.stat(path, follow_symlinks=self._dereference or folder == 0)
        except (FileNotFoundError, NotADirectoryError):
            self._gone(path)
            return []
        if (now.st_dev, now.st_ino) != (self._device[folder], self._number[folder]):
            self._gone(path)  # another folder has taken its place, or a symlink to one
            return []
        if xattrs:
            self.tree.xattrs[folder] = xattrs
        return entries

    def _add(self, folder: int, entry: os.DirEntry[bytes], now: os.stat_result) -> int | None:
        """The inode of an entry, a new one unless it is a hard link; None if it is not packed."""
        kind = stat.S_IFMT(now.st_mode)
        if kind in _SKIPPED_KINDS:
            self.skipped[_SKIPPED_KINDS[kind]] += 1
            return None
        inode: int | None = None
        if self._leave_out and self._is_left_out(folder, entry, now):
            return None
        target = os.readlink(entry.path) if kind == stat.S_IFLNK else None
        several = now.st_nlink > 1 and kind != stat.S_IFDIR
        if several:
            inode = self._linked.get((now.st_dev, now.st_ino))
        if inode is None:
            inode = self._add_inode(now, len(self.tree.names), entry.path)
            if target is not None:
                self.tree.targets[inode] = target
            if several:
                self._linked[now.st_dev, now.st_ino] = inode
        return inode

    def _is_left_out(self, folder: int, entry: os.DirEntry[bytes], now: os.stat_result) -> bool:
        """Not every name of the file is: a hard link keeps what it has when an archive is
        replaced. But a symlink that is followed leads to the new one."""
        place = self._leave_out.get((now.st_dev, now.st_ino))
        here = (self._device[folder], self._number[folder], entry.name)
        return place is not None and (place == here or entry.is_symlink())

    def _add_inode(self, now: os.stat_result, entry: int, path: bytes) -> int:
        mtime = now.st_mtime_ns
        if not -LATEST_NS <= mtime <= LATEST_NS:
            mtime = _nearest_time(mtime, path)
        self._rows.append((
            now.st_mode, now.st_uid, now.st_gid, mtime, now.st_size, 0,
            now.st_dev, now.st_ino, now.st_ctime_ns, entry,
        ))  # fmt: skip
        return len(self.tree) + len(self._rows) - 1

    def _keep_rows(self) -> None:
        """Put the inodes of a folder into columns, which is much faster than one by one."""
        columns = (
            *self.tree.columns, self._device, self._number, self._ctime, self._first_entry
        )  # fmt: skip
        for column, values in zip(columns, zip(*self._rows, strict=True), strict=False):
            column.extend(values)
        self._rows.clear()

    def _refuse_loop(self, folder: int, now: os.stat_result, path: bytes) -> None:
        """A symlink to a folder above it would be followed for ever."""
        while True:
            if (self._device[folder], self._number[folder]) == (now.st_dev, now.st_ino):
                raise OSError(errno.ELOOP, "a symlink to a folder that it is in", path)
            if folder == 0:
                return
            folder = self.tree.parent[self._first_entry[folder]]

    def _gone(self, path: bytes) -> None:
        what = f"{os.fsdecode(path)}: went away while its folder was packed"
        if os.path.islink(path):
            what = f"{os.fsdecode(path)}: a symlink that leads nowhere"
        if not self._ignore_changed:
            raise ChangedError(what)
        self.changed.append(os.fsdecode(path))
        warnings.warn(what, ChangedWarning, stacklevel=2)


def _places(paths: Iterable[str]) -> Iterator[tuple[tuple[int, int], tuple[int, int, bytes]]]:
    """Of each path that is there what it is, and in which folder under which name. As numbers:
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

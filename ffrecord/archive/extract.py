"""Taking an archive apart into files again, and never writing outside the folder that was named.

Whatever an archive says, and whoever changes the folder meanwhile: every file and folder is made
relative to an open folder (see `placing`). So a symlink that comes out of the archive, or was
there before, never leads a later file elsewhere. Names were checked when the archive was opened.

A file gets its name when it is whole, verified and has its attributes (see `placing`): one that
turns out damaged, or at which the process is killed, is not left behind under its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.archive.archive import Archive
from ffrecord.archive.counts import Counts
from ffrecord.archive.index import ROOT, Index, Status
from ffrecord.archive.index.resolve import require, resolve
from ffrecord.archive.names import to_bytes, to_text
from ffrecord.archive.placing import NO_LINKS, PASSING, OpenFolders, Placing
from ffrecord.atomic.direct import write_all
from ffrecord.atomic.holes import write_with_holes
from ffrecord.errors import FFRecordError, NoRoomError
from ffrecord.text import there_already

BATCH_FILES = 256
BATCH_BYTES = 8 << 20

_SET_IDS = stat.S_ISUID | stat.S_ISGID


@dataclass(slots=True)
class ExtractReport(Counts):
    """Counts of the things extracted, and of those that were damaged and left out."""

    damaged: int = 0


def extract(
    archive: Archive, dest: str | os.PathLike[str],
    paths: Iterable[str | os.PathLike[str]] | None = None, *, overwrite: bool = False,
    sparse: bool = False, on_damage: Callable[[str, FFRecordError], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExtractReport:  # fmt: skip
    """Restore files, folders, symlinks and hard links below `dest`, with modes, times, user.*
    attributes and, for root, owners.

    Args:
        archive: where from.
        dest: the folder; it is made if it is not there. It gets the packed folder's own attributes
            only if it was empty and everything is extracted.
        paths: which files and folders; all if left out. They keep their whole path below `dest`;
            folders on that path which are there already stay as they are.
        overwrite: replace what is there. Otherwise that is a FileExistsError; folders that are
            there are added to either way.
        sparse: make holes, which take no room on the disk, of zeros.
        on_damage: called with the path and error of each damaged file or symlink, which is then
            left out, and of each folder whose attributes are damaged; without it the error is
            raised. What was made before an error stays, with its attributes.
        progress: called with how many files and bytes have been added.
    """
    names = None if paths is None else [to_bytes(path) for path in paths]
    require(archive.index, names or ())
    dest = os.fspath(dest)
    _make_dest(dest)
    root = os.open(dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        work = _Extraction(archive, dest, root, overwrite, sparse, on_damage, progress)
        work.run(names)
        return work.report
    finally:
        os.close(root)


def _make_dest(dest: str) -> None:
    try:
        os.makedirs(dest, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder", dest) from None


class _Extraction:
    def __init__(
        self, archive: Archive, dest: str, root: int, overwrite: bool, sparse: bool,
        on_damage: Callable[[str, FFRecordError], None] | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:  # fmt: skip
        self.report = ExtractReport()
        self._archive = archive
        self._index = archive.index
        self._dest = dest
        self._root = root
        self._overwrite = overwrite
        self._sparse = sparse
        free = partial(_is_not_packed, archive.index, PASSING)
        self._placing = Placing(overwrite=overwrite, may_use_passing=free)
        self._on_damage = on_damage
        self._progress = progress or (lambda files, size: None)
        self._folders = OpenFolders(archive.index, root)
        self._made: dict[int, tuple[int, bytes]] = {}  # where a file with several names is
        self._finish: set[int] = set()  # folders, whose attributes come last
        self._empty: set[int] = set()  # folders that had nothing in them, so no file is in the way
        self._named: set[tuple[int, bytes]] = set()  # what was asked for and made
        self._owners = os.geteuid() == 0
        self._warned = False

    def run(self, paths: Iterable[bytes] | None) -> None:
        try:
            self._make(paths)
        except BaseException:
            # What was made stays, so it gets its attributes; the first error is the one to know.
            with contextlib.suppress(OSError, FFRecordError):
                self._finish_folders()
            raise
        else:
            self._finish_folders()
        finally:
            self._folders.close()

    def _make(self, paths: Iterable[bytes] | None) -> None:
        if paths is None:
            if not os.listdir(self._root):
                self._finish.add(ROOT)
                self._empty.add(ROOT)
                with contextlib.suppress(PermissionError), self._naming(ROOT):  # it is not ours
                    os.fchmod(self._root, 0o700)  # until all is there, as other folders
            queue = [ROOT]
        else:
            queue = list(self._begin(paths))
        filled = set()
        # Folders of a level before those below it: the list grows while it is gone through.
        for folder in queue:
            if folder not in filled:
                filled.add(folder)
                queue += self._fill(folder, self._index.children(folder))

    def _finish_folders(self) -> None:
        """Attributes of folders, those inside others first. Whatever is wrong with one, the others
        do not stay as they were made, for their owner only."""
        failed: OSError | FFRecordError | None = None
        for folder in sorted(self._finish, reverse=True):
            try:
                with self._telling(folder), self._naming(folder):
                    self._set_attributes(self._folders[folder], self._index.status(folder))
            except (OSError, FFRecordError) as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _begin(self, paths: Iterable[bytes]) -> Iterator[int]:
        """Make what was named, and the folders that it is in; the folders to go on with."""
        for path in paths:
            folder, name = self._locate(path)
            above, inode = [], folder
            while inode != ROOT:
                above.append(inode)
                inode = self._index.parent(inode)
            for inode in reversed(above):
                self._make_folder(inode, on_the_way=inode != folder or name is not None)
            if name is None:
                yield folder
            else:
                yield from self._fill(folder, [(name, self._index.child(folder, name))])
                self._named.add((folder, name))

    def _locate(self, path: bytes) -> tuple[int, bytes | None]:
        """A path's folder and its last name; the folder itself if the last name is a dot."""
        inode = resolve(self._index, path, follow=path.endswith(b"/"))
        before, _, name = path.rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b".."):
            return inode, None
        return resolve(self._index, before), name

    def _fill(self, folder: int, children: Iterable[tuple[bytes, int]]) -> list[int]:
        """Make children of a folder; the folders among them."""
        inner = []
        batch: list[tuple[bytes, Status]] = []
        size = 0
        for name, inode in children:
            if (folder, name) in self._named:
                continue
            status = self._index.status(inode)
            if status.is_file and status.size <= BATCH_BYTES and inode not in self._made:
                batch.append((name, status))
                size += status.size
                # The next name may be one for the same file, which must be there by then.
                if size <= BATCH_BYTES and len(batch) < BATCH_FILES and status.links == 1:
                    continue
                self._files(folder, batch)
            else:
                self._files(folder, batch)  # first: the rest may fail, and they are to be had
                if status.is_folder:
                    self._make_folder(inode)
                    inner.append(inode)
                else:
                    self._other(folder, name, status)
            batch, size = [], 0
        self._files(folder, batch)
        return inner

    # ---- one kind each -------------------------------------------------------------------

    def _files(self, folder: int, files: list[tuple[bytes, Status]]) -> None:
        """Small files, read as one batch."""
        if not files:
            return
        try:
            contents = self._archive.read(np.array([status.inode for _, status in files]))
        except FFRecordError:  # one by one: the others are to be had
            for name, status in files:
                self._file(folder, name, status, partial(self._archive.stream, status.inode))
            return
        for (name, status), content in zip(files, contents, strict=True):
            self._file(folder, name, status, partial(iter, (content,)))

    def _other(self, folder: int, name: bytes, status: Status) -> None:
        """A symlink, a large file, or another name for what was made."""
        if status.inode in self._made and self._hard_link(folder, name, status.inode):
            return
        if status.is_symlink:
            self._symlink(folder, name, status)
        else:
            self._file(folder, name, status, partial(self._archive.stream, status.inode))

    def _file(
        self, folder: int, name: bytes, status: Status, content: Callable[[], Iterable[Bytes]]
    ) -> None:
        def fill(fd: int) -> None:
            at = 0
            for piece in content():
                if self._sparse:
                    write_with_holes(fd, piece, at)
                else:
                    write_all(fd, piece.data, at)
                at += len(piece)
            if self._sparse:
                os.ftruncate(fd, at)  # it may end with a hole
            self._set_attributes(fd, status)

        with self._telling(folder, name):
            with self._naming(folder, name):
                is_new = folder in self._empty
                self._placing.file(self._folders[folder], name, fill, is_new=is_new)
            if status.links > 1:
                self._made[status.inode] = (folder, name)
            self.report.files += 1
            self.report.bytes += status.size
            self._progress(1, status.size)

    def _symlink(self, folder: int, name: bytes, status: Status) -> None:
        with self._telling(folder, name):
            target = self._index.target(status.inode)
            with self._place(folder, name) as (parent, place):
                os.symlink(target, place, dir_fd=parent)
                if self._owners:
                    os.chown(place, status.uid, status.gid, dir_fd=parent, follow_symlinks=False)
                times = (status.mtime_ns, status.mtime_ns)
                os.utime(place, ns=times, dir_fd=parent, follow_symlinks=False)
            if status.links > 1:
                self._made[status.inode] = (folder, name)
            self.report.symlinks += 1

    def _hard_link(self, folder: int, name: bytes, inode: int) -> bool:
        """Another name for a file that was made; False if that needs a second copy."""
        its_folder, first = self._made[inode]
        try:
            with self._place(folder, name) as (parent, place):
                source = self._folders[its_folder]
                os.link(first, place, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return False
        self.report.hard_links += 1
        return True

    def _make_folder(self, inode: int, *, on_the_way: bool = False) -> None:
        """Make a folder, or take the one that is there. If that is only on the way to what was
        asked for, it stays as it is."""
        if inode in self._finish or inode == ROOT:
            return
        folder, name = self._index.parent(inode), self._index.last_name(inode)
        with self._naming(folder, name):
            made = self._make_folder_at(self._folders[folder], name)
        if made:
            self._empty.add(inode)
        if made or not on_the_way:
            self.report.folders += 1
            self._finish.add(inode)

    def _make_folder_at(self, parent: int, name: bytes) -> bool:
        """Whether one had to be made."""
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            now = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISDIR(now.st_mode):
                return False
            if not self._overwrite:
                raise there_already() from None
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o700, dir_fd=parent)
        return True

    @contextlib.contextmanager
    def _place(self, folder: int, name: bytes) -> Iterator[tuple[int, bytes]]:
        """An open folder, and a name in it under which to make a symlink or a hard link."""
        with self._naming(folder, name):
            parent = self._folders[folder]
            with self._placing.name(parent, name) as place:
                yield parent, place

    # ---- how -----------------------------------------------------------------------------

    def _set_attributes(self, fd: int, status: Status) -> None:
        try:
            self._set_xattrs(fd, status.inode)  # first: they need a mode that can be written to
        finally:
            mode = stat.S_IMODE(status.mode)
            if self._owners:
                os.fchown(fd, status.uid, status.gid)
            elif status.uid != os.geteuid() or status.gid != os.getegid():
                mode &= ~_SET_IDS  # it would run as another user than the one it was made for
            os.fchmod(fd, mode)
            os.utime(fd, ns=(status.mtime_ns, status.mtime_ns))

    def _set_xattrs(self, fd: int, inode: int) -> None:
        for name, value in self._index.xattrs(inode).items():
            try:
                os.setxattr(fd, name, value)
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EPERM):
                    raise
                if not self._warned:
                    self._warned = True
                    warnings.warn(f"{self._dest}: takes no extended attributes", stacklevel=2)

    @contextlib.contextmanager
    def _telling(self, folder: int, name: bytes = b"") -> Iterator[None]:
        """Give damage in the archive to `on_damage`, if there is one, and go on without it."""
        try:
            yield
        except NoRoomError:
            raise
        except FFRecordError as error:
            if self._on_damage is None:
                raise
            self.report.damaged += 1
            self._on_damage(self._path(folder, name), error)

    @contextlib.contextmanager
    def _naming(self, folder: int, name: bytes = b"") -> Iterator[None]:
        """Errors of the operating system name the whole path."""
        self._folders.close_some()
        try:
            yield
        except FFRecordError:
            raise
        except OSError as error:
            path = self._path(folder, name)
            if error.errno in NoRoomError.ERRNOS:
                raise NoRoomError(path, error.errno) from error
            raise OSError(error.errno, error.strerror, path) from error

    def _path(self, folder: int, name: bytes) -> str:
        below = self._index.inode_path(folder)
        return os.path.join(self._dest, *(to_text(part) for part in (below, name) if part))


def _is_not_packed(index: Index, name: bytes) -> bool:
    """Whether no file has a name like this. (One that a killed extraction left may have been packed
    since: it is extracted like any other.)"""
    return name not in index.tables.names.tobytes()

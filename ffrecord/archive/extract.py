"""Extraction: restore the files of an archive below a folder, and write nothing outside it.

This holds for any archive, and even if another process changes the folder meanwhile: every file
and folder is made relative to an open folder (see `placing`). So no symlink, whether extracted or
already in the folder, can lead a later file elsewhere. Names were checked when the archive was
opened.

A file gets its name when it is whole, verified and has its attributes (see `placing`). If a file
is damaged, or the process is killed, no incomplete file is left under that name.
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
from ffrecord.archive.placing import PASSING, OpenFolders, Placing
from ffrecord.atomic.direct import write_all
from ffrecord.atomic.file import not_permitted
from ffrecord.atomic.holes import write_with_holes
from ffrecord.atomic.tempnames import NO_LINKS
from ffrecord.errors import FFRecordError, NoRoomError
from ffrecord.text import there_already

BATCH_FILES = 256  # small files that are read at once
BATCH_BYTES = 8 << 20  # larger files are read alone, in pieces

_SET_IDS = stat.S_ISUID | stat.S_ISGID


@dataclass(slots=True)
class ExtractReport(Counts):
    """Counts of extracted files, folders and links, and of damage."""

    damaged: int = 0
    """Number of damaged files and symlinks, and of folders with damaged attributes."""


def extract(
    archive: Archive, dest: str | os.PathLike[str],
    paths: Iterable[str | os.PathLike[str]] | None = None, *, overwrite: bool = False,
    sparse: bool = False, on_damage: Callable[[str, FFRecordError], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExtractReport:  # fmt: skip
    """Restore files, folders, symlinks and hard links below `dest`.

    Modes, times and `user.*` extended attributes are restored; owners too if root extracts. After
    an error, everything made so far stays, with its attributes.

    Args:
        archive: the archive to extract.
        dest: the target folder; it is created if missing. It gets the attributes of the packed
            folder only if it was empty and the whole archive is extracted.
        paths: the files and folders to extract; all by default. They keep their whole path below
            `dest`. Existing folders on that path keep their attributes.
        overwrite: replace existing files. Otherwise an existing file raises `FileExistsError`.
            Existing folders are always kept, and files are added to them.
        sparse: write runs of zeros as holes, which take no space on the disk.
        on_damage: called with the path and the error of each damaged file or symlink, which is
            then left out, and of each folder with damaged attributes. Without it the error is
            raised.
        progress: called with the number of files and of bytes written since the last call.
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
        what = "not a folder; pass a folder to extract into"
        raise NotADirectoryError(errno.ENOTDIR, what, dest) from None
    except PermissionError as error:
        raise not_permitted(error, os.path.abspath(error.filename)) from error


class _Extraction:
    """One run of `extract`."""

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
        self._made: dict[int, tuple[int, bytes]] = {}  # first place of a file with several names
        self._finish: set[int] = set()  # folders whose attributes are set at the end
        self._empty: set[int] = set()  # folders that were empty: no existing file can be in the way
        self._named: set[tuple[int, bytes]] = set()  # requested names that were extracted
        self._owners = os.geteuid() == 0
        self._warned = False

    def run(self, paths: Iterable[bytes] | None) -> None:
        try:
            self._make(paths)
        except BaseException:
            # Folders made so far stay, so set their attributes. Further errors are not reported.
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
                # Private until everything is extracted, like all new folders. PermissionError: the
                # folder belongs to another user.
                with contextlib.suppress(PermissionError), self._naming(ROOT):
                    os.fchmod(self._root, 0o700)
            queue = [ROOT]
        else:
            queue = list(self._begin(paths))
        filled = set()
        # Breadth first: the list grows during the loop.
        for folder in queue:
            if folder not in filled:
                filled.add(folder)
                queue += self._fill(folder, self._index.children(folder))

    def _finish_folders(self) -> None:
        """Set the attributes of all folders, inner folders first.

        If one fails, continue: a folder without its attributes is accessible to its owner only.
        """
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
        """Make the requested files and the folders on the way; yield folders still to be filled."""
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
        """Return the folder and the last name of a path.

        If the path ends in ".", ".." or is empty, return the folder it leads to, and None.
        """
        inode = resolve(self._index, path, follow=path.endswith(b"/"))
        before, _, name = path.rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b".."):
            return inode, None
        return resolve(self._index, before), name

    def _fill(self, folder: int, children: Iterable[tuple[bytes, int]]) -> list[int]:
        """Make children of a folder; return those that are folders."""
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
                # The next name may be a hard link to this file, so the file must exist by then.
                if size <= BATCH_BYTES and len(batch) < BATCH_FILES and status.links == 1:
                    continue
                self._files(folder, batch)
            else:
                self._files(folder, batch)  # first, because the next step may fail
                if status.is_folder:
                    self._make_folder(inode)
                    inner.append(inode)
                else:
                    self._other(folder, name, status)
            batch, size = [], 0
        self._files(folder, batch)
        return inner

    # ---- files, symlinks, hard links, folders --------------------------------------------

    def _files(self, folder: int, files: list[tuple[bytes, Status]]) -> None:
        """Make small files, read as one batch."""
        if not files:
            return
        try:
            contents = self._archive.read(np.array([status.inode for _, status in files]))
        except FFRecordError:  # one by one: undamaged files can still be extracted
            for name, status in files:
                self._file(folder, name, status, partial(self._archive.stream, status.inode))
            return
        for (name, status), content in zip(files, contents, strict=True):
            self._file(folder, name, status, partial(iter, (content,)))

    def _other(self, folder: int, name: bytes, status: Status) -> None:
        """Make a symlink, a large file, or a hard link to an extracted file."""
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
                os.ftruncate(fd, at)  # the file may end with a hole
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
        """Add a hard link to an extracted file. Return False if a copy is needed instead."""
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
        """Make a folder, or use the existing one.

        An existing folder that is only `on_the_way` to a requested file keeps its attributes.
        """
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
        """Make a folder; return False if it already exists."""
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
        """Yield an open folder, and a name in it at which to make a symlink or a hard link."""
        with self._naming(folder, name):
            parent = self._folders[folder]
            with self._placing.name(parent, name) as place:
                yield parent, place

    # ---- attributes and errors -----------------------------------------------------------

    def _set_attributes(self, fd: int, status: Status) -> None:
        try:
            self._set_xattrs(fd, status.inode)  # first: they need write permission
        finally:
            mode = stat.S_IMODE(status.mode)
            if self._owners:
                os.fchown(fd, status.uid, status.gid)
            elif status.uid != os.geteuid() or status.gid != os.getegid():
                # Otherwise the program would run as the user who extracts, not as its owner.
                mode &= ~_SET_IDS
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
                    what = "extended attributes are not restored: this file system refuses them"
                    warnings.warn(f"{self._dest}: {what}", stacklevel=2)

    @contextlib.contextmanager
    def _telling(self, folder: int, name: bytes = b"") -> Iterator[None]:
        """Report damage in the archive to `on_damage`, if given, and suppress the error."""
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
        """Add the whole path to errors of the operating system."""
        self._folders.close_some()
        try:
            yield
        except FFRecordError:
            raise
        except OSError as error:
            path = self._path(folder, name)
            if error.errno in NoRoomError.ERRNOS:
                raise NoRoomError(path, error.errno) from error
            if error.errno == errno.EACCES and name:
                raise not_permitted(error, path) from error
            raise OSError(error.errno, error.strerror, path) from error

    def _path(self, folder: int, name: bytes) -> str:
        below = self._index.inode_path(folder)
        return os.path.join(self._dest, *(to_text(part) for part in (below, name) if part))


def _is_not_packed(index: Index, name: bytes) -> bool:
    """Return True if the archive certainly does not contain this name.

    A packed file can have the temporary name of extractions, if the folder was packed after a
    killed extraction. Such a file is extracted like any other.
    """
    return name not in index.tables.names.tobytes()

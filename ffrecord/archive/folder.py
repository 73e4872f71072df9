"""`PackedFolder`: read a packed folder by name, like a folder on disk.

Names are paths inside the archive, such as "train/n01440764/1.jpg". The archive is the root folder:
a leading slash and "." change nothing, and ".." does not lead out. Symlinks inside the archive are
followed.
Errors are the same as for `open()`: FileNotFoundError, IsADirectoryError, NotADirectoryError.

Any number of threads may use a `PackedFolder`, and so may a forked process. It pickles as its path
and options, so a spawned process opens the archive again.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, overload

from ffrecord.aliases import Bytes, Closing, Ints
from ffrecord.archive import walk
from ffrecord.archive.archive import Archive, Naming
from ffrecord.archive.extract import ExtractReport, extract
from ffrecord.archive.fileobject import PackedFile
from ffrecord.archive.index import ROOT, Index
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.index.resolve import failed, leads_to, readable_record, resolve
from ffrecord.archive.names import to_bytes, to_text
from ffrecord.format.index import BLOCK
from ffrecord.records.reader import FileReader
from ffrecord.records.unchanged import changed
from ffrecord.remote.urls import is_remote
from ffrecord.text import path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

Name: TypeAlias = "str | os.PathLike[str]"
Names: TypeAlias = list[str]  # named here because `list` is a method in the class below
Arrays: TypeAlias = list[Bytes]
Paths: TypeAlias = list[Any]  # str and Path
Method = TypeVar("Method", bound=Callable[..., Any])

_OWN = ("_options", "_remote", "archive", "structure")
"""The attributes of a `PackedFolder` itself. All others belong to a subclass or to the user."""


def _formerly(former: str, now: str) -> Callable[[Method], Method]:
    """Let callers also pass an argument by its former name."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def renaming(*args: Any, **options: Any) -> Any:
            if former in options and now not in options:
                options[now] = options.pop(former)
            return method(*args, **options)

        return cast(Method, renaming)

    return decorate


class PackedFolder(Closing):
    """Reader of a folder that was packed by `pack_folder`, from this library or the original.

    Args:
        ffr_file: the archive: a file, a folder of shards, or a list of shards.
        check_data: verify the CRC-32 of the index and of everything that is read.
        mode: how records are read, see `FileReader`.
        memory: how much of the page cache may be filled, see `FileReader`.
        remote: options for URLs, see `FileReader`.
    """

    def __init__(
        self, ffr_file: Name | Sequence[Name], check_data: bool = True, *, mode: str = "auto",
        memory: int | str | None = None, **remote: Unpack[RemoteOptions],
    ) -> None:  # fmt: skip
        # Absolute paths, because another process may unpickle them in another working folder.
        absolute: Any = ffr_file
        if not is_remote(ffr_file, remote):
            absolute = (
                os.path.abspath(path_text(ffr_file))
                if isinstance(ffr_file, (str, os.PathLike))
                else [os.path.abspath(path_text(file)) for file in ffr_file]
            )
        self._options = (absolute, check_data, mode)
        self._remote = remote
        self.archive = Archive.open(
            ffr_file, check_data, mode=mode, lone=True, memory=memory, **remote
        )

    @property
    def reader(self) -> FileReader:
        """The reader of the archive's records."""
        return self.archive.reader

    @cached_property
    def structure(self) -> OrderedDict[str, Any]:
        """The tree as nested `OrderedDict`s, for compatibility with the original FFRecord.

        Each name maps to the number of its record or, for a folder, to another `OrderedDict`. A
        symlink to a file in the archive maps to the record of that file; other symlinks are left
        out.
        """
        index = self._index
        top: OrderedDict[str, Any] = OrderedDict()
        waiting = [(ROOT, top)]
        for folder, items in waiting:  # the list grows during the loop
            for name, inode in index.children(folder):
                if stat.S_ISDIR(index.mode(inode)):
                    inside: OrderedDict[str, Any] = OrderedDict()
                    items[to_text(name)] = inside
                    waiting.append((inode, inside))
                    continue
                record = readable_record(index, folder, name, inode)
                if record is not None:
                    items[to_text(name)] = record
        return top

    # ---- contents ------------------------------------------------------------------------

    @overload
    def read(self, fnames: Name) -> Bytes: ...  # type: ignore[overload-overlap]
    @overload
    def read(self, fnames: Iterable[Name]) -> Arrays: ...
    @_formerly("names", "fnames")
    def read(self, fnames: Name | Iterable[Name]) -> Bytes | Arrays:
        """Return the contents of files, read as one batch.

        For one name, return one array; for several names, a list of arrays in the same order. The
        arrays hold bytes, as from `FileReader.read`. A slash at the end of a file's name is
        ignored, as in the original FFRecord. `read_one`, `exists`, `is_file` and `is_dir` ignore
        it too.
        """
        if isinstance(fnames, (str, os.PathLike)):
            return self.read_one(fnames)
        names = _list_of(fnames)
        return self.archive.read_records(self._records(names), names.__getitem__)

    @_formerly("name", "fname")
    def read_one(self, fname: Name) -> Bytes:
        """Return the contents of one file."""
        record = self.record(fname)
        with Naming(fname):
            return self.reader.read_one(record)

    def read_range(self, name: Name, offset: int, length: int) -> Bytes:
        """Return `length` bytes of a file from `offset` on, or fewer at the end of the file.

        The bytes are verified. From a large file, only the 128 KiB blocks that hold them are read.
        In an archive of the original FFRecord, the first call reads the whole file.
        """
        if offset < 0 or length < 0:
            raise ValueError(f"offset and length must be at least 0, not {offset} and {length}")
        inode = self._file(name)
        with Naming(name):
            return self.archive.read_range(inode, offset, length)

    def stream(self, name: Name) -> Iterator[Bytes]:
        """Yield a file of any size in pieces of a few megabytes, each verified."""
        return self._stream(self._file(name), name)

    def _stream(self, inode: int, name: Name) -> Iterator[Bytes]:
        with Naming(name):
            yield from self.archive.stream(inode)

    def record(self, name: Name) -> int:
        """Return the number of the record that holds a file."""
        return int(self._records([name])[0])

    def records(self, names: Iterable[Name]) -> Ints:
        """Return, for each file, the number of the record that holds it."""
        return self._records(_list_of(names))

    def _records(self, names: Sequence[Name]) -> Ints:
        # Plain paths are found by hash; all other names are resolved step by step.
        try:
            paths = list(map(str.encode, names))  # type: ignore[arg-type]
        except (TypeError, UnicodeEncodeError):  # a Path; a name that is not UTF-8
            paths = [to_bytes(name) for name in names]
        index = self._index
        records = index.records(index.find(paths))
        for row in (records == MISSING).nonzero()[0].tolist():
            records[row] = self._record(names[row])
        return records

    def _record(self, name: Name) -> int:
        try:
            inode = self._file(name)
        except NotADirectoryError as error:  # perhaps only because of a slash at the end
            try:
                inode = self._file(PurePosixPath(name))
            except OSError:
                raise error from None
        return self._index.record(inode)

    def extract(
        self,
        dest: Name,
        names: Name | Sequence[Name] | None = None,
        *,
        overwrite: bool = False,
        sparse: bool = False,
    ) -> ExtractReport:
        """Restore files and folders below the folder `dest`.

        Args:
            dest: the target folder; it is created if missing.
            names: the files and folders to extract; all by default.
            overwrite: replace existing files.
            sparse: write runs of zeros as holes, which take no space on the disk.
        """
        if isinstance(names, (str, os.PathLike)):
            names = [names]
        return extract(self.archive, dest, names, overwrite=overwrite, sparse=sparse)

    def open(
        self,
        name: Name,
        mode: str = "rb",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """Return a seekable file object: binary, or text if `mode` is "r" or "rt"."""
        if mode not in ("rb", "r", "rt"):
            raise ValueError(f"mode is {mode!r}; archives are read-only: pass 'rb', 'r' or 'rt'")
        raw = PackedFile(self.archive, self._file(name), os.fspath(name))
        file = io.BufferedReader(raw, BLOCK)
        if mode == "rb":
            return file
        return io.TextIOWrapper(file, encoding, errors, newline)

    # ---- names ---------------------------------------------------------------------------

    def list(
        self,
        path: Name | None = None,
        list_file: bool = True,
        list_dir: bool = True,
        recursive: bool = False,
    ) -> Paths:
        """Return the names in a folder, sorted.

        As in the original FFRecord, names in the folder itself are `str`. With `recursive`, names
        further down are `pathlib.Path`, relative to the folder. A symlink to a folder counts as
        a folder, and any other symlink as a file. Symlinks to folders are not entered.
        """
        index = self._index
        found: Paths = []
        top = self._folder("" if path is None else path)
        for item in walk.descend(index, top, recursive=recursive):
            inode = leads_to(index, item.folder, item.name, item.inode)
            is_folder = stat.S_ISDIR(index.mode(inode))
            if list_dir if is_folder else list_file:
                found.append(Path(item.path) if "/" in item.path else item.path)
        return found

    def exists(self, path: Name) -> bool:
        """Return True if `path` is a file or folder. A broken symlink returns False."""
        return self._mode(path) != 0

    def is_file(self, path: Name) -> bool:
        """Return True if `path` is a regular file, or a symlink to one."""
        return stat.S_ISREG(self._mode(path))

    def is_dir(self, path: Name) -> bool:
        """Return True if `path` is a folder, or a symlink to one."""
        return stat.S_ISDIR(self._mode(path))

    def is_symlink(self, path: Name) -> bool:
        """Return True if `path` is a symlink."""
        return stat.S_ISLNK(self._mode(path, follow=False))

    def stat(self, name: Name, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of a file, like `os.stat`. All times equal `st_mtime`."""
        status = self._index.status(self._inode(name, follow=follow_symlinks))
        seconds = status.mtime_ns // 1_000_000_000
        mtime = status.mtime_ns / 1e9
        return os.stat_result(
            (status.mode, status.inode + 1, 0, status.links, status.uid, status.gid, status.size)
            + (seconds,) * 3,
            {
                "st_atime": mtime, "st_mtime": mtime, "st_ctime": mtime,
                "st_atime_ns": status.mtime_ns, "st_mtime_ns": status.mtime_ns,
                "st_ctime_ns": status.mtime_ns,
                "st_blksize": BLOCK, "st_blocks": status.blocks,
            },
        )  # fmt: skip

    def readlink(self, name: Name) -> str:
        """Return the target of a symlink, unchanged."""
        inode = self._inode(name, follow=False)
        if not stat.S_ISLNK(self._index.mode(inode)):
            raise failed(self._index, errno.EINVAL, os.fspath(name), "not a symlink")
        return to_text(self._index.target(inode))

    def xattrs(self, name: Name, *, follow_symlinks: bool = True) -> dict[str, bytes]:
        """Return the extended attributes of a file or folder, by name."""
        found = self._index.xattrs(self._inode(name, follow=follow_symlinks))
        return {to_text(key): value for key, value in found.items()}

    def walk(
        self, top: Name = "", *, followlinks: bool = False
    ) -> Iterator[tuple[str, Names, Names]]:
        """Yield the path, the folders and the files of each folder, like `os.walk`.

        The path of the root is "". To skip folders, remove them from the yielded list. Symlinks to
        folders are listed among the folders. With `followlinks` they are entered too, unless they
        lead to a folder that contains them.
        """
        path = os.fspath(top).rstrip("/")
        yield from walk.walk(self._index, path, self._folder(top), followlinks=followlinks)

    def glob(self, pattern: str) -> Names:
        """Return the paths that match a pattern, folder by folder.

        `*`, `?` and `[a-z]` match within a name, `**` matches any number of folders. A slash at
        the end matches folders only. Names that begin with a dot match like all others.
        """
        found = walk.matching(self._index, pattern)
        return [path for path in found if self.is_dir(path)] if pattern[-1:] == "/" else found

    def num_files(self) -> int:
        """Return the number of names of regular files. Each hard link counts."""
        return len(walk.file_entries(self._index))

    def __len__(self) -> int:
        return self.num_files()

    def __bool__(self) -> bool:
        """Return True, for an empty folder too, as in the original FFRecord."""
        return True

    def __iter__(self) -> Iterator[str]:
        """Yield the paths of all regular files. Files of outer folders come first."""
        return walk.all_files(self._index)

    @overload
    def __getitem__(self, names: Name | bytes) -> Bytes: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, names: Sequence[Name]) -> Arrays: ...
    def __getitem__(self, names: Name | bytes | Sequence[Name]) -> Bytes | Arrays:
        """Return the contents of a file, `folder["a/b.jpg"]`, or of several, `folder[["a", "b"]]`.

        A missing file raises FileNotFoundError, like `read`, not KeyError. To read records by
        number, use `folder.reader`.
        """
        return self.read(to_text(names) if isinstance(names, bytes) else names)

    def __getitems__(self, names: Sequence[Name]) -> Arrays:
        """Return a batch of files as one read. torch's loaders call this method."""
        return self.read(names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, (str, os.PathLike)) and self.exists(name)

    # ---- closing and pickling ------------------------------------------------------------

    def close(self) -> None:
        """Close the archive's files. Arrays that were returned stay valid."""
        self.archive.close()

    def __getstate__(self) -> Any:
        fingerprint = self.reader.__getstate__()["fingerprint"]
        added = {name: value for name, value in vars(self).items() if name not in _OWN}
        return *self._options, fingerprint, self.reader.memory, self._remote, added

    def __setstate__(self, state: Any) -> None:
        # Older states end before the attributes of subclasses, before the options for URLs, before
        # the limit of memory, or before the fingerprint.
        missing = (None,) * 4
        ffr_file, check_data, mode, fingerprint, memory, remote, added = (*state, *missing)[:7]
        PackedFolder.__init__(
            self, ffr_file, check_data, mode=mode, memory=memory, **(remote or {})
        )
        vars(self).update(added or {})
        if fingerprint not in (None, self.reader.fingerprint):
            raise changed(self.archive.path)

    def __repr__(self) -> str:
        return f"<PackedFolder {self.archive.path}: {len(self._index)} files and folders>"

    # ---- helpers -------------------------------------------------------------------------

    @property
    def _index(self) -> Index:
        return self.archive.index

    def _inode(self, name: Name, *, follow: bool = True) -> int:
        return resolve(self._index, to_bytes(name), follow=follow)

    def _file(self, name: Name) -> int:
        inode = self._inode(name)
        if not stat.S_ISREG(self._index.mode(inode)):
            raise failed(self._index, errno.EISDIR, os.fspath(name))
        return inode

    def _folder(self, name: Name) -> int:
        inode = self._inode(name)
        if not stat.S_ISDIR(self._index.mode(inode)):
            raise failed(self._index, errno.ENOTDIR, os.fspath(name))
        return inode

    def _mode(self, name: Name, *, follow: bool = True) -> int:
        """Return the mode of a file or folder, or 0 if it does not exist."""
        if follow and os.fspath(name).endswith(("/", "/.")):
            name = PurePosixPath(name)
        try:
            return self._index.mode(self._inode(name, follow=follow))
        except OSError:
            return 0


def argument_of(folder: PackedFolder) -> Any:
    """Return the argument `ffr_file` of a folder, with absolute paths.

    For modules of this package that open the archive again in another process.
    """
    return folder._options[0]


def _list_of(names: Iterable[Name]) -> list[Name]:
    try:
        return names if isinstance(names, list) else list(names)
    except TypeError:
        what = f"not {type(names).__name__}; to read records by number, use .reader"
        raise TypeError(f"names must be a name or a list of names, {what}") from None

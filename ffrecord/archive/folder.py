"""`PackedFolder`: a packed folder by names, as if it lay on disk.

Names are paths inside the archive, "train/n01440764/1.jpg"; a leading slash, "." and ".." mean what
they mean below a root directory, and symlinks inside the archive are followed. Errors are those
of `open()`: FileNotFoundError, IsADirectoryError, NotADirectoryError and so on.

A folder may be used by any number of threads and after a fork, and pickles as its path and
options, so a spawned process opens it again.
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
from typing import Any, TypeAlias, TypeVar, cast, overload

from ffrecord.aliases import Bytes, Closing, Ints
from ffrecord.archive import walk
from ffrecord.archive.archive import Archive, Naming
from ffrecord.archive.extract import ExtractReport, extract
from ffrecord.archive.fileobject import PackedFile
from ffrecord.archive.index import ROOT, Index
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.index.resolve import leads_to, readable_record, resolve
from ffrecord.archive.names import to_bytes, to_text
from ffrecord.format.index import BLOCK
from ffrecord.records.reader import FileReader
from ffrecord.records.unchanged import changed

Name: TypeAlias = "str | os.PathLike[str]"
Names: TypeAlias = list[str]  # in the class below `list` is the method
Arrays: TypeAlias = list[Bytes]
Paths: TypeAlias = list[Any]  # of str and Path
Method = TypeVar("Method", bound=Callable[..., Any])


def _formerly(former: str, now: str) -> Callable[[Method], Method]:
    """Let an argument be given by its former name, too."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def renaming(*args: Any, **options: Any) -> Any:
            if former in options and now not in options:
                options[now] = options.pop(former)
            return method(*args, **options)

        return cast(Method, renaming)

    return decorate


class PackedFolder(Closing):
    """Reads a folder that `pack_folder`, here or in the original FFRecord, has packed.

    Args:
        ffr_file: the archive: a file, or the folder of its shards.
        check_data: verify the CRC-32 of the index and of everything that is read.
        mode: how records are read, as `FileReader` has it.
    """

    def __init__(
        self, ffr_file: Name | Sequence[Name], check_data: bool = True, *, mode: str = "auto"
    ) -> None:
        # For other processes: this one may change its folder.
        absolute = (
            os.path.abspath(os.fsdecode(ffr_file))
            if isinstance(ffr_file, (str, os.PathLike))
            else [os.path.abspath(os.fsdecode(file)) for file in ffr_file]
        )
        self._options = (absolute, check_data, mode)
        self.archive = Archive.open(ffr_file, check_data, mode=mode, lone=True)

    @property
    def reader(self) -> FileReader:
        """The reader of the archive's records."""
        return self.archive.reader

    @cached_property
    def structure(self) -> OrderedDict[str, Any]:
        """The original's attribute: names in order, and for each its record's number or, for a
        folder, what is in it. Symlinks to files in here are those files, others are left out."""
        index = self._index
        top: OrderedDict[str, Any] = OrderedDict()
        waiting = [(ROOT, top)]
        for folder, items in waiting:  # it grows while it is gone through
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
        """The contents of files, in the order of `fnames`, as one batch; of one file for one name.

        Arrays of bytes, as `FileReader.read` returns. As in the original, here and in `read_one`,
        `exists`, `is_file` and `is_dir` a slash at the end of a file's name does not count.
        """
        if isinstance(fnames, (str, os.PathLike)):
            return self.read_one(fnames)
        names = _list_of(fnames)
        return self.archive.read_records(self._records(names), names.__getitem__)

    @_formerly("name", "fname")
    def read_one(self, fname: Name) -> Bytes:
        """The contents of a file."""
        record = self.record(fname)
        with Naming(fname):
            return self.reader.read_one(record)

    def read_range(self, name: Name, offset: int, length: int) -> Bytes:
        """`length` bytes of a file from `offset` on, or fewer where it ends before that.

        Checked like everything else: of a large file only the blocks of 128 KiB are read that
        hold these bytes.
        """
        if offset < 0 or length < 0:
            raise ValueError(f"offset and length must not be negative: {offset}, {length}")
        inode = self._file(name)
        with Naming(name):
            return self.archive.read_range(inode, offset, length)

    def stream(self, name: Name) -> Iterator[Bytes]:
        """A file of any size in pieces of a few megabytes, each checked."""
        return self._stream(self._file(name), name)

    def _stream(self, inode: int, name: Name) -> Iterator[Bytes]:
        with Naming(name):
            yield from self.archive.stream(inode)

    def record(self, name: Name) -> int:
        """The number of the record that holds a file."""
        return int(self._records([name])[0])

    def records(self, names: Iterable[Name]) -> Ints:
        """The number of the record that holds each file."""
        return self._records(_list_of(names))

    def _records(self, names: Sequence[Name]) -> Ints:
        # By hash where the name is a plain path, else step by step.
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
        except NotADirectoryError as error:  # unless that is only because of a slash at the end
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
        """Restore files and folders, or all of them, below the folder `dest`.

        With `overwrite` files that are there are replaced, with `sparse` zeros become holes.
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
        """A seekable file object; binary unless mode is "r" or "rt"."""
        if mode not in ("rb", "r", "rt"):
            raise ValueError(f"mode must be 'rb', 'r' or 'rt' in an archive, not {mode!r}")
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
        """The names in a folder, sorted.

        As in the original, names in the folder itself are `str`, those further down, relative to
        it, `pathlib.Path`. A symlink counts as what it points to, and is not descended into.
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
        """Whether there is a file or folder; False for a symlink that leads nowhere."""
        return self._mode(path) != 0

    def is_file(self, path: Name) -> bool:
        return stat.S_ISREG(self._mode(path))

    def is_dir(self, path: Name) -> bool:
        return stat.S_ISDIR(self._mode(path))

    def is_symlink(self, path: Name) -> bool:
        return stat.S_ISLNK(self._mode(path, follow=False))

    def stat(self, name: Name, *, follow_symlinks: bool = True) -> os.stat_result:
        """As `os.stat`; times other than st_mtime are the same as that."""
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
        """Where a symlink points, as it was written."""
        inode = self._inode(name, follow=False)
        if not stat.S_ISLNK(self._index.mode(inode)):
            raise OSError(errno.EINVAL, "not a symlink", os.fspath(name))
        return to_text(self._index.target(inode))

    def xattrs(self, name: Name, *, follow_symlinks: bool = True) -> dict[str, bytes]:
        """The extended attributes of a file or folder, by name."""
        found = self._index.xattrs(self._inode(name, follow=follow_symlinks))
        return {to_text(key): value for key, value in found.items()}

    def walk(
        self, top: Name = "", *, followlinks: bool = False
    ) -> Iterator[tuple[str, Names, Names]]:
        """As `os.walk`: each folder's path, the folders and the files in it; `top` is "".

        A caller may take folders out of the list to skip them. Symlinks to folders stand among
        the folders; with `followlinks` they are gone into, except into a folder that one is in.
        """
        path = os.fspath(top).rstrip("/")
        yield from walk.walk(self._index, path, self._folder(top), followlinks=followlinks)

    def glob(self, pattern: str) -> Names:
        """Paths that match, sorted by folder: `*`, `?` and `[a-z]` within a name, `**` for any
        number of folders, and a slash at the end for folders only. Names that begin with a dot
        are no exception."""
        found = walk.matching(self._index, pattern)
        return [path for path in found if self.is_dir(path)] if pattern[-1:] == "/" else found

    def num_files(self) -> int:
        """How many names of regular files there are; hard links count each."""
        return len(walk.file_entries(self._index))

    def __len__(self) -> int:
        return self.num_files()

    def __bool__(self) -> bool:
        """True for an empty folder too, as in the original."""
        return True

    def __iter__(self) -> Iterator[str]:
        """The paths of all regular files, a folder's own before those of the folders in it."""
        return walk.all_files(self._index)

    @overload
    def __getitem__(self, names: Name | bytes) -> Bytes: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, names: Sequence[Name]) -> Arrays: ...
    def __getitem__(self, names: Name | bytes | Sequence[Name]) -> Bytes | Arrays:
        """`folder["a/b.jpg"]` is a file's content, `folder[["a", "b"]]` those of several.

        A file that is not there is a FileNotFoundError, as for `read`, not a KeyError. Records by
        number are in `folder.reader`.
        """
        return self.read(to_text(names) if isinstance(names, bytes) else names)

    def __getitems__(self, names: Sequence[Name]) -> Arrays:
        """Return a batch of files: torch's loaders ask for it, and it is one read."""
        return self.read(names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, (str, os.PathLike)) and self.exists(name)

    # ---- life ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the archive's files. What was read stays valid."""
        self.archive.close()

    def __getstate__(self) -> Any:
        return *self._options, self.reader.__getstate__()["fingerprint"]

    def __setstate__(self, state: Any) -> None:
        ffr_file, check_data, mode, *fingerprint = state
        PackedFolder.__init__(self, ffr_file, check_data, mode=mode)
        if fingerprint and fingerprint != [self.reader.fingerprint]:
            raise changed(self.archive.path)

    def __repr__(self) -> str:
        return f"<PackedFolder {self.archive.path}: {len(self._index)} files and folders>"

    # ---- inside --------------------------------------------------------------------------

    @property
    def _index(self) -> Index:
        return self.archive.index

    def _inode(self, name: Name, *, follow: bool = True) -> int:
        return resolve(self._index, to_bytes(name), follow=follow)

    def _file(self, name: Name) -> int:
        inode = self._inode(name)
        if not stat.S_ISREG(self._index.mode(inode)):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(name))
        return inode

    def _folder(self, name: Name) -> int:
        inode = self._inode(name)
        if not stat.S_ISDIR(self._index.mode(inode)):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(name))
        return inode

    def _mode(self, name: Name, *, follow: bool = True) -> int:
        """Its mode; 0 if there is no such thing."""
        if follow and os.fspath(name).endswith(("/", "/.")):
            name = PurePosixPath(name)
        try:
            return self._index.mode(self._inode(name, follow=follow))
        except OSError:
            return 0


def _list_of(names: Iterable[Name]) -> list[Name]:
    try:
        return names if isinstance(names, list) else list(names)
    except TypeError:
        what = f"not {type(names).__name__}: records by number are read by .reader"
        raise TypeError(f"names must be a name or a list of names, {what}") from None

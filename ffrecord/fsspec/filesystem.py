"""`PackedFolderFileSystem`: a packed folder as a read-only file system of fsspec.

Listings and searches take a few numpy operations for each level of the tree, and several files are
read as one batch. Every byte is verified. Errors are the same as for `open()`; writing raises
OSError with EROFS.

Any number of threads may use a file system, and so may a forked process. It pickles as its
arguments; a process that finds another archive there gets `ChangedError`.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from glob import has_magic
from typing import Any, NoReturn

import numpy as np
from fsspec import AbstractFileSystem

from ffrecord.aliases import Ints, Path
from ffrecord.archive.folder import PackedFolder
from ffrecord.archive.index import Index
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.listing import Entries, Level, are
from ffrecord.archive.names import to_bytes
from ffrecord.fsspec import contents, search
from ffrecord.fsspec.details import (
    Details,
    are_folders,
    details_of,
    details_of_many,
    sizes_of,
)
from ffrecord.fsspec.files import PackedFolderFile
from ffrecord.fsspec.opening import Target, forget, open_folder
from ffrecord.records.unchanged import changed


class PackedFolderFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a packed folder. Paths have no leading slash; the root is "".

    Args:
        fo: the archive: a path or URL of a file, a folder of shards, or a list of shards.
        target_protocol: the protocol of `fo`, if `fo` is not a URL.
        target_options: options for the file system of that protocol.
        check_data: verify the CRC-32 of the index and of everything that is read.
        mode: how records are read, see `FileReader`.
        memory: how much of the page cache may be filled, see `FileReader`.
        cache: folder that keeps what is read from a URL, see `FileReader`.
        cache_size: most bytes of this folder.
    """

    protocol = "ffr"
    root_marker = ""
    cachable = False  # open archives are shared instead, see `opening`

    def __init__(
        self, fo: Path | list[Path] = "", target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None, *, check_data: bool = True,
        mode: str = "auto", memory: int | str | None = None, cache: Any = None,
        cache_size: int | str | None = None, **storage_options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**storage_options)
        target = Target.of(fo, target_protocol, target_options or {})
        options: dict[str, Any] = {"check_data": check_data, "mode": mode, "memory": memory}
        given = {"cache": cache, "cache_size": cache_size}
        options |= {name: value for name, value in given.items() if value is not None}
        self._arguments = {
            **storage_options, **options, "fo": target.place, "target_protocol": target.protocol,
            "target_options": target.options,
        }  # fmt: skip
        self.folder: PackedFolder = open_folder(target, **options)
        """The archive. Other file systems may use it too, so do not close it."""

    @property
    def _index(self) -> Index:
        return self.folder.archive.index

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        plain = super()._strip_protocol(path).lstrip("/")
        if "//" in plain or "./" in plain or plain.endswith("."):
            plain = "/".join(part for part in plain.split("/") if part not in ("", "."))
        return plain

    @classmethod
    def clear_instance_cache(cls) -> None:
        """Close the archives that no file system uses."""
        super().clear_instance_cache()
        forget()

    def __reduce__(self) -> Any:
        return _reopened, (type(self), self._arguments, self.folder.reader.fingerprint)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder.archive.path}>"

    # ---- details -------------------------------------------------------------------------

    def info(self, path: Any, **_: Any) -> Details:
        """Return name, type and size of a file or folder, its mode, owner and time, and links."""
        return details_of(self._index, self._strip_protocol(path))

    def exists(self, path: Any, **_: Any) -> bool:
        """Return True if a path is a file or folder. A broken symlink returns False."""
        return self.folder.exists(self._strip_protocol(path))

    def lexists(self, path: Any, **_: Any) -> bool:
        """Return True if a path is a file, a folder or a symlink, which may be broken."""
        plain = self._strip_protocol(path)
        return self.folder.exists(plain) or self.folder.is_symlink(plain)

    def isfile(self, path: Any) -> bool:
        return self.folder.is_file(self._strip_protocol(path))

    def isdir(self, path: Any) -> bool:
        return self.folder.is_dir(self._strip_protocol(path))

    def modified(self, path: Any) -> datetime:
        """Return the time of the last change of a file before it was packed."""
        return datetime.fromtimestamp(self.info(path)["mtime"], timezone.utc)

    # ---- listings ------------------------------------------------------------------------

    def ls(self, path: Any, detail: bool = True, **_: Any) -> Any:
        """Return the entries of a folder, sorted by name: details, or paths. A file lists itself.

        Symlinks are described by the file or folder that they lead to.
        """
        plain = self._strip_protocol(path)
        if not self.isdir(plain):
            info = self.info(plain)
            return [info] if detail else [info["name"]]
        level = self._level(plain)
        return details_of_many(level.entries, level.paths) if detail else level.paths

    def _level(self, plain: str) -> Level:
        """Return the entries of a folder."""
        inode = resolve(self._index, to_bytes(plain))
        entries = Entries.of(self._index, np.array([inode]))
        return Level(entries, entries.paths([_prefix(plain)]))

    def walk(
        self, path: Any, maxdepth: int | None = None, topdown: bool = True,
        on_error: str | Callable[[OSError], Any] = "omit", detail: bool = False, **_: Any,
    ) -> Iterator[tuple[str, Any, Any]]:  # fmt: skip
        """Yield the path, the folders and the files of each folder, like `os.walk`.

        With `detail`, folders and files are dictionaries of details by name. To skip folders,
        remove them from what was yielded, with `topdown`. Symlinks to folders are not entered.
        """
        _require_depth(maxdepth)
        top = self._strip_protocol(path)
        try:
            self.info(top)
        except OSError as error:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(error)
            return
        if not self.isdir(top):
            yield top, *(({}, {"": self.info(top)}) if detail else ([], [""]))
            return
        waiting: list[tuple[str, int | None, Any]] = [(top, maxdepth, None)]
        while waiting:
            plain, depth, found = waiting.pop()
            if found is not None:  # bottom-up: all folders inside have been yielded
                yield found
                continue
            folders, files, links = self._contents(plain, detail)
            if topdown:
                yield plain, folders, files
            else:
                waiting.append((plain, depth, (plain, folders, files)))
            if depth is None or depth > 1:
                inner = [f"{_prefix(plain)}{name}" for name in folders if name not in links]
                depth = None if depth is None else depth - 1
                waiting += [(each, depth, None) for each in reversed(inner)]

    def _contents(self, plain: str, detail: bool) -> tuple[Any, Any, set[str]]:
        """Return the folders and the files in a folder, and the folders that are symlinks."""
        level = self._level(plain)
        is_folder = are_folders(level.entries)
        skip = len(_prefix(plain))
        sides = [level.some(is_folder), level.some(~is_folder)]
        names = [[path[skip:] for path in side.paths] for side in sides]
        inodes = sides[0].entries.inodes != sides[0].entries.targets()
        links = {names[0][row] for row in inodes.nonzero()[0].tolist()}
        if not detail:
            return names[0], names[1], links
        described = [
            dict(zip(each, details_of_many(side.entries, side.paths), strict=True))
            for each, side in zip(names, sides, strict=True)
        ]
        return described[0], described[1], links

    def find(
        self, path: Any, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False,
        **_: Any,
    ) -> Any:  # fmt: skip
        """Return all files below a folder, sorted: paths, or details by path.

        Symlinks count as what they lead to, and are not entered.
        """
        _require_depth(maxdepth)
        plain = self._strip_protocol(path)
        if not self.isdir(plain):
            lone = [plain] if self.exists(plain) else []
            return self._result(search.Found([], lone), detail)
        levels = self._below(plain, maxdepth, with_folders=withdirs)
        # As in fsspec: the folder itself is among the folders, unless it is the root.
        return self._result(
            search.Found(list(levels), [plain] if withdirs and plain else []), detail
        )

    def _below(self, plain: str, maxdepth: int | None, *, with_folders: bool) -> Iterator[Level]:
        """Yield the levels below a folder."""
        inode = resolve(self._index, to_bytes(plain))
        return search.find(self._index, inode, _prefix(plain), maxdepth, with_folders=with_folders)

    def glob(self, path: Any, maxdepth: int | None = None, **options: Any) -> Any:
        """Return the paths that match a pattern, sorted; with `detail`, details by path.

        `*`, `?` and `[a-z]` match within a name, and `**` matches any number of folders. A slash at
        the end matches folders only. `maxdepth` limits `**`.
        """
        _require_depth(maxdepth)
        detail = options.get("detail", False)
        pattern = self._strip_protocol(path)
        if not has_magic(pattern):
            lone = [pattern] if self.exists(pattern) else []
            return self._result(search.Found([], lone), detail)
        only_folders = str(path).endswith("/")
        found = search.glob(self._index, pattern, maxdepth, only_folders=only_folders)
        if not options.get("withdirs", True):
            levels = [level.some(~are_folders(level.entries)) for level in found.levels]
            found = search.Found(levels, [each for each in found.paths if not self.isdir(each)])
        return self._result(found, detail)

    def _result(self, found: search.Found, detail: bool) -> Any:
        if not detail:
            return sorted([*found.paths, *(path for level in found.levels for path in level.paths)])
        everything = {path: self.info(path) for path in found.paths}
        for level in found.levels:
            described = details_of_many(level.entries, level.paths)
            everything.update(zip(level.paths, described, strict=True))
        return {path: everything[path] for path in sorted(everything)}

    def du(
        self, path: Any, total: bool = True, maxdepth: int | None = None, withdirs: bool = False,
        **_: Any,
    ) -> Any:  # fmt: skip
        """Return the size of all files below a folder, or with `total=False` the size of each."""
        _require_depth(maxdepth)
        plain = self._strip_protocol(path)
        if not self.isdir(plain):
            size = self.info(plain)["size"]
            return size if total else {plain: size}
        sizes: dict[str, int] = {plain: 0} if withdirs else {}
        for level in self._below(plain, maxdepth, with_folders=withdirs):
            found = sizes_of(self._index, level.entries.targets()).tolist()
            sizes.update(zip(level.paths, found, strict=True))
        return sum(sizes.values()) if total else sizes

    # ---- contents ------------------------------------------------------------------------

    def cat_file(
        self, path: Any, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Return the bytes of a file, or of `file[start:end]`."""
        return contents.of_one(self.folder, self._strip_protocol(path), start, end)

    def cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any
    ) -> Any:
        """Return the bytes of one file, or of several as a dictionary, read as one batch.

        `path` may be a list, a pattern, or with `recursive` a folder. `on_error` is "raise",
        "omit", or "return" for exceptions among the values.
        """
        if options.keys() & {"start", "end"}:
            return super().cat(path, recursive=recursive, on_error=on_error, **options)
        if isinstance(path, list) and not recursive:
            records = self._records_at(path)
            if records is not None:
                return contents.of_records(self.folder, path, records, on_error)
        paths = self._expanded(path, recursive, options.get("maxdepth"))
        if not recursive and not isinstance(path, list) and paths == [self._strip_protocol(path)]:
            return self.cat_file(path)
        try:
            records = self.folder.records(paths)
        except OSError:
            if on_error == "raise":
                raise
            return dict(contents.one_by_one(self.folder, paths, on_error))
        return contents.of_records(self.folder, paths, records, on_error)

    def _records_at(self, paths: list[Any]) -> Ints | None:
        """Return the records of files, or None if something else than a file's path is given.

        The paths must be as `find` returns them. A pattern that is also a file's path is that file.
        """
        try:
            raw = list(map(str.encode, paths))
        except (TypeError, UnicodeEncodeError):  # a Path; a name that is not UTF-8
            return None
        records = self._index.records(self._index.find(raw))
        return None if (records == MISSING).any() else records

    def _expanded(self, path: Any, recursive: bool, maxdepth: int | None) -> list[str]:
        """Return the files of a path, a pattern or a list, and with `recursive` of folders.

        A file whose name looks like a pattern is found by its name.
        """
        given: list[str] = self._strip_protocol(path if isinstance(path, list) else [path])
        matched: set[str] = set()
        for each in given:
            is_name = not has_magic(each) or self.exists(each)
            matched.update([each] if is_name else self.glob(each, maxdepth=maxdepth))
        if not matched:
            raise FileNotFoundError(errno.ENOENT, "no file in the archive matches", str(path))
        paths = sorted(matched)
        if not recursive:
            return paths
        found: set[str] = set()
        for each in paths:
            if self.isdir(each):
                for level in self._below(each, maxdepth, with_folders=False):
                    files = are(self._index, level.entries.targets(), stat.S_IFREG)
                    found.update(level.some(files).paths)
            else:
                found.add(each)
        return sorted(found)

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: int | None = None,
        on_error: str = "return", **_: Any,
    ) -> list[bytes | Exception]:  # fmt: skip
        """Return `file[start:end]` for each path, read as one batch.

        `starts` and `ends` are lists, or one value for all. `max_gap` is ignored: the reader joins
        neighbours by itself. With `on_error="return"`, exceptions are among the results.
        """
        if not isinstance(paths, list):
            raise TypeError(f"paths must be a list, not {type(paths).__name__}")
        starts, ends = (
            each if isinstance(each, list) else [each] * len(paths) for each in (starts, ends)
        )
        if not len(paths) == len(starts) == len(ends):
            raise ValueError(
                f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends were given; pass "
                "equally many"
            )
        plain = [self._strip_protocol(path) for path in paths]
        return contents.of_ranges(self.folder, plain, starts, ends, on_error)

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any
    ) -> PackedFolderFile:
        if mode != "rb":
            _refuse(path)
        return PackedFolderFile(self, self.folder, path, block_size)

    # ---- everything that would write -----------------------------------------------------

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> NoReturn:
        _refuse(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        if not (exist_ok and self.isdir(path)):
            _refuse(path)

    def rmdir(self, path: Any) -> NoReturn:
        _refuse(path)

    def rm_file(self, path: Any) -> NoReturn:
        _refuse(path)

    def _rm(self, path: Any) -> NoReturn:
        _refuse(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> NoReturn:
        _refuse(path)

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> NoReturn:
        _refuse(path2)

    def mv(self, path1: Any, path2: Any, **_: Any) -> NoReturn:
        _refuse(path1)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> NoReturn:
        _refuse(path)


def _reopened(
    kind: type[PackedFolderFileSystem], arguments: dict[str, Any], fingerprint: str
) -> PackedFolderFileSystem:
    """Return the file system of a pickle; raise ChangedError if its archive is another one."""
    fs = kind(**arguments)
    if fs.folder.reader.fingerprint != fingerprint:
        raise changed(fs.folder.archive.path)
    return fs


def _refuse(path: Any) -> NoReturn:
    raise OSError(errno.EROFS, "packed folders are read-only; pack a new one", str(path))


def _prefix(plain: str) -> str:
    """Return the beginning of the paths in a folder."""
    return f"{plain}/" if plain else ""


def _require_depth(maxdepth: int | None) -> None:
    if maxdepth is not None and maxdepth < 1:
        raise ValueError(f"maxdepth must be at least 1, not {maxdepth}")

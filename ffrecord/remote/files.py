"""Names of remote files: find them, list folders, and open them.

`RemoteFiles` is what a reader keeps of its argument. Its names are safe to show. It pickles with
the URLs and options that the user passed, and with nothing else.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ffrecord.errors import RemoteError, UnfinishedError, UrlError
from ffrecord.remote import filesystems, loop, obstores, urls
from ffrecord.remote.answers import Place, Store
from ffrecord.remote.cache.objects import Cache
from ffrecord.remote.link import Link
from ffrecord.remote.opening import open_places
from ffrecord.remote.options import Options, RemoteOptions, checked
from ffrecord.remote.source import RemoteSources
from ffrecord.remote.trouble import Span

SUFFIX = ".ffr"
MARKER = ".ffrecord-unfinished"
"""Object in a folder that tasks write. The commit removes it last. The name sorts before those of
shards: if the first page of a listing does not have it, all shards are there."""


class Access:
    """The stores of one reader or of one upload, by their roots."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stores: dict[Any, Store] = {}
        self.link = Link(options.requests, options.deadline)

    def place(self, path: str) -> Place:
        """Return the object that a URL, or a key in the user's store, stands for."""
        options = self._options
        if options.store is not None:
            store = self._stores.setdefault("store", obstores.given(options.store))
            return Place(store, path, f"{type(options.store).__name__}:{path}")
        if options.fs is not None:
            fs = self._stores.setdefault("fs", filesystems.FileSystem(options.fs))
            protocol = options.fs.protocol
            scheme = protocol if isinstance(protocol, str) else protocol[0]
            return Place(fs, path, urls.shown(path if urls.is_url(path) else f"{scheme}://{path}"))
        if not urls.is_url(path):
            raise UrlError(f"{path}: is a local path in a list of URLs; pass URLs only")
        if path.partition("://")[0].lower() not in obstores.SCHEMES:
            opened, key = filesystems.open_url(path, options.storage_options)
            store = self._stores.setdefault(opened.identity, opened)
            return Place(store, key, urls.shown(path))
        root, key = obstores.from_url(path)
        if root not in self._stores:
            self._stores[root] = obstores.open_store(
                root, options.storage_options, options.deadline
            )
        return Place(self._stores[root], key, urls.shown(path))


@dataclass(frozen=True)
class RemoteFiles:
    """Files to read over the network. `paths` are URLs, or keys in the store of `options`."""

    paths: list[str] = field(repr=False)
    options: Options = field(repr=False)

    @property
    def names(self) -> list[str]:
        """The names of the files for messages."""
        return [self._access.place(path).shown for path in self.paths]

    @property
    def _access(self) -> Access:
        access = self.__dict__.get("_made")
        if access is None:
            access = self.__dict__["_made"] = Access(self.options)
        return cast(Access, access)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def open(self) -> RemoteSources:
        """Open all files."""
        access = self._access
        places = [access.place(path) for path in self.paths]
        return open_places(access.link, places, Cache.of(self.options))


@dataclass(frozen=True)
class RemoteFolder(RemoteFiles):
    """A folder of remote files: the only path of `paths`."""

    @property
    def path(self) -> str:
        return self.paths[0]

    @property
    def name(self) -> str:
        return self.names[0].rstrip("/")

    def entries(self) -> list[str]:
        """Return the names of the files and folders in it, sorted; none if it does not exist.

        Raises:
            UnfinishedError: tasks are writing this folder, and it has not been committed.
        """
        access = self._access
        try:
            found = loop.wait(access.link.names(access.place(self.path)))
        except FileNotFoundError:
            return []
        if MARKER in found:
            raise UnfinishedError(
                f"{self.name}: not finished: the tasks of a plan write it, and were not committed; "
                "wait for the commit, or write it again"
            )
        return [name for name in found if name]

    def read(self, name: str, most: int) -> bytes | None:
        """Return up to `most` bytes of a small file in it; None if there is no such file."""
        access = self._access
        place = access.place(urls.joined(self.path, name))
        try:
            answer = loop.wait(access.link.get(place, Span(0, most), None, opening=True))
        except FileNotFoundError:
            return None
        return bytes(memoryview(answer.body))

    def inside(self, name: str) -> RemoteFolder:
        """Return a folder in this one, which shares its connections."""
        folder = RemoteFolder([urls.joined(self.path, name)], self.options)
        folder.__dict__["_made"] = self._access
        return folder

    def files(self, names: Sequence[str]) -> RemoteFiles:
        """Return files in it, which share its connections."""
        files = RemoteFiles([urls.joined(self.path, name) for name in names], self.options)
        files.__dict__["_made"] = self._access
        return files


def located(path: Any, given: RemoteOptions) -> tuple[str, Options]:
    """Return the URL or key of one path that the user passed, and the options for it."""
    options = checked(given)
    if urls.is_upath(path):
        if not path.storage_options:
            return str(path), options
        # Its options are those of fsspec, so fsspec opens it.
        return str(path.path), checked({**given, "fs": path.fs})
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise TypeError(f"a URL must be a str or a UPath, not {type(path).__name__}")
    return path, options


def remote_folder(path: Any, given: RemoteOptions) -> RemoteFolder:
    """Return the folder that a URL names. Nothing is opened."""
    url, options = located(path, given)
    return RemoteFolder([url], options)


def remote_files(fname: Any, given: RemoteOptions) -> RemoteFiles:
    """Return the files that an argument names: one file, a folder's files, or a list."""
    if isinstance(fname, (list, tuple)):
        if not fname:
            raise ValueError("fname is an empty list; pass at least one URL")
        found = [located(path, given) for path in fname]
        if any(options != found[0][1] for _, options in found):
            raise ValueError("the files are on different file systems; pass those of one of them")
        return RemoteFiles([path for path, _ in found], found[0][1])
    folder = remote_folder(fname, given)
    if not urls.is_folder(folder.path):
        return RemoteFiles(folder.paths, folder.options)
    return in_folder(folder)


def open_files(files: RemoteFiles) -> tuple[RemoteFiles, RemoteSources]:
    """Open files. If the only one does not exist, open the files in the folder of that name."""
    try:
        return files, files.open()
    except FileNotFoundError:
        if len(files.paths) > 1 or files.names[0].endswith(SUFFIX):
            raise
    folder = RemoteFolder(files.paths, files.options)
    found = in_folder(folder)
    return found, found.open()


def in_folder(folder: RemoteFolder) -> RemoteFiles:
    """Return the record files in a folder; raise FileNotFoundError if there are none."""
    try:
        entries = folder.entries()
    except RemoteError as error:
        if error.status is None or error.status >= 500:
            raise
        why = "no such object, and this server does not list folders; check the URL, or pass a "
        why += "list of URLs"
        raise FileNotFoundError(errno.ENOENT, why, folder.name) from error
    names = [name for name in entries if name.endswith(SUFFIX) and name[0] != "."]
    if not names:
        why = f"no such object, and no folder with *{SUFFIX} files; check the URL"
        raise FileNotFoundError(errno.ENOENT, why, folder.name)
    return folder.files(names)

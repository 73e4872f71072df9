"""All other protocols, through fsspec.

fsspec cannot demand a version with a range. So the version is compared when a file is opened, and
again when a checksum is wrong: bytes of another version have other checksums.

A file system with asyncio runs in the loop of fsspec. Others run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from ffrecord.errors import UrlError
from ffrecord.remote.answers import Answer, Version
from ffrecord.remote.library import missing
from ffrecord.remote.options import REQUESTS
from ffrecord.remote.parts import Parts
from ffrecord.remote.trouble import Kind, Span, Trouble, of_exception
from ffrecord.remote.urls import shown

RENAMING = frozenset(
    {"file", "local", "sftp", "ssh", "smb", "ftp", "hdfs", "arrow_hdfs", "webhdfs"}
)
"""Protocols that show a file while it grows, and that rename it in one step."""

_TAGS = ("ETag", "etag", "e_tag", "md5Hash", "content_md5", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def open_url(url: str, options: Mapping[str, Any]) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise missing("fsspec") from error
    try:
        fs, path = url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        what = f"{shown(url)}: fsspec knows no such protocol; check the URL"
        if isinstance(error, ImportError):  # the message names the package, and no options
            what = f"{shown(url)}: fsspec needs another package for this protocol: {error}"
        raise UrlError(what) from None
    return FileSystem(fs), path


class FileSystem:
    """A file system of fsspec. A forked child opens it again."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs
        self._process = os.getpid()
        self._threads: ThreadPoolExecutor | None = None

    @property
    def identity(self) -> int:
        """A number that is the same for two URLs of one file system, as fsspec keeps them."""
        return id(self._fs)

    def _now(self) -> Any:
        if self._process != os.getpid():
            fs = self._fs
            if fs.cachable:  # others, such as one around an open archive, cannot be made again
                arguments = {**fs.storage_options, "skip_instance_cache": True}
                self._fs = type(fs)(*fs.storage_args, **arguments)
            self._threads, self._process = None, os.getpid()
        return self._fs

    async def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        fs = self._now()
        try:
            if fs.async_impl and not fs.asynchronous:
                work = getattr(fs, f"_{name}")(*arguments, **options)
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, fs.loop))
            if self._threads is None:
                self._threads = ThreadPoolExecutor(REQUESTS, "ffrecord-fsspec")
            method: Callable[[], Any] = lambda: getattr(fs, name)(*arguments, **options)  # noqa: E731
            return await asyncio.get_running_loop().run_in_executor(self._threads, method)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise of_exception(error) from None

    async def _version(self, key: str) -> Version:
        found = await self._call("info", key)
        if found.get("type") == "directory":
            raise Trouble(Kind.MISSING, "this is a folder")
        size = found.get("size")
        if not isinstance(size, int):
            raise Trouble(Kind.OTHER, "the server does not tell the size of the file")
        tag = next((str(found[name]) for name in _TAGS if found.get(name)), None)
        time = next((found[name] for name in _TIMES if found.get(name)), None)
        if isinstance(time, datetime):
            time = time.timestamp()
        if not isinstance(time, (int, float)):
            time, tag = None, tag or (None if time is None else str(time))
        return Version(size, tag, time)

    async def get(self, key: str, span: Span, pinned: Version | None) -> Answer:
        if pinned is None:
            pinned = await self._version(key)
        begin, end = span.within(pinned.size)
        if begin >= end:
            return Answer(b"", begin, pinned)
        body = await self._call("cat_file", key, start=begin, end=end)
        if len(body) != end - begin:
            if not (await self._version(key)).agrees(pinned):
                raise Trouble(Kind.CHANGED, "replaced")
            raise Trouble(Kind.BUSY, f"the answer has {len(body)} bytes instead of {end - begin}")
        return Answer(body, begin, pinned)

    async def get_unless(self, key: str, span: Span, known: Version) -> Answer | None:
        return None if (await self._version(key)).agrees(known) else await self.get(key, span, None)

    def object_identity(self, key: str) -> str | None:
        """Return None: a range of another version might get into the cache."""
        return None

    async def recheck(self, key: str, pinned: Version) -> None:
        if not (await self._version(key)).agrees(pinned):
            raise Trouble(Kind.CHANGED, "replaced")

    async def version(self, key: str) -> Version | None:
        try:
            return await self._version(key)
        except Trouble as trouble:
            if trouble.kind is not Kind.MISSING:
                raise
            return None

    async def is_empty(self, key: str) -> bool:
        try:
            return not await self.names(key)
        except Trouble as trouble:
            if trouble.kind is not Kind.MISSING:
                raise
            return True

    async def objects(self, key: str) -> dict[str, int]:
        self._now().invalidate_cache()  # other processes put objects, too
        prefix = str(self._now()._strip_protocol(key)).rstrip("/")
        try:
            found = await self._call("find", prefix, detail=True)
        except Trouble as trouble:
            if trouble.kind is not Kind.MISSING:
                raise
            return {}
        return {path[len(prefix) :].lstrip("/"): each["size"] for path, each in found.items()}

    async def put(self, key: str, parts: Parts, *, new: bool, over: Version | None = None) -> None:
        """Put a file. Object stores show it when it is whole; disks show the name they have."""
        folder, slash, name = key.rpartition("/")
        if slash:
            await self._call("makedirs", folder, exist_ok=True)
        if not RENAMING & _protocols(self._now()):
            await self._call("put_file", parts.path, key)
            parts.sent(parts.size)
            return
        # Two writers of one file, such as a task that runs twice, must not mix their bytes.
        hidden = f"{folder}{slash}.{name}.{secrets.token_hex(4)}.uploading"
        try:
            await self._call("put_file", parts.path, hidden)
            await self._call("mv", hidden, key)
            parts.sent(parts.size)
        except BaseException:
            with contextlib.suppress(Trouble):
                await self._call("rm_file", hidden)
            raise

    async def delete(self, key: str) -> None:
        try:
            await self._call("rm_file", key)
        except Trouble as trouble:
            if trouble.kind is not Kind.MISSING:
                raise

    async def remove_folders(self, key: str) -> None:
        self._now().invalidate_cache()
        try:
            found = await self._call("find", key, withdirs=True, detail=True)
        except Trouble as trouble:
            if trouble.kind is not Kind.MISSING:
                raise
            return
        folders = [path for path, each in found.items() if each["type"] == "directory"]
        for folder in sorted(folders, key=len, reverse=True):
            # Another program may put a file meanwhile. Most file systems then refuse; that of Arrow
            # would remove the file, too.
            with contextlib.suppress(Trouble):
                if await self.is_empty(folder):
                    await self._call("rmdir", folder)

    def unfinished(self, key: str) -> None:
        return None

    def address(self, key: str) -> tuple[str | None, dict[str, str]]:
        return None, {}

    async def names(self, key: str) -> list[str]:
        found = await self._call("ls", key, detail=False)
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)


def _protocols(fs: Any) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)

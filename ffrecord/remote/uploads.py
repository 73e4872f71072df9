"""Records of uploads under way, so that those of killed processes can be found and removed.

A record is a small file in the cache folder, made before anything else. Its process holds a lock on
it. A record without a lock belongs to a process that ended before it could tidy up: its parts in
the store cost money, and its local files need room. Records contain no credentials.

A record has one JSON object on each line. Lines are only added, so a power cut leaves whole ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ffrecord.atomic.locks import is_at, take, unlock
from ffrecord.errors import BusyError, UploadError
from ffrecord.remote import loop, sending
from ffrecord.remote.answers import Place
from ffrecord.remote.files import Access
from ffrecord.remote.link import Link
from ffrecord.remote.options import CACHE, cache_folder, checked

FOLDER = "uploads"  # in the cache folder
SUFFIX = ".upload"
VERSION = 1
STAGING = "ffrecord-upload-"
"""Beginning of the names of folders in which files are made before they are uploaded."""

LARGEST = 64 << 20  # bytes of a record; that of 100,000 shards has 10 MB


def default_folder() -> str:
    """Return the cache folder: `FFRECORD_CACHE`, or `ffrecord` in the user's cache folder."""
    chosen = os.environ.get(CACHE)
    if chosen:
        return cache_folder(chosen)
    top = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(top, "ffrecord")


class Record:
    """The record of a running upload, and the folder in which its files are made."""

    def __init__(self, name: str, url: str | None, options: Mapping[str, str]) -> None:
        self._pid = os.getpid()
        self._fd, self.path = _create(name)
        self.staging = ""
        self.before: dict[str, list[str]] = {}
        try:
            self.staging = tempfile.mkdtemp(prefix=STAGING)
            self._add({
                "version": VERSION, "name": name, "url": url, "options": dict(options),
                "staging": self.staging, "host": socket.gethostname(), "began": time.time(),
            })  # fmt: skip
        except BaseException:
            self.end()
            raise

    def plan(self, names: Sequence[str], last: str | None) -> None:
        """Note the objects to put, and the one that completes them if they are several."""
        self._add({"names": list(names), "last": last})

    def known(self, name: str, ids: Sequence[str]) -> None:
        """Note that an object is put in parts, and the uploads that others began before."""
        self.before[name] = list(ids)
        self._add({"object": name, "known": list(ids)})

    def _add(self, line: Mapping[str, Any]) -> None:
        text = memoryview(json.dumps(line).encode() + b"\n")
        while text:
            text = text[os.write(self._fd, text) :]
        os.fsync(self._fd)

    def end(self, *, kept: bool = False) -> None:
        """Remove the local files and the record. With `kept`, the record stays as a leftover."""
        if self._fd < 0 or self._pid != os.getpid():
            return
        if self.staging:
            shutil.rmtree(self.staging, ignore_errors=True)
        if not kept:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        unlock(self._fd)  # a forked child has a copy of the descriptor: closing is not enough
        os.close(self._fd)
        self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "staging"):
            self.end()


def _create(name: str) -> tuple[int, str]:
    """Make and lock a record. `ffrecord cache` may look at it, or remove it, before the lock."""
    folder = os.path.join(default_folder(), FOLDER)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        while True:
            fd, path = tempfile.mkstemp(SUFFIX, "", folder)  # mode 0600
            is_ours = False
            try:
                is_ours = take(fd, path) and is_at(fd, path)
            finally:
                if not is_ours:
                    os.close(fd)
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
            if is_ours:
                return fd, path
    except OSError as error:
        what = f"{error.strerror}: no note of the upload of {name} can be made in this folder, "
        variable = CACHE if os.environ.get(CACHE) else "XDG_CACHE_HOME"
        what += f"and it is needed to tidy up after a crash; set {variable} to another folder"
        raise OSError(error.errno, what, folder) from error


@dataclass(frozen=True, slots=True)
class Leftover:
    """An upload whose process ended before it was complete."""

    path: str
    """The record."""
    name: str
    """The target, for messages."""
    began: float
    """When it began, in seconds since 1970."""
    size: int
    """Bytes of its local files on this machine."""
    facts: Mapping[str, Any] = field(repr=False)


def leftovers(folder: str | None = None) -> list[Leftover]:
    """Return the uploads that killed processes left, the oldest first.

    Args:
        folder: the cache folder; `default_folder()` by default.
    """
    top = os.path.join(folder or default_folder(), FOLDER)
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(top)):
            path = os.path.join(top, name)
            if name.endswith(SUFFIX):
                with contextlib.suppress(OSError, BusyError):
                    with _taken(path) as fd:
                        facts = _parsed(fd)
                        began = os.fstat(fd).st_mtime
                    name = str(facts.get("name", "an upload that was not begun"))
                    began = float(facts.get("began", began))
                    found.append(Leftover(path, name, began, _staged_size(facts), facts))
    return sorted(found, key=lambda each: each.began)


def abort(leftover: Leftover, storage_options: Mapping[str, Any] | None = None) -> None:
    """Remove everything that an upload left: parts and objects in the store, and local files.

    Args:
        leftover: from `leftovers`.
        storage_options: options and credentials of the store, if the environment has none.

    Raises:
        BusyError: the upload is running.
        UploadError, PermissionError: the store did not remove its parts. The record stays.
    """
    with _taken(leftover.path) as fd:
        facts = _parsed(fd)
        if facts.get("version", VERSION) != VERSION:
            what = "its record is of a newer version of ffrecord; use that version to remove it"
            raise UploadError(leftover.name, what, None, 1)
        if facts.get("names") and facts.get("url"):
            options = {**facts.get("options", {}), **(storage_options or {})}
            access = Access(checked({"storage_options": options}))
            places = placed(access.place(facts["url"]), facts["names"])
            last = facts.get("last")
            before = {name: ids for name, ids in facts["before"].items() if name in places}
            undo(access.link, places, last if last in places else None, before)
        staging = _staging(facts)
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        os.unlink(leftover.path)


def placed(target: Place, names: Sequence[str]) -> dict[str, Place]:
    """Return the objects of a target by name. The name of a target that is one object is empty."""
    return {name: target.inside(name) if name else target for name in names}


def undo(
    link: Link, places: Mapping[str, Place], last: str | None, before: Mapping[str, Sequence[str]]
) -> None:
    """Remove the parts and objects of an upload that did not succeed.

    Args:
        link: the requests of the upload.
        places: the objects, by name.
        last: the name of the object that completes the others; None for one object. If it exists,
            the upload was complete, and its objects stay.
        before: unfinished uploads of others, by the names of large objects.
    """

    async def work() -> None:
        for name, others in before.items():
            abort = partial(sending.abort, places[name], others)
            await link.write(places[name], abort, sending.LONG)
        if last is not None and await sending.version(link, places[last]) is None:
            await sending.remove(link, list(places.values()))

    loop.wait(work())


@contextlib.contextmanager
def _taken(path: str) -> Any:
    """Open a record that no process holds; raise BusyError if one does."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not take(fd, path):
            raise BusyError(f"{path}: this upload is running; wait until it has ended")
        yield fd
    finally:
        unlock(fd)
        os.close(fd)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "version": lambda value: True,
    "name": _is_text, "url": _is_text_or_none, "staging": _is_text, "host": _is_text,
    "options": lambda value: isinstance(value, dict) and _are_texts([*value.values()]),
    "began": lambda value: isinstance(value, (int, float)) and 0 <= value < 1 << 62,
    "names": _are_texts, "last": _is_text_or_none,
}  # fmt: skip
"""Fields of a record, and functions that tell whether a value has the right type."""


def _parsed(fd: int) -> dict[str, Any]:
    """Return the content of a record, without lines that are not whole, and wrong values."""
    facts: dict[str, Any] = {"before": {}}
    text = os.pread(fd, LARGEST, 0)
    for line in text.split(b"\n")[:-1]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict):
            continue
        if _is_text(found.get("object")) and _are_texts(found.get("known")):
            facts["before"][found["object"]] = found["known"]
        facts |= {
            name: found[name] for name in found if name in _FIELDS and _FIELDS[name](found[name])
        }
    return facts


def _staging(facts: Mapping[str, Any]) -> str | None:
    """Return the folder of the local files, if it is on this machine and ours."""
    path = facts.get("staging")
    if path is None or not os.path.isabs(path) or facts.get("host") != socket.gethostname():
        return None
    try:
        found = os.lstat(path)
    except (OSError, ValueError):  # ValueError: a path that no file can have
        return None
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return path if is_ours and os.path.basename(path).startswith(STAGING) else None


def _staged_size(facts: Mapping[str, Any]) -> int:
    staging = _staging(facts)
    if staging is None:
        return 0
    files = (os.path.join(top, name) for top, _, names in os.walk(staging) for name in names)
    size = 0
    for path in files:
        with contextlib.suppress(OSError):
            size += os.lstat(path).st_size
    return size

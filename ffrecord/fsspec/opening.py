"""Open the archive that a file system is asked for, and share open archives.

Every URL that a program opens makes a new file system object. Opening an archive of a million files
takes about 0.1 s, so the archives that were used last stay open. All threads use the same
`PackedFolder`. A local archive that was replaced is opened again, and so is a remote one after a
read has found that out.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ffrecord.aliases import Path
from ffrecord.archive.folder import PackedFolder
from ffrecord.disk.source import SourceSet
from ffrecord.records.opening import paths
from ffrecord.records.reader import table_of

KEPT_OPEN = 8  # archives; each keeps its index in memory, 71 MB for a million files
LOCAL = (None, "", "file", "local")

_opened: OrderedDict[str, _Opened] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Opened:
    folder: PackedFolder
    version: object  # of the files when they were opened
    kept: object  # must live as long as the folder


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held the old one


os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True, slots=True)
class Target:
    """Where an archive is: absolute paths on this machine, or a place of another file system."""

    place: str | list[str]
    protocol: str | None  # None: on this machine
    options: Mapping[str, Any]  # for the other file system

    @classmethod
    def of(cls, fo: Path | list[Path], protocol: str | None, options: Mapping[str, Any]) -> Target:
        """Return the target for the arguments of a file system."""
        if isinstance(fo, list):
            each = [cls.of(one, protocol, options) for one in fo]
            protocols = {one.protocol for one in each}
            if len(protocols) != 1:
                raise ValueError(
                    f"the shards are on {len(protocols)} file systems; pass a list of shards that "
                    "are all on one"
                )
            return cls([str(one.place) for one in each], protocols.pop(), options)
        if not isinstance(fo, (str, os.PathLike)):
            raise TypeError(
                f"fo must be the path or URL of an archive, not {type(fo).__name__}; file objects "
                "cannot be read in batches"
            )
        text = os.fspath(fo)
        if not text:
            raise ValueError(
                "no archive is given; write ffr://inner/path::archive.ffr, or pass fo='archive.ffr'"
            )
        scheme = protocol or fsspec.core.split_protocol(text)[0]
        if scheme in LOCAL:
            return cls(str(LocalFileSystem._strip_protocol(text)), None, {})
        return cls(text, scheme, options)

    def version(self) -> object:
        """Return a value that changes when files on this machine are replaced; otherwise None."""
        if self.protocol is not None:
            return None
        return [_version(path) for path in paths(self.place)]


def open_folder(target: Target, **options: Any) -> PackedFolder:
    """Return the open archive of a target. `options` are for `PackedFolder`."""
    key = repr((target, sorted(options.items())))
    version = target.version()
    with _lock:
        found = _opened.get(key)
        if found is not None and found.version == version and not _is_over(found.folder):
            _opened.move_to_end(key)
            return found.folder
    found = _open(target, version, options)
    with _lock:
        _opened[key] = found
        _opened.move_to_end(key)
        while len(_opened) > KEPT_OPEN:
            _opened.popitem(last=False)  # its files are closed when nobody uses them
    return found.folder


def _is_over(folder: PackedFolder) -> bool:
    """Return True if reading must fail: the archive was replaced in its store, or closed."""
    sources = table_of(folder.reader).sources
    if sources is None:
        return True
    return not isinstance(sources, SourceSet) and sources.link.is_outdated


def forget() -> None:
    """Keep no archive open that nobody uses."""
    with _lock:
        _opened.clear()


def _open(target: Target, version: object, options: dict[str, Any]) -> _Opened:
    place, protocol, kept = target.place, target.protocol, None
    if "target_protocol" in target.options or "fo" in target.options:  # a chain of file systems
        kept = fsspec.filesystem(protocol, **target.options)
        if getattr(kept, "local_file", False):  # simplecache and filecache copy the whole file
            with kept.open(place, "rb") as copy:
                return _Opened(PackedFolder(copy.name, **options), version, kept)
        options = {**options, "fs": kept}
    elif protocol is not None:
        place = (
            [_url(each, protocol) for each in place]
            if isinstance(place, list)
            else _url(place, protocol)
        )
        if target.options:
            options = {**options, "storage_options": dict(target.options)}
    return _Opened(PackedFolder(place, **options), version, kept)


def _url(place: str, protocol: str) -> str:
    return place if "://" in place else f"{protocol}://{place}"


def _version(path: str) -> tuple[object, ...]:
    now = os.stat(path)
    return path, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns

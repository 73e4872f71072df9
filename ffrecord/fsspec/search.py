"""Search the names of a packed folder as fsspec's `find` and `glob` do, a level at a time.

Symlinks to folders count as folders. They are entered only where a pattern names them.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import has_magic

import numpy as np
from fsspec.utils import glob_translate

from ffrecord.aliases import Ints
from ffrecord.archive.index import ROOT, Index
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.listing import Entries, Level, are, below
from ffrecord.archive.names import to_bytes
from ffrecord.fsspec.details import are_folders


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: entries found in levels, and paths found one by one."""

    levels: list[Level]
    paths: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Places:
    """Folders that a search has reached, and the beginning of the paths in each."""

    folders: Ints
    prefixes: list[str]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return zip(self.folders.tolist(), self.prefixes, strict=True)


def find(
    index: Index, folder: int, prefix: str, depth: int | None, *, with_folders: bool
) -> Iterator[Level]:
    """Yield all entries below a folder, or those that are not folders."""
    for level in below(index, np.array([folder]), [prefix], depth):
        yield level if with_folders else level.some(~are_folders(level.entries))


def glob(index: Index, pattern: str, depth: int | None, *, only_folders: bool) -> Found:
    """Return the paths that match a pattern without slashes at its ends.

    Args:
        index: the index of the archive.
        pattern: parts with `*`, `?` and `[a-z]`, and `**` for any number of folders.
        depth: the most levels that the part from the first `**` on may reach; None for any number.
        only_folders: leave out everything but folders.
    """
    whole = re.compile(glob_translate(pattern + "/" * only_folders))
    parts = pattern.split("/")
    deep = next((at for at, part in enumerate(parts) if "**" in part), None)
    places = _Places(np.array([ROOT]), [""])
    for part in parts[:deep] if deep is not None else parts[:-1]:
        places = _entered(index, places, part)
    if deep is None:
        return _last(index, places, parts[-1], only_folders)
    # Like fsspec: a folder matches `a/**` and `a/**/` with a slash at its end.
    slash = only_folders or pattern.endswith("/**")
    above = [prefix for _, prefix in places if prefix]
    levels = []
    for level in below(index, places.folders, places.prefixes, depth):
        compared = level.paths
        if slash:
            ends = ("", "/")
            is_folder = are_folders(level.entries).tolist()
            compared = [
                path + ends[folder] for path, folder in zip(compared, is_folder, strict=True)
            ]
        levels.append(level.some(_matching(whole, compared)))
    return Found(levels, [path[:-1] for path in above if whole.match(path if slash else path[:-1])])


def _last(index: Index, places: _Places, part: str, only_folders: bool) -> Found:
    """Return the entries of folders that match the last part of a pattern."""
    if has_magic(part):
        level = _level(index, places, part)
        return Found([level.some(are_folders(level.entries)) if only_folders else level])
    found = []
    for folder, prefix in places:
        with contextlib.suppress(OSError):
            inode = resolve(index, to_bytes(part), follow=only_folders, start=folder)
            if not only_folders or stat.S_ISDIR(index.mode(inode)):
                found.append(prefix + part)
    return Found([], found)


def _entered(index: Index, places: _Places, part: str) -> _Places:
    """Return the folders in folders that match a part of a pattern."""
    if has_magic(part):
        level = _level(index, places, part)
        targets = level.entries.targets()
        inner = are(index, targets, stat.S_IFDIR)
        return _Places(targets[inner], [f"{path}/" for path in level.some(inner).paths])
    folders, prefixes = [], []
    for folder, prefix in places:
        with contextlib.suppress(OSError):
            inode = resolve(index, to_bytes(part), start=folder)
            if stat.S_ISDIR(index.mode(inode)):
                folders.append(inode)
                prefixes.append(f"{prefix}{part}/")
    return _Places(np.array(folders, np.int64), prefixes)


def _level(index: Index, places: _Places, part: str) -> Level:
    """Return the entries of folders whose names match a part of a pattern."""
    entries = Entries.of(index, places.folders)
    if part != "*":
        entries = entries.some(_matching(re.compile(glob_translate(part)), entries.names()))
    return Level(entries, entries.paths(places.prefixes))


def _matching(
    pattern: re.Pattern[str], texts: list[str]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.fromiter(map(bool, map(pattern.match, texts)), np.bool_, len(texts))

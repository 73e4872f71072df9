"""Iterate over the names of a packed folder: below a folder, by a pattern, or all files.

A folder is given by its inode number, a path as text. Symlinks to folders are entered only where a
docstring says so.
"""

from __future__ import annotations

import fnmatch
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.index import ROOT, Index
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.index.resolve import leads_to
from ffrecord.archive.names import to_text


@dataclass(frozen=True, slots=True)
class Item:
    """An entry found below a starting folder."""

    path: str  # relative to the starting folder
    name: bytes
    inode: int
    folder: int  # inode of the folder that contains the entry


def descend(index: Index, top: int, *, recursive: bool) -> Iterator[Item]:
    """Yield the entries of a folder; with `recursive`, after each inner folder its contents."""
    opened = [("", top, index.children(top))]
    while opened:
        path, folder, children = opened[-1]
        name, inode = next(children, (b"", MISSING))
        if inode == MISSING:
            opened.pop()
            continue
        item = Item(_joined(path, to_text(name)), name, inode, folder)
        yield item
        if recursive and stat.S_ISDIR(index.mode(inode)):
            opened.append((item.path, inode, index.children(inode)))


def walk(
    index: Index, path: str, top: int, *, followlinks: bool
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield paths, folders and files like `os.walk`, from the folder `top` with the path `path`.

    With `followlinks`, symlinks to folders are entered, unless they lead to a folder above.
    """
    above: tuple[int, ...] = ()  # inodes of the folders that contain the current one
    waiting = [(path, top, above)]
    while waiting:
        path, folder, above = waiting.pop()
        folders, files = [], []
        inodes = {}
        for name, child, record in _contents(index, folder):
            text = to_text(name)
            if record != MISSING:
                files.append(text)
                continue
            inode = leads_to(index, folder, name, child)
            if not stat.S_ISDIR(index.mode(inode)):
                files.append(text)
                continue
            folders.append(text)
            if followlinks or inode == child:
                inodes[text] = inode
        yield path, folders, files
        above = (*above, folder)
        waiting += [
            (_joined(path, name), inodes[name], above)
            for name in reversed(folders)
            if name in inodes and inodes[name] not in above
        ]


def _contents(index: Index, folder: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, inode and record of each entry. The record is MISSING for all but files."""
    entries = index.entries(folder)
    inodes = index.tables.entries["inode"][entries.start : entries.stop].astype(np.int64)
    records = index.records(inodes).tolist()
    for (name, inode), record in zip(index.children(folder), records, strict=True):
        yield name, inode, record


def matching(index: Index, pattern: str) -> list[str]:
    """Return the paths from the root that match a pattern, each once.

    Symlinks to folders are entered, except by `**`.
    """
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        return []
    return list(dict.fromkeys(_matching(index, "", ROOT, parts)))  # ** may find a path twice


def _matching(index: Index, path: str, folder: int, parts: Sequence[str]) -> Iterator[str]:
    """Yield the paths below `folder` that match a pattern's parts. `folder` has the path `path`."""
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _matching(index, path, folder, rest)
    if part == "**":
        for item in descend(index, folder, recursive=True):
            if not rest:
                yield _joined(path, item.path)
            elif stat.S_ISDIR(index.mode(item.inode)):
                yield from _matching(index, _joined(path, item.path), item.inode, rest)
        return
    matches = re.compile(fnmatch.translate(part)).match
    for item in descend(index, folder, recursive=False):
        if not matches(item.path):
            continue
        if not rest:
            yield _joined(path, item.path)
            continue
        inside = leads_to(index, folder, item.name, item.inode)
        if stat.S_ISDIR(index.mode(inside)):
            yield from _matching(index, _joined(path, item.path), inside, rest)


def all_files(index: Index) -> Iterator[str]:
    """Yield the paths of all regular files. Files of outer folders come first."""
    prefixes: dict[int, bytes] = {}
    parents = index.tables.entries["parent"]
    for entry in file_entries(index).tolist():
        parent = int(parents[entry])
        if parent not in prefixes:
            path = index.inode_path(parent)
            prefixes = {parent: path + b"/" if path else b""}
        yield to_text(prefixes[parent] + index.name(entry))


def file_entries(index: Index) -> Ints:
    """Return the numbers of the entries that name regular files."""
    inodes = index.tables.entries["inode"].astype(np.int64)
    found: Ints = (index.records(inodes) != MISSING).nonzero()[0]
    return found


def records_below(index: Index, top: int) -> Ints:
    """Return the record of a file, or the records of all files below a folder. Not sorted."""
    if not stat.S_ISDIR(index.mode(top)):
        return np.array([index.record(top)])
    below: list[Ints] = []
    waiting = [top]
    for folder in waiting:  # the list grows during the loop
        entries = index.entries(folder)
        inodes = index.tables.entries["inode"][entries.start : entries.stop].astype(np.int64)
        records = index.records(inodes)
        is_file = records != MISSING
        below.append(records[is_file])
        others = inodes[~is_file].tolist()
        waiting += [inode for inode in others if stat.S_ISDIR(index.mode(inode))]
    return np.concatenate(below)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name

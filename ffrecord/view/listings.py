"""Listings of a packed folder: a folder's entries, a search, or a random sample, in some order.

A listing is an array of entry numbers, so a folder of a million entries takes 4 MB. Names and
attributes are looked up only for the rows that the page shows.
"""

from __future__ import annotations

import itertools
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.archive.index import ROOT, Index
from ffrecord.archive.listing import Entries, are, attributes
from ffrecord.archive.names import to_bytes, to_text

Numbers: TypeAlias = npt.NDArray[np.uint32]

KEPT = 4  # listings in memory: the tree, the page, and the ones before
STEP = 1 << 16  # names that a search looks at between two looks at the clock
WILDCARDS = re.compile(r"[*?]|\[.+\]")
_ESCAPED = re.compile(r"[\\[&|~]|(?<=-)-")  # in brackets, where Python may give them a meaning


@dataclass(frozen=True, slots=True)
class Asked:
    """A listing that the page asks for.

    Without `pattern` and `seed`, it has the entries of `folder`. `pattern` searches below the
    folder. `seed` draws `count` of the files below the folder.
    """

    folder: int = ROOT
    folders_only: bool = False
    pattern: str = ""
    seed: int | None = None
    count: int = 0
    order: str = "name"
    reverse: bool = False


class Listings:
    """The listings of an archive. The latest ones are kept. Any number of threads may use it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._kept: OrderedDict[Asked, Numbers] = OrderedDict()
        self._lock = Lock()

    def numbers(self, asked: Asked, go_on: Callable[[], bool] = lambda: True) -> Numbers:
        """Return the entries of a listing. A search raises InterruptedError if `go_on` is False."""
        with self._lock:
            if asked in self._kept:
                self._kept.move_to_end(asked)
                return self._kept[asked]
        numbers = self._ordered(self._found(asked, go_on), asked).astype(np.uint32)
        with self._lock:
            self._kept[asked] = numbers
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return numbers

    def position(self, asked: Asked, entry: int) -> int | None:
        """Return the row of an entry in a listing; None if it is not there."""
        rows = np.flatnonzero(self.numbers(asked) == entry)
        return int(rows[0]) if len(rows) else None

    def _found(self, asked: Asked, go_on: Callable[[], bool]) -> Ints:
        index = self._index
        if asked.pattern:
            parts = list(_search(index, asked.folder, asked.pattern, go_on))
            return np.concatenate(parts) if parts else np.empty(0, np.int64)
        if asked.seed is not None:
            below = _files_below(index, asked.folder)
            generator = np.random.default_rng(asked.seed)
            return generator.choice(below, min(asked.count, len(below)), replace=False)
        entries = index.entries(asked.folder)
        numbers = np.arange(entries.start, entries.stop)
        if asked.folders_only:
            return numbers[are(index, _inodes(index, numbers), stat.S_IFDIR)]
        return numbers

    def _ordered(self, numbers: Ints, asked: Asked) -> Ints:
        if asked.seed is not None and asked.order == "name":
            return numbers  # a sample stays as it was drawn
        index, inodes = self._index, _inodes(self._index, numbers)
        folders = are(index, inodes, stat.S_IFDIR)
        rows = index.tables.inodes
        columns: dict[str, Callable[[], Any]] = {
            "name": lambda: np.arange(len(numbers)),
            "size": lambda: np.where(folders, 0, rows["length"][inodes]).astype(np.int64),
            "time": lambda: rows["mtime"][inodes].astype(np.int64),
            "mode": lambda: attributes(index, inodes)["mode"].astype(np.int64),
        }
        keys = columns[asked.order]()
        order = np.argsort(-keys if asked.reverse else keys, kind="stable")
        # Folders first, as in file managers.
        return numbers[order[np.argsort(~folders[order], kind="stable")]]


def rows(index: Index, numbers: Numbers, with_paths: bool) -> list[dict[str, Any]]:
    """Return what the page shows of some entries.

    `ref` is the percent-encoded name, which any URL can hold; `name` is for people. With
    `with_paths`, both are the path from the top.
    """
    entries = Entries(index, numbers.astype(np.int64), np.zeros(len(numbers), np.int64))
    found = []
    lines = zip(entries.numbers.tolist(), entries.names(), entries.inodes.tolist(),
                entries.targets().tolist(), strict=True)  # fmt: skip
    for number, name, inode, target in lines:
        status, end = index.status(inode), index.status(target)
        if with_paths:
            name = entry_path(index, number)
        row: dict[str, Any] = {
            "id": number, "name": shown(name), "ref": quote(to_bytes(name)), "size": end.size,
            "time": status.mtime_ns / 1e6, "mode": stat.filemode(status.mode),
            "kind": "folder" if end.is_folder else "file" if end.is_file else "broken link",
        }  # fmt: skip
        if end.is_folder:
            inside = index.entries(target)
            row["entries"] = len(inside)
            inner = _inodes(index, np.arange(inside.start, inside.stop))
            row["folders"] = bool(are(index, inner, stat.S_IFDIR).any())
        if status.is_symlink:
            row["target"] = shown(to_text(index.target(inode)))
        found.append(row)
    return found


def entry_path(index: Index, entry: int) -> str:
    """Return the path of an entry, from the top of the archive."""
    folder = index.inode_path(int(index.tables.entries["parent"][entry]))
    name = index.name(entry)
    return to_text(folder + b"/" + name if folder else name)


def shown(name: str) -> str:
    """Return a name for the page: bytes that are not UTF-8, and control characters, escaped."""
    text = to_bytes(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _inodes(index: Index, numbers: Ints) -> Ints:
    return index.tables.entries["inode"][numbers].astype(np.int64)


def _files_below(index: Index, folder: int) -> Ints:
    """Return the entries of all regular files below a folder."""
    found, folders = [np.empty(0, np.int64)], np.array([folder])
    while len(folders):
        entries = Entries.of(index, folders)
        inodes = entries.inodes
        found.append(entries.numbers[are(index, inodes, stat.S_IFREG)])
        folders = inodes[are(index, inodes, stat.S_IFDIR)]
    return np.concatenate(found)


def _search(
    index: Index, top: int, pattern: str, go_on: Callable[[], bool]
) -> Iterator[Ints]:  # fmt: skip
    """Yield the entries below a folder that match, a step of names at a time."""
    by_path = "/" in pattern.strip("/")
    try:
        matches = re.compile(expression(pattern)).search
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is not valid: {error}") from None
    top_path = to_text(index.inode_path(top))
    inside = f"{top_path}/" if top_path else ""
    prefixes: dict[int, str | None] = {ROOT: "" if not inside else None}
    parents = index.tables.entries["parent"]

    def prefix(folder: int) -> str | None:
        """Return the path of a folder below `top`, with a slash; None for other folders."""
        if folder not in prefixes:
            path = f"{to_text(index.inode_path(folder))}/"
            prefixes[folder] = path[len(inside) :] if path.startswith(inside) else None
        return prefixes[folder]

    for start in range(0, len(index.tables.entries), STEP):
        if not go_on():
            raise InterruptedError
        numbers = np.arange(start, min(start + STEP, len(index.tables.entries)))
        names = Entries(index, numbers, numbers).names()
        hits = []
        for row, (name, parent) in enumerate(
            zip(names, parents[numbers].tolist(), strict=True)
        ):  # fmt: skip
            if not by_path and not matches(name):
                continue
            before = prefix(parent)
            if before is not None and (not by_path or matches(before + name)):
                hits.append(row)
        yield numbers[hits]


def expression(pattern: str) -> str:
    """Return the regular expression of a search.

    Without wildcards, the text may be anywhere in the name. Capital letters match small ones too.
    """
    pattern = pattern.strip("/")
    if not WILDCARDS.search(pattern):
        return f"(?i){re.escape(pattern)}"
    *folders, name = pattern.split("/")
    groups = itertools.count()
    above = "".join(
        r"(?:[^/]+/)*" if part == "**" else f"{_part(part, groups)}/" for part in folders
    )
    below = r"(?:[^/]+/)*[^/]+" if name == "**" else _part(name, groups)
    return rf"(?is)\A{above}{below}\Z"


def _part(part: str, groups: Iterator[int]) -> str:
    """Return the expression of a pattern within one name.

    Between two stars, the first place that fits is as good as any later one, so each is tried only
    once: a name of 255 letters would keep `*a*a*a*b` busy for hours. A look-ahead with a group is
    never tried again; `groups` has the numbers of the groups.
    """
    first, *others = [_without_stars(piece) for piece in _between_stars(part)]
    if not others:
        return first
    *middle, last = others
    once = ((f"g{next(groups)}", piece) for piece in middle if piece)
    return (
        first
        + "".join(f"(?=(?P<{name}>[^/]*?{piece}))(?P={name})" for name, piece in once)
        + f"[^/]*{last}"
    )


def _between_stars(part: str) -> list[str]:
    """Split a pattern at its stars, but not at those in brackets."""
    found, at = [""], 0
    while at < len(part):
        if part[at] == "*":
            found.append("")
            at += 1
            continue
        end = _end(part, at)
        found[-1] += part[at:end]
        at = end
    return found


def _without_stars(part: str) -> str:
    found, at = [], 0
    while at < len(part):
        end = _end(part, at)
        letter, inner = part[at], _ESCAPED.sub(r"\\\g<0>", part[at + 1 : end - 1])
        if letter == "?":
            found.append("[^/]")
        elif end > at + 1:
            found.append(f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
        else:
            found.append(re.escape(letter))
        at = end
    return "".join(found)


def _end(part: str, at: int) -> int:
    """Return the end of the letter or of the brackets at `at`."""
    end = part.find("]", at + 2) if part[at] == "[" else -1
    return end + 1 if end > 0 else at + 1

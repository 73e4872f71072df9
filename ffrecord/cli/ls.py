"""`ffrecord ls ARCHIVE [PATH]`: list the files of a packed folder, as `ls` does.

On a terminal, names with special characters are quoted for the shell. The user can copy them to
`ffrecord cat`, and no control character reaches the terminal. In a pipe or a file, names are
printed as their bytes.
"""

from __future__ import annotations

import argparse
import grp
import json
import os
import pwd
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

from ffrecord.archive.archive import Archive
from ffrecord.archive.index import Index, Status
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.names import json_facts, to_bytes, to_text
from ffrecord.cli.common import errors_naming, refuse_datasets
from ffrecord.cli.quoting import print_names, quoted
from ffrecord.terminal import coloured, has_colours
from ffrecord.text import human

Entries: TypeAlias = "list[tuple[str, Status]]"

HALF_A_YEAR = 182 * 24 * 3600
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symlink"}


def run(options: argparse.Namespace) -> int:
    refuse_datasets(options.archive)
    with Archive.open(options.archive) as archive:
        index = archive.index
        style = _Style(
            options.l, options.human_readable, options.p, has_colours(sys.stdout, options.color),
            sys.stdout.isatty() and not options.zero, "\0" if options.zero else "\n",
        )  # fmt: skip
        located = (_locate(options, index, path) for path in options.path or [""])
        listings = chain.from_iterable(
            _listings(index, path, inode, options.recursive) for path, inode in located
        )
        for number, (path, listing) in enumerate(listings):
            if options.json:
                for name, status in listing:
                    print(json.dumps(_facts(index, os.path.join(path, name), status)))
                continue
            if options.recursive or len(options.path) > 1:
                style.print([*([""] if number else []), f"{style.name(path or '.')}:"])
            style.print(style.lines(index, listing))
    return 0


@dataclass(frozen=True, slots=True)
class _Style:
    """Appearance of a listing, from the command's options."""

    long: bool
    human_sizes: bool
    slashes: bool
    colours: bool
    quotes: bool
    end: str

    def print(self, lines: list[str]) -> None:
        print_names(lines, raw=not self.quotes, end=self.end)

    def name(self, name: str) -> str:
        return quoted(name) if self.quotes else name

    def lines(self, index: Index, found: Entries) -> list[str]:
        if not self.long:
            return [self._name(name, status) for name, status in found]
        rows = [self._columns(index, name, status) for name, status in found]
        links, user, group, size = (
            max((len(row[column]) for row in rows), default=0) for column in (1, 2, 3, 4)
        )
        return [
            f"{row[0]} {row[1]:>{links}} {row[2]:<{user}} {row[3]:<{group}} {row[4]:>{size}} "
            f"{row[5]} {row[6]}"
            for row in rows
        ]

    def _columns(self, index: Index, name: str, status: Status) -> tuple[str, ...]:
        shown = self._name(name, status)
        if status.is_symlink:
            shown += f" -> {self.name(to_text(index.target(status.inode)))}"
        size = human(status.size) if self.human_sizes else str(status.size)
        return (
            stat.filemode(status.mode), str(status.links), _user(status.uid), _group(status.gid),
            size, _when(status.mtime_ns // 1_000_000_000), shown,
        )  # fmt: skip

    def _name(self, name: str, status: Status) -> str:
        shown = self.name(name)
        colour = _colour(status) if self.colours else None
        if colour is not None:
            shown = coloured(shown, colour)
        return f"{shown}/" if self.slashes and status.is_folder else shown


def _colour(status: Status) -> str | None:
    """Return the default colour of `ls` for this kind of file."""
    if status.is_folder:
        return "1;34"
    if status.is_symlink:
        return "1;36"
    return "1;32" if status.mode & 0o111 else None


def _locate(options: argparse.Namespace, index: Index, path: str) -> tuple[str, int]:
    with errors_naming(options.archive, index, path, options):
        return path, resolve(index, to_bytes(path), follow=path.endswith("/"))


def _listings(
    index: Index, path: str, inode: int, recursive: bool
) -> Iterator[tuple[str, Entries]]:
    """Yield each folder to list, with its entries. For a file, yield its folder and the file."""
    if not stat.S_ISDIR(index.mode(inode)):
        above, _, name = path.rpartition("/")
        yield above, [(name, index.status(inode))]
        return
    waiting = [(path.rstrip("/"), inode)]
    while waiting:
        path, inode = waiting.pop()
        children = index.children(inode)
        found = [(to_text(name), index.status(child)) for name, child in children]
        yield path, found
        if recursive:
            waiting += [
                (os.path.join(path, name), status.inode)
                for name, status in reversed(found)
                if status.is_folder
            ]


def _facts(index: Index, path: str, status: Status) -> dict[str, Any]:
    facts: dict[str, Any] = {
        **json_facts("path", path),
        "kind": KINDS[stat.S_IFMT(status.mode)],
        "mode": f"{stat.S_IMODE(status.mode):04o}",
        "links": status.links,
        "uid": status.uid,
        "gid": status.gid,
        "size": status.size,
        "mtime_ns": status.mtime_ns,
    }
    if status.is_symlink:
        facts |= json_facts("target", to_text(index.target(status.inode)))
    elif status.is_file:
        facts["record"] = index.record(status.inode)
    return facts


def _when(mtime: int) -> str:
    """Return a date as `ls` shows it: with the time if recent, otherwise with the year."""
    try:
        then = time.localtime(mtime)
    except (OverflowError, ValueError, OSError):
        return str(mtime)
    recent = 0 <= time.time() - mtime < HALF_A_YEAR
    return time.strftime("%b %e %H:%M" if recent else "%b %e  %Y", then)


@cache
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


@cache
def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return str(gid)

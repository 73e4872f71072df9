"""`ffrecord ls ARCHIVE [PATH]`: what is in a packed folder, as `ls` shows it."""

from __future__ import annotations

import argparse
import grp
import json
import os
import pwd
import stat
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

from ffrecord.cli.terminal import printable
from ffrecord.folder import PackedFolder

HALF_A_YEAR = 182 * 24 * 3600
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symlink"}


def add_command(commands: Any) -> None:
    parser = commands.add_parser("ls", help="list what is in a packed folder")
    parser.add_argument("archive", help="a packed folder, or the folder of its shards")
    parser.add_argument("path", nargs="?", default="", help="a file or folder in it")
    parser.add_argument("-l", action="store_true", help="mode, links, owner, size and time too")
    parser.add_argument("-R", action="store_true", help="folders in folders too")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for scripts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with PackedFolder(options.archive) as folder:
        listings = _listings(folder, options.path, recursive=options.R)
        for number, (path, names) in enumerate(listings):
            if options.json:
                for name in names:
                    print(json.dumps(_facts(folder, _joined(path, name))))
                continue
            if options.R:
                print(f"{'' if number == 0 else chr(10)}{printable(path or '.')}:")
            if options.l:
                _print_long(folder, path, names)
            else:
                for name in names:
                    print(printable(name))
    return 0


def _listings(
    folder: PackedFolder, path: str, *, recursive: bool
) -> Iterator[tuple[str, list[str]]]:
    """Each folder to list and the names in it; for a file the folder it is in, and its name."""
    status = folder.stat(path, follow_symlinks=path.endswith("/"))
    if not stat.S_ISDIR(status.st_mode):
        above, _, name = path.rpartition("/")
        yield above, [name]
        return
    for below, folders, files in folder.walk(path):
        yield below, sorted(folders + files)
        if not recursive:
            return


def _print_long(folder: PackedFolder, path: str, names: list[str]) -> None:
    rows = [_long(folder, _joined(path, name), name) for name in names]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for mode, links, user, group, size, when, name in rows:
        print(
            mode, links.rjust(widths[1]), user.ljust(widths[2]), group.ljust(widths[3]),
            size.rjust(widths[4]), when, name,
        )  # fmt: skip


def _long(folder: PackedFolder, path: str, name: str) -> tuple[str, ...]:
    status = folder.stat(path, follow_symlinks=False)
    shown = printable(name)
    if stat.S_ISLNK(status.st_mode):
        shown += f" -> {printable(folder.readlink(path))}"
    return (
        stat.filemode(status.st_mode), str(status.st_nlink), _user(status.st_uid),
        _group(status.st_gid), str(status.st_size), _when(status.st_mtime), shown,
    )  # fmt: skip


def _facts(folder: PackedFolder, path: str) -> dict[str, Any]:
    status = folder.stat(path, follow_symlinks=False)
    facts: dict[str, Any] = {
        "path": path,
        "kind": KINDS[stat.S_IFMT(status.st_mode)],
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "links": status.st_nlink,
        "uid": status.st_uid,
        "gid": status.st_gid,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }
    if stat.S_ISLNK(status.st_mode):
        facts["target"] = folder.readlink(path)
    elif stat.S_ISREG(status.st_mode):
        facts["record"] = folder.record(path)
    return facts


def _joined(path: str, name: str) -> str:
    return os.path.join(path, name)


def _when(mtime: float) -> str:
    """As ls: with the time for what is recent, with the year for what is not."""
    try:
        then = time.localtime(mtime)
    except (OverflowError, ValueError, OSError):
        return f"{mtime:.0f}"
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

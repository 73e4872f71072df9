"""Make folders with everything that a folder can have, and compare two folders.

This module must not use the package, because its results are compared with the package's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import stat
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

BLOCK = 128 << 10
BATCH = 16 * BLOCK
"""Bytes of a batch. Packing reads a larger file in several pieces."""

SIZES = {
    "zero": 0,
    "one": 1,
    "block-1": BLOCK - 1,
    "block": BLOCK,
    "block+1": BLOCK + 1,
    "blocks": 5 * BLOCK + 7,
    "batch": BATCH,
    "batches": 2 * BATCH + 12_345,
}
NAMES = [
    b"a file with spaces",
    b" ",
    b"new\nline",
    b"tab\tand \x1b[31mcolour\x1b[0m",
    b"not utf-8 \xff\xfe\xe9",
    b"\xf0\x9f\x8d\x8b \xc3\xbcn\xc3\xafc\xc3\xb8d\xc3\xa9",
    b"x" * 255,
    b".hidden",
    b"..two dots",
    b"...",
    b"-rf",
    b"--",
    b"back\\slash",
    b"*star?[x]",
    b"\x01\x7f",
    # Sorted by bytes, but not sorted as paths: "a-b" and "a.b" are on both sides of "a/".
    b"a-b",
    b"a.b",
    b"ab",
]
XATTRS = {
    "user.text": b"some text",
    "user.binary": bytes(range(256)),
    "user.empty": b"",
    "user.nul": b"\0",
}
SECOND = 10**9
BEFORE_1970 = -1_234_567_890 * SECOND + 123_456_789
YEAR_2100 = 4_102_444_800 * SECOND + 987_654_321
NANOSECONDS = 1_600_000_000 * SECOND + 123_456_789


# ---- making a folder -----------------------------------------------------------------------


def content(size: int, seed: int = 0) -> bytes:
    """Return bytes that differ for every seed and are the same in every run."""
    return random.Random(f"{size} {seed}").randbytes(size)


def rich_tree(top: Path) -> Path:
    """Make a folder with every kind of entry. As root, set attributes that only root may set."""
    top.mkdir()
    for number, (name, size) in enumerate(SIZES.items()):
        a_file(top / "sizes" / name, size, number)
    for number, raw in enumerate(NAMES):
        a_file(top / "names" / os.fsdecode(raw), 10 + number, number)
        a_file(top / "folders" / os.fsdecode(raw) / "inside", 20 + number, number)
    for number in range(600):  # more than one batch of small files
        a_file(top / "many" / f"{number:03d}", number % 50, number)
    for name in ("empty", "nested/a/b/c/empty", "nested/a/b/also empty"):
        (top / name).mkdir(parents=True)
    a_file(top / "nested/a/b/c/deep", 100)
    a_file(top / "nested/a/shallow", 100, 1)
    _links(top)
    for kind in ("fifo", "socket"):
        (top / "special").mkdir(exist_ok=True)
        os.mknod(
            top / "special" / kind, 0o644 | (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK)
        )
    a_file(top / "special/file", 5)
    if has_xattrs(top):
        _xattrs(top / "xattrs")
    if os.geteuid() == 0:
        _owners(top / "owners")
    _times(top / "times")
    _modes(top / "modes")
    return top


def a_file(path: Path, size: int, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content(size, seed))
    return path


def _links(top: Path) -> None:
    folder = top / "links"
    folder.mkdir()
    targets = {
        "relative": "../sizes/one",
        "sibling": "relative",
        "to folder": "../nested/a",
        "through": "to folder/b/c/deep",
        "slash": "../nested/",
        "file with slash": "../sizes/one/",
        "up": "..",
        "dangling": "nowhere/at all",
        "loop": "loop",
        "ping": "pong",
        "pong": "ping",
        "absolute": "/no such place/on any machine",
        "leaving": "../../../no such place/on any machine",
        "long": "x" * 200 + "/" + "y" * 200,
        "not utf-8": os.fsdecode(b"\xff\xfe\n\x1b"),
    }
    for name, target in targets.items():
        (folder / name).symlink_to(target)
    a_file(top / "hard/first", 1000)
    a_file(top / "hard/large", 3 * BLOCK + 5)
    a_file(top / "hard/empty", 0)
    (top / "hard/other folder").mkdir()
    (top / "aaa before all").mkdir()
    for old, new in (
        ("hard/first", "hard/second"),
        ("hard/first", "hard/other folder/third"),
        ("hard/first", "aaa before all/fourth"),
        ("hard/large", "zzz after all"),
        ("hard/empty", "nested/a/b/empty too"),
    ):
        os.link(top / old, top / new)
    with contextlib.suppress(OSError):  # some file systems have no hard links to symlinks
        os.link(folder / "relative", folder / "relative again", follow_symlinks=False)


def _xattrs(folder: Path) -> None:
    (folder / "folder").mkdir(parents=True)
    for path in (a_file(folder / "file", 3), a_file(folder / "same", 4), folder / "folder", folder):
        for name, value in XATTRS.items():
            os.setxattr(path, name, value)
    os.setxattr(a_file(folder / "large", BATCH + 1), "user.only", b"one")
    a_file(folder / "none", 5)


def _owners(folder: Path) -> None:
    a_file(folder / "file", 3)
    (folder / "link").symlink_to("file")
    (folder / "folder").mkdir()
    for number, name in enumerate(("file", "link", "folder")):
        os.chown(folder / name, 12_345 + number, 54_321 + number, follow_symlinks=False)
    (folder / "folder").chmod(0o2775)


def _times(folder: Path) -> None:
    times = {"before 1970": BEFORE_1970, "1970": 0, "2100": YEAR_2100, "ns": NANOSECONDS}
    for name, when in times.items():
        a_file(folder / f"file of {name}", 7)
        (folder / f"link of {name}").symlink_to("somewhere")
        (folder / f"folder of {name}").mkdir()
        for kind in ("file", "link", "folder"):
            os.utime(folder / f"{kind} of {name}", ns=(0, when), follow_symlinks=False)


def _modes(folder: Path) -> None:
    modes = [0o400, 0o444, 0o600, 0o644, 0o755, 0o777, 0o1644, 0o2755, 0o4755, 0o6711]
    if os.geteuid() == 0:  # other users could not read it
        modes.append(0o000)
    for mode in modes:
        a_file(folder / f"file {mode:04o}", 6).chmod(mode)
    for mode in (0o500, 0o555, 0o700, 0o755, 0o1777, 0o2775):
        a_file(folder / f"folder {mode:04o}" / "inside", 8)
        (folder / f"folder {mode:04o}").chmod(mode)


def has_xattrs(folder: Path) -> bool:
    """Return True if the file system has extended attributes for users."""
    try:
        os.setxattr(folder, "user.test", b"")
        os.removexattr(folder, "user.test")
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM):
            return False
        raise
    return True


def plain_tree(top: Path, files: Mapping[str, bytes]) -> Path:
    """Make a folder with these files; a name that ends in a slash is an empty folder."""
    top.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = top / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return top


def many_files(top: Path, count: int) -> Path:
    """Make a folder of many small files in 100 folders, some of them with hard links."""
    for number in range(count):
        folder = top / f"{number % 10}" / f"{number % 100:02}"
        if number < 100:
            folder.mkdir(parents=True)
        path = folder / f"{number:05}"
        if number % 100 == 77 and number > 100:
            os.link(top / "6" / "76" / f"{number - 1:05}", path)
        else:
            path.write_bytes(b"%d" % number * (number % 61))
    return top


def chain(top: Path, levels: int) -> Path:
    """Make nested folders, with a file in the first, the middle and the last."""
    top.mkdir()
    folder = top
    for level in range(levels):
        folder = folder / "d"
        folder.mkdir()
        if level in (0, levels // 2, levels - 1):
            (folder / "file").write_bytes(b"%d" % level)
    return top


# ---- looking at a folder -------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """All properties of a file, folder or symlink that tests compare."""

    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    links: int = 0
    size: int = 0
    target: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    content: bytes = b""
    same_file: tuple[bytes, ...] = ()


KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
}
KEPT = ("file", "folder", "symlink")


def paths(top: Path) -> list[bytes]:
    """Return every path below a folder, and b"." for the folder; each folder before its content."""
    found, waiting = [], [b"."]
    while waiting:
        path = waiting.pop()
        found.append(path)
        place = os.path.join(os.fsencode(top), path)
        if stat.S_ISDIR(os.lstat(place).st_mode):
            inner = sorted(os.listdir(place), reverse=True)
            waiting += [name if path == b"." else os.path.join(path, name) for name in inner]
    return found


def snapshot(top: Path) -> dict[bytes, Found]:
    """Return the content of a folder by path."""
    found = {}
    names: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    identity = {}
    for path in paths(top):
        place = os.path.join(os.fsencode(top), path)
        now = os.lstat(place)
        identity[path] = (now.st_dev, now.st_ino)
        names[identity[path]].append(path)
        found[path] = _look(place, now)
    return {
        path: replace(each, same_file=tuple(sorted(names[identity[path]])))
        for path, each in found.items()
    }


def _look(place: bytes, now: os.stat_result) -> Found:
    kind = kind_of(now)
    found = Found(kind, stat.S_IMODE(now.st_mode), now.st_uid, now.st_gid, now.st_mtime_ns)
    if kind == "folder":  # its links and size depend on the file system
        return replace(found, xattrs=xattrs(place))
    found = replace(found, links=now.st_nlink, size=now.st_size)
    if kind == "symlink":
        return replace(found, target=os.readlink(place))
    if kind == "file":
        with open(place, "rb") as file:
            return replace(found, xattrs=xattrs(place), content=file.read())
    return found


def kind_of(status: os.stat_result) -> str:
    return KINDS[stat.S_IFMT(status.st_mode)]


def xattrs(path: bytes | Path) -> tuple[tuple[str, bytes], ...]:
    try:
        names = sorted(name for name in os.listxattr(path) if name.startswith("user."))
    except OSError:
        return ()
    return tuple((name, os.getxattr(path, name)) for name in names)


def differences(real: Path, other: Path) -> list[str]:
    """Return the differences of two folders, except fifos and other files that no archive keeps."""
    left = {path: each for path, each in snapshot(real).items() if each.kind in KEPT}
    right = snapshot(other)
    lines = [f"only in the first: {path!r}" for path in left if path not in right]
    lines += [f"only in the second: {path!r}" for path in right if path not in left]
    for path in left.keys() & right.keys():
        for field in fields(Found):
            one, two = getattr(left[path], field.name), getattr(right[path], field.name)
            if one != two:
                lines.append(f"{path!r}: {field.name}: {str(one)[:80]} and {str(two)[:80]}")
    return sorted(lines)


@cache
def rsync_is_there() -> bool:
    try:
        return (
            subprocess.run(["rsync", "--version"], capture_output=True, check=False).returncode == 0
        )
    except FileNotFoundError:
        return False


def rsync_differences(real: Path, other: Path) -> list[str]:
    """Return the changes that rsync would make to the second folder, except fifos and sockets."""
    command = [
        "rsync",
        "-aXHn",
        "--delete",
        "--itemize-changes",
        "--modify-window=-1",
        "--checksum",
    ]
    done = subprocess.run(
        [*command, "--exclude=/special/fifo", "--exclude=/special/socket", f"{real}/", f"{other}/"],
        capture_output=True, check=False, timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr.decode(errors="replace"))
    return done.stdout.decode(errors="replace").splitlines()

"""Simulate the states that a power cut may leave in a folder.

A file keeps the content of its last sync, and a folder keeps the names of its last sync. Each later
change of a name or a sector is kept or lost, independently of the others. This is worse than any
real file system, so code that survives this simulation survives real power cuts.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord.disk import libc

Image: TypeAlias = "bytes | dict[str, Any] | None"

SECTOR = 512
NAMING = ("rename", "replace", "link", "symlink", "unlink", "mkdir", "rmdir")


@dataclass(frozen=True)
class Cut:
    """Choice among the possible states: random, the latest, or the last synced one.

    `names` and `data` are "now", "synced" or "any" (random).
    """

    names: str
    data: str
    chance: random.Random

    def choose(self, how: str) -> bool:
        """Return True to take the current state, False to take the synced one."""
        return how == "now" or (how == "any" and self.chance.random() < 0.5)


def cuts(chance: random.Random) -> Iterator[Cut]:
    """Yield the extreme choices, and five random ones."""
    for names in ("synced", "now"):
        for data in ("synced", "now"):
            yield Cut(names, data, chance)
    yield Cut("now", "any", chance)
    for _ in range(4):
        yield Cut("any", "any", chance)


class Disk:
    """State of the folder `top` on disk.

    At the start everything is synced. Work within `watching` changes the state.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, int]] = {}
        self._held: list[int] = []
        self._sync_all()

    @contextmanager
    def watching(self, then: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Record every sync. `then` is called after each sync and each change of a name."""
        with pytest.MonkeyPatch.context() as patch:
            for name in NAMING:
                patch.setattr(os, name, _followed_by(getattr(os, name), then))
            patch.setattr(libc, "exchange", _followed_by(libc.exchange, then))
            patch.setattr(os, "fsync", _followed_by(self._sync, then))
            patch.setattr(libc, "syncfs", lambda _fd: self._sync_all())
            try:
                yield
            finally:
                while self._held:
                    os.close(self._held.pop())

    def image(self, path: Path, cut: Cut) -> Image:
        """Return the content of a path after a power cut.

        The content is the bytes of a file, a dict from the names of a folder to their content, or
        None.
        """
        here = dict(_below(self._top))
        number = self._names(path.parent.stat().st_ino, here, cut).get(path.name)
        return None if number is None else self._what(number, here, cut)

    def _what(self, number: int, here: dict[int, Path], cut: Cut) -> Image:
        path = here.get(number)
        if number in self._folders or (path is not None and _is_folder(path)):
            names = self._names(number, here, cut)
            return {name: self._what(inner, here, cut) for name, inner in sorted(names.items())}
        if path is not None and path.is_symlink():  # stored together with its name
            return os.fsencode(os.readlink(path))
        then = self._files.get(number, b"")
        now = then if path is None else path.read_bytes()
        return _mixed(then, now, cut)

    def _names(self, number: int, here: dict[int, Path], cut: Cut) -> dict[str, int]:
        then = self._folders.get(number, {})
        now = _entries(here[number]) if number in here else then
        found = {}
        for name in then.keys() | now.keys():
            inner = (now if cut.choose(cut.names) else then).get(name)
            if inner is not None:
                found[name] = inner
        return found

    def _sync(self, fd: int) -> None:
        """Record the state of a synced file. It stays open, so that its inode is not reused."""
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        self._held.append(again)
        status = os.fstat(again)
        if stat.S_ISDIR(status.st_mode):
            self._folders[status.st_ino] = _entries(again)
        else:
            self._files[status.st_ino] = os.pread(again, status.st_size, 0)

    def _sync_all(self) -> None:
        for path in dict(_below(self._top)).values():
            if not path.is_symlink():
                fd = os.open(path, os.O_RDONLY)
                self._sync(fd)
                os.close(fd)


def _followed_by(call: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        then()
        return result

    return called


def _below(top: Path) -> Iterator[tuple[int, Path]]:
    yield top.stat().st_ino, top
    for path in top.rglob("*"):
        yield path.lstat().st_ino, path


def _entries(folder: Path | int) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _mixed(then: bytes, now: bytes, cut: Cut) -> bytes:
    """Mix old and new bytes: each sector is old or new, and so is the length."""
    if cut.data != "any" or then == now:
        return now if cut.data == "now" else then
    sectors = [
        (now if cut.choose("any") else then)[at : at + SECTOR].ljust(SECTOR, b"\0")
        for at in range(0, max(len(now), len(then)), SECTOR)
    ]
    return b"".join(sectors)[: len(now) if cut.choose("any") else len(then)]

"""Giving files and folders that were made in a hidden folder their names beside it, durably.

One file or folder does in one step. A bag has two files, and no two names change at once: both old
ones go first, and that is on the disk before a new one comes. So whoever looks, or comes back after
a power cut, finds the old bag, the new one, or half of one, which is no bag; but never the data of
one with the index of another. If a step fails, what was there is put back.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack

from ffrecord.archive.placing import rename_to_new_file
from ffrecord.atomic.file import sync_folder, writing
from ffrecord.atomic.folder import appeared, rename_to_new
from ffrecord.disk import libc


def publish_folder(folder: str, name: str) -> None:
    """The one in `folder` that has this name. Nothing, or an empty folder, is where it goes."""
    place = os.path.join(folder, os.path.basename(name))
    _make_durable(place)
    _move_folder(place, name)
    sync_folder(os.path.dirname(name))


def publish_files(folder: str, names: list[str], stale: list[str], *, force: bool) -> None:
    """Files in `folder`. With `force` they may replace others; `stale` are those that must be gone
    before the first of them is there."""
    beside = os.path.dirname(names[0])
    staged = [os.path.join(folder, os.path.basename(name)) for name in names]
    for place, name in zip(staged, names, strict=True):
        _make_durable(place)
        if force and os.path.exists(name):  # a file that is replaced keeps its mode
            os.chmod(place, stat.S_IMODE(os.stat(name).st_mode))
    with ExitStack() as undo:
        aside = _set_aside(folder, stale if force else [], undo)
        for place, name in zip(staged, names, strict=True):
            (os.rename if force else _name_anew)(place, name)
            undo.callback(os.unlink, name)
        undo.pop_all()
    sync_folder(beside)
    for old in aside:
        os.unlink(old)


def _set_aside(folder: str, names: list[str], undo: ExitStack) -> list[str]:
    """Old files, into the folder, in which nobody takes them for anything."""
    aside = []
    for name in filter(os.path.lexists, names):
        aside.append(os.path.join(folder, f"old {os.path.basename(name)}"))
        os.rename(name, aside[-1])
        undo.callback(_put_back, aside[-1], name)
    if aside:
        sync_folder(os.path.dirname(names[0]))
    return aside


def _put_back(aside: str, name: str) -> None:
    try:
        os.rename(aside, name)
    except OSError:  # perhaps the one that was the reason: the folder is removed, with all in it
        os.link(aside, name)


def _name_anew(place: str, name: str) -> None:
    """Give a file its name, unless somebody has taken that since it was looked for."""
    try:
        rename_to_new_file(place, name)
    except FileExistsError as error:
        raise appeared(name) from error


def _move_folder(place: str, name: str) -> None:
    """To another folder, which needs the right to write to the folder itself: its `..` changes."""
    mode = stat.S_IMODE(os.stat(place).st_mode)
    os.chmod(place, mode | stat.S_IWUSR)
    rename_to_new(place, name)
    os.chmod(name, mode)


def _make_durable(path: str) -> None:
    is_folder = os.path.isdir(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writing(path):
            if is_folder:
                libc.syncfs(fd)  # file by file it takes many times as long
            else:
                os.fsync(fd)
    finally:
        os.close(fd)

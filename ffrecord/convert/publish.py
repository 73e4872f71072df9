"""Durable renames of finished files and folders from a hidden folder to their final names.

One file or folder is renamed in one step. A bag has two files, and two names cannot change at once:
both old files are moved away first, and that is on disk before a new file appears. So at any
moment, also after a power cut, there is the old bag, the new one, or half of one, which is not a
bag. The data of one bag is never beside the index of another. If a step fails, the old files are
put back.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack

from ffrecord.atomic.file import keep_access, name_anew, sync_folder, writing
from ffrecord.atomic.folder import rename_to_new
from ffrecord.disk import libc


def publish_folder(folder: str, name: str) -> None:
    """Move the finished folder in `folder` to `name`, which is free or an empty folder."""
    place = os.path.join(folder, os.path.basename(name))
    _make_durable(place)
    _move_folder(place, name)
    sync_folder(os.path.dirname(name))


def publish_files(folder: str, names: list[str], stale: list[str], *, force: bool) -> None:
    """Move the finished files in `folder` to `names`.

    With `force`, they replace existing files, and the files in `stale` are moved away before the
    first new file appears.
    """
    beside = os.path.dirname(names[0])
    staged = [os.path.join(folder, os.path.basename(name)) for name in names]
    for place, name in zip(staged, names, strict=True):
        _make_durable(place)
        if force:
            keep_access(place, name)
    with ExitStack() as undo:
        aside = _set_aside(folder, stale if force else [], undo)
        for place, name in zip(staged, names, strict=True):
            (os.rename if force else name_anew)(place, name)
            undo.callback(os.unlink, name)
        undo.pop_all()
    sync_folder(beside)
    for old in aside:
        os.unlink(old)


def _set_aside(folder: str, names: list[str], undo: ExitStack) -> list[str]:
    """Move old files into the hidden folder, where no program takes them for a bag."""
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
    except OSError:
        # If rename is the call that fails, link may still work. The other name disappears with the
        # hidden folder.
        os.link(aside, name)


def _move_folder(place: str, name: str) -> None:
    """Move a folder, which must be writable for that, because its `..` changes."""
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
                libc.syncfs(fd)  # fsync of each file takes many times as long
            else:
                os.fsync(fd)
    finally:
        os.close(fd)

"""Temporary names: files that killed writers left are removed, files in use are not."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

import pytest

from ffrecord import ChangedError, FileReader, FileWriter
from ffrecord.atomic import tempnames
from tests.support import handmade, jobs


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target.ffr"


def abandoned(target: Path, number: int) -> Path:
    path = target.with_name(f".{target.name}.{number}.tmp")
    path.write_bytes(b"half of something")
    return path


def write(target: Path, records: list[bytes]) -> None:
    with FileWriter(target) as writer:
        writer.write(records)


@pytest.mark.parametrize("named", [False, True])
def test_the_next_writer_removes_files_of_killed_writers(
    named: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        jobs.without_tmpfile(monkeypatch)
    for number in (0, tempnames.COUNT - 1):
        abandoned(target, number)
    write(target, [b"new"])
    assert handmade.records_in(target.read_bytes()) == [b"new"]
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("named", [False, True])
def test_files_of_other_targets_and_other_kinds_stay(
    named: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        jobs.without_tmpfile(monkeypatch)
    other = abandoned(target.with_name("another.ffr"), 0)
    folder = target.with_name(f".{target.name}.0.tmp")
    folder.mkdir()
    link = target.with_name(f".{target.name}.1.tmp")
    link.symlink_to("another.ffr")
    write(target, [b"new"])
    assert set(target.parent.iterdir()) == {target, other, folder, link}


@pytest.mark.parametrize("writers", [2, tempnames.COUNT + 2])
def test_writers_of_one_target_do_not_remove_each_others_files(
    writers: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.without_tmpfile(monkeypatch)
    opened = [FileWriter(target, 1) for _ in range(writers)]
    assert len(os.listdir(target.parent)) == writers
    for number, writer in enumerate(opened):
        writer.write_one(b"%d" % number)
        writer.close()
        assert handmade.records_in(target.read_bytes()) == [b"%d" % number]
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("named", [False, True])
def test_without_locks_nothing_is_removed(
    named: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if named:
        jobs.without_tmpfile(monkeypatch)
    monkeypatch.setattr(fcntl, "flock", refuse)
    left = abandoned(target, 0)
    write(target, [b"new"])
    assert handmade.records_in(target.read_bytes()) == [b"new"]
    assert set(target.parent.iterdir()) == {target, left}


def test_a_temporary_file_that_was_replaced_never_gets_the_targets_name(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer on another machine, which locks do not reach, has replaced it."""
    jobs.without_tmpfile(monkeypatch)
    writer = FileWriter(target, 1)
    (name,) = target.parent.iterdir()
    name.unlink()
    name.write_bytes(b"half of another file")
    writer.write_one(b"one")
    with pytest.raises(ChangedError, match=target.name):
        writer.close()
    assert name.read_bytes() == b"half of another file"
    assert not target.exists()


def test_a_forked_child_does_not_keep_a_finished_file_locked(
    tmp_path: Path,
) -> None:
    target = tmp_path / "a.ffr"
    with FileWriter(target) as writer:
        writer.write_one(b"first")
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
    try:
        with FileWriter(target, append=True) as writer:
            writer.write_one(b"second")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with FileReader(target) as reader:
        assert handmade.as_bytes(reader.read([0, 1])) == [b"first", b"second"]


def test_a_name_that_another_writer_locks_first_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = str(tmp_path / "a.ffr")
    first = tempnames.names(target)[0]
    plain, others = os.open, []

    def overtaken(path: str, flags: int, *args: int) -> int:
        fd = plain(path, flags, *args)
        if path == first and flags & os.O_EXCL:  # another writer looks for abandoned files
            others.append(plain(path, os.O_RDWR))
            fcntl.flock(others[0], fcntl.LOCK_EX)
        return fd

    monkeypatch.setattr(os, "open", overtaken)
    fd, name = tempnames.create(target, 0o666)
    assert name == tempnames.names(target)[1]
    for each in (fd, *others):
        os.close(each)

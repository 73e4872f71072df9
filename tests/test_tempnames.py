"""Names of unfinished files: what a killed writer has left is removed, what is in use is not."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from ffrecord import ChangedError, FileWriter, tempnames
from tests import handmade, jobs


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
def test_what_killed_writers_have_left_is_removed_by_the_next_one(
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
def test_what_other_targets_and_other_kinds_of_files_have_for_a_name_stays(
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
def test_writers_of_one_target_do_not_take_each_others_files_away(
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
def test_where_there_are_no_locks_nothing_is_removed(
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
    """By a writer on another machine, where locks do not reach so far."""
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

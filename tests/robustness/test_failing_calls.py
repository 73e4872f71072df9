"""Bugs that `tests/robustness/faults` found: one test each, without its library for faults."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import BusyError, FileWriter, SampleChecksumError
from ffrecord.archive.archive import Archive
from ffrecord.atomic.folder import NewFolder
from ffrecord.disk import aio
from ffrecord.disk.source import SourceSet
from ffrecord.format.journal import partial_path
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.coldreads import ColdReads
from ffrecord_fuse.serve.session import Session
from tests.support import archives, handmade, kernel, trees, users

RECORDS = handmade.random_records([9000, 0, 5000, 1])


def broken(*_args: object, **_options: object) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# ---- files ---------------------------------------------------------------------------------


def test_a_journal_whose_header_is_written_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    path = tmp_path / "slow.ffr"
    for stop in (2, 4):
        with FileWriter(path, len(RECORDS), resumable=True) as writer:
            assert writer.count == stop - 2
            writer.write(RECORDS[stop - 2 : stop])
            if stop < len(RECORDS):
                writer.suspend()
    assert handmade.records_in(path.read_bytes()) == RECORDS


def test_a_failed_append_does_not_keep_the_file_locked(tmp_path: Path) -> None:
    """The kept exceptions keep open files alive, through the objects in their tracebacks."""
    path = handmade.write_records(tmp_path / "damaged.ffr", RECORDS)
    archives.flip(path, -1)
    kept = []
    for _ in range(2):
        with pytest.raises(SampleChecksumError) as caught:
            FileWriter(path, append=True)
        kept.append(caught.value)


@pytest.mark.parametrize("call", ["os.open", "fcntl.flock"])
def test_a_new_folder_that_cannot_be_opened_or_locked_is_not_left_behind(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(call, broken)
        with pytest.raises(OSError, match="Input/output error"):
            NewFolder(str(tmp_path / "new"), "writing")
    assert os.listdir(tmp_path) == []
    folder = NewFolder(str(tmp_path / "new"), "writing")
    folder.publish()
    assert os.listdir(tmp_path) == ["new"]


def test_a_folder_of_another_writer_is_not_removed(tmp_path: Path) -> None:
    first = NewFolder(str(tmp_path / "new"), "writing")
    with pytest.raises(BusyError, match="another writer"):
        NewFolder(str(tmp_path / "new"), "writing")
    first.publish()
    assert os.listdir(tmp_path) == ["new"]


def test_read_only_leftovers_of_a_killed_run_are_removed(
    tmp_path: Path,
) -> None:
    with users.reachable(tmp_path):
        left = users.run(
            """
place = sys.argv[1]
os.makedirs(f"{place}/.new.converting/new")
open(f"{place}/.new.converting/new/file", "w").close()
os.chmod(f"{place}/.new.converting/new", 0o555)
NewFolder(f"{place}/new", "converting").publish()
print(os.listdir(place), os.listdir(f"{place}/new"))
""",
            tmp_path,
            imports="from ffrecord.atomic.folder import NewFolder\n",
        )
    assert left == "['new'] []\n"


def test_a_resumable_writer_that_fails_to_start_releases_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    in_the_way = Path(partial_path(str(path)))
    os.mkfifo(in_the_way)
    with pytest.raises(OSError, match="regular file") as kept:
        FileWriter(path, resumable=True)
    in_the_way.unlink()
    with FileWriter(path, resumable=True) as writer:
        writer.write_one(b"x")
    assert os.listdir(tmp_path) == [path.name], kept


# ---- the mount -----------------------------------------------------------------------------


@pytest.mark.skipif(aio._lib is None, reason="libaio is not installed")
def test_reads_are_repeated_if_the_kernel_does_not_report_their_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    content = trees.content(1 << 20)
    path.write_bytes(content)
    cold = ColdReads(SourceSet([str(path)], direct=True))
    monkeypatch.setattr(aio, "_io_getevents", lambda *_args: -errno.EINVAL)
    spans = {number: (number * 100_001, 50_000) for number in range(9)}
    for turn in range(2):  # in the second turn no AIO context is left from the start
        for number, (begin, length) in spans.items():
            cold.add(number, 0, begin, length)
        cold.submit()
        found: dict[int, bytes] = {}
        while cold.busy:
            found |= {token: bytes(result) for token, result in cold.landed()}  # type: ignore[arg-type]
        due = {number: content[at : at + length] for number, (at, length) in spans.items()}
        assert found == due, turn
    cold.close()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Pack a folder with one file."""
    source = trees.plain_tree(tmp_path / "source", {"file": b"content"})
    archives.pack(source, tmp_path / "packed.ffr")
    return tmp_path / "packed.ffr"


def serve(archive: Archive) -> Callable[[int, Callable[[str], None]], None]:
    """Return a function that serves an archive to the kernel at the other end of `fd`."""

    def run(fd: int, log: Callable[[str], None]) -> None:
        session = Session(fd, Filesystem(archive), CheckedContent(archive), spin=0, log=log)
        with contextlib.closing(session):
            session.run()

    return run


def test_a_reply_that_the_kernel_refuses_is_replaced_by_an_error(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    failures = [OSError(errno.ENOMEM, "no memory")]

    def failing(fd: int, data: bytes) -> int:
        if failures:
            raise failures.pop()
        return write(fd, data)

    with Archive.open(packed) as archive, kernel.conversation(serve(archive)) as asking:
        with monkeypatch.context() as patched:
            patched.setattr("ffrecord_fuse.serve.session.os.write", failing)
            reply = asking.ask(kernel.getattr_(1, unique=77))
        assert (reply.unique, reply.error) == (77, errno.EIO)
        assert asking.ask(kernel.read(2, 0, 100)).payload == b"content"
        assert asking.log == ["the kernel refused a reply (no memory); sending EIO instead"]


def test_a_worker_that_cannot_read_requests_ends_with_an_error(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor then starts another worker, and does not mistake the end for an unmount."""
    monkeypatch.setattr("ffrecord_fuse.serve.inbox.Inbox.wait", broken)
    failing = pytest.raises(OSError, match="Input/output error")
    with Archive.open(packed) as archive, failing, kernel.conversation(serve(archive)):
        pass

"""`dump`: one file or many, complete or not at all."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ffrecord import FFRecordError, FileReader, SampleChecksumError, utils
from ffrecord.records.dump import dump
from tests.support import handmade

RECORDS = [pickle.dumps(i * 2) for i in range(200)]


class FailsAt:
    """A dataset with one item that cannot be read."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> bytes:
        if index == self.bad:
            raise SampleChecksumError("source", index, 1, 2)
        return b"x" * index


def everything(path: Path) -> list[bytes]:
    with FileReader(path) as reader:
        return [record.tobytes() for record in reader]


def test_one_file_holds_all_records(tmp_path: Path) -> None:
    dump(RECORDS, tmp_path / "one.ffr", 1)
    assert everything(tmp_path / "one.ffr") == RECORDS


@pytest.mark.parametrize("nfiles", [2, 8, 64])
def test_shards_hold_all_records_in_order(tmp_path: Path, nfiles: int) -> None:
    with pytest.warns(UserWarning, match="files instead") if nfiles == 64 else _no_warning():
        dump(RECORDS, tmp_path / "out", nfiles, max_workers=2)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"PART_{k:05d}.ffr" for k in range(len(names))]
    assert len(names) <= nfiles
    assert everything(tmp_path / "out") == RECORDS


def test_more_files_than_records_warns_and_writes_fewer(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="writing 10 files instead of nfiles=16"):
        dump(RECORDS[:10], tmp_path / "out", 16, max_workers=2)
    assert everything(tmp_path / "out") == RECORDS[:10]


def test_a_dataset_without_records_is_one_empty_shard(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="0 records"):
        dump([], tmp_path / "out", 3, max_workers=1)
    assert everything(tmp_path / "out") == []


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_is_accepted(tmp_path: Path, kind: type[Executor]) -> None:
    with kind() as executor:
        dump(RECORDS, tmp_path / "out", 4, executor=executor)
    assert everything(tmp_path / "out") == RECORDS


@pytest.mark.parametrize("with_executor", [False, True])
def test_a_failing_item_is_raised_and_leaves_the_folder_unchanged(
    tmp_path: Path, with_executor: bool
) -> None:
    out = tmp_path / "out"
    dump(RECORDS[:40], out, 4, max_workers=2)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with ThreadPoolExecutor(2) as executor, pytest.raises(SampleChecksumError, match="record 33"):
        dump(FailsAt(33), out, 4, max_workers=2, executor=executor if with_executor else None)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_folder_with_other_shards_is_refused(tmp_path: Path) -> None:
    dump(RECORDS, tmp_path / "out", 8, max_workers=2)
    with pytest.raises(FileExistsError, match=r"PART_00004\.ffr"):
        dump(RECORDS, tmp_path / "out", 4, max_workers=2)
    assert everything(tmp_path / "out") == RECORDS


SLOW = """
import os, sys, time
from ffrecord import utils
from ffrecord.records.dump import dump

class Slow:
    def __len__(self): return 4
    def __getitem__(self, index):
        os.write(1, b"begun\\n")  # one write: print may write the newline separately
        time.sleep(600)

dump(Slow(), sys.argv[1], 2, max_workers=2)
"""


def test_a_killed_dump_ends_its_workers_and_the_next_one_succeeds(tmp_path: Path) -> None:
    process = handmade.python(SLOW, str(tmp_path / "out"))
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "begun\n"
    finally:
        process.kill()
        process.communicate(timeout=600)  # returns when no process holds its output
    dump(RECORDS, tmp_path / "out", 4, max_workers=2)
    assert everything(tmp_path / "out") == RECORDS
    assert os.listdir(tmp_path) == ["out"]


NOT_FORKED = """
import multiprocessing, sys
from ffrecord.utils import dump

def main():
    # force: workers import this program again
    multiprocessing.set_start_method(sys.argv[2], force=True)
    dump([b"%d" % i for i in range(10)], sys.argv[1], 3)
"""


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_without_a_main_guard_gets_an_error_about_it(
    method: str, exists: bool, tmp_path: Path
) -> None:
    """Without the guard, each worker calls `dump` when it imports the program."""
    program = tmp_path / "program.py"
    program.write_text(f"{NOT_FORKED}\nmain()\n")
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    code, said = ended([program, out, method])
    assert code == 1
    *_, last = said.splitlines()
    assert last.startswith("ffrecord.errors.FFRecordError: ")
    assert last.endswith('call dump below `if __name__ == "__main__":`')
    assert "dump was called again by one of its own worker processes" in said
    assert sorted(os.listdir(tmp_path)) == (["out", program.name] if exists else [program.name])
    assert not exists or os.listdir(out) == []


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_processes_write_the_same_records(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f'{NOT_FORKED}\nif __name__ == "__main__":\n    main()\n')
    assert ended([program, tmp_path / "out", method]) == (0, "")
    assert everything(tmp_path / "out") == [b"%d" % i for i in range(10)]


def ended(arguments: list[Any]) -> tuple[int, str]:
    """Return the exit code of a program and its error output."""
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
    return result.returncode, result.stderr


def test_a_worker_ends_if_its_parent_ended_before_it_started(tmp_path: Path) -> None:
    """A worker gets no signal if its parent ended before the worker asked for the signal."""
    program = (
        "import os, ffrecord.records.dump; ffrecord.records.dump._adopt([], os.getpid()); print(1)"
    )
    orphan = handmade.python(program)
    assert orphan.communicate(timeout=600)[0] == ""
    assert orphan.returncode == 1


def test_a_killed_worker_raises_an_ffrecord_error(tmp_path: Path) -> None:
    with pytest.raises(FFRecordError, match=r"out: a worker process of dump ended early"):
        dump(Deadly(), tmp_path / "out", 2, max_workers=1)
    assert os.listdir(tmp_path) == []


class Deadly:
    """A dataset that ends the process when it is read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bytes:
        os._exit(9)


def test_dump_has_the_name_that_users_of_the_original_import() -> None:
    assert utils.dump is dump


@pytest.mark.parametrize("exists", [False, True])
def test_a_failing_item_leaves_no_shards_in_a_new_folder(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "out").mkdir()
    with pytest.raises(SampleChecksumError, match="record 33"):
        dump(FailsAt(33), tmp_path / "out", 4, max_workers=2)
    assert [*tmp_path.rglob("*")] == ([tmp_path / "out"] if exists else [])


def test_replaced_shards_keep_their_mode_and_owner(tmp_path: Path) -> None:
    dump(handmade.random_records([10, 20, 30]), tmp_path, nfiles=2)
    for shard in tmp_path.iterdir():
        shard.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(shard, 1234, 2345)
    before = [shard.stat() for shard in sorted(tmp_path.iterdir())]
    dump(handmade.random_records([1, 2, 3]), tmp_path, nfiles=2)
    after = [shard.stat() for shard in sorted(tmp_path.iterdir())]
    for old, new in zip(before, after, strict=True):
        assert new.st_ino != old.st_ino
        assert (new.st_mode, new.st_uid, new.st_gid) == (old.st_mode, old.st_uid, old.st_gid)


def test_an_existing_empty_folder_is_not_replaced(tmp_path: Path) -> None:
    """The folder may be a mountpoint, or have a special mode."""
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    before = place.stat()
    dump(handmade.random_records([10, 20, 30]), place, nfiles=2)
    after = place.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(os.listdir(place)) == ["PART_00000.ffr", "PART_00001.ffr"]


def test_verbose_shows_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dump(RECORDS, tmp_path / "out", 2, True, max_workers=1)
    assert "PART_00001" in capfd.readouterr().err


def test_nfiles_below_one_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        dump(RECORDS, tmp_path / "out", 0)
    with pytest.raises(TypeError, match="nfiles must be an int, not float"):
        dump(RECORDS, tmp_path / "out", 1.5)  # type: ignore[arg-type]


class _no_warning:  # noqa: N801 - used like pytest.warns
    def __enter__(self) -> None: ...
    def __exit__(self, *exc: object) -> None: ...

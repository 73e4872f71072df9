"""`FileWriter` and its file: the moment it appears, failures, full disks and forks."""

from __future__ import annotations

import errno
import gc
import io
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffrecord import (
    ClosedError,
    CountError,
    FileReader,
    FileWriter,
    NoRoomError,
    UnclosedWarning,
)
from ffrecord.format import records as record_layout
from tests.support import handmade, kills, users
from tests.support.handmade import OLD
from tests.support.writing import (
    Pattern,
    read_all,
    untouched,
    without_insert_range,
    without_tmpfile,
)

# In memory: tests/atomic/test_file.py covers real disks.
pytestmark = [pytest.mark.in_memory, pytest.mark.usefixtures("_no_writer_is_left_open")]


# ---- counts, closing, misuse ---------------------------------------------------------------


def test_too_few_records_leave_the_target_unchanged(target: Path) -> None:
    writer = FileWriter(target, 3)
    writer.write_one(b"only one")
    with pytest.raises(CountError, match="1 record written, but 3 announced"):
        writer.close()
    assert untouched(target)
    writer.close()
    with pytest.raises(ClosedError):
        writer.write_one(b"late")


def test_one_record_too_many_is_refused_and_the_others_are_kept(target: Path) -> None:
    with FileWriter(target, 1) as writer:
        writer.write_one(b"one")
        with pytest.raises(CountError, match=f"{target}: .* 1 records"):
            writer.write_one(b"two")
        assert writer.count == 1
    assert read_all(target) == [b"one"]


def test_closing_twice_has_no_further_effect(target: Path) -> None:
    writer = FileWriter(target, 1)
    writer.write_one(b"one")
    writer.close()
    target.write_bytes(OLD)
    writer.close()
    assert untouched(target)


def test_nothing_can_be_written_after_closing(target: Path) -> None:
    writer = FileWriter(target)
    writer.close()
    for data in (b"x", io.BytesIO(b"x")):
        with pytest.raises(ClosedError, match=str(target)):
            writer.write_one(data)
    with pytest.raises(ClosedError):
        writer.write([b"x"])


@pytest.mark.parametrize("n", [-1, record_layout.MAX_RECORDS + 1])
def test_an_impossible_count_is_refused_at_once(n: int, target: Path) -> None:
    with pytest.raises(ValueError, match=str(n)):
        FileWriter(target, n)
    assert untouched(target)


def test_an_argument_that_is_no_path_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="path"):
        FileWriter(3, 1)  # type: ignore[arg-type]


def test_a_folder_at_the_target_is_refused_before_writing(tmp_path: Path) -> None:
    (tmp_path / "w.ffr").mkdir()
    with pytest.raises(IsADirectoryError, match=r"w\.ffr"):
        FileWriter(tmp_path / "w.ffr", 1)
    assert os.listdir(tmp_path) == ["w.ffr"]


def test_a_relative_target_survives_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with FileWriter("w.ffr", 1) as writer:
        os.chdir("elsewhere")
        writer.write_one(b"x")
    assert read_all(tmp_path / "w.ffr") == [b"x"]


def test_a_closed_writer_holds_no_descriptor(target: Path) -> None:
    before = handmade.open_descriptors()
    for n in (1, None):
        writer = FileWriter(target, n)
        writer.write_one(b"x")
        writer.close()
        assert handmade.open_descriptors() == before
        writer = FileWriter(target, n)
        writer.discard()
        assert handmade.open_descriptors() == before


# ---- the target ----------------------------------------------------------------------------


def test_the_target_appears_only_at_close(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path / "w.ffr", 2)
    writer.write([b"x" * (3 << 20), b"y"])
    assert not (tmp_path / "w.ffr").exists()
    writer.close()
    assert os.listdir(tmp_path) == ["w.ffr"]


def test_a_reader_of_the_replaced_file_still_reads_it(target: Path) -> None:
    with FileReader(target) as reader:
        with FileWriter(target, 1) as writer:
            writer.write_one(b"new")
        assert reader.read_one(0).tobytes() == b"what was there before"
    assert read_all(target) == [b"new"]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_sets_the_mode_of_the_file(
    umask: int, named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)
    previous = os.umask(umask)
    try:
        FileWriter(tmp_path / "w.ffr", 0).close()
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "w.ffr").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("named", [False, True])
def test_a_replaced_file_keeps_its_mode_owner_and_group(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)
    path = tmp_path / "w.ffr"
    path.write_bytes(b"old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    old = path.stat()
    FileWriter(path, 0).close()
    new = path.stat()
    assert new.st_ino != old.st_ino
    assert (new.st_mode, new.st_uid, new.st_gid) == (old.st_mode, old.st_uid, old.st_gid)


def test_a_file_of_another_user_is_replaced_without_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make files of two users")
    with users.reachable(tmp_path) as folder:
        path = handmade.write_records(folder / "roots.ffr", [b"old"])
        os.chown(path, 0, users.NOBODY)
        path.chmod(0o664)
        script = "ffrecord.FileWriter(sys.argv[1], 0).close()"
        users.run(script, path, imports="import ffrecord.records.writer\n")
        new = path.stat()
    assert (new.st_uid, new.st_gid) == (users.NOBODY, users.NOBODY)
    assert stat.S_IMODE(new.st_mode) == 0o664


def test_a_symlink_stays_and_the_file_behind_it_is_written(target: Path) -> None:
    link = target.parent.parent / "link.ffr"
    link.symlink_to(target)
    with FileWriter(link, 1) as writer:
        writer.write_one(b"new")
    assert link.is_symlink()
    assert read_all(target) == [b"new"]
    assert os.listdir(target.parent) == [target.name]


def test_a_symlink_to_a_missing_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.ffr").symlink_to("there/file.ffr")
    FileWriter(tmp_path / "link.ffr", 0).close()
    assert (tmp_path / "there" / "file.ffr").is_file()
    assert (tmp_path / "link.ffr").is_symlink()


@pytest.mark.parametrize("name", ["w" * 251 + ".ffr", "w w\n'\"\\.ffr", "-rf", "\udcff\udc80.ffr"])
@pytest.mark.parametrize("named", [False, True])
def test_any_legal_name_can_be_written(
    named: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)
    with FileWriter(tmp_path / name, 1) as writer:
        writer.write_one(b"x")
    assert read_all(tmp_path / name) == [b"x"]
    assert os.listdir(tmp_path) == [name]


def test_a_long_name_outside_ascii_can_be_written(tmp_path: Path) -> None:
    name = "é" * 120 + ".ffr"
    assert len(os.fsencode(name)) < 255
    with FileWriter(tmp_path / name, 1) as writer:
        writer.write_one(b"x")
    assert read_all(tmp_path / name) == [b"x"]


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
@pytest.mark.parametrize("n", [2, None])
def test_a_file_system_without_unnamed_files_can_be_written(
    n: int | None, code: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_tmpfile(monkeypatch, code)
    with FileWriter(target, n) as writer:
        writer.write([b"one", b"two"])
        beside = [name for name in os.listdir(target.parent) if name != target.name]
        assert len(beside) == 1
        assert beside[0].startswith(".target.ffr.")
        assert beside[0].endswith(".tmp")
        assert target.read_bytes() == OLD
        with FileReader(target.parent) as reader:
            assert reader.fnames == [str(target)]
    assert read_all(target) == [b"one", b"two"]
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("n", [2, None])
def test_a_file_system_that_cannot_link_unnamed_files_can_be_written(
    n: int | None, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOENT, "no /proc here")

    monkeypatch.setattr(os, "link", refuse)
    with FileWriter(target, n) as writer:
        writer.write([b"one", b"two"])
    assert read_all(target) == [b"one", b"two"]
    assert os.listdir(target.parent) == [target.name]


def test_the_file_is_synced_before_it_is_renamed_and_the_folder_after(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watch_fsync(fd: int) -> None:
        folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        size = os.fstat(fd).st_size
        steps.append("sync folder" if folder else f"sync {size}")
        fsync(fd)

    def watch_rename(old: str, new: str) -> None:
        steps.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "rename", watch_rename)
    with FileWriter(target, 1) as writer:
        writer.write_one(b"x" * 100)
    assert steps == ["sync 124", "rename", "sync folder"]


# ---- failures and kills --------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("n", [1, 5, None])
def test_an_exception_inside_with_discards_everything(
    n: int | None, named: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)

    def failing() -> Iterator[bytes]:
        yield b"x" * (2 << 20)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), FileWriter(target, n) as writer:
        writer.write(failing())
    assert untouched(target)
    with pytest.raises(ClosedError):
        writer.write_one(b"late")


@pytest.mark.parametrize("step", ["fsync", "rename"])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("n", [1, None])
@pytest.mark.parametrize("insert", [False, True])
def test_a_failing_close_leaves_the_target_unchanged(
    insert: bool, n: int | None, named: bool, step: str, target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_args: object) -> None:
        raise PermissionError(errno.EACCES, "refused")

    if named:
        without_tmpfile(monkeypatch)
    if not insert:
        without_insert_range(monkeypatch)
    before = handmade.open_descriptors()
    writer = FileWriter(target, n)
    writer.write_one(b"x")
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(PermissionError):
        writer.close()
    assert untouched(target)
    assert handmade.open_descriptors() == before


def test_a_header_that_does_not_fit_after_a_copy_leaves_nothing_behind(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    without_tmpfile(monkeypatch)
    without_insert_range(monkeypatch)
    writer = FileWriter(target)
    writer.write_one(b"x")
    monkeypatch.setattr(record_layout, "seal", full)
    with pytest.raises(NoRoomError):
        writer.close()
    assert untouched(target)


@pytest.mark.parametrize("n", [2, None])
def test_a_writer_killed_before_its_end_leaves_nothing_behind(n: int | None, target: Path) -> None:
    """tests/robustness/test_crash_points.py kills writers at their system calls."""

    def work(_tell: object) -> None:
        writer = FileWriter(target, n)
        writer.write([b"x" * (2 << 20), b"new"])
        os.kill(os.getpid(), signal.SIGKILL)

    assert kills.run(work, None)[2]
    assert untouched(target)


# ---- a full disk ---------------------------------------------------------------------------

NO_ROOM = """
import os, resource, sys
from ffrecord import FileWriter, NoRoomError
folder, n, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
path = os.path.join(folder, "target.ffr")
before = open(path, "rb").read()
try:
    with FileWriter(path, None if n == "None" else int(n)) as writer:
        for number in range(40):
            writer.write_one(bytes([number]) * 100_000)
except NoRoomError:
    print("no room")
assert open(path, "rb").read() == before
assert os.listdir(folder) == ["target.ffr"], os.listdir(folder)
if not limit:
    with FileWriter(path, 1) as writer:
        writer.write_one(b"there is room for this")
print("fine")
"""


@pytest.mark.parametrize(
    ("limit", "n"), [(1_000, "None"), (1_000_000, "40"), (3_999_999, "40"), (3_999_999, "None")]
)
def test_a_file_above_the_size_limit_raises_no_room_error(limit: int, n: str, target: Path) -> None:
    out, err = handmade.python(NO_ROOM, str(target.parent), n, str(limit)).communicate()
    assert out == "no room\nfine\n", err
    assert untouched(target)


@pytest.mark.parametrize(("size", "n"), [("3m", "40"), ("5m", "None")])
def test_a_full_disk_raises_no_room_error(size: str, n: str, tmp_path: Path) -> None:
    """Use a small tmpfs, in a mount namespace that ends with its process.

    5 MiB have room for the records, but not for a second copy with a header.
    """
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    mount = f"mount -t tmpfs -o size={size} none {tmp_path}"
    attempt = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, check=False)
    if attempt.returncode != 0:
        pytest.skip("this user cannot mount")
    (tmp_path / "target.ffr").write_bytes(OLD)
    script = f'{mount} && printf old > "$3/target.ffr" && exec "$1" -c "$2" "$3" "$4" 0'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", sys.executable, NO_ROOM, str(tmp_path), n],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.stdout == "no room\nfine\n", done.stderr
    # The mount was only in the other namespace.
    assert (tmp_path / "target.ffr").read_bytes() == OLD


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_a_new_file_raises_no_room_error(
    code: int, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, *_args: object) -> int:
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as disk:
        disk.setattr(os, "open", full)
        with pytest.raises(NoRoomError, match="target"):
            FileWriter(target, 1)
    assert untouched(target)


def test_a_full_disk_while_a_stream_is_copied_raises_no_room_error(target: Path) -> None:
    """Set the limit in a child process, because it cannot be removed again."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
            writer = FileWriter(target, 1)
            try:
                writer.write_one(Pattern(8 << 20))
            except NoRoomError:
                code = 0 if untouched(target) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---- forks and drops -----------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("end", ["close", "discard", "exit with"])
def test_a_forked_child_neither_finishes_nor_discards_its_parents_file(
    end: str, named: bool, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_tmpfile(monkeypatch)
    large = b"x" * (2 << 20)
    writer = FileWriter(target, 2)
    writer.write_one(large)
    writer._file.flush()
    ends: dict[str, Callable[[], None]] = {
        "close": writer.close,
        "discard": writer.discard,
        "exit with": lambda: writer.__exit__(None, None, None),
    }
    assert in_child(ends[end]) == 0
    assert target.read_bytes() == OLD
    writer.write_one(b"two")
    writer.close()
    assert read_all(target) == [large, b"two"]
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("n", [2, None])
@pytest.mark.parametrize("end", ["close", "discard", "drop"])
@pytest.mark.filterwarnings("ignore::ffrecord.UnclosedWarning")
def test_a_forked_child_does_not_write_the_buffer_of_its_parent(
    end: str, n: int | None, target: Path
) -> None:
    writer = FileWriter(target, n)
    writer.write_one(b"small enough to be buffered")

    def work() -> None:
        nonlocal writer
        if end != "drop":
            getattr(writer, end)()
        del writer
        gc.collect()

    assert in_child(work) == 0
    writer.write_one(b"two")
    writer.close()
    assert read_all(target) == [b"small enough to be buffered", b"two"]


def test_a_forked_child_cannot_write_to_its_parents_file(target: Path) -> None:
    def work() -> None:
        with pytest.raises(ClosedError):
            writer.write_one(b"from the child" * (1 << 17))

    writer = FileWriter(target, 1)
    code = in_child(work)
    writer.write_one(b"from the parent")
    writer.close()
    assert code == 0
    assert read_all(target) == [b"from the parent"]


def test_a_dropped_writer_with_all_records_finishes_the_file(target: Path) -> None:
    writer = FileWriter(target, 1)
    writer.write_one(b"all there")
    del writer
    assert read_all(target) == [b"all there"]


def test_a_dropped_writer_whose_folder_was_removed_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens to a shard when packing is interrupted and the folder of shards is removed."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # instead of pytest's
    (tmp_path / "folder").mkdir()
    writer = FileWriter(tmp_path / "folder" / "target.ffr", 1)
    writer.write_one(b"all there")
    shutil.rmtree(tmp_path / "folder")
    del writer
    gc.collect()
    assert capsys.readouterr().err == ""
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("n", [2, None])
@pytest.mark.filterwarnings("ignore::ffrecord.UnclosedWarning")
def test_a_dropped_writer_without_all_records_discards_the_file(
    n: int | None, target: Path
) -> None:
    writer = FileWriter(target, n)
    writer.write_one(b"one")
    del writer
    gc.collect()
    assert untouched(target)


def test_a_dropped_writer_that_discards_the_file_warns(target: Path) -> None:
    writer = FileWriter(target, 2)
    with pytest.warns(UnclosedWarning, match=r"target\.ffr: the writer was never closed: no file"):
        del writer


def test_a_dropped_writer_that_cannot_finish_the_file_warns_without_a_traceback(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = FileWriter(target, 1)
    writer.write_one(b"all there")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UnclosedWarning, match=r"finishing it now failed: .*no room to write"):
        del writer
    assert untouched(target)


FORGOTTEN = {
    "record file": "writer = ffrecord.FileWriter('data'); writer.write_one(b'one')",
    "resumable": "writer = ffrecord.FileWriter('data', resumable=True); writer.write_one(b'one')",
    "dataset": "writer = ffrecord.DatasetWriter('data', {'n': 'int'}); writer.append({'n': 1})",
    "shards": "writer = ffrecord.ShardedDatasetWriter('.', {'n': 'int'}); writer.append({'n': 1})",
}
KEPT = {
    "global": "",
    "cycle": "writer.itself = writer",
    "another module": "import json; json.writer = writer; del writer",
    "after an error": "raise SystemExit(0)",
}


@pytest.mark.parametrize(
    ("writer", "how"),
    [*((writer, "global") for writer in FORGOTTEN), *(("record file", how) for how in [*KEPT][1:])],
)
def test_a_script_that_never_closes_its_writer_ends_with_one_warning(
    writer: str, how: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"import ffrecord\n{FORGOTTEN[writer]}\n{KEPT[how]}"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = ended.stderr.splitlines()
    assert "UnclosedWarning" in line
    assert "the writer was never closed" in line
    assert not (tmp_path / "data").exists()


def test_a_script_whose_writer_failed_in_a_with_block_does_not_warn(tmp_path: Path) -> None:
    script = "import ffrecord\nwith ffrecord.FileWriter('data') as writer: raise SystemExit(0)"
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""

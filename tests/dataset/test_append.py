"""`DatasetWriter(append=True)`: datapoints are added all together or not at all.

`test_crash_points` and `test_power_cuts` add kills and power cuts at any moment, with `jobs`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    AppendError,
    BusyError,
    ChangedError,
    DatasetError,
    DatasetReader,
    DatasetWriter,
    FileReader,
    SampleChecksumError,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    SpecError,
    encoders,
    write_dataset,
)
from ffrecord.dataset import reader as reader_module
from ffrecord.dataset import spec as spec_module
from ffrecord.dataset import writer as writer_module
from ffrecord.disk import libc
from tests.dataset.values import flip
from tests.support import handmade, users

SPEC = {"n": "int", "words": "utf8[]", "z": "bytes+gzip", "log": "json+zstd:dict", "a": "array"}


def point(k: int) -> dict[str, Any]:
    return {
        "n": k, "words": [f"w{j}" for j in range(k % 4)], "z": b"z" * k,
        "log": {"user": k, "event": "click", "text": "some text that comes again and again"},
        "a": [k, k],
    }  # fmt: skip


def points(*numbers: int) -> list[dict[str, Any]]:
    return [point(k) for k in numbers]


def contents(folder: Path) -> list[dict[str, Any]]:
    """Return all datapoints, with arrays as lists so that they can be compared."""
    with DatasetReader(folder) as reader:
        return [{**each, "a": each["a"].tolist()} for each in reader]


def write(folder: Path, numbers: Sequence[int], **options: Any) -> Path:
    with DatasetWriter(folder, **{"spec": SPEC, **options}) as writer:
        for k in numbers:
            writer.append({**point(k), "a": np.array([k, k])})
    return folder


def records(folder: Path, name: str) -> list[bytes]:
    return handmade.as_bytes(FileReader(folder / f"{name}.ffr"))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data", range(20))


# ---- the dataset afterwards ------------------------------------------------------------------


@settings(max_examples=25)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.booleans())
def test_appending_in_steps_gives_the_dataset_written_at_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], small: bool
) -> None:
    place = tmp_path_factory.mktemp("steps")
    with pytest.MonkeyPatch.context() as patch:
        if small:  # so that there are more values than train a dictionary
            patch.setattr(writer_module, "SAMPLE_VALUES", 12)
        done = 0
        for count in steps:
            write(place / "data", range(done, done + count), append=True)
            done += count
        write(place / "whole", range(done))
    assert contents(place / "data") == contents(place / "whole") == points(*range(done))
    for name in ("n", "words", "z", "a"):
        assert records(place / "data", name) == records(place / "whole", name), name
    assert sorted(os.listdir(place)) == ["data", "whole"]


def test_appended_numbers_continue_and_the_spec_is_optional(data: Path) -> None:
    with DatasetWriter(data, append=True) as writer:
        assert (writer.spec, len(writer)) == (SPEC, 20)
        assert writer.append({**point(20), "a": np.array([20, 20])}) == 20
        assert len(writer) == 21
    assert contents(data) == points(*range(21))


def test_append_creates_a_missing_dataset_and_needs_a_spec(tmp_path: Path) -> None:
    for folder in (tmp_path / "new", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(SpecError, match=f"{folder}: a new dataset needs a spec"):
            DatasetWriter(folder, append=True)
        write(folder, [0, 1], append=True)
        assert contents(folder) == points(0, 1)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({**SPEC, "n": "float"}, "field 'n' is int in the dataset and float in the given spec;"),
        (
            {**SPEC, "log": "json+zstd"},
            r"field 'log' is json\+zstd:dict in the dataset and json\+zstd in the given spec;",
        ),
        (
            {name: SPEC[name] for name in ("n", "words", "z", "log")},
            "field 'a' is array in the dataset and missing in the given spec;",
        ),
        (
            {**SPEC, "more": "int"},
            "field 'more' is missing in the dataset and int in the given spec;",
        ),
    ],
)
def test_another_spec_is_an_error_that_names_the_differences(
    spec: Mapping[str, str], said: str, data: Path
) -> None:
    before = bytes_of(data)
    with pytest.raises(SpecError, match=f"^{data}: the dataset has another spec: {said}"):
        DatasetWriter(data, spec, append=True)
    assert bytes_of(data) == before
    assert os.listdir(data.parent) == ["data"]


def test_a_spec_in_another_order_is_the_same(data: Path) -> None:
    write(data, [20], spec=dict(reversed(SPEC.items())), append=True)
    with DatasetReader(data) as reader:
        assert list(reader.spec) == list(SPEC)
        assert len(reader) == 21


def test_types_need_their_encoders(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", {"p": "point"}, {"point": bytes}) as writer:
        writer.append({"p": b"1"})
    with pytest.raises(SpecError, match=r"no codec for 'point'.*types with an encoder: array"):
        DatasetWriter(tmp_path / "d", append=True)
    with DatasetWriter(tmp_path / "d", encoders={"point": bytes}, append=True) as writer:
        writer.append({"p": b"2"})
    assert [each["p"] for each in DatasetReader(tmp_path / "d", {"point": bytes})] == [b"1", b"2"]


@pytest.mark.parametrize("what", ["a folder of files", "shards", "a file"])
def test_a_folder_that_is_not_a_dataset_is_an_error_and_stays(what: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if what == "a file":
        target.write_bytes(b"x")
    elif what == "shards":
        with ShardedDatasetWriter(target, {"n": "int"}) as writer:
            writer.append({"n": 1})
    else:
        target.mkdir()
        (target / "x").write_bytes(b"x")
    with pytest.raises((DatasetError, NotADirectoryError), match=str(target)):
        DatasetWriter(target, {"n": "int"}, append=True)
    assert os.listdir(tmp_path) == ["target"]


# ---- dictionaries ----------------------------------------------------------------------------


def test_a_dictionary_is_kept_and_used_for_appended_values(tmp_path: Path) -> None:
    data = write(tmp_path / "data", range(300))
    *old, trained = records(data, "log")
    assert trained
    write(data, range(300, 400), append=True)
    *logs, last = records(data, "log")
    assert (logs[:300], last) == (old, trained)
    plain = write(tmp_path / "plain", range(300, 400), spec={**SPEC, "log": "json+zstd"})
    assert 2 * sum(map(len, logs[300:])) < sum(map(len, records(plain, "log")))
    assert contents(data) == points(*range(400))


def test_values_too_few_for_a_dictionary_train_one_with_later_values(
    tmp_path: Path,
) -> None:
    write(tmp_path / "data", range(3))
    assert records(tmp_path / "data", "log")[3] == b""
    write(tmp_path / "data", range(3, 400), append=True)
    write(tmp_path / "whole", range(400))
    assert records(tmp_path / "data", "log") == records(tmp_path / "whole", "log")
    assert records(tmp_path / "data", "log")[400]


# ---- all or nothing --------------------------------------------------------------------------


def test_an_open_reader_keeps_reading_the_old_dataset(data: Path) -> None:
    with DatasetReader(data) as reader, DatasetReader(data, cache_index=False) as lean:
        write(data, range(20, 30), append=True)
        for old in (reader, lean):
            assert len(old) == 20
            assert [each["n"] for each in old] == list(range(20))
            assert old[19, ("words",)] == {"words": point(19)["words"]}
    assert contents(data) == points(*range(30))


def test_a_reader_opened_during_an_append_sees_the_old_or_the_new_dataset(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []

    def load_and_be_overtaken(directory: str) -> Any:
        manifest = spec_module.load(directory)
        opened.append(manifest.length)
        if len(opened) == 1:
            write(data, range(20, 30), append=True)
        return manifest

    monkeypatch.setattr(reader_module, "load", load_and_be_overtaken)
    assert [each["n"] for each in DatasetReader(data)] == list(range(30))
    assert opened[0] == 20
    assert opened[-1] == 30


def leave_by_exception(writer: DatasetWriter) -> None:
    writer.append({**point(20), "a": 1})
    with pytest.raises(ZeroDivisionError), writer:
        writer.append({**point(21), "a": 1 // 0})


def add_nothing(writer: DatasetWriter) -> None:
    writer.close()


def discard(writer: DatasetWriter) -> None:
    writer.append({**point(20), "a": 1})
    writer.discard()


@pytest.mark.parametrize("end", [leave_by_exception, add_nothing, discard])
def test_a_writer_that_adds_nothing_leaves_the_folder_unchanged(
    end: Callable[[DatasetWriter], None], data: Path
) -> None:
    before, number = bytes_of(data), data.stat().st_ino
    end(DatasetWriter(data, append=True))
    assert (bytes_of(data), data.stat().st_ino) == (before, number)
    assert os.listdir(data.parent) == ["data"]
    write(data, [20], append=True)  # possible because the first writer released its locks
    assert contents(data) == points(*range(21))


@pytest.mark.parametrize("call", ["fsync", "rename", "link", "exchange"])
def test_a_failing_disk_leaves_the_dataset_unchanged(
    call: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bytes_of(data)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = DatasetWriter(data, append=True)
    writer.append({**point(20), "a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(libc if call == "exchange" else os, call, fail)
        if call == "link":  # other files in the folder are linked into the new one
            (data / "README").write_bytes(b"")
        with pytest.raises(OSError, match="Input/output error"):
            writer.close()
    (data / "README").unlink(missing_ok=True)
    assert bytes_of(data) == before
    assert os.listdir(data.parent) == ["data"]


def test_a_file_system_that_cannot_exchange_folders_is_an_error_at_once(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(one: str, other: str) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), one)

    before = bytes_of(data)
    with monkeypatch.context() as patch:
        patch.setattr(libc, "exchange", refuse)
        with pytest.raises(AppendError, match=rf"{data}: this file system cannot exchange"):
            DatasetWriter(data, append=True)
    assert bytes_of(data) == before
    assert os.listdir(data.parent) == ["data"]
    write(data, [20], append=True)


def test_a_mount_point_is_an_error_at_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(data))
    with pytest.raises(AppendError, match="is a mountpoint"):
        DatasetWriter(data, append=True)


@pytest.mark.parametrize("name", ["n", "words"])
def test_a_damaged_dataset_is_refused(name: str, data: Path) -> None:
    path = data / f"{name}.ffr"
    flip(path, path.stat().st_size - 1)
    with pytest.raises(SampleChecksumError, match=str(path)):
        DatasetWriter(data, append=True)
    assert os.listdir(data.parent) == ["data"]


# ---- other writers ---------------------------------------------------------------------------


def test_a_second_writer_gets_a_busy_error(data: Path) -> None:
    with DatasetWriter(data, append=True) as writer:
        with pytest.raises(BusyError, match=str(data)):
            DatasetWriter(data, append=True)
        writer.append({**point(20), "a": np.array([20, 20])})
    write(data, [21], append=True)
    assert contents(data) == points(*range(22))


def test_a_forked_child_cannot_append_and_holds_no_lock(data: Path) -> None:
    told, tell = os.pipe()
    with DatasetWriter(data, append=True) as writer:
        child = os.fork()
        if child == 0:
            os.close(tell)
            os.read(told, 1)  # waits until the parent is done
            writer.close()
            os._exit(0)
        writer.append({**point(20), "a": np.array([20, 20])})
    write(data, [21], append=True)
    os.close(tell)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(told)
    assert contents(data) == points(*range(22))


def test_datapoints_of_many_threads_all_arrive(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [{"n": -1}])

    def add(k: int) -> None:
        while True:
            with (
                contextlib.suppress(BusyError),
                DatasetWriter(tmp_path / "data", append=True) as writer,
            ):
                writer.append({"n": k})
                return

    threads = [threading.Thread(target=add, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each["n"] for each in DatasetReader(tmp_path / "data")) == list(range(-1, 8))
    assert os.listdir(tmp_path) == ["data"]


def test_a_folder_exchanged_while_it_is_listed_is_not_taken_for_empty(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer finishes after the old folder was opened and before it is listed."""
    listed = os.listdir

    def after_another_writer(folder: Any) -> list[str]:
        monkeypatch.setattr(os, "listdir", listed)
        fd = os.open(folder, os.O_RDONLY) if isinstance(folder, str) else os.dup(folder)
        write_dataset(data, DatasetReader(data)[:1], append=True)
        try:
            return listed(fd)
        finally:
            os.close(fd)

    before = len(DatasetReader(data))
    monkeypatch.setattr(os, "listdir", after_another_writer)
    with DatasetWriter(data, append=True) as writer:
        assert len(writer) == before + 1
        writer.append(DatasetReader(data)[0])
    assert len(DatasetReader(data)) == before + 2


def test_a_dataset_replaced_during_an_append_is_not_overwritten(data: Path) -> None:
    writer = DatasetWriter(data, append=True)
    writer.append({**point(20), "a": 1})
    shutil.rmtree(data)
    write(data.parent / "other", [7])
    (data.parent / "other").rename(data)
    with pytest.raises(ChangedError, match=str(data)):
        writer.close()
    assert contents(data) == points(7)
    assert os.listdir(data.parent) == ["data"]


# ---- other things in the folder --------------------------------------------------------------


def test_other_files_in_the_folder_stay(data: Path) -> None:
    (data / "README").write_bytes(b"about it")
    (data / "link").symlink_to("README")
    number = (data / "README").stat().st_ino
    writer = DatasetWriter(data, append=True)
    writer.append({**point(20), "a": np.array([20, 20])})
    (data / "later").write_bytes(b"made meanwhile")
    writer.close()
    assert (data / "README").stat().st_ino == number
    assert os.readlink(data / "link") == "README"
    assert (data / "later").read_bytes() == b"made meanwhile"
    assert contents(data) == points(*range(21))
    assert sorted(os.listdir(data)) == sorted(
        ["README", "later", "link", "spec.json", *(f"{name}.ffr" for name in SPEC)]
    )


def test_a_subfolder_is_an_error_at_once(data: Path) -> None:
    (data / "notes").mkdir()
    with pytest.raises(AppendError, match=f"{data}: holds the folder 'notes'"):
        DatasetWriter(data, append=True)
    assert os.listdir(data.parent) == ["data"]


def test_owner_modes_and_attributes_are_kept(data: Path) -> None:
    if os.geteuid() == 0:
        for path in [data, *data.iterdir()]:
            os.chown(path, users.NOBODY, users.NOBODY)
    (data / "n.ffr").chmod(0o640)
    (data / "log.ffr").chmod(0o604)
    data.chmod(0o750)
    attributes = True
    try:
        os.setxattr(data / "words.ffr", "user.note", b"kept")
    except OSError:  # a file system without extended attributes
        attributes = False

    def status() -> dict[str, tuple[int, int, int]]:
        found = {path.name: path.stat() for path in [data, *data.iterdir()]}
        return {name: (each.st_mode, each.st_uid, each.st_gid) for name, each in found.items()}

    before = status()
    write(data, [20], append=True)
    assert status() == before
    if attributes:
        assert os.getxattr(data / "words.ffr", "user.note") == b"kept"


def test_a_symlink_to_a_dataset_stays_a_symlink(data: Path) -> None:
    (data.parent / "link").symlink_to("data")
    write(data.parent / "link", [20], append=True)
    assert os.readlink(data.parent / "link") == "data"
    assert contents(data) == points(*range(21))


# ---- one call, and shards --------------------------------------------------------------------


def test_write_dataset_appends_the_datapoints_of_an_iterable(tmp_path: Path) -> None:
    for k in range(3):
        assert write_dataset(tmp_path / "data", ({"n": n} for n in range(k)), {"n": "int"},
                             append=True) == k  # fmt: skip
    assert write_dataset(tmp_path / "data", [{"n": 5}], append=True) == 1
    assert [each["n"] for each in DatasetReader(tmp_path / "data")] == [0, 0, 1, 5]


def append_shards(folder: Path, numbers: Sequence[int], **options: Any) -> int:
    with ShardedDatasetWriter(folder, shardlen=4, append=True, **options) as writer:
        for n in numbers:
            writer.append({"n": n})
    return len(writer)


def test_appending_to_shards_continues_with_the_last_shard(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    assert append_shards(folder, range(6), spec={"n": "int"}) == 6
    assert append_shards(folder, range(6, 7)) == 7
    assert append_shards(folder, range(7, 8)) == 8  # fills the second shard
    assert append_shards(folder, []) == 8
    assert append_shards(folder, range(8, 17), spec={"n": "int"}) == 17
    assert sorted(os.listdir(folder)) == [f"{k:06}" for k in range(5)]
    with ShardedDatasetReader(folder) as reader:
        assert [each["n"] for each in reader] == list(range(17))
        assert [len(part) for part in reader.parts] == [4, 4, 4, 4, 1]


def test_parallel_writers_continue_with_their_own_shards(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    for turn in range(3):
        for worker in range(2):
            numbers = range(100 * worker + 5 * turn, 100 * worker + 5 * turn + 5)
            options = {"spec": {"n": "int"}, "shardstart": worker, "shardstep": 2}
            assert append_shards(folder, numbers, **options) == 5 * (turn + 1)
    for worker in range(2):
        with ShardedDatasetReader(folder, shardstart=worker, shardstep=2) as reader:
            assert [each["n"] for each in reader] == list(range(100 * worker, 100 * worker + 15))


def test_appending_to_shards_with_another_spec_or_without_one_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    with pytest.raises(SpecError, match="pass spec"):
        append_shards(folder, [])
    append_shards(folder, range(4), spec={"n": "int"})
    for numbers in (range(4), range(5)):  # the last shard is full, then it has room
        append_shards(folder, numbers[4:])
        with pytest.raises(SpecError, match=r"00000[01]"):
            append_shards(folder, [], spec={"n": "float"})


def test_appended_shards_use_the_given_encoders(tmp_path: Path) -> None:
    doubled = {**encoders, "int": lambda n: encoders["int"](2 * n)}
    append_shards(tmp_path / "shards", [1], spec={"n": "int"})
    append_shards(tmp_path / "shards", [1], encoders=doubled)
    assert [each["n"] for each in ShardedDatasetReader(tmp_path / "shards")] == [1, 2]

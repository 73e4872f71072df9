"""Writing a dataset: it appears complete or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import (
    BusyError,
    ClosedError,
    DatasetReader,
    DatasetWriter,
    EncodeError,
    FileReader,
    FileWriter,
    NoRoomError,
    SpecError,
    UnclosedWarning,
    encoders,
    write_dataset,
)
from ffrecord.atomic import file as atomic_file
from ffrecord.dataset import infer_spec
from tests.dataset.values import LOSSLESS, same
from tests.support import handmade

SPEC = {"number": "int", "words": "utf8[]"}


def point(k: int) -> dict[str, Any]:
    return {"number": k, "words": [f"word {j}" for j in range(k % 4)]}


def write(folder: Path, count: int = 10) -> Path:
    with DatasetWriter(folder, SPEC) as writer:
        for k in range(count):
            writer.append(point(k))
    return folder


# ---- round trips -----------------------------------------------------------------------------

SUFFIXES = st.sampled_from(["", "+zstd", "+zstd:1:dict", "+gzip:1", "+lz4", "+zstd:dict"])


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Draw a spec and datapoints that fit it."""
    spec, values = {}, {}
    for k in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(sorted(LOSSLESS)))
        brackets = draw(st.sampled_from(["", "[]"]))
        field = f"field {k}"
        spec[field] = name + draw(SUFFIXES) + brackets
        one = LOSSLESS[name]
        values[field] = st.lists(one, max_size=4) if brackets else one
    return spec, draw(st.lists(st.fixed_dictionaries(values), max_size=6))


@settings(max_examples=50)
@given(drawn=datasets(), data=st.data())
def test_any_dataset_round_trips(
    drawn: tuple[dict[str, str], list[dict[str, Any]]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    spec, points = drawn
    folder = tmp_path_factory.mktemp("any") / "new"
    with DatasetWriter(folder, spec) as writer:
        for each in points:
            writer.append(each)
        assert len(writer) == len(points)
    points = [
        {name: each[name] for name in spec} for each in points
    ]  # in the order of the spec, as readers return them
    cached = data.draw(st.sets(st.sampled_from(sorted(spec))))
    mode = data.draw(st.sampled_from(["auto", "aio", "buffered", "mmap"]))
    keep = data.draw(st.booleans())
    with DatasetReader(folder, cache_index=keep, cache_keys=cached, mode=mode) as reader:
        assert (reader.spec, len(reader)) == (spec, len(points))
        indices = data.draw(st.lists(st.integers(0, len(points) - 1))) if points else []
        expected = [points[k] for k in indices]
        assert same(reader.read(indices), expected)
        assert same(reader.to_memory().read(indices), expected)
        assert same(list(reader), points)


def test_own_types_need_only_an_encoder_and_a_decoder(tmp_path: Path) -> None:
    mine: dict[str, Any] = {"point": lambda xy: b"%d,%d" % xy, "raw": bytearray}
    with DatasetWriter(
        tmp_path / "new", {"p": "point[]", "r": "raw+lz4", "i": "raw"}, mine
    ) as writer:
        writer.append({"p": [(1, 2), (3, 4)], "r": b"abc", "i": np.arange(3, dtype=np.uint8)})
    theirs: dict[str, Any] = {
        "point": lambda b: tuple(map(int, bytes(b).split(b","))),
        "raw": bytes,
    }
    reader = DatasetReader(tmp_path / "new", theirs)
    assert reader[0] == {"p": [(1, 2), (3, 4)], "r": b"abc", "i": b"\x00\x01\x02"}
    with pytest.raises(SpecError, match=r"new: type 'point\[\]': there is no codec for 'point'"):
        DatasetReader(tmp_path / "new")


def test_every_field_is_a_record_file_of_the_documented_layout(tmp_path: Path) -> None:
    folder = write(tmp_path / "new", 6)
    assert sorted(os.listdir(folder)) == ["number.ffr", "spec.json", "words.ffr"]
    with FileReader(folder / "number.ffr") as records:
        assert handmade.as_bytes(records) == [bytes([k]) for k in range(6)]
    with FileReader(folder / "words.ffr") as records:
        words = [word.encode() for k in range(6) for word in point(k)["words"]]
        *elements, bounds = handmade.as_bytes(records)
        assert elements == words
        assert np.frombuffer(bounds, "<i8").tolist() == [0, 0, 1, 3, 6, 6, 7]


def test_an_empty_dataset_can_be_written(tmp_path: Path) -> None:
    reader = DatasetReader(write(tmp_path / "new", 0))
    assert (len(reader), list(reader), reader.read([])) == (0, [], [])
    with pytest.raises(IndexError):
        reader[0]


def test_a_value_may_change_after_it_was_appended(tmp_path: Path) -> None:
    array = np.zeros(3, np.uint8)
    with DatasetWriter(
        tmp_path / "new", {"a": "array", "r": "raw"}, {**encoders, "raw": memoryview}
    ) as writer:
        writer.append({"a": array, "r": array})
        array[:] = 9
    reader = DatasetReader(tmp_path / "new", {"array": np.array, "raw": bytes})
    assert reader[0]["r"] == bytes(3)


# ---- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, []], "datapoint 1 has type list; pass a dict"),
        ({"number": 1}, "datapoint 1 lacks 'words'"),
        ({"number": 1, "words": [], "more": 2}, "datapoint 1 has the extra 'more'"),
        (
            {"number": "1", "words": []},
            "datapoint 1: field 'number' .* as int: expected an int, got str",
        ),
        ({"number": 1, "words": ["a", 2]}, r"datapoint 1: field 'words' .* as utf8\[\]"),
        ({"number": 1, "words": "text"}, "expected a list, .* got str"),
        ({"number": 1, "words": {"a": 1}}, "expected a list, .* got dict"),
        ({"number": 1, "words": 5}, "expected a list, .* got int"),
        ({"number": 1, "words": None}, "expected a list, .* got NoneType"),
        ({"number": 1, "words": np.array(5)}, "expected a list, .* got ndarray"),
    ],
)
def test_a_datapoint_that_does_not_fit_is_an_error_and_the_others_are_kept(
    wrong: Any, message: str, tmp_path: Path
) -> None:
    with DatasetWriter(tmp_path / "new", SPEC) as writer:
        writer.append(point(0))
        with pytest.raises(EncodeError, match=message):
            writer.append(wrong)
        writer.append(point(1))
    assert list(DatasetReader(tmp_path / "new")) == [point(0), point(1)]


def test_a_dataset_is_never_replaced(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(folder)
    for there in ("data", "file", "link"):
        with pytest.raises(FileExistsError):
            DatasetWriter(tmp_path / there, SPEC)
    assert len(DatasetReader(folder)) == 10
    assert sorted(os.listdir(tmp_path)) == ["data", "file", "link"]


def test_an_empty_folder_becomes_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert len(DatasetReader(write(tmp_path / "data"))) == 10


def test_a_second_writer_of_the_same_dataset_is_refused(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", SPEC) as writer:
        writer.append(point(0))
        with pytest.raises(BusyError, match="another writer"):
            DatasetWriter(tmp_path / "data", SPEC)
        writer.append(point(1))
    assert len(DatasetReader(tmp_path / "data")) == 2


def test_a_closed_writer_takes_no_datapoints(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data", SPEC)
    writer.append(point(0))
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        writer.append(point(1))
    assert len(DatasetReader(tmp_path / "data")) == 1


# ---- all or nothing --------------------------------------------------------------------------


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with DatasetWriter(tmp_path / "data", SPEC) as writer:
            writer.append(point(0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_dropped_writer_warns_and_leaves_nothing(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "data", SPEC)
    writer.append(point(0))
    with pytest.warns(
        UnclosedWarning, match=r"1 datapoint is lost, and the dataset does not exist"
    ):
        del writer
    assert os.listdir(tmp_path) == []


def test_a_dropped_writer_that_appended_says_that_the_dataset_stays(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", SPEC) as writer:
        writer.append(point(0))
    writer = DatasetWriter(tmp_path / "data", append=True)
    writer.append(point(1))
    writer.append(point(2))
    with pytest.warns(UnclosedWarning, match=r"2 datapoints are lost, and the dataset stays as it"):
        del writer
    with DatasetReader(tmp_path / "data") as reader:
        assert len(reader) == 1


def test_an_interrupt_between_two_fields_discards_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files would have different numbers of datapoints, so the dataset is not kept."""
    writer = DatasetWriter(tmp_path / "data", SPEC)
    writer.append(point(0))
    calls = []

    def interrupted(self: FileWriter, records: Any) -> None:
        calls.append(records)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(FileWriter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.append(point(3))
    monkeypatch.undo()
    with pytest.raises(ClosedError, match="in the middle of datapoint 1"):
        writer.append(point(2))
    with pytest.raises(ClosedError, match="not kept"):
        writer.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", ["number.ffr", "words.ffr", "spec.json"])
def test_a_full_or_failing_disk_leaves_nothing(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = atomic_file.NewFile.publish

    def publish(self: atomic_file.NewFile) -> None:
        if self._target.endswith(name):
            raise OSError(code, os.strerror(code))
        real(self)

    writer = DatasetWriter(tmp_path / "data", SPEC)
    writer.append(point(3))
    monkeypatch.setattr(atomic_file.NewFile, "publish", publish)
    with pytest.raises(NoRoomError if code == errno.ENOSPC else OSError):
        writer.close()
    assert os.listdir(tmp_path) == []


def test_a_forked_child_does_not_touch_its_parents_dataset(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", SPEC) as writer:
        writer.append(point(0))
        child = os.fork()
        if not child:
            code = 1
            try:
                writer.close()
                writer.discard()
                try:
                    writer.append(point(1))
                except ClosedError:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.append(point(1))
    assert list(DatasetReader(tmp_path / "data")) == [point(0), point(1)]


def test_files_and_names_are_on_disk_before_the_dataset_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        events.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{fd}'))}")
        real_sync(fd)

    def rename(source: str, target: str) -> None:
        events.append(f"name {os.path.basename(target)}")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    write(tmp_path / "data")
    at = events.index("name data")
    named = [event for event in events[:at] if event.startswith("name ")]
    assert named == ["name number.ffr", "name words.ffr", "name spec.json"]
    assert events[at - 1] == "sync .data.writing"
    assert events[at + 1 :] == [f"sync {tmp_path.name}"]


# ---- write_dataset ---------------------------------------------------------------------------


def test_types_are_inferred_from_the_first_datapoint() -> None:
    first = {
        "bool": True, "int": 1, "npint": np.int64(1), "float": 1.0, "np": np.float32(1),
        "text": "x", "bytes": b"x", "array": np.zeros(2), "words": ["a", "b"],
        "frames": (np.zeros(1), np.zeros(2)),
        "mixed": [1, "a"], "nested": [[1], [2]], "dict": {"a": 1}, "none": None,
    }  # fmt: skip
    assert infer_spec(first) == {
        "bool": "bool", "int": "int", "npint": "int", "float": "float", "np": "float",
        "text": "utf8", "bytes": "bytes", "array": "array", "words": "utf8[]", "frames": "array[]",
        "mixed": "tree", "nested": "tree", "dict": "tree", "none": "tree",
    }  # fmt: skip


def test_write_dataset_works_with_and_without_a_spec(tmp_path: Path) -> None:
    points = [{"n": k, "words": ["a"] * (k + 1)} for k in range(5)]
    assert write_dataset(tmp_path / "inferred", iter(points)) == 5
    assert write_dataset(tmp_path / "given", points, {"n": "float", "words": "json+lz4"}) == 5
    inferred, given_ = DatasetReader(tmp_path / "inferred"), DatasetReader(tmp_path / "given")
    assert inferred.spec == {"n": "int", "words": "utf8[]"}
    assert given_.spec == {"n": "float", "words": "json+lz4"}
    assert list(inferred) == list(given_) == points


def test_write_dataset_without_datapoints_needs_a_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="needs a spec"):
        write_dataset(tmp_path / "new", [])
    with pytest.raises(SpecError, match="the datapoint has type int; it must be a dict"):
        write_dataset(tmp_path / "new", [5])
    with pytest.raises(SpecError, match="'words' is empty in the first datapoint"):
        write_dataset(tmp_path / "new", [{"words": []}])
    assert os.listdir(tmp_path) == []
    assert write_dataset(tmp_path / "new", [], SPEC) == 0


def test_a_failing_iterable_leaves_nothing(tmp_path: Path) -> None:
    def points() -> Any:
        yield {"n": 1}
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="source is gone"):
        write_dataset(tmp_path / "new", points())
    assert os.listdir(tmp_path) == []


def test_there_is_no_progress_bar_without_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "quiet", [{"n": 1}])
    assert capfd.readouterr().err == ""
    write_dataset(tmp_path / "shown", [{"n": 1}], progress=True)
    assert "1/1" in capfd.readouterr().err

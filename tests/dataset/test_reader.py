"""Reading a dataset: masks, requests, damage, memory, processes and threads."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import (
    ChangedError,
    ClosedError,
    DatasetError,
    DatasetReader,
    DatasetWriter,
    DecodeError,
    FFRecordError,
    FileWriter,
    HeaderChecksumError,
    LegacyFileWarning,
    SampleChecksumError,
    view_decoder,
)
from ffrecord.dataset import MemoryDataset
from ffrecord.dataset.columns import StreamedBounds
from ffrecord.disk import aio
from ffrecord.disk import source as disk_source
from tests.dataset.values import flip, frames
from tests.support import handmade

SPEC = {"label": "int", "name": "utf8", "video": "bytes[]", "words": "utf8+zstd[]"}
LENGTHS = [1000, 0, 3, 50, 1, 0, 7]
MODES = ["auto", "aio", "buffered", "mmap"]


def point(k: int) -> dict[str, Any]:
    return {
        "label": k - 3,
        "name": f"number {k}",
        "video": frames(LENGTHS[k]),
        "words": ["w" * j for j in range(k)],
    }


POINTS = [point(k) for k in range(len(LENGTHS))]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader") / "data"
    with DatasetWriter(folder, SPEC) as writer:
        for each in POINTS:
            writer.append(each)
    return folder


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a copy of the dataset that a test may damage."""
    folder = tmp_path / "data"
    with DatasetWriter(folder, SPEC) as writer:
        for each in POINTS:
            writer.append(each)
    return folder


@pytest.fixture(params=["kept", "streamed", "memory", "cached", "pickled"])
def reader(request: pytest.FixtureRequest, shared: Path) -> Iterator[Any]:
    """Yield a reader of the dataset, one of each kind in turn."""
    keys = ("label", "video") if request.param == "cached" else ()
    opened = DatasetReader(shared, cache_index=request.param != "streamed", cache_keys=keys)
    if request.param == "memory":
        yield opened.to_memory()
    elif request.param == "pickled":
        yield pickle.loads(pickle.dumps(opened))
    else:
        yield opened
    opened.close()


# ---- values ----------------------------------------------------------------------------------


class Given:
    """A decoder that records the class of each argument."""

    def __init__(self) -> None:
        self.classes: set[type] = set()

    def __call__(self, data: Any) -> bytes:
        self.classes.add(type(data))
        return bytes(data)


@pytest.mark.parametrize("compression", ["", "+zstd"])
@pytest.mark.parametrize("where", ["kept", "streamed", "cached", "memory"])
def test_a_decoder_gets_bytes_and_a_marked_decoder_a_writable_view(
    where: str, compression: str, tmp_path: Path
) -> None:
    theirs, viewing = Given(), view_decoder(Given())
    spec = {"a": f"theirs{compression}", "b": f"viewing{compression}[]"}
    with DatasetWriter(tmp_path / "d", spec, {"theirs": bytes, "viewing": bytes}) as writer:
        writer.append({"a": b"one", "b": [b"two", b""]})
    with DatasetReader(
        tmp_path / "d",
        {"theirs": theirs, "viewing": viewing},
        cache_index=where != "streamed",
        cache_keys=["a", "b"] if where == "cached" else (),
    ) as opened:
        source = opened.to_memory() if where == "memory" else opened
        assert source[0] == {"a": b"one", "b": [b"two", b""]}
    assert theirs.classes == {bytes}
    assert viewing.classes == {memoryview}


def test_the_decoders_in_granulars_readme_work_unchanged(tmp_path: Path) -> None:
    encoders = {
        "bytes": lambda x: x, "utf8": lambda x: x.encode("utf-8"), "msgpack": msgpack.packb,
    }  # fmt: skip
    decoders = {
        "bytes": lambda x: x, "utf8": lambda x: x.decode("utf-8"), "msgpack": msgpack.unpackb,
    }  # fmt: skip
    spec = {"raw": "bytes", "text": "utf8", "texts": "utf8+gzip[]", "packed": "msgpack"}
    points = [
        {"raw": b"\0" * k, "text": f"ü{k}", "texts": ["x" * k] * k, "packed": {"k": [k]}}
        for k in range(5)
    ]
    with DatasetWriter(tmp_path / "d", spec, encoders) as writer:
        for each in points:
            writer.append(each)
    with DatasetReader(tmp_path / "d", decoders) as opened:
        assert list(opened) == points
        assert type(opened[3]["raw"]) is bytes


def test_a_reader_knows_its_spec_length_and_size(reader: Any, shared: Path) -> None:
    assert (reader.spec, len(reader)) == (SPEC, len(POINTS))
    on_disk = sum(path.stat().st_size for path in shared.glob("*.ffr"))
    assert reader.size == on_disk or type(reader).__name__ == "MemoryDataset"


def test_datapoints_are_read_by_number_slice_and_list(reader: Any) -> None:
    assert reader[3] == POINTS[3]
    assert reader[-1] == POINTS[-1]
    assert reader[np.int64(2)] == POINTS[2]
    assert reader[1:4] == POINTS[1:4]
    assert reader[[5, 0, 5]] == [POINTS[5], POINTS[0], POINTS[5]]
    assert reader.read(np.array([6, 1])) == reader.__getitems__([6, 1]) == [POINTS[6], POINTS[1]]
    assert list(reader) == POINTS
    assert reader.read_async(range(7)).result() == POINTS


@pytest.mark.parametrize("index", [7, -8, 1 << 70])
def test_a_number_out_of_range_is_an_index_error(reader: Any, index: int, shared: Path) -> None:
    where = "" if isinstance(reader, MemoryDataset) else f"{shared}: "
    with pytest.raises(IndexError, match=rf"^{re.escape(where)}record {index} is out of range"):
        reader[index]
    with pytest.raises(IndexError):
        reader.available(index)
    with pytest.raises(IndexError):
        reader.read([0, index])


def test_available_returns_the_largest_mask(reader: Any) -> None:
    for k, length in enumerate(LENGTHS):
        expected = {"label": True, "name": True, "video": range(length), "words": range(k)}
        assert reader.available(k) == reader.available(k - len(POINTS)) == expected


def test_a_mask_names_fields_and_ranges(reader: Any) -> None:
    assert reader[0, {"video": range(32, 42)}] == {"video": frames(1000)[32:42]}
    assert reader[3, {"name": True, "label": True, "words": False}] == {
        "label": 0,
        "name": "number 3",
    }
    assert list(reader[3, ("name", "label")]) == ["label", "name"]
    assert reader[3, {"name"}] == {"name": "number 3"}
    assert reader[3, {}] == {}
    assert reader[0, {"video": range(5, 5), "words": range(0)}] == {"video": [], "words": []}
    assert reader[6, {"words": range(2, 4), "video": range(7)}] == {
        "video": frames(7), "words": ["ww", "www"],
    }  # fmt: skip


@given(data=st.data())
def test_any_mask_reads_its_part_of_the_datapoint(shared: Path, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(POINTS) - 1), max_size=5))
    masks, expected = [], []
    for k in indices:
        mask: dict[str, Any] = {}
        for name in data.draw(st.sets(st.sampled_from(sorted(SPEC)))):
            mask[name] = True
            if SPEC[name].endswith("[]") and data.draw(st.booleans()):
                stop = data.draw(st.integers(0, len(POINTS[k][name])))
                mask[name] = range(data.draw(st.integers(0, stop)), stop)
        masks.append(mask)
        whole = {name: POINTS[k][name] for name in SPEC if name in mask}
        for name, part in mask.items():
            if isinstance(part, range):
                whole[name] = whole[name][part.start : part.stop]
        expected.append(whole)
    keep = data.draw(st.booleans())
    with DatasetReader(shared, cache_index=keep) as reader:
        assert reader.read(indices, masks) == expected
        assert [reader[k, mask] for k, mask in zip(indices, masks, strict=True)] == expected


def test_a_slice_selects_elements_as_a_range_does(reader: Any) -> None:
    """Older versions of Granular take slices in masks."""
    for part in (slice(2), slice(1, 3), slice(0, 3, 1)):
        (point,) = reader.read([2], {"video": part})
        assert point == {"video": POINTS[2]["video"][part]}


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ({"what": True}, KeyError),
        (["label", "what"], KeyError),
        ("label", TypeError),
        ({"label": range(1)}, TypeError),
        ({"label": 1}, TypeError),
        ({"label": slice(1)}, TypeError),
        ({"video": slice(1, None)}, ValueError),
        ({"video": slice(0, 10, 2)}, ValueError),
        ({"video": slice("a", 10)}, TypeError),
        ({"video": range(0, 10, 2)}, ValueError),
        ({"video": range(-5, 0)}, ValueError),
        ({"video": range(2)}, IndexError),
        ({"video": range(1 << 70)}, IndexError),
        ([{"label": True}] * 3, ValueError),
    ],
)
def test_an_invalid_mask_is_an_error(reader: Any, mask: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        reader.read([4, 5], mask)


def test_a_range_beyond_a_sequence_names_field_datapoint_and_length(reader: Any) -> None:
    with pytest.raises(IndexError, match=r"'video' of datapoint 2 has 3 elements, but .* up to 5"):
        reader.read([0, 2], {"video": range(1, 5)})


def test_results_are_writable_and_do_not_share_memory(shared: Path, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "arrays", {"a": "array", "z": "array+lz4"}) as writer:
        writer.append({"a": np.arange(4.0), "z": np.arange(4.0)})
    for keys in ((), ("a", "z")):
        reader = DatasetReader(tmp_path / "arrays", cache_keys=keys)
        one, other = reader.read([0, 0])
        for name in ("a", "z"):
            one[name][:] = 7
            assert other[name].tolist() == [0, 1, 2, 3] == reader[0][name].tolist()


# ---- read requests ---------------------------------------------------------------------------


class Requests:
    """Counter of read requests that reach the kernel, through AIO or as plain reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.submitted: list[int] = []
        self.plain = 0
        submit, fill = aio.Context.submit, disk_source.Source.fill

        def counted_submit(context: aio.Context, at: int, count: int) -> int:
            took = submit(context, at, count)
            self.submitted.append(took)
            return took

        def counted_fill(source: disk_source.Source, memory: Any, offset: int) -> None:
            self.plain += 1
            fill(source, memory, offset)

        monkeypatch.setattr(aio.Context, "submit", counted_submit)
        monkeypatch.setattr(disk_source.Source, "fill", counted_fill)

    def __call__(self) -> int:
        """Return the number of requests since the last call."""
        count = sum(self.submitted) + self.plain
        self.submitted, self.plain = [], 0
        return count


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("mode", ["auto", "aio", "buffered"])
@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_range_of_a_sequence_is_one_request(
    count: int, mode: str, cold: bool, shared: Path, requests: Requests
) -> None:
    with DatasetReader(shared, mode=mode) as reader:
        if cold:
            handmade.evict(shared / "video.ffr")
        requests()
        part = reader[0, {"video": range(500, 500 + count)}]
        assert requests() == 1
    assert part == {"video": frames(1000)[500 : 500 + count]}


def test_a_batch_over_all_fields_is_one_submission(shared: Path, requests: Requests) -> None:
    with DatasetReader(shared, mode="aio") as reader:
        requests()
        reader.read([2, 3], {"label": True, "name": True, "video": range(3), "words": True})
        # Neighbours share a read: at most one per file and datapoint, all submitted at once.
        assert len(requests.submitted) == 1
        assert requests.plain == 0
        assert requests() <= 8


def test_fields_outside_the_mask_are_not_read(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DatasetReader(shared) as reader:
        touched = set()
        begin = reader._files.begin  # type: ignore[union-attr]

        def noted(file: Any, record: Any, *, ahead: bool) -> Any:
            touched.update(file.tolist())
            return begin(file, record, ahead=ahead)

        monkeypatch.setattr(reader._files, "begin", noted)
        reader[0, ("name",)]
    assert touched == {list(SPEC).index("name")}


def test_cached_fields_cost_no_request(shared: Path, requests: Requests) -> None:
    with DatasetReader(shared, cache_keys=("label", "words")) as reader:
        requests()
        assert reader.read([6, 0], ("label", "words")) == [
            {"label": 3, "words": POINTS[6]["words"]}, {"label": -3, "words": []},
        ]  # fmt: skip
        assert requests() == 0
        assert reader[3, ("label", "name")] == {"label": 0, "name": "number 3"}
        assert requests() == 1


def test_fields_to_cache_must_exist(shared: Path) -> None:
    with pytest.raises(KeyError, match="what"):
        DatasetReader(shared, cache_keys=("what",))
    with pytest.raises(KeyError, match="what"):
        DatasetReader(shared).to_memory(["what"])


@pytest.mark.parametrize("keep", [True, False])
def test_refs_in_cache_keys_keeps_the_bounds_of_sequences(
    keep: bool, shared: Path, requests: Requests
) -> None:
    """Elements still cost a request, but their bounds do not. The name is granular's."""
    with DatasetReader(shared, cache_index=keep, cache_keys=("refs", "label")) as reader:
        assert list(reader) == POINTS
        requests()
        assert reader.available(3) == {
            "label": True, "name": True, "video": range(50), "words": range(3)
        }  # fmt: skip
        assert requests() == 0


def test_a_field_named_refs_is_cached_instead_of_bounds(tmp_path: Path, requests: Requests) -> None:
    with DatasetWriter(tmp_path / "d", {"refs": "int", "other": "int"}) as writer:
        writer.append({"refs": 7, "other": 8})
    with DatasetReader(tmp_path / "d", cache_keys=("refs",)) as reader:
        requests()
        assert reader[0, ("refs",)] == {"refs": 7}
        assert requests() == 0


def test_without_an_index_in_memory_no_header_is_kept(tmp_path: Path, requests: Requests) -> None:
    """Each batch first reads the header entries that it needs."""
    count = 20_000
    with DatasetWriter(tmp_path / "many", {"n": "int", "s": "bytes[]"}) as writer:
        for k in range(count):
            writer.append({"n": k, "s": []})

    def kept(cache_index: bool) -> int:
        tracemalloc.start()
        try:
            reader = DatasetReader(tmp_path / "many", cache_index=cache_index)
            assert len(reader) == count
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert kept(True) > (12 + 8) * count
    assert kept(False) < count
    reader = DatasetReader(tmp_path / "many", cache_index=False)
    requests()
    assert [p["n"] for p in reader.read([19_999, 5, 777], ("n",))] == [19_999, 5, 777]
    assert 3 < requests() <= 12
    assert reader[19_999] == {"n": 19_999, "s": []}


# ---- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_element_is_found_and_others_are_read(mode: str, keep: bool, own: Path) -> None:
    flip(own / "label.ffr", -1)
    reader = DatasetReader(own, mode=mode, cache_index=keep)
    with pytest.raises(SampleChecksumError, match=r"label\.ffr: record 6 is damaged"):
        reader[6]
    assert reader[6, ("name",)] == {"name": "number 6"}
    assert reader.read(range(6)) == POINTS[:6]
    unchecked = DatasetReader(own, mode=mode, cache_index=keep, check_data=False)
    assert unchecked[6]["label"] == 3 ^ 0x40


@pytest.mark.parametrize("keep", [True, False])
def test_damaged_bounds_and_headers_are_found_at_opening(keep: bool, own: Path) -> None:
    content = (own / "video.ffr").read_bytes()
    flip(own / "video.ffr", -20)
    with pytest.raises(SampleChecksumError, match=r"video\.ffr: record 1061"):
        DatasetReader(own, cache_index=keep)
    (own / "video.ffr").write_bytes(content)
    flip(own / "video.ffr", 40)
    with pytest.raises(HeaderChecksumError, match=r"video\.ffr"):
        DatasetReader(own, cache_index=keep)
    (own / "video.ffr").write_bytes(content[:-8])
    with pytest.raises(FFRecordError):
        DatasetReader(own, cache_index=keep)


def with_bounds(own: Path, records: list[bytes], bounds: list[int]) -> None:
    """Write another file for `video`, and its checksum into spec.json."""
    with FileWriter(own / "video.ffr") as writer:
        writer.write([*records, np.array(bounds, "<i8")])
    content = json.loads((own / "spec.json").read_text())
    crc = int.from_bytes((own / "video.ffr").read_bytes()[:4], "little")
    content["checksums"]["video"] = crc
    (own / "spec.json").write_text(json.dumps(content))


BOUNDS = {
    "not from 0": [1, 1, 2, 2, 2, 2, 2, 2],
    "decreasing": [0, 2, 1, 2, 2, 2, 2, 2],
    "negative": [0, -1, 2, 2, 2, 2, 2, 2],
    "beyond the elements": [0, 0, 0, 3, 3, 3, 3, 3],
    "ending before the last element": [0, 0, 0, 1, 1, 1, 1, 1],
    "too few": [0, 1, 2],
    "too many": [0, 1, 2, 2, 2, 2, 2, 2, 2],
    "none": [],
    "huge": [0, 0, 0, 0, 0, 0, 1 << 62, 2],
}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("what", BOUNDS)
def test_impossible_bounds_are_an_error(what: str, keep: bool, own: Path) -> None:
    with_bounds(own, [b"a", b"b"], BOUNDS[what])
    with pytest.raises(DatasetError, match=r"video\.ffr: .*bounds"):
        DatasetReader(own, cache_index=keep)
    with_bounds(own, [b"a", b"b"], [0, 0, 1, 1, 2, 2, 2, 2])
    assert DatasetReader(own, cache_index=keep)[1]["video"] == [b"a"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_file_of_another_dataset_is_refused(keep: bool, own: Path, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "other", SPEC) as writer:
        for each in POINTS:
            writer.append({**each, "label": 0})
    os.replace(tmp_path / "other" / "label.ffr", own / "label.ffr")
    with pytest.raises(DatasetError, match=r"label\.ffr: not the file that this dataset"):
        DatasetReader(own, cache_index=keep)


@pytest.mark.parametrize("keep", [True, False])
def test_a_file_without_a_header_checksum_is_read_with_a_warning(keep: bool, own: Path) -> None:
    """The header may be damaged, so the records' checksums must reveal all damage."""
    with (own / "label.ffr").open("r+b") as file:
        file.write(bytes(4))
    with (
        pytest.warns(LegacyFileWarning, match=r"label\.ffr"),
        pytest.raises(DatasetError, match=r"label\.ffr: not the file that this dataset"),
    ):
        DatasetReader(own, cache_index=keep)
    manifest = json.loads((own / "spec.json").read_text())
    manifest["checksums"]["label"] = 0
    (own / "spec.json").write_text(json.dumps(manifest))
    with pytest.warns(LegacyFileWarning, match=r"label\.ffr") as warned:
        reader = DatasetReader(own, cache_index=keep)
    assert warned[0].filename == __file__
    assert [each["label"] for each in reader] == [each["label"] for each in POINTS]
    with (own / "label.ffr").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    with pytest.raises(SampleChecksumError, match=r"label\.ffr"):
        reader[len(POINTS) - 1]


def test_a_decode_error_names_file_record_and_type(tmp_path: Path) -> None:
    writers = {"utf8": bytes, "utf8+zstd": bytes}
    with DatasetWriter(tmp_path / "data", {"a": "utf8", "b": "utf8+zstd[]"}, writers) as writer:
        writer.append({"a": b"fine", "b": []})
        writer.append({"a": b"\xff", "b": [b"x", b"not a frame"]})
    reader = DatasetReader(tmp_path / "data")
    assert reader[0] == {"a": "fine", "b": []}
    with pytest.raises(DecodeError, match=r"a\.ffr: record 1 .* as utf8: .*invalid start byte"):
        reader[1, ("a",)]
    with pytest.raises(DecodeError, match=r"b\.ffr: record 1 .* as utf8\+zstd: "):
        reader.to_memory()[1, {"b": range(1, 2)}]


@pytest.mark.parametrize("bad", range(6))
@pytest.mark.parametrize("keys", [(), ("one", "many")])
def test_a_decode_error_names_the_right_record_of_a_batch(
    keys: tuple[str, ...], bad: int, tmp_path: Path
) -> None:
    # Datapoint i has i texts in `many`, which begin at record 0, 0, 1, 3, 6, 10.
    texts = [b"\xff" if place == bad else b"fine" for place in range(6)]
    spec = {"one": "utf8", "many": "utf8[]"}
    with DatasetWriter(tmp_path / "data", spec, {"utf8": bytes}) as writer:
        for place, text in enumerate(texts):
            writer.append({"one": text, "many": [b"fine"] * (place - 1) + [text] * (place > 0)})
    reader = DatasetReader(tmp_path / "data", cache_keys=keys)
    order = [5, 0, 3, 1, 4, 2]
    with pytest.raises(DecodeError, match=rf"one\.ffr: record {bad} cannot be decoded as utf8"):
        reader.read(order, ["one"])
    if bad:
        last = bad * (bad + 1) // 2 - 1
        with pytest.raises(DecodeError, match=rf"many\.ffr: record {last} cannot be .* utf8"):
            reader.read(order, ["many"])


# ---- processes and threads -------------------------------------------------------------------


@pytest.mark.parametrize("cache_index", [True, False])
def test_a_reader_of_a_replaced_dataset_refuses_to_pickle(
    cache_index: bool, tmp_path: Path
) -> None:
    """Otherwise another process would read the new dataset, and this one the old."""

    def write(name: str, value: int) -> Path:
        with DatasetWriter(tmp_path / name, {"value": "int"}) as writer:
            writer.append({"value": value})
        return tmp_path / name

    path = write("data", 1)
    with DatasetReader(path, cache_index=cache_index) as reader:
        dumped = pickle.dumps(reader)
        assert pickle.loads(dumped).fingerprint == reader.fingerprint
        path.rename(tmp_path / "old")
        write("new", 2).rename(path)
        assert reader[0] == {"value": 1}
        for attempt in (lambda: pickle.dumps(reader), lambda: pickle.loads(dumped)):
            with pytest.raises(ChangedError, match="replaced since it was opened"):
                attempt()


def test_a_reader_pickles_as_its_path_and_options(shared: Path) -> None:
    reader = DatasetReader(shared, cache_keys=("name",), cache_index=False)
    state = pickle.dumps(reader)
    assert len(state) < 1000
    again = pickle.loads(state)
    assert list(again) == POINTS
    assert again._columns["name"].kept is not None
    assert isinstance(again._columns["video"].bounds, StreamedBounds)


class Named(DatasetReader):
    """A reader with an attribute and an argument of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        super().__init__(directory)


def test_attributes_of_subclasses_survive(own: Path, tmp_path: Path) -> None:
    reader = Named(own, "mine")
    # The dataset is opened once more if it has been replaced, even by its copy.
    shutil.copytree(own, tmp_path / "copy")
    own.rename(tmp_path / "old")
    (tmp_path / "copy").rename(own)
    again = pickle.loads(pickle.dumps(reader))
    assert (again.name, list(again)) == ("mine", POINTS)


def test_a_dataset_in_memory_needs_no_files(own: Path) -> None:
    for keep in (True, False):
        memory = DatasetReader(own, cache_index=keep).to_memory(["words", "label"])
        state = pickle.dumps(memory)
        assert list(memory.spec) == ["label", "words"]
        for path in own.iterdir():
            path.rename(path.with_suffix(".away"))
        expected = [{"label": p["label"], "words": p["words"]} for p in POINTS]
        assert list(memory) == list(pickle.loads(state)) == expected
        for path in own.iterdir():
            path.rename(path.with_suffix(".json" if path.stem == "spec" else ".ffr"))


@pytest.mark.parametrize("keep", [True, False])
def test_a_reader_works_after_a_fork_and_in_threads(keep: bool, shared: Path) -> None:
    reader = DatasetReader(shared, cache_index=keep, mode="aio")
    assert reader[0] == POINTS[0]
    child = os.fork()
    if not child:
        os._exit(0 if reader.read(range(7)) == POINTS else 1)
    results: list[bool] = []

    def read() -> None:
        results.extend(reader.read(range(7)) == POINTS for _ in range(5))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert results == [True] * 20


@pytest.mark.parametrize("keep", [True, False])
def test_a_closed_reader_raises_a_closed_error_and_leaves_no_descriptor(
    keep: bool, shared: Path
) -> None:
    before = handmade.open_descriptors()
    with DatasetReader(shared, cache_index=keep) as reader:
        value = reader[0]
    with pytest.raises(ClosedError):
        reader[0]
    assert value == POINTS[0]
    assert handmade.open_descriptors() == before

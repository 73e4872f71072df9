"""Shards: folders that are datasets, written and read in parallel."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    ClosedError,
    DatasetError,
    DatasetReader,
    DatasetWriter,
    EncodeError,
    MissingShardWarning,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    UnclosedWarning,
    decoders,
    encoders,
    write_dataset,
)
from tests.support import handmade

SPEC = {"n": "int", "words": "utf8+zstd:dict[]"}


def point(n: int) -> dict[str, Any]:
    return {"n": n, "words": [f"word {n}"] * (n % 4)}


def write(folder: Path, numbers: Iterable[int], **options: Any) -> None:
    with ShardedDatasetWriter(folder, SPEC, encoders, **options) as writer:
        for n in numbers:
            writer.append(point(n))


def numbers_in(folder: Path) -> list[int]:
    return [each["n"] for each in DatasetReader(folder)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data", range(10), shardlen=4)
    return tmp_path / "data"


def test_shards_are_numbered_folders_each_a_dataset(folder: Path) -> None:
    assert sorted(os.listdir(folder)) == ["000000", "000001", "000002"]
    assert [numbers_in(folder / f"{k:06}") for k in range(3)] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9],
    ]  # fmt: skip


def test_shards_are_read_as_one_dataset(folder: Path) -> None:
    with ShardedDatasetReader(folder, decoders) as reader:
        assert (len(reader), reader.spec, reader.shards) == (10, SPEC, 3)
        assert reader.size == sum(path.stat().st_size for path in folder.rglob("*.ffr"))
        assert list(reader) == [point(n) for n in range(10)]
        mixed = [9, 0, 4, 3, 9, -7]
        assert reader.read(mixed) == [point(n % 10) for n in mixed]
        assert reader.read_async(mixed).result() == reader.__getitems__(mixed)
        assert reader[7, {"words": range(1, 3)}] == {"words": ["word 7"] * 2}
        masks = [("n",), {"words": range(1)}, {}]
        assert reader.read([8, 3, 1], masks) == [{"n": 8}, {"words": ["word 3"]}, {}]
        assert reader.available(-3) == {"n": True, "words": range(3)}
        with pytest.raises(IndexError, match=rf"^{re.escape(str(folder))}: .*10 is out of range"):
            reader[10]
    with pytest.raises(ClosedError):
        reader[0]


def test_shards_can_be_pickled_and_loaded_into_memory(folder: Path) -> None:
    reader = ShardedDatasetReader(folder, cache_keys=("n",), cache_index=False)
    everything = [point(n) for n in range(10)]
    assert list(pickle.loads(pickle.dumps(reader))) == everything
    memory = reader.to_memory()
    shutil.rmtree(folder)
    assert list(memory) == list(pickle.loads(pickle.dumps(memory))) == everything
    assert memory.spec == SPEC


def test_parallel_writers_fill_one_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    writers = [ShardedDatasetWriter(data, SPEC, encoders, 2, start, 3) for start in range(3)]
    for n in range(18):
        writers[n % 3].append(point(n))
    for writer in writers:
        writer.close()
    assert sorted(os.listdir(data)) == [f"{k:06}" for k in range(9)]
    for start in range(3):
        with ShardedDatasetReader(data, decoders, start, 3) as reader:
            assert [each["n"] for each in reader] == list(range(start, 18, 3))
    assert sorted(each["n"] for each in ShardedDatasetReader(data)) == list(range(18))


def test_a_dataset_without_datapoints_is_one_empty_shard(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write(data, [], shardlen=2, shardstart=1, shardstep=2)
    assert os.listdir(data) == []
    write(data, [], shardlen=2, shardstep=2)
    with ShardedDatasetReader(data) as reader:
        assert (len(reader), reader.shards, reader.spec) == (0, 1, SPEC)
    write(data, range(3), shardlen=2, append=True)
    assert [numbers_in(data / name) for name in ("000000", "000001")] == [[0, 1], [2]]


def test_write_dataset_counts_what_it_adds(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        assert write_dataset(tmp_path / "tasks", [], SPEC, shardlen=3, executor=executor) == 0
    assert len(ShardedDatasetReader(tmp_path / "tasks")) == 0
    for count in (0, 2, 0, 2, 0):
        rows = [point(n) for n in range(count)]
        options: dict[str, Any] = {"append": (tmp_path / "data").exists(), "shardlen": 3}
        assert write_dataset(tmp_path / "data", rows, SPEC, **options) == count
    assert numbers_in(tmp_path / "data" / "000000") == [0, 1, 0]


def test_a_writer_counts_its_shards(tmp_path: Path) -> None:
    with ShardedDatasetWriter(tmp_path, SPEC, shardlen=2) as writer:
        seen = []
        for n in range(5):
            writer.append(point(n))
            seen.append(writer.shards)
    assert (seen, writer.shards, len(writer)) == ([1, 1, 2, 2, 3], 3, 5)
    with ShardedDatasetWriter(tmp_path, shardlen=2, append=True) as writer:
        assert (writer.shards, len(writer)) == (3, 5)
        writer.append(point(5))
        writer.append(point(6))
        assert (writer.shards, len(writer)) == (4, 7)
        writer.discard()
    assert (writer.shards, len(writer)) == (3, 6)


def test_without_a_length_there_is_one_shard(tmp_path: Path) -> None:
    write(tmp_path, range(10_002), shardlen=None)
    write(tmp_path, range(2), shardlen=None, append=True)
    assert os.listdir(tmp_path) == ["000000"]
    assert len(ShardedDatasetReader(tmp_path)) == 10_004


def test_a_full_shard_is_finished_at_once_and_survives_a_failure(tmp_path: Path) -> None:
    writer = ShardedDatasetWriter(tmp_path / "data", SPEC, shardlen=3)
    for n in range(5):
        writer.append(point(n))
    assert len(writer) == 5
    assert numbers_in(tmp_path / "data" / "000000") == [0, 1, 2]
    with pytest.raises(EncodeError):
        writer.append({"n": "x", "words": []})
    writer.discard()
    assert os.listdir(tmp_path / "data") == ["000000"]
    with pytest.raises(ClosedError):
        writer.append(point(5))


KILLED = """
import signal, sys
import ffrecord
with ffrecord.ShardedDatasetWriter(sys.argv[1], {"n": "int"}, shardlen=3) as writer:
    for n in range(8):
        writer.append({"n": n})
    print("now", flush=True)
    signal.pause()
"""


def test_another_writer_continues_after_a_killed_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = handmade.python(KILLED, str(data))
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(ShardedDatasetReader(data)) == 6
    with ShardedDatasetWriter(data, {"n": "int"}, shardlen=3, shardstart=2) as writer:
        for n in range(6, 8):
            writer.append({"n": n})
    assert sorted(os.listdir(data)) == ["000000", "000001", "000002"]
    assert [each["n"] for each in ShardedDatasetReader(data)] == list(range(8))


def test_a_shard_is_never_replaced(folder: Path) -> None:
    with pytest.raises(FileExistsError):
        ShardedDatasetWriter(folder, SPEC, shardlen=4, shardstart=2)
    assert numbers_in(folder / "000002") == [8, 9]


def test_a_missing_shard_is_a_warning(folder: Path) -> None:
    shutil.rmtree(folder / "000001")
    with pytest.warns(MissingShardWarning, match="shard 000001 is missing"):
        reader = ShardedDatasetReader(folder)
    assert [each["n"] for each in reader] == [0, 1, 2, 3, 8, 9]
    assert len(ShardedDatasetReader(folder, shardstep=2)) == 6  # shard 1 is not needed


@pytest.mark.parametrize(
    ("inside", "options", "message"),
    [
        ("", {"shardstart": 3}, "no shards with the numbers 3, 4 … among the 3 shards of this"),
        ("000001", {}, "one dataset, not a folder of shards; read it with DatasetReader"),
        ("empty", {}, "not a dataset: this folder has no shards (000000, 000001 …); check the"),
    ],
)
def test_a_folder_without_the_shards_is_explained(
    inside: str, options: dict[str, Any], message: str, folder: Path
) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(DatasetError, match=re.escape(f"{folder / inside}: {message}")):
        ShardedDatasetReader(folder / inside, **options)


def test_other_names_in_the_folder_are_ignored(folder: Path) -> None:
    (folder / "README").write_text("mine")
    for name in (".000003.writing", "3", "0000003", "000003x", "٠٠٠٠٠٣"):
        (folder / name).mkdir()
    assert len(ShardedDatasetReader(folder)) == 10


def test_a_shard_with_another_spec_or_without_one_is_an_error(folder: Path) -> None:
    with DatasetWriter(folder / "000003", {"n": "float"}) as writer:
        writer.append({"n": 1.0})
    with pytest.raises(DatasetError, match=r"000003: this shard has another spec"):
        ShardedDatasetReader(folder)
    shutil.rmtree(folder / "000003")
    (folder / "000003").mkdir()
    with pytest.raises(DatasetError, match=r"000003: not a dataset"):
        ShardedDatasetReader(folder)


@pytest.mark.parametrize("options", [{"shardlen": 0}, {"shardstart": -1}, {"shardstep": 0}])
def test_invalid_shard_numbers_are_errors(options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be"):
        write(tmp_path / "data", range(3), **options)
    assert os.listdir(tmp_path) == []


def test_a_dropped_writer_names_the_lost_shard_and_keeps_finished_ones(tmp_path: Path) -> None:
    writer = ShardedDatasetWriter(tmp_path, {"n": "int"}, shardlen=2)
    for number in range(3):
        writer.append({"n": number})
    with pytest.warns(
        UnclosedWarning, match=r"/000001: the writer .*: 1 datapoint is lost"
    ) as all_:
        del writer
    assert len(all_) == 1
    assert os.listdir(tmp_path) == ["000000"]


@pytest.mark.parametrize("count", [0, 2])
def test_a_dropped_writer_without_an_unfinished_shard_does_not_warn(
    count: int, tmp_path: Path
) -> None:
    writer = ShardedDatasetWriter(tmp_path, {"n": "int"}, shardlen=2)
    for number in range(count):
        writer.append({"n": number})
    del writer
    assert os.listdir(tmp_path) == ["000000"][: count // 2]

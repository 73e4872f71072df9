"""`convert` in tasks: one shard for each source, and packing with an executor."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    ConversionError,
    DatasetWriter,
    FileReader,
    SampleChecksumError,
    ShardedDatasetReader,
    SkippedWarning,
)
from ffrecord.convert import convert
from tests.support import handmade, trees
from tests.support.executors import EXECUTORS, files_in

RECORDS = [handmade.random_records([10 * k, 200, 0] * (k + 1), seed=k) for k in range(5)]


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    return [handmade.write_records(tmp_path / f"{k}.ffr", each) for k, each in enumerate(RECORDS)]


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("target", ["records", "dataset"])
def test_every_source_becomes_one_shard(
    target: str, kind: str, sources: list[Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"target_format": target, "shard_per_source": True}
    with EXECUTORS[kind]() as executor:
        reports = [
            convert(sources, tmp_path / "one", **options),
            convert(sources, tmp_path / "tasks", executor=executor, **options),
        ]
    count = sum(map(len, RECORDS))
    assert reports[0] == reports[1]
    assert (reports[0].read, reports[0].written) == (count, count)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "tasks")
    assert [each for each in os.listdir(tmp_path) if each.startswith(".")] == []
    for number, source in enumerate(sources):  # as if each was converted alone
        alone = tmp_path / f"alone {number}"
        convert(source, alone, target_format=target)
        if target == "records":
            name = f"PART_{number:05}.ffr"
            assert (tmp_path / "tasks" / name).read_bytes() == alone.read_bytes()
        else:
            assert files_in(tmp_path / "tasks" / f"{number:06}") == files_in(alone)
    everything = [record for each in RECORDS for record in each]
    if target == "records":
        with FileReader(tmp_path / "tasks") as reader:
            assert [each.tobytes() for each in reader.read(range(count))] == everything
    else:
        with ShardedDatasetReader(tmp_path / "tasks") as rows:
            assert [bytes(each["data"]) for each in rows[range(count)]] == everything


def test_every_tar_of_a_folder_becomes_one_shard(tmp_path: Path) -> None:
    (tmp_path / "wds").mkdir()
    for k in range(3):
        top = trees.plain_tree(tmp_path / f"t{k}", {f"{k}.txt": b"a", f"{k}.cls": b"1"})
        convert(top, tmp_path / "wds" / f"{k}.tar")
    options: dict[str, Any] = {"target_format": "dataset", "shard_per_source": True}
    convert(tmp_path / "wds", tmp_path / "folder", **options)
    convert(sorted((tmp_path / "wds").iterdir()), tmp_path / "list", **options)
    assert sorted(os.listdir(tmp_path / "folder")) == ["000000", "000001", "000002"]
    assert files_in(tmp_path / "folder") == files_in(tmp_path / "list")


def test_a_folder_is_packed_into_shards(tmp_path: Path) -> None:
    top = trees.rich_tree(tmp_path / "tree")
    options: dict[str, Any] = {"target_format": "packed", "shard_size": "200kB"}
    reports = []
    with ThreadPoolExecutor(2) as executor:
        for name, how in (("one", None), ("tasks", executor)):
            with pytest.warns(SkippedWarning):
                reports.append(convert(top, tmp_path / name, executor=how, **options))
    assert reports[0] == reports[1]
    assert len(files_in(tmp_path / "one")) > 5
    assert files_in(tmp_path / "one") == files_in(tmp_path / "tasks")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_damaged_source_is_an_error_and_nothing_is_left(
    kind: str, sources: list[Path], tmp_path: Path
) -> None:
    data = bytearray(sources[2].read_bytes())
    data[-1] ^= 1
    sources[2].write_bytes(data)
    before = sorted(os.listdir(tmp_path))
    with EXECUTORS[kind]() as executor, pytest.raises(SampleChecksumError, match=r"2\.ffr"):
        convert(sources, tmp_path / "out", target_format="records", shard_per_source=True,
            executor=executor)  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == before


def test_sources_with_other_fields_are_refused(tmp_path: Path) -> None:
    for name, spec in (("a", {"x": "int"}), ("b", {"y": "int"})):
        with DatasetWriter(tmp_path / name, spec) as writer:
            writer.append(dict.fromkeys(spec, 1))
    with pytest.raises(ConversionError, match="b: its fields are"):
        convert([tmp_path / "a", tmp_path / "b"], tmp_path / "out", shard_per_source=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"target_format": "tar", "shard_per_source": True}, "for records and datasets"),
        ({"target_format": "records", "executor": True}, "executor needs shard_per_source"),
        ({"target_format": "packed", "shard_size": "1MB"}, "for tar and for packing a folder"),
    ],
)
def test_conversions_without_several_tasks_are_refused(
    options: dict[str, Any], match: str, sources: list[Path], tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as executor:
        if "executor" in options:
            options = {**options, "executor": executor}
        with pytest.raises(ConversionError, match=match):
            convert(sources, tmp_path / "out", **options)


def test_an_existing_target_is_refused(sources: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        convert(sources, tmp_path / "out", target_format="records", shard_per_source=True)
    assert (tmp_path / "out").read_bytes() == b"precious"

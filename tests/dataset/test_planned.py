"""`write_dataset` with an executor: the bytes of one process, and nothing after a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import (
    EncodeError,
    PlanError,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    SpecError,
    encoders,
    write_dataset,
)
from ffrecord.dataset import planned
from ffrecord.plan.work_folder import WorkFolder
from tests.support.executors import EXECUTORS, files_in

SPEC = {"number": "int", "text": "utf8+zstd", "values": "array", "words": "utf8[]"}


class Computed:
    """A dataset whose rows are made in the worker. Only its length is sent."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {
            "number": row, "text": "text " * (row % 7), "values": np.arange(row % 5),
            "words": ["word"] * (row % 3),
        }  # fmt: skip


def in_order(rows: Computed) -> Iterator[dict[str, Any]]:
    return (rows[row] for row in range(len(rows)))


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("count", [0, 1, 20, 203])
def test_an_executor_writes_the_bytes_of_one_process(count: int, kind: str, tmp_path: Path) -> None:
    rows = Computed(count)
    with ShardedDatasetWriter(tmp_path / "writer", SPEC, shardlen=20) as writer:
        for row in in_order(rows):
            writer.append(row)
    assert write_dataset(tmp_path / "one", in_order(rows), SPEC, shardlen=20) == count
    with EXECUTORS[kind]() as executor:
        wrote = write_dataset(tmp_path / "tasks", rows, SPEC, shardlen=20, executor=executor)
    assert wrote == count
    expected = files_in(tmp_path / "writer")
    assert files_in(tmp_path / "one") == files_in(tmp_path / "tasks") == expected
    assert sorted(os.listdir(tmp_path)) == ["one", "tasks", "writer"]
    if count:
        with ShardedDatasetReader(tmp_path / "tasks") as reader:
            assert [each["number"] for each in reader[range(count)]] == list(range(count))


def test_the_spec_is_inferred_and_own_encoders_are_sent(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        write_dataset(tmp_path / "a", [{"x": 1}, {"x": 2}], executor=executor)
        own = {**encoders, "twice": lambda value: value * 2}
        write_dataset(tmp_path / "b", [{"x": b"1"}], {"x": "twice"}, own, executor=executor)
        with pytest.raises(SpecError, match="no datapoint to infer the types from"):
            write_dataset(tmp_path / "c", [], executor=executor)
    with ShardedDatasetReader(tmp_path / "a") as reader:
        assert (reader.spec, reader[1]) == ({"x": "int"}, {"x": 2})
    assert b"11" in files_in(tmp_path / "b")["000000/x.ffr"]
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_row_that_cannot_be_encoded_is_named_and_nothing_is_left(
    kind: str, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"x": 1}] * 9
    rows[7] = {"x": "text"}
    with EXECUTORS[kind]() as executor, pytest.raises(EncodeError) as caught:
        write_dataset(tmp_path / "out", rows, {"x": "int"}, shardlen=3, executor=executor)
    assert f"{tmp_path}/out/000002: datapoint 1: field 'x' cannot be" in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("rows", "options", "error", "match"),
    [
        (iter([{"x": 1}]), {}, TypeError, r"must have len\(\) and \[\]"),
        ([{"x": 1}], {"append": True}, ValueError, "cannot be combined"),
        ([{"x": 1}], {"shardlen": 0}, ValueError, "at least 1"),
        ([{"x": 1}], {"spec": {"x": "nonsense"}}, SpecError, "nonsense"),
    ],
)
def test_wrong_arguments_are_refused(
    rows: Any, options: dict[str, Any], error: type[Exception], match: str, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(1) as executor, pytest.raises(error, match=match):
        write_dataset(tmp_path / "out", rows, executor=executor, **options)
    assert os.listdir(tmp_path) == []


def test_an_existing_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with ThreadPoolExecutor(1) as executor, pytest.raises(FileExistsError):
        write_dataset(tmp_path / "out", [{"x": 1}], executor=executor)
    assert os.listdir(tmp_path) == ["out"]


def test_a_commit_may_be_repeated_and_refuses_other_shards(tmp_path: Path) -> None:
    plan = planned.begin_plan(str(tmp_path / "out"), 5, {"x": "int"}, 2)
    for number, part in enumerate(plan.parts):
        rows = [{"x": row} for row in part.rows]
        first = planned.write_rows(planned.task_of(plan, number), rows)
        assert planned.write_rows(planned.task_of(plan, number), rows) == first
    spec = Path(WorkFolder(plan).inside("attempts/0"), first.attempt, "spec.json")
    text = spec.read_text()
    spec.write_text(text.replace(str(first.checksums["x"]), str(first.checksums["x"])[:-1] + "0"))
    if spec.read_text() != text:
        with pytest.raises(PlanError, match="is not the one of its receipt"):
            planned.commit(plan)
        next(tmp_path.rglob(f"{plan.shard_name(2)}/spec.json")).write_text(text)
    planned.commit(plan)
    planned.commit(plan)
    with ShardedDatasetReader(tmp_path / "out") as reader:
        assert [each["x"] for each in reader[range(5)]] == list(range(5))
    assert os.listdir(tmp_path) == ["out"]

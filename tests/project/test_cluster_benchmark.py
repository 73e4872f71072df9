"""scripts/bench cluster: every contestant gets the same contents, and every goal is measured."""

from __future__ import annotations

import tarfile
from dataclasses import asdict
from pathlib import Path

import pytest
from pyarrow import parquet

from ffrecord import FileReader, PackedFolder
from scripts.benchmarks import cluster, cluster_cases, cluster_data, cluster_worker, summary
from scripts.benchmarks.cluster_data import Files
from scripts.benchmarks.cluster_engines import ENGINES
from scripts.benchmarks.trees import FileTree

TREE = FileTree("tiny", 3_000, 101, 20)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("cluster")
    cluster_data.create(str(root), **asdict(TREE))
    return Files(TREE, root)


def test_every_form_has_the_same_contents(files: Files) -> None:
    expected = dict(files.contents())
    assert (len(expected), sum(map(len, expected.values()))) == (TREE.count, TREE.payload)
    with FileReader(files.records) as reader:
        found = [each.tobytes() for each in reader.read(range(reader.n))]
    assert found == list(expected.values())
    with PackedFolder(files.archive) as folder:
        assert {path: folder.read_one(path).tobytes() for path in folder} == expected
    tars = sorted(files.tars.iterdir())
    in_tars = {}
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                in_tars[member.name] = content.read()
    tables = sorted(files.parquet.iterdir())
    rows = [row for path in tables for row in parquet.read_table(path).to_pylist()]
    assert in_tars == {row["path"]: row["content"] for row in rows} == expected
    assert len(tars) == len(tables) == cluster_data.SHARDS


@pytest.mark.parametrize("workers", cluster_cases.WORKERS.values())
def test_packing_is_measured_and_leaves_nothing(workers: int, files: Files, tmp_path: Path) -> None:
    values = cluster_worker.pack(
        workers=workers, shard_size=30_000, folder=str(files.plain), out=str(tmp_path / "out"),
        count=TREE.count, payload=TREE.payload, cold=False,
    )  # fmt: skip
    assert values["rows_per_s"] == pytest.approx(TREE.count / values["seconds"])
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_result_is_an_error(files: Files) -> None:
    with pytest.raises(cluster_worker.WrongResultError, match="ours: 101 rows of 5 bytes"):
        cluster_worker._check("ours", TREE, TREE.count, 5)


def test_goals_and_the_summary_are_about_what_is_measured() -> None:
    trees = [tree.name for tree in cluster_cases.FULL.trees]
    measured = {
        cluster_cases.case(engine, tree): {*kind.contestants}
        for engine, kind in ENGINES.items()
        for tree in trees
    }
    for state in ("warm", "cold"):
        for tree in trees:
            name = cluster_cases.case(f"{state} {cluster_cases.PACKING}", tree)
            measured[name] = {*cluster_cases.WORKERS}
    for goal in cluster.GOALS:
        assert {goal.contestant, goal.over} <= measured[goal.case]
    _, rows = summary.TABLES["cluster"]()
    for _, figures in rows:
        assert any(figure.contestant in measured[figure.case] for figure in figures)

"""Other libraries open files of an archive by URL."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from ffrecord import MissingPackageError, pack_folder
from ffrecord.fsspec import PackedFolderFileSystem
from tests.support import trees
from tests.support.patience import PATIENCE


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Pack tables, texts, a dataset of Parquet files and a zarr array; return the archive's URL."""
    files = {
        "tables/one.csv": b"x,y\n1,2\n3,4\n",
        "tables/two.csv": b"x,y\n5,6\n",
        "texts/a.txt": b"first\nsecond\n",
        "texts/b/c.txt": "dritte ä\n".encode(),
    }
    trees.plain_tree(tmp_path / "tree", files)
    (tmp_path / "tree/texts/link.txt").symlink_to("a.txt")
    _write_parquet(tmp_path / "tree/parquet")
    _write_zarr(tmp_path / "tree/array.zarr")
    pack_folder(tmp_path / "tree", tmp_path / "data.ffr")
    return f"::{tmp_path}/data.ffr"


def _write_parquet(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for kind in ("cat", "dog"):
        (folder / f"kind={kind}").mkdir(parents=True)
        table = arrow.table({"number": range(1000), "text": [kind] * 1000})
        parquet.write_table(table, folder / f"kind={kind}" / "0.parquet", row_group_size=100)


def _write_zarr(place: Path) -> None:
    if importlib.util.find_spec("zarr") is None:
        return
    import zarr

    values = np.arange(10_000).reshape(100, 100)
    zarr.create_array(store=str(place), data=values, chunks=(10, 100))


def test_the_protocol_is_known_without_an_import() -> None:
    found = {each.name: each.value for each in entry_points(group="fsspec.specs")}
    assert found["ffr"] == "ffrecord.fsspec:PackedFolderFileSystem"
    assert fsspec.get_filesystem_class("ffr") is PackedFolderFileSystem


def test_pandas_reads_tables(url: str) -> None:
    pandas = pytest.importorskip("pandas")
    assert pandas.read_csv(f"ffr://tables/one.csv{url}").to_numpy().tolist() == [[1, 2], [3, 4]]
    whole = pandas.read_parquet(f"ffr://parquet/kind=cat/0.parquet{url}", columns=["number"])
    assert whole["number"].sum() == sum(range(1000))


def test_pyarrow_reads_a_dataset(url: str) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    fs, path = fsspec.url_to_fs(f"ffr://parquet{url}")
    found = dataset.dataset(path, filesystem=fs, partitioning="hive")
    assert len(found.files) == 2
    rows = found.to_table(filter=(dataset.field("kind") == "dog") & (dataset.field("number") < 10))
    assert rows.column("text").to_pylist() == ["dog"] * 10


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_dask_reads_lines(scheduler: str, url: str) -> None:
    bag = pytest.importorskip("dask.bag")
    lines = bag.read_text(f"ffr://texts/*.txt{url}")
    assert lines.compute(scheduler=scheduler) == ["first\n", "second\n"] * 2
    inner = bag.read_text(f"ffr://texts/**/c.txt{url}", encoding="utf-8")
    assert pickle.loads(pickle.dumps(inner)).compute(scheduler=scheduler) == ["dritte ä\n"]


def test_zarr_opens_an_array(url: str) -> None:
    zarr = pytest.importorskip("zarr")
    array: Any = zarr.open(f"ffr://array.zarr{url}", mode="r")
    assert array[33:35, 7].tolist() == [3307, 3407]
    assert int(array[:].sum()) == sum(range(10_000))


def test_paths_of_universal_pathlib(url: str) -> None:
    upath = pytest.importorskip("upath")
    from ffrecord.fsspec.upath import PackedFolderPath

    top = upath.UPath(f"ffr://texts{url}")
    assert type(top) is PackedFolderPath
    assert sorted(path.name for path in top.iterdir()) == ["a.txt", "b", "link.txt"]
    assert sorted(path.path for path in top.rglob("*.txt")) == [
        "texts/a.txt", "texts/b/c.txt", "texts/link.txt",
    ]  # fmt: skip
    assert (top / "b" / "c.txt").read_text(encoding="utf-8") == "dritte ä\n"
    assert (top / "a.txt").stat().st_size == 13
    assert (top / "a.txt").exists()
    assert not (top / "no.txt").exists()
    assert (top / "b").is_dir()
    link = top / "link.txt"
    assert link.is_symlink()
    assert link.readlink() == top / "a.txt"
    assert pickle.loads(pickle.dumps(link)).read_bytes() == b"first\nsecond\n"
    with pytest.raises(OSError, match="read-only"):
        (top / "new").write_text("x")


def test_a_path_of_universal_pathlib_may_be_the_first_use_of_the_protocol(url: str) -> None:
    pytest.importorskip("upath")
    code = f"import upath; print(upath.UPath('ffr://texts/a.txt{url}').read_text(), end='')"
    words = [sys.executable, "-W", "error::UserWarning", "-c", code]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.stdout, ran.stderr) == ("first\nsecond\n", "")


def test_without_fsspec_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in sys.modules if each.split(".")[:2] == ["ffrecord", "fsspec"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'ffrecord\[fsspec\]'"):
        importlib.import_module("ffrecord.fsspec")

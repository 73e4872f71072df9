"""Reading through URLs gives the same as reading local files, with few requests."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import fsspec
import numpy as np
import pytest
from upath import UPath

import ffrecord
from ffrecord import (
    ChangedError,
    DatasetReader,
    DatasetWriter,
    FileReader,
    PackedFolder,
    ShardedDatasetReader,
)
from ffrecord.archive import index_copy
from ffrecord.remote import opening, source
from ffrecord.remote.meter import Meter
from ffrecord.torch import DataLoader, Dataset, PackedFolderDataset
from tests.remote.conftest import COUNT, Site
from tests.remote.proxy import Proxy
from tests.support import archives, handmade, trees
from tests.support.patience import PATIENCE

TREE = {f"{folder}/{name:03}": trees.content(100 * name + 7, name)
        for folder in ("cats", "dogs") for name in range(40)}  # fmt: skip
TREE["large"] = trees.content(700_000)


@pytest.fixture(scope="module")
def packed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    top = trees.plain_tree(tmp_path_factory.mktemp("tree") / "top", TREE)
    archives.pack(top, site.folder / "packed.ffr")
    archives.pack(top, site.folder / "shards", shard_size=40_000)
    return "packed.ffr"


@pytest.fixture(scope="module")
def datasets(site: Site) -> list[dict[str, Any]]:
    spec = {"number": "int", "words": "utf8[]", "vector": "array"}
    points = [{"number": i, "words": [str(i)] * (i % 3), "vector": np.arange(i)} for i in range(50)]
    with ffrecord.DatasetWriter(site.folder / "dataset", spec) as writer:
        for point in points:
            writer.append(point)
    with ffrecord.ShardedDatasetWriter(site.folder / "sharded", spec, shardlen=9) as sharded:
        for point in points:
            sharded.append(point)
    return points


def same(points: Any, due: list[dict[str, Any]]) -> bool:
    return all(
        (a["number"], a["words"], a["vector"].tolist())
        == (b["number"], b["words"], b["vector"].tolist())
        for a, b in zip(points, due, strict=True)
    )


# ---- the same as local files -------------------------------------------------------------------


def test_records_are_the_same_in_every_way_of_reading(
    site: Site, record_file: str, records: list[bytes]
) -> None:
    with FileReader(f"{site.url}/{record_file}") as reader:
        assert reader.n == COUNT
        chosen = np.random.default_rng(1).integers(0, COUNT, 300)
        assert handmade.as_bytes(reader.read(chosen)) == [records[i] for i in chosen]
        assert handmade.as_bytes(reader.read_async(chosen).result()) == [records[i] for i in chosen]
        reader.prefetch(chosen[:9])
        assert handmade.as_bytes(reader.read(chosen[:9])) == [records[i] for i in chosen[:9]]
        assert reader.prefetch_hits == 1
        assert handmade.as_bytes(reader.read_range(3, 5)) == records[3:5]
        assert bytes(reader.read_one(-1)) == records[-1]
        assert handmade.as_bytes(reader) == records
        longest = max(range(COUNT), key=lambda i: len(records[i]))
        assert b"".join(map(bytes, reader.stream(longest, 1000))) == records[longest]
        assert reader.find_damaged(0, COUNT) == []
        reader.validate()
        with FileReader(site.folder / record_file) as local:
            assert reader.fingerprint == local.fingerprint
            assert (reader.record_sizes() == local.record_sizes()).all()


def test_a_list_of_urls_is_read_as_one(site: Site, record_file: str, records: list[bytes]) -> None:
    handmade.write_records(site.folder / "second.ffr", records[:20])
    with FileReader([f"{site.url}/{record_file}", f"{site.url}/second.ffr"]) as reader:
        assert reader.n == COUNT + 20
        assert bytes(reader[COUNT + 3]) == records[3]
        assert handmade.as_bytes(reader.read([2, COUNT + 7])) == [records[2], records[7]]


def test_packed_folders_are_the_same(site: Site, packed: str) -> None:
    with PackedFolder(f"{site.url}/{packed}") as folder:
        assert sorted(folder) == sorted(TREE)
        names = list(TREE)
        assert handmade.as_bytes(folder.read(names)) == [TREE[name] for name in names]
        assert bytes(folder.read_range("large", 300_000, 5)) == TREE["large"][300_000:300_005]
        with folder.open("large") as file:
            assert file.read() == TREE["large"]


def test_shards_of_a_packed_folder_are_read_from_a_list(site: Site, packed: str) -> None:
    names = sorted(os.listdir(site.folder / "shards"))
    assert len(names) > 3
    with PackedFolder([f"{site.url}/shards/{name}" for name in names]) as folder:
        assert handmade.as_bytes(folder.read(list(TREE))) == list(TREE.values())


def test_an_archive_of_the_original_has_an_index_that_is_read(site: Site, tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "top", {"a": b"first", "d/b": b"second"})
    archives.pack(top, tmp_path / "new.ffr")
    parts = archives.take_apart(tmp_path / "new.ffr")
    handmade.write_records(site.folder / "old.ffr", [*parts.files, parts.before])
    with PackedFolder(f"{site.url}/old.ffr") as folder:
        assert bytes(folder.read_one("d/b")) == b"second"


@pytest.mark.parametrize("cache_index", [True, False])
def test_datasets_are_the_same(
    site: Site, datasets: list[dict[str, Any]], cache_index: bool
) -> None:
    with DatasetReader(f"{site.url}/dataset", cache_index=cache_index) as reader:
        assert same([reader[i] for i in range(50)], datasets)
        again = pickle.loads(pickle.dumps(reader))
        assert same([again[7]], [datasets[7]])


def test_fields_of_a_web_server_may_have_any_name(site: Site) -> None:
    spec = dict.fromkeys(("a#b", "a?b", "50%", "a b", "é"), "int")
    with DatasetWriter(site.folder / "odd", spec) as writer:
        writer.append(dict.fromkeys(spec, 7))
    with DatasetReader(f"{site.url}/odd") as reader:
        assert reader[0] == dict.fromkeys(spec, 7)


@pytest.mark.parametrize("path", ["./{}", "a/../{}", "a/b/../.././{}"])
def test_dots_in_the_path_of_a_web_server_are_followed(
    site: Site, record_file: str, records: list[bytes], path: str
) -> None:
    with FileReader(f"{site.url}/{path.format(record_file)}") as reader:
        assert bytes(reader.read_one(3)) == records[3]


def test_sharded_datasets_are_read_where_folders_can_be_listed(
    site: Site, datasets: list[dict[str, Any]]
) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(f"{site.folder}/sharded/", "/sharded/", recursive=True)
    with ShardedDatasetReader("memory://sharded") as reader:
        assert reader.shards == 6
        assert same([reader[i] for i in range(50)], datasets)


class Lengths(Dataset[int]):
    def process(self, indices: list[int], data: Any) -> list[int]:
        return [len(record) for record in data]


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (1, "spawn")])
def test_loaders_read_urls_in_all_kinds_of_workers(
    site: Site, record_file: str, records: list[bytes], workers: int, start: str | None
) -> None:
    dataset = Lengths(f"{site.url}/{record_file}", requests=8)
    context = multiprocessing.get_context(start) if workers else None
    loader = DataLoader(
        dataset, batch_size=64, num_workers=workers, multiprocessing_context=context
    )
    assert [int(size) for batch in loader for size in batch] == list(map(len, records))


def test_a_folder_dataset_takes_a_url(site: Site, tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "top", {"cat/1.jpg": b"one", "dog/2.jpg": b"two"})
    archives.pack(top, site.folder / "classes.ffr")
    dataset = PackedFolderDataset(f"{site.url}/classes.ffr", loader=bytes)
    assert [dataset[0], dataset[1]] == [(b"one", 0), (b"two", 1)]


# ---- the ways to name a file -------------------------------------------------------------------


def in_memory(site: Site, name: str) -> Any:
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/remote/{name}", (site.folder / name).read_bytes())
    return memory


def by_store(site: Site, name: str) -> FileReader:
    from obstore.store import HTTPStore

    return FileReader(name, store=HTTPStore.from_url(site.url, client_options={"allow_http": True}))


WAYS: dict[str, Callable[[Site, str], FileReader]] = {
    "url": lambda site, name: FileReader(f"{site.url}/{name}"),
    "signed": lambda site, name: FileReader(f"{site.url}/{name}?signature=SECRET"),
    "UPath": lambda site, name: FileReader(cast(Any, UPath(f"{site.url}/{name}"))),
    "store": by_store,
    "fs": lambda site, name: FileReader(f"/remote/{name}", fs=in_memory(site, name)),
    "fs of http": lambda site, name: FileReader(
        f"{site.url}/{name}", fs=fsspec.filesystem("http")
    ),
    "fsspec": lambda site, name: (in_memory(site, name), FileReader(f"memory://remote/{name}"))[1],
    "UPath of fsspec": lambda site, name: (
        in_memory(site, name), FileReader(cast(Any, UPath(f"memory://remote/{name}"))),
    )[1],
    "folder": lambda site, name: (in_memory(site, name), FileReader("memory://remote/"))[1],
    "folder without a slash": lambda site, name: (
        in_memory(site, name), FileReader("memory://remote"),
    )[1],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_name_a_file_leads_to_its_records_here_and_in_a_child(
    site: Site, record_file: str, records: list[bytes], way: str
) -> None:
    with WAYS[way](site, record_file) as reader:
        assert handmade.as_bytes(reader.read([5, 700, 6])) == [records[i] for i in (5, 700, 6)]
        assert "SECRET" not in repr(reader) + str(reader.fnames)
        again = pickle.loads(pickle.dumps(reader))
        assert bytes(again.read_one(9)) == records[9]
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if handmade.as_bytes(reader.read([1, 2, 800])) == [
                    records[i] for i in (1, 2, 800)
                ] else 2  # fmt: skip
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bytes(reader.read_one(9)) == records[9]


def test_without_the_extra_a_url_is_an_error_that_names_it() -> None:
    script = (
        "import sys; sys.modules['obstore'] = sys.modules['fsspec'] = None\n"
        "import ffrecord\n"
        "for url in ('s3://bucket/a.ffr', 'memory://a.ffr'):\n"
        "    try: ffrecord.FileReader(url)\n"
        "    except ffrecord.MissingPackageError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert run.stdout.count("pip install 'ffrecord[remote]'") == 2


def test_reading_local_files_loads_no_network_library(tmp_path: Path) -> None:
    handmade.write_records(tmp_path / "a.ffr", [b"a"])
    script = (
        "import sys, ffrecord\n"
        "ffrecord.FileReader(sys.argv[1]).read([0])\n"
        "print([name for name in sys.modules if name.split('.')[0] in\n"
        "       ('obstore', 'fsspec', 'asyncio') or name == 'ffrecord.remote.source'])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.ffr")],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "mmap"}, "needs a local file"),
        ({"unfinished": True}, "needs a local file"),
        ({"requests": 0}, "at least 1"),
        ({"deadline": 0}, "more than 0"),
        ({"store": object(), "fs": object()}, "both given"),
    ],
)
def test_options_that_make_no_sense_for_urls_are_refused(
    site: Site, record_file: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FileReader(f"{site.url}/{record_file}", **options)


def test_files_of_several_file_systems_are_refused(site: Site, record_file: str) -> None:
    in_memory(site, record_file)
    paths = [UPath(f"memory://remote/{record_file}", use=use) for use in (1, 2)]
    with pytest.raises(ValueError, match="on different file systems"):
        FileReader(cast(Any, paths))


def test_options_for_urls_are_refused_for_paths(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "a.ffr", [b"a"])
    with pytest.raises(ValueError, match="storage_options is for URLs"):
        FileReader(path, storage_options={"anon": True})
    with pytest.raises(TypeError, match="unknown argument 'request'"):
        FileReader(path, request=3)  # type: ignore[call-arg]


def test_a_name_with_colons_is_still_a_path(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x:").mkdir()
    handmade.write_records(tmp_path / "x:" / "a.ffr", [b"a"])
    assert bytes(FileReader("x://a.ffr").read_one(0)) == b"a"


# ---- requests ----------------------------------------------------------------------------------


def test_opening_takes_two_requests_at_once(through: Proxy, record_file: str) -> None:
    through.gates = [2]
    with FileReader(f"{through.url}/{record_file}"):
        assert sorted(through.ranges()) == ["-262144", "0-262143"]


def test_opening_a_packed_folder_takes_two_requests(through: Proxy, packed: str) -> None:
    through.gates = [2]
    with PackedFolder(f"{through.url}/{packed}") as folder:
        assert len(folder) == len(TREE)
    assert len(through.requests) == 2


def test_all_shards_are_opened_at_once(through: Proxy, site: Site, packed: str) -> None:
    names = sorted(os.listdir(site.folder / "shards"))
    through.gates = [len(names) + 1]
    with PackedFolder([f"{through.url}/shards/{name}" for name in names]) as folder:
        assert len(folder) == len(TREE)
    assert len(through.requests) == len(names) + 1


def test_a_long_header_and_a_long_index_need_four_round_trips(
    through: Proxy, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guesses do not fit. The sizes are those of a million files, divided by a thousand."""
    files = {f"folder/{i:04}": b"%d" % i for i in range(1000)}
    archives.pack(trees.plain_tree(tmp_path / "top", files), site.folder / "many.ffr")
    monkeypatch.setattr(opening, "GUESS", 256)
    monkeypatch.setattr(opening, "SMALLEST_GUESS", 256)
    monkeypatch.setattr(source, "PART", 4 << 10)
    monkeypatch.setattr(index_copy, "CHUNK", 4 << 10)
    with PackedFolder(f"{through.url}/many.ffr"):
        total = len(through.requests)
    assert total > 20
    through.requests.clear()
    header = 3  # 12 kB in parts of 4 KiB
    through.gates = [2, 2 + header, 2 + header + 1, total]  # the ends, header, counts, index
    with PackedFolder(f"{through.url}/many.ffr") as folder:
        assert len(through.requests) == total
        through.gates = []
        assert bytes(folder.read_one("folder/0777")) == b"777"


def test_a_batch_of_random_records_needs_at_most_a_request_for_each(
    through: Proxy, record_file: str, records: list[bytes]
) -> None:
    with FileReader(f"{through.url}/{record_file}") as reader:
        through.requests.clear()
        chosen = np.random.default_rng(3).permutation(COUNT)[:256]
        assert handmade.as_bytes(reader.read(chosen)) == [records[i] for i in chosen]
        assert len(through.requests) <= 256
        through.requests.clear()
        reader.read(range(1000))
        assert len(through.requests) == 1
        assert all(request.headers["if-match"] for request in through.requests)
        stats = reader.stats()
        assert stats["requests"] > 2
        assert stats["repeated"] == 0


def test_no_more_requests_are_under_way_than_allowed(
    through: Proxy, record_file: str, records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meter, "gap", 0)
    with FileReader(f"{through.url}/{record_file}", requests=5) as reader:
        through.requests.clear()
        through.most = 0
        through.gates = [5]  # and five are: otherwise nothing would be answered
        chosen = list(range(0, COUNT, 20))
        assert handmade.as_bytes(reader.read(chosen)) == [records[i] for i in chosen]
    assert through.most == 5


def test_an_object_that_is_replaced_while_open_is_an_error(
    through: Proxy, site: Site, records: list[bytes]
) -> None:
    path = handmade.write_records(site.folder / "replaced.ffr", records)
    url = f"{through.url}/replaced.ffr"
    with FileReader(url) as reader, FileReader(url) as other:
        pickled = pickle.dumps(other)
        reader.read([3])
        handmade.write_records(path.with_suffix(".new"), records[::-1])
        os.utime(path.with_suffix(".new"), (1, 1))  # the tag of nginx is made of size and seconds
        path.with_suffix(".new").rename(path)
        for indices in ([3], range(100)):
            with pytest.raises(ChangedError, match=r"replaced\.ffr: replaced since it was opened"):
                reader.read(indices)
        with pytest.raises(ChangedError):
            pickle.loads(pickled)
        path.unlink()
        with pytest.raises((ChangedError, FileNotFoundError)):
            reader.read([3])


def test_a_file_of_fsspec_that_is_replaced_while_open_is_an_error(
    site: Site, record_file: str, records: list[bytes], tmp_path: Path
) -> None:
    memory = in_memory(site, record_file)
    with FileReader(f"memory://remote/{record_file}") as reader:
        other = handmade.write_records(tmp_path / "other.ffr", records[::-1])
        memory.pipe(f"/remote/{record_file}", other.read_bytes())
        for indices in ([3], range(100)):
            with pytest.raises(ChangedError):
                reader.read(indices)

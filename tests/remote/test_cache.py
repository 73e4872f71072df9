"""The cache: bytes that were read are read again from the local disk, and only right ones."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import multiprocessing
import os
import pickle
import shutil
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from ffrecord import CacheWarning, ChangedError, DatasetReader, FileReader, PackedFolder
from ffrecord.atomic import direct
from ffrecord.disk import libc
from ffrecord.format import cachemap
from ffrecord.format.cachemap import BLOCK
from ffrecord.format.checksum import crc32
from ffrecord.records.reader import table_of
from ffrecord.remote import retries
from ffrecord.remote.cache import copy as copy_module
from ffrecord.remote.cache import folder as folder_module
from ffrecord.remote.cache import listing, publisher, trouble
from ffrecord.remote.cache.copies import Copies
from ffrecord.remote.cache.folder import CacheFolder
from ffrecord.remote.source import RemoteSource
from ffrecord.torch import DataLoader, Dataset
from tests.remote.conftest import COUNT, Site
from tests.remote.proxy import Proxy, Request, proxy
from tests.support import archives, handmade, trees
from tests.support.forks import forked
from tests.support.patience import PATIENCE

ALL = list(range(COUNT))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a cache. Warnings about it come again in each test."""
    monkeypatch.setattr(trouble, "_warned", set())
    yield tmp_path / "cache"
    publisher.publish_all()


def shuffled(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(COUNT)


def check_epoch(reader: FileReader, records: list[bytes], seed: int, batch: int = 256) -> None:
    order = shuffled(seed)
    for at in range(0, COUNT, batch):
        some = order[at : at + batch]
        assert handmade.as_bytes(reader.read(some)) == [records[i] for i in some]


def check_epochs(reader: FileReader, records: list[bytes]) -> None:
    for seed in range(2):
        check_epoch(reader, records, seed)


def fill(url: str, cache: Path, records: list[bytes]) -> None:
    """Read a whole file into the cache, and wait until it is on disk."""
    with FileReader(url, cache=cache) as reader:
        assert handmade.as_bytes(reader.read(ALL)) == records
    forget()


def forget() -> None:
    """Publish everything, and drop the open copies as the end of the process would."""
    publisher.publish_all()
    gc.collect()


def the_copy(cache: Path) -> Path:
    (found,) = cache.glob("*.copy")
    return found


def used(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in cache.iterdir() if path.suffix)


def source_of(reader: FileReader) -> RemoteSource:
    source = table_of(reader).require_open()[0]
    assert isinstance(source, RemoteSource)
    return source


# ---- requests ----------------------------------------------------------------------------------


def test_the_second_epoch_needs_no_request_and_opening_again_needs_one(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    url = f"{through.url}/{record_file}"
    with FileReader(url, cache=cache) as reader:
        check_epoch(reader, records, 0)
        first = len(through.requests)
        assert first <= 2 + -(-source_of(reader).size() // BLOCK)
        check_epoch(reader, records, 1)
        assert bytes(reader.read_one(3)) == records[3]
        assert handmade.as_bytes(reader) == records
        assert len(through.requests) == first
        assert reader.stats()["cached_bytes"] == source_of(reader).size()
    forget()
    through.requests.clear()
    with FileReader(url, cache=cache) as reader:
        check_epoch(reader, records, 2)
    assert [request.headers.get("if-none-match") for request in through.requests] != [None]
    assert len(through.requests) == 1


def test_another_process_needs_one_request(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    fill(f"{through.url}/{record_file}", cache, records)
    through.requests.clear()
    script = (
        "import sys, ffrecord\n"
        "reader = ffrecord.FileReader(sys.argv[1])\n"
        "print(sum(map(len, reader.read(range(reader.n)))))\n"
    )
    environment = {**os.environ, "FFRECORD_CACHE": str(cache), "FFRECORD_CACHE_SIZE": "1GB"}
    run = subprocess.run(
        [sys.executable, "-c", script, f"{through.url}/{record_file}"], env=environment,
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert int(run.stdout) == sum(map(len, records))
    assert len(through.requests) == 1


def test_a_process_that_ends_leaves_all_blocks_that_it_read(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    script = (
        "import sys, ffrecord\n"
        "reader = ffrecord.FileReader(sys.argv[1], cache=sys.argv[2])\n"
        "reader.read(range(reader.n))\n"
    )
    words = [sys.executable, "-c", script, f"{through.url}/{record_file}", str(cache)]
    subprocess.run(words, timeout=PATIENCE, check=True)
    through.requests.clear()
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        check_epoch(reader, records, 0)
    assert len(through.requests) == 1


def test_a_batch_with_missing_blocks_asks_for_those_only(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        reader.read(range(700))
        through.requests.clear()
        assert handmade.as_bytes(reader.read(ALL[::-1])) == records[::-1]
        due = int(table_of(reader).offsets[700]) // BLOCK * BLOCK
        begins = [int(each.partition("-")[0]) for each in through.ranges()]
        assert begins
        assert min(begins) >= due
        through.requests.clear()
        assert handmade.as_bytes(reader.read(ALL)) == records
        assert not through.requests


@pytest.mark.parametrize("check_data", [True, False])
@pytest.mark.parametrize("dropped", [False, True])
def test_blocks_that_are_on_their_way_are_not_requested_again(
    through: Proxy, record_file: str, records: list[bytes], cache: Path, check_data: bool,
    dropped: bool,
) -> None:  # fmt: skip
    with FileReader(f"{through.url}/{record_file}", check_data, cache=cache) as reader:
        through.requests.clear()
        batches = [ALL[k:COUNT:4] for k in range(4)]
        waiting = [reader.read_async(batch) for batch in batches]
        if dropped:
            waiting[0] = reader.read_async(batches[0])
        for batch, each in zip(batches, waiting, strict=True):
            assert handmade.as_bytes(each.result()) == [records[i] for i in batch]
        if not dropped:
            spans = [each.partition("-") for each in through.ranges()]
            asked = np.zeros(source_of(reader).size() // BLOCK + 1, int)
            for begin, _, end in spans:
                asked[int(begin) // BLOCK : int(end) // BLOCK + 1] += 1
            assert asked.max() == 1
        copy = source_of(reader).copy
        assert copy is not None
        del waiting, each
        assert not copy.expects_any


def test_the_index_of_many_files_comes_from_the_cache(
    through: Proxy, site: Site, tmp_path: Path, cache: Path
) -> None:
    long = "x" * 240  # an index of half a megabyte with few files
    files = {f"folder/{i:05}{long}": b"%d" % i for i in range(1500)}
    archives.pack(trees.plain_tree(tmp_path / "top", files), site.folder / "cached-many.ffr")
    url = f"{through.url}/cached-many.ffr"
    with PackedFolder(url, cache=cache):
        assert len(through.requests) > 2
    forget()
    through.requests.clear()
    with PackedFolder(url, cache=cache) as folder:
        assert len(through.requests) == 1
        assert bytes(folder.read_one(f"folder/00777{long}")) == b"777"


def test_shards_and_datasets_are_kept(through: Proxy, site: Site, cache: Path) -> None:
    import ffrecord

    with ffrecord.DatasetWriter(site.folder / "cached-set", {"n": "int", "t": "utf8"}) as writer:
        for i in range(50):
            writer.append({"n": i, "t": str(i)})
    points = [{"n": i, "t": str(i)} for i in range(50)]
    for cache_index in (True, False, False):
        options: dict[str, Any] = {"cache": cache, "cache_index": cache_index}
        with DatasetReader(f"{through.url}/cached-set", **options) as reader:
            through.requests.clear()
            assert [reader[i] for i in range(50)] == points
        forget()
    assert not through.requests


def test_file_systems_of_fsspec_keep_what_they_read(
    through: Proxy, site: Site, tmp_path: Path, cache: Path
) -> None:
    top = trees.plain_tree(tmp_path / "top", {"d/a": b"first"})
    archives.pack(top, site.folder / "cached-tree.ffr")
    url = f"ffr://d/a::{through.url}/cached-tree.ffr"
    with fsspec.open(url, ffr={"cache": str(cache), "cache_size": "1GB"}) as file:
        assert file.read() == b"first"
    assert len(list(cache.glob("*.map"))) == 1


def test_the_variable_is_overruled_by_the_option(
    through: Proxy, record_file: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFRECORD_CACHE", str(cache))
    with FileReader(f"{through.url}/{record_file}", cache=False):
        assert not cache.exists()
    with FileReader(f"{through.url}/{record_file}"):
        assert cache.exists()
    with pytest.raises(ValueError, match="cache_size: not a size: 'many'"):
        FileReader(f"{through.url}/{record_file}", cache=cache, cache_size="many")
    with pytest.raises(ValueError, match="cache is for URLs, but the path is local"):
        FileReader(__file__, cache=cache)
    monkeypatch.setenv("FFRECORD_CACHE_SIZE", "lots")
    with pytest.raises(ValueError, match="FFRECORD_CACHE_SIZE: not a size: 'lots'"):
        FileReader(f"{through.url}/{record_file}")


# ---- versions ----------------------------------------------------------------------------------


def test_a_replaced_object_is_read_anew_and_the_old_one_is_an_error(
    through: Proxy, site: Site, records: list[bytes], cache: Path
) -> None:
    path = handmade.write_records(site.folder / "cached-replaced.ffr", records)
    url = f"{through.url}/cached-replaced.ffr"
    with FileReader(url, cache=cache) as reader:
        reader.read(range(10))
        new = handmade.write_records(path.with_suffix(".new"), records[::-1])
        os.utime(new, (1, 1))  # the tag of nginx is made of size and seconds
        new.rename(path)
        with pytest.raises(ChangedError):
            reader.read([1400])
        assert handmade.as_bytes(reader.read(range(10))) == records[:10]  # from the cache
        with FileReader(url, cache=cache) as second:
            assert handmade.as_bytes(second.read(ALL)) == records[::-1]
    assert len(list(cache.glob("*.map"))) == 2


def test_a_whole_copy_is_opened_without_the_network(
    site: Site, record_file: str, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(retries, "SHORTEST", 0.001)
    with proxy(site.url) as running:
        url = f"{running.url}/{record_file}"
        with FileReader(url, cache=cache) as reader:
            reader.read([700])
        forget()
    with pytest.raises(OSError, match="no connection"):
        FileReader(url, cache=cache)  # only a part is there
    name, port = url.rpartition("/")[0], int(url.split(":")[2].partition("/")[0])
    with proxy(site.url, port) as running:
        assert running.url == name
        fill(url, cache, records)
    with pytest.warns(
        CacheWarning, match="no answer from the server, so .* is read from the cache"
    ):
        reader = FileReader(url, cache=cache)
    check_epoch(reader, records, 3)
    reader.close()


def test_objects_without_a_strong_version_are_not_kept(
    site: Site, record_file: str, records: list[bytes], cache: Path
) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe(f"/remote/{record_file}", (site.folder / record_file).read_bytes())
    with (
        pytest.warns(CacheWarning, match="is not kept, because the server states no version"),
        FileReader(f"memory://remote/{record_file}", cache=cache) as reader,
    ):
        assert bytes(reader.read_one(3)) == records[3]
    assert not cache.exists()


def test_signed_forms_of_a_url_share_a_copy_and_names_have_no_secrets(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    url = f"{through.url}/{record_file}"
    for query in ("?X-Amz-Signature=SECRET1", "?X-Amz-Signature=SECRET2&X-Amz-Date=1"):
        with FileReader(url + query, cache=cache) as reader:
            assert handmade.as_bytes(reader.read(range(5))) == records[:5]
        forget()
    assert len(list(cache.glob("*.map"))) == 1
    for path in cache.iterdir():
        assert "SECRET" not in path.name
        assert b"SECRET" not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with FileReader(url + "?id=2", cache=cache):
        assert len(list(cache.glob("*.map"))) == 2
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


# ---- wrong bytes -------------------------------------------------------------------------------


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip_every_block(cache: Path) -> None:
    size = the_copy(cache).stat().st_size
    for at in range(0, size, BLOCK):
        overwrite(the_copy(cache), at + min(BLOCK, size - at) // 2, b"\xa5" * 64)


def lose_data(cache: Path) -> None:
    """Make holes under the entries, as if the entries had reached the disk before the data."""
    fd = os.open(the_copy(cache), os.O_RDWR)
    libc.punch_hole(fd, 0, os.fstat(fd).st_size)
    os.close(fd)


def foreign_entries(cache: Path) -> None:
    """Replace all entries by those of another map, and lose the data."""
    (path,) = cache.glob("*.map")
    header = cachemap.parse(path.read_bytes()[: cachemap.ENTRIES_AT])
    raw = cachemap.entries(header.seed ^ 6, 0, np.zeros(header.blocks, np.uint32))
    overwrite(path, cachemap.ENTRIES_AT, raw)
    lose_data(cache)


def damage_header(cache: Path) -> None:
    (path,) = cache.glob("*.map")
    overwrite(path, 20, b"\xff")
    lose_data(cache)


def truncated(ending: str, size: int) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        (path,) = cache.glob(f"*.{ending}")
        os.truncate(path, size)

    return damage


def zeros(cache: Path) -> None:
    (path,) = cache.glob("*.map")
    path.write_bytes(bytes(path.stat().st_size))


def removed(ending: str) -> Callable[[Path], None]:
    def damage(cache: Path) -> None:
        (path,) = cache.glob(f"*.{ending}")
        path.unlink()

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped bytes": flip_every_block,
    "entries before data": lose_data,
    "foreign entries": foreign_entries,
    "damaged header": damage_header,
    "short copy": truncated("copy", 100_000),
    "empty copy": truncated("copy", 0),
    "short map": truncated("map", 5000),
    "empty map": truncated("map", 0),
    "short header": truncated("map", 100),
    "zeros for a map": zeros,
    "no copy": removed("copy"),
    "no map": removed("map"),
    "lock with nonsense": lambda cache: overwrite(cache / "lock", 0, b"nonsense" * 9),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("damage", "check_data"),  # without checks, no checksum of a record finds what the cache misses
    [*((damage, False) for damage in DAMAGES),
     *((damage, True) for damage in ("flipped bytes", "entries before data", "short copy"))],
)  # fmt: skip
def test_damage_to_the_cache_is_found_and_put_right(
    through: Proxy, record_file: str, records: list[bytes], cache: Path, damage: str,
    check_data: bool,
) -> None:  # fmt: skip
    url = f"{through.url}/{record_file}"
    fill(url, cache, records)
    DAMAGES[damage](cache)
    for _ in range(2):
        with FileReader(url, check_data, cache=cache) as reader:
            assert bytes(reader.read_one(700)) == records[700]
            check_epoch(reader, records, 5)
            assert b"".join(map(bytes, reader.stream(701))) == records[701]
            through.requests.clear()
            check_epoch(reader, records, 6)
            assert not through.requests
        forget()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: b"something else" + raw[14:], "it is not a file of the cache"),
        (lambda raw: raw[:8] + b"\x63" + raw[9:], "its format has version 99; only 1 is known"),
    ],
)
def test_files_of_others_are_left_alone_and_not_used(
    through: Proxy, record_file: str, records: list[bytes], cache: Path,
    change: Callable[[bytes], bytes], message: str,
) -> None:  # fmt: skip
    url = f"{through.url}/{record_file}"
    fill(url, cache, records)
    (path,) = cache.glob("*.map")
    path.write_bytes(change(path.read_bytes()))
    before = [(each.name, each.stat().st_mtime_ns) for each in sorted(cache.glob("*-*"))]
    with pytest.warns(CacheWarning, match=message), FileReader(url, cache=cache) as reader:
        check_epoch(reader, records, 0)
    assert [(each.name, each.stat().st_mtime_ns) for each in sorted(cache.glob("*-*"))] == before


def test_a_transfer_with_wrong_bytes_does_not_stay_in_the_cache(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    url = f"{through.url}/{record_file}"

    def long_ones(request: Request) -> str | None:
        begin, _, end = request.range.partition("-")
        return "flip" if begin and int(end) - int(begin) > 4 * BLOCK else None

    through.fault = long_ones  # a record that is fetched once more is short
    with FileReader(url, cache=cache) as reader:
        check_epoch(reader, records, 0, batch=50)
    through.fault = lambda request: None
    forget()
    with FileReader(url, cache=cache) as reader:
        check_epoch(reader, records, 1)
        through.requests.clear()
        check_epoch(reader, records, 2)
        assert not through.requests


def test_a_power_cut_leaves_no_entry_without_its_block(
    through: Proxy, record_file: str, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Keep the copy as it was at its last flush, as a power cut may do, and the newest map."""
    flushed: dict[str, bytes] = {}
    maps: list[tuple[dict[str, bytes], dict[str, bytes]]] = []
    real_sync, real_write = os.fdatasync, direct.write_all

    def fdatasync(fd: int) -> None:
        real_sync(fd)
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith(".copy"):
            flushed[Path(name).name] = Path(name).read_bytes()

    def write_all(fd: int, data: Any, offset: int) -> None:
        real_write(fd, data, offset)
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith(".map"):
            maps.append((dict(flushed), {Path(name).name: Path(name).read_bytes()}))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(copy_module, "write_all", write_all)
    url = f"{through.url}/{record_file}"
    with FileReader(url, cache=cache) as reader:
        for at in range(0, COUNT, 300):
            reader.read(ALL[at : at + 300])
            publisher.publish_all()
        through.fault = lambda request: "flip" if request.number % 2 else None
        reader.read(ALL)
    forget()
    assert len(maps) > 4
    counted = set()
    for copies, entries in maps:
        ((name, raw),) = entries.items()
        copied = copies.get(Path(name).with_suffix(".copy").name, b"")  # not flushed yet
        header = cachemap.parse(raw[: cachemap.ENTRIES_AT])
        there, crcs = cachemap.there([header.seed], 0, raw[cachemap.ENTRIES_AT :])
        for number in np.flatnonzero(there).tolist():
            block = copied[number * BLOCK : (number + 1) * BLOCK]
            assert crc32(block) == crcs[number], (name, number)
            counted.add(number)
    assert len(counted) == header.blocks


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all blocks as they are before their flush."""
    monkeypatch.setattr(publisher, "note", lambda copy, hurry=False: None)


READ_ALL = """
import sys, zlib, ffrecord
reader = ffrecord.FileReader(sys.argv[1], cache=sys.argv[2])
print([zlib.crc32(record) for record in reader.read(range(reader.n))])
"""


def crcs_in_another_process(url: str, cache: Path) -> list[int]:
    words = [sys.executable, "-c", READ_ALL, url, str(cache)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True)
    found: list[int] = json.loads(run.stdout)
    return found


def test_other_processes_read_blocks_that_are_not_flushed_yet(
    through: Proxy, record_file: str, records: list[bytes], cache: Path, unflushed: None
) -> None:
    url, due = f"{through.url}/{record_file}", list(map(zlib.crc32, records))
    with FileReader(url, cache=cache) as first, FileReader(url, cache=cache) as second:
        copy = source_of(first).copy
        assert copy is not None
        first.read(range(0, COUNT, 2))
        (path,) = cache.glob("*.map")
        raw = path.read_bytes()[cachemap.ENTRIES_AT :]
        assert not cachemap.there([copy.header.seed], 0, raw)[0].any()
        assert crcs_in_another_process(url, cache) == due
        # The other process has read the rest, and this one finds that without waiting.
        through.requests.clear()
        check_epoch(second, records, 0)
        assert not through.requests
        assert crcs_in_another_process(url, cache) == due
        assert len(through.requests) == 1


def test_blocks_that_are_not_flushed_do_not_count_after_a_restart(
    through: Proxy, record_file: str, records: list[bytes], cache: Path, unflushed: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url = f"{through.url}/{record_file}"
    with FileReader(url, cache=cache) as reader:
        reader.read(ALL)
        assert reader.stats()["cached_bytes"] == source_of(reader).size()
    del reader
    forget()
    lose_data(cache)
    for boot in ("another run of the kernel", None):
        monkeypatch.setattr(folder_module, "boot_id", lambda boot=boot: boot)
        with FileReader(url, False, cache=cache) as reader:
            assert reader.stats()["cached_bytes"] < source_of(reader).size() / 9  # the header
            assert handmade.as_bytes(reader.read(ALL)) == records
        del reader
        gc.collect()


def test_blocks_whose_flush_fails_do_not_count(
    through: Proxy, record_file: str, records: list[bytes], cache: Path, unflushed: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    url = f"{through.url}/{record_file}"
    with FileReader(url, cache=cache) as reader:
        reader.read(ALL)
        copy = source_of(reader).copy
        assert copy is not None
        monkeypatch.setattr(os, "fdatasync", broken)
        with pytest.warns(CacheWarning, match="output error"):
            copy.publish()
        (path,) = cache.glob("*.map")
        assert not any(path.read_bytes()[cachemap.ENTRIES_AT :])
        check_epoch(reader, records, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_blocks_are_published_after_an_error_in_the_thread(
    through: Proxy, record_file: str, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fails(copy: Any) -> None:
        raise CacheWarning("a filter turns warnings into errors")

    monkeypatch.setattr(publisher, "PAUSE", 0.01)
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        for some, publish in ((ALL[:500], fails), (ALL[500:], copy_module.Copy.publish)):
            monkeypatch.setattr(copy_module.Copy, "publish", publish)
            assert handmade.as_bytes(reader.read(some)) == [records[i] for i in some]
            for thread in threading.enumerate():
                if thread.name == "ffrecord-cache":
                    thread.join(PATIENCE)
        copy = source_of(reader).copy
        assert copy is not None
        (path,) = cache.glob("*.map")
        raw = path.read_bytes()[cachemap.ENTRIES_AT :]
        assert cachemap.there([copy.header.seed], 0, raw)[0].all()


def test_a_copy_that_cannot_be_flushed_does_not_keep_others_from_it(
    through: Proxy, site: Site, records: list[bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warnings are errors here, so the one about the first copy ends the work of the thread."""
    monkeypatch.setattr(publisher, "note", lambda copy, hurry=False: noted.append(copy))
    noted: list[copy_module.Copy] = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        if os.path.samestat(os.fstat(fd), os.stat(noted[0].path)):
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    urls = [f"{through.url}/{name}" for name in numbered(site, records, 3)]
    with ExitStack() as readers:
        for url in urls:
            readers.enter_context(FileReader(url, cache=cache)).read(ALL)
        copies = {id(copy): copy for copy in noted}
        assert len(copies) == 3
        monkeypatch.setattr(publisher, "_dirty", copies.copy())
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        with pytest.raises(CacheWarning, match="output error"):
            publisher.publish_all()
        publisher.publish_all()
    for k, copy in enumerate(copies.values()):
        raw = Path(copy.path).with_suffix(".map").read_bytes()[cachemap.ENTRIES_AT :]
        assert cachemap.there([copy.header.seed], 0, raw)[0].all() == (k > 0)
        assert any(raw) == (k > 0)


def test_holes_of_another_process_are_no_damage(
    through: Proxy, record_file: str, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fill(f"{through.url}/{record_file}", cache, records)
    monkeypatch.setattr(folder_module, "STRIDE", 4 * BLOCK)
    folder, real = CacheFolder(str(cache), 16 << 20), listing._block

    def block(*arguments: Any) -> bytes:
        with folder.locked():
            folder.reserve(8 << 20)
        return real(*arguments)

    monkeypatch.setattr(listing, "_block", block)
    (kept,) = folder.kept()
    assert listing.check(folder, kept.name) == listing.Checked(kept.header.blocks, 0)


# ---- room --------------------------------------------------------------------------------------


def numbered(site: Site, records: list[bytes], count: int) -> list[str]:
    names = [f"numbered-{k}.ffr" for k in range(count)]
    for k, name in enumerate(names):
        handmade.write_records(site.folder / name, records[k:] + records[:k])
    return names


def test_the_cache_is_bounded_and_the_longest_unused_file_goes_first(
    through: Proxy, site: Site, records: list[bytes], cache: Path
) -> None:
    names = numbered(site, records, 4)
    size = (site.folder / names[0]).stat().st_size
    bound = 3 * size
    for k in (0, 1, 0, 2, 3):
        with FileReader(f"{through.url}/{names[k]}", cache=cache, cache_size=bound) as reader:
            reader.read(ALL)
        forget()
        assert used(cache) <= bound
    kept = {each.header.url.rpartition("/")[2] for each in CacheFolder(str(cache), None).kept()}
    assert names[3] in kept
    assert names[1] not in kept


def test_holes_are_punched_into_the_longest_unused_file(
    through: Proxy, site: Site, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(folder_module, "STRIDE", 4 * BLOCK)
    names = numbered(site, records, 2)
    size = (site.folder / names[0]).stat().st_size
    bound = 2 * size - 40 * BLOCK
    for name in names:
        with FileReader(f"{through.url}/{name}", cache=cache, cache_size=bound) as reader:
            reader.read(ALL)
        forget()
    assert used(cache) <= bound
    through.requests.clear()
    with FileReader(f"{through.url}/{names[0]}", cache=cache, cache_size=bound) as reader:
        assert handmade.as_bytes(reader.read(ALL)) == records
        begins = [int(each.partition("-")[0]) for each in through.ranges()]
        assert min(begins[1:]) > 0  # its first blocks are still there


def test_files_in_use_are_not_dropped_and_nothing_more_is_kept(
    through: Proxy, site: Site, records: list[bytes], cache: Path
) -> None:
    names = numbered(site, records, 2)
    bound = int(1.3 * (site.folder / names[0]).stat().st_size)
    with FileReader(f"{through.url}/{names[0]}", cache=cache, cache_size=bound) as first:
        first.read(ALL)
        with (
            FileReader(f"{through.url}/{names[1]}", cache=cache, cache_size=bound) as second,
            pytest.warns(CacheWarning, match="the cache is full, and all files in it are in use"),
        ):
            assert handmade.as_bytes(second.read(ALL)) == records[1:] + records[:1]
        publisher.publish_all()
        assert used(cache) <= bound
        through.requests.clear()
        check_epoch(first, records, 0)
        assert not through.requests


def test_files_are_dropped_while_others_are_read(
    through: Proxy, site: Site, records: list[bytes], cache: Path
) -> None:
    """Four processes read files in turn, in a cache with room for one and a half of them."""
    names = numbered(site, records, 3)
    bound = int(1.5 * (site.folder / names[0]).stat().st_size)
    script = (
        "import sys, warnings, zlib, numpy as np, ffrecord\n"
        "warnings.simplefilter('ignore', ffrecord.CacheWarning)\n"
        "cache, bound, seed, *urls = sys.argv[1:]\n"
        "chance = np.random.default_rng(int(seed))\n"
        "for _ in range(6):\n"
        "    k = int(chance.integers(len(urls)))\n"
        "    with ffrecord.FileReader(urls[k], cache=cache, cache_size=bound + 'B') as reader:\n"
        "        for _ in range(4):\n"
        "            some = chance.integers(0, reader.n, 300)\n"
        "            for i, record in zip(some.tolist(), reader.read(some)):\n"
        "                assert zlib.crc32(record) == reader.checksum(i), (k, i)\n"
    )
    urls = [f"{through.url}/{name}" for name in names]
    words = [
        [sys.executable, "-c", script, str(cache), str(bound), str(k), *urls] for k in range(4)
    ]
    running = [subprocess.Popen(each) for each in words]
    assert [process.wait(PATIENCE) for process in running] == [0] * 4
    assert used(cache) <= bound


def test_an_object_that_claims_to_be_huge_drops_nothing(
    through: Proxy, site: Site, records: list[bytes], cache: Path
) -> None:
    first, second = (f"{through.url}/{name}" for name in numbered(site, records, 2))
    fill(first, cache, records)
    before = used(cache)
    through.fault = lambda request: "huge"
    with pytest.warns(CacheWarning, match="too small for an object of 1,000,000,000,000,000 bytes"):
        reader = FileReader(second, cache=cache, cache_size="1GB")
    assert bytes(reader.read_one(3)) == records[4]
    reader.close()
    assert used(cache) == before


def test_a_copy_that_is_removed_while_open_does_not_grow(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    """Nothing would count its bytes, so all files could need more room than the cache may have."""
    url = f"{through.url}/{record_file}"
    with FileReader(url, cache=cache) as reader:
        reader.read(range(400))
        folder = CacheFolder(str(cache), None)
        (kept,) = folder.kept()
        listing.remove(folder, kept.name)
        copy = source_of(reader).copy
        assert copy is not None
        before = os.stat(copy.open_path).st_blocks
        check_epoch(reader, records, 0)
        assert os.stat(copy.open_path).st_blocks == before
        with FileReader(url, cache=cache) as second:  # has another copy
            check_epoch(second, records, 0)
            through.requests.clear()
            check_epoch(second, records, 1)
            assert not through.requests


@pytest.mark.filterwarnings("error")
def test_a_copy_that_is_being_listed_can_be_opened(
    through: Proxy, record_file: str, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fill(f"{through.url}/{record_file}", cache, records)
    (path,) = cache.glob("*.map")
    lister = os.open(path, os.O_RDWR)
    fcntl.flock(lister, fcntl.LOCK_EX)
    real = fcntl.flock
    refused: list[int] = []

    def flock(fd: int, how: int) -> None:
        try:
            real(fd, how)
        except BlockingIOError:
            refused.append(fd)
            monkeypatch.setattr(fcntl, "flock", real)
            os.close(lister)
            raise

    monkeypatch.setattr(fcntl, "flock", flock)
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        through.requests.clear()
        check_epoch(reader, records, 0)
        assert not through.requests
    assert len(refused) == 1


@pytest.mark.filterwarnings("error")
def test_a_copy_that_stays_locked_is_replaced(
    through: Proxy, record_file: str, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A child of a process that was killed while it dropped the copy may hold the lock."""
    monkeypatch.setattr(folder_module, "MAP_SECONDS", 0.0)
    url = f"{through.url}/{record_file}"
    fill(url, cache, records)
    (path,) = cache.glob("*.map")
    with open(path, "rb+") as child:
        fcntl.flock(child, fcntl.LOCK_EX)
        fill(url, cache, records)
        with FileReader(url, cache=cache) as reader:
            through.requests.clear()
            check_epoch(reader, records, 0)
            assert not through.requests


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    try:
        libc.mount("tmpfs", str(folder), "tmpfs", 0, f"size={size}")
    except OSError:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        libc.umount(str(folder), 2)


def test_a_full_disk_is_one_warning(
    through: Proxy, record_file: str, records: list[bytes], tmp_path: Path, cache: Path
) -> None:
    with small_disk(tmp_path / "disk", "4m") as folder:
        url = f"{through.url}/{record_file}"
        reader = FileReader(url, cache=folder / "cache", cache_size="1GB")
        with pytest.warns(CacheWarning, match="No space left on device") as caught:
            check_epochs(reader, records)
        assert len(caught) == 1
        reader.close()
        del reader
        forget()


def test_a_folder_without_rights_is_one_warning(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    cache.write_text("a file, not a folder")
    with pytest.warns(CacheWarning, match="the cache cannot be used") as caught:
        reader = FileReader(f"{through.url}/{record_file}", cache=cache)
    check_epochs(reader, records)
    FileReader(f"{through.url}/{record_file}", cache=cache)
    assert len(caught) == 1


def test_a_cache_that_is_removed_while_open_is_one_warning(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        reader.read(range(400))
        shutil.rmtree(cache)
        with pytest.warns(CacheWarning, match="the cache cannot be used") as caught:
            check_epochs(reader, records)
        assert len(caught) == 1
        through.requests.clear()
        reader.read(range(400))
        assert not through.requests  # its open file still has these


def test_a_copy_that_is_truncated_while_open_is_one_warning(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    fill(f"{through.url}/{record_file}", cache, records)
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        check_epoch(reader, records, 0)
        os.truncate(the_copy(cache), 1_000_000)
        with pytest.warns(CacheWarning) as caught:
            check_epochs(reader, records)
        assert bytes(reader.read_one(1400)) == records[1400]
        assert len(caught) == 1


def test_batches_under_way_go_on_when_the_copy_of_both_fails(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    fill(f"{through.url}/{record_file}", cache, records)
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        check_epoch(reader, records, 0)
        os.truncate(the_copy(cache), 1_000_000)
        batches = range(900, 1000), range(1400, 1500)
        waiting = [reader.read_async(batch) for batch in batches]
        with pytest.warns(CacheWarning):
            found = [handmade.as_bytes(each.result()) for each in waiting]
        assert found == [[records[i] for i in batch] for batch in batches]


def test_a_copy_that_another_thread_gives_up_is_replaced_by_the_network(
    through: Proxy, site: Site, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The locks last as long as reads of the copies: otherwise they could read new holes."""
    names = numbered(site, records, 1)
    bound = int(1.5 * (site.folder / names[0]).stat().st_size)
    with FileReader(f"{through.url}/{names[0]}", cache=cache, cache_size=bound) as reader:
        check_epoch(reader, records, 0)
        real, sources = Copies.have, table_of(reader).require_open()
        under_way: list[object] = []

        def have(self: Copies, *arguments: Any, **options: Any) -> Any:
            found = real(self, *arguments, **options)
            if self.are_used:
                under_way.append(self.local)
            sources.give_up_copies(OSError(errno.EIO, "broken"))  # type: ignore[union-attr]
            return found

        monkeypatch.setattr(Copies, "have", have)
        with pytest.warns(CacheWarning, match="broken"):
            assert handmade.as_bytes(reader.read(range(100))) == records[:100]
        check_epoch(reader, records, 1)
        folder = CacheFolder(str(cache), bound)
        for is_dropped in (False, True):
            forget()
            with folder.locked():
                assert folder.reserve(bound) == is_dropped
            under_way.clear()


# ---- processes ---------------------------------------------------------------------------------


def test_a_child_that_is_forked_while_a_thread_waits_for_the_lock_does_not_keep_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "LOCK_SECONDS", PATIENCE)
    one, other = CacheFolder(str(cache), None), CacheFolder(str(cache), None)
    one.make()
    real, waits = fcntl.flock, threading.Event()

    def flock(fd: int, how: int) -> None:
        try:
            real(fd, how)
        except BlockingIOError:
            waits.set()
            raise

    def use() -> None:
        with one.locked():
            pass

    monkeypatch.setattr(fcntl, "flock", flock)
    thread = threading.Thread(target=use)
    with ExitStack() as child:
        with other.locked():
            thread.start()
            assert waits.wait(PATIENCE)
            child.enter_context(forked())
        thread.join(PATIENCE)
        monkeypatch.setattr(folder_module, "LOCK_SECONDS", 0.0)
        with other.locked():
            pass


@pytest.mark.filterwarnings("error")
def test_a_child_that_is_forked_while_a_copy_is_dropped_does_not_keep_its_lock(
    through: Proxy, site: Site, records: list[bytes], cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(folder_module, "STRIDE", 4 * BLOCK)
    names = numbered(site, records, 2)
    bound = 2 * (site.folder / names[0]).stat().st_size - 40 * BLOCK
    fill(f"{through.url}/{names[0]}", cache, records)
    real = libc.punch_hole
    with ExitStack() as child:

        def punch_hole(*arguments: int) -> None:
            monkeypatch.setattr(libc, "punch_hole", real)
            child.enter_context(forked())
            real(*arguments)

        monkeypatch.setattr(libc, "punch_hole", punch_hole)
        with FileReader(f"{through.url}/{names[1]}", cache=cache, cache_size=bound) as reader:
            reader.read(ALL)
        assert libc.punch_hole is real
        with FileReader(f"{through.url}/{names[0]}", cache=cache) as reader:
            through.requests.clear()
            reader.read(range(100))
            assert not through.requests  # its first blocks are still there


class Lengths(Dataset[int]):
    def process(self, indices: list[int], data: Any) -> list[int]:
        return [len(record) for record in data]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_all_kinds_share_the_cache(
    through: Proxy, record_file: str, records: list[bytes], cache: Path, start: str
) -> None:
    url = f"{through.url}/{record_file}"

    workers = 2 if start == "fork" else 1  # a spawned worker imports torch, which takes seconds

    def epoch() -> list[int]:
        dataset = Lengths(url, cache=cache, cache_size="1GB")
        context = multiprocessing.get_context(start)
        loader = DataLoader(
            dataset, batch_size=64, num_workers=workers, multiprocessing_context=context
        )
        return [int(size) for batch in loader for size in batch]

    assert epoch() == list(map(len, records))
    forget()
    through.requests.clear()
    assert epoch() == list(map(len, records))
    opened = 1 if start == "fork" else 2
    assert len(through.requests) == opened


def test_readers_pickle_with_their_cache(
    through: Proxy, record_file: str, records: list[bytes], cache: Path
) -> None:
    fill(f"{through.url}/{record_file}", cache, records)
    with FileReader(f"{through.url}/{record_file}", cache=cache) as reader:
        again = pickle.loads(pickle.dumps(reader))
        through.requests.clear()
        check_epoch(again, records, 0)
        assert not through.requests


@pytest.mark.filterwarnings("ignore::ffrecord.CacheWarning")
def test_a_whole_copy_can_be_pinned(
    through: Proxy, site: Site, records: list[bytes], cache: Path
) -> None:
    names = numbered(site, records, 2)
    bound = int(1.5 * (site.folder / names[0]).stat().st_size)
    with FileReader(f"{through.url}/{names[0]}", cache=cache, cache_size=bound) as reader:
        reader.read(range(10))
        assert source_of(reader).local_copy() is None
        reader.read(ALL)
        pinned = source_of(reader).local_copy()
    assert pinned is not None
    forget()
    with FileReader(f"{through.url}/{names[1]}", cache=cache, cache_size=bound) as other:
        other.read(ALL)
    due = (site.folder / names[0]).read_bytes()
    assert Path(pinned.path).read_bytes() == due
    assert os.pread(pinned.fd, 100, 0) == due[:100]
    del pinned, reader
    forget()
    with FileReader(f"{through.url}/{names[1]}", cache=cache, cache_size=bound) as other:
        other.read(ALL)
        assert source_of(other).local_copy() is not None

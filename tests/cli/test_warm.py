"""`ffrecord warm`: afterwards the named bytes, and only they, are in the page cache."""

from __future__ import annotations

import errno
import json
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from ffrecord import FileReader, PackedFolder, ReadFailedError, write_dataset
from ffrecord.disk import pagecache, warming
from ffrecord.disk.source import Source
from ffrecord.machine import memory
from ffrecord.records.reader import table_of
from tests.support import archives, handmade, trees
from tests.support.commands import SYSTEM, Command

PAGE = mmap.PAGESIZE
CATS, DOGS = 40, 40
SIZE = 70_000


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("warm")
    files = {f"cats/{i}": trees.content(SIZE + i) for i in range(CATS)}
    files |= {f"dogs/old/{i}": trees.content(SIZE + i) for i in range(DOGS)}
    top = trees.plain_tree(
        place / "photos", {**files, "large": trees.content(3 << 20), "none/": b""}
    )
    (top / "link").symlink_to("dogs/old/3")
    archives.pack(top, place / "photos.ffr")
    archives.pack(top, place / "shards", shard_size=1 << 20)
    return place


def cold(*paths: Path) -> None:
    """Drop files from the page cache; skip the test where that cannot be seen."""
    for path in paths:
        handmade.evict(path)
        fd = os.open(path, os.O_RDONLY)
        try:
            if pagecache.cached_bytes(fd, 0, path.stat().st_size) != 0:
                pytest.skip("no cachestat here, or this file system keeps its files in memory")
            os.pread(fd, 1, 0)
            if not pagecache.tells(fd):
                pytest.skip("cachestat sees no pages on this file system")
        finally:
            os.close(fd)
        handmade.evict(path)


def is_cached(path: Path) -> bool:
    return all(handmade.cached_pages(path))


def test_every_page_of_a_file_is_cached(photos: Path, ffrecord: Command) -> None:
    archive = photos / "photos.ffr"
    cold(archive)
    done = ffrecord("warm", archive)
    assert is_cached(archive)
    size = archive.stat().st_size / 1e6
    assert (done.code, done.out, done.err) == (
        0, f"{archive}: {size:.1f} MB in the page cache\n".encode(), b"",
    )  # fmt: skip


def test_every_page_of_all_shards_is_cached(photos: Path, ffrecord: Command) -> None:
    files = sorted((photos / "shards").iterdir())
    assert len(files) > 2
    cold(*files)
    assert ffrecord("warm", photos / "shards").code == 0
    assert all(map(is_cached, files))


def test_every_page_of_a_dataset_is_cached(tmp_path: Path, ffrecord: Command) -> None:
    rows = [{"image": bytes([i]) * 9000, "label": i} for i in range(100)]
    write_dataset(tmp_path / "set", rows, progress=False)
    files = list((tmp_path / "set").glob("*.ffr"))
    assert len(files) == 2
    cold(*files)
    assert ffrecord("warm", tmp_path / "set").code == 0
    assert all(map(is_cached, files))


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["cats"], [f"cats/{i}" for i in range(CATS)]),
        (["dogs"], [f"dogs/old/{i}" for i in range(DOGS)]),
        (["cats/7", "large", "cats/7"], ["cats/7", "large"]),
        (["link"], ["dogs/old/3"]),
        (["none"], []),
    ],
)
@pytest.mark.parametrize("form", ["photos.ffr", "shards"])
def test_with_names_only_their_records_are_cached(
    form: str, names: list[str], files: list[str], photos: Path, ffrecord: Command
) -> None:
    archive = photos / form
    shards = sorted(archive.iterdir()) if archive.is_dir() else [archive]
    due = [[False] * -(-shard.stat().st_size // PAGE) for shard in shards]
    others = [[False] * len(pages) for pages in due]
    with PackedFolder(archive) as folder:
        table, index = table_of(folder.reader), folder.reader.n - 1
        wanted = {folder.record(name) for name in files}
        for record in range(folder.reader.n):
            begin, end, _ = table.entry(record)
            pages = range(begin // PAGE, -(-end // PAGE)) if end > begin else range(0)
            for page in pages:
                (due if record in wanted else others)[table.file_of(record)][page] = True
        last = table.entry(index)[0] // PAGE
    cold(*shards)
    facts = json.loads(ffrecord("warm", archive, *names, "--json").out)
    for number, shard in enumerate(shards):
        found = handmade.cached_pages(shard)
        # The header and the index are read to find the records.
        end = last if number == len(shards) - 1 else len(found)
        assert [n for n in range(1, end) if due[number][n] and not found[n]] == []
        assert [n for n in range(1, end) if found[n] and not due[number][n]] == []
    with PackedFolder(archive) as folder:
        assert facts["bytes"] == sum(folder.stat(name).st_size for name in files)
    assert facts["cached_bytes"] == facts["bytes"]


def test_neighbours_are_one_range(photos: Path) -> None:
    with PackedFolder(photos / "photos.ffr") as folder:
        table = table_of(folder.reader)
        first = folder.record("cats/0")
        records = sorted(folder.record(f"cats/{i}") for i in range(CATS))
        assert records == list(range(min(records), max(records) + 1))
        (whole,) = table.ranges(np.array(records))
        assert whole.size == sum(SIZE + i for i in range(CATS))
        assert len(table.ranges(np.array(sorted({first, records[5], records[9]})))) == 3


def test_neighbours_are_one_range_across_padding(photos: Path, tmp_path: Path) -> None:
    archives.pack(photos / "photos", tmp_path / "aligned.ffr", align=512)
    with PackedFolder(tmp_path / "aligned.ffr") as folder:
        records = sorted(folder.record(f"cats/{i}") for i in range(CATS))
        assert records != list(range(min(records), max(records) + 1))
        (whole,) = table_of(folder.reader).ranges(np.array(records))
        assert whole.begin % 512 == 0
        sizes = [SIZE + i for i in range(CATS)]
        assert 0 <= whole.size - sum(sizes) < 512 * CATS


def test_advice_that_is_ignored_does_not_matter(
    photos: Path, ffrecord: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = photos / "photos.ffr"
    cold(archive)
    monkeypatch.setattr(Source, "will_need", lambda *_args: None)
    assert ffrecord("warm", archive).code == 0
    assert is_cached(archive)


def test_a_disk_that_fails_is_an_error(
    photos: Path, ffrecord: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int, _size: int, _offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    done = ffrecord("warm", photos / "photos.ffr")
    assert done.code == ReadFailedError.exit_code
    assert done.error.startswith(f"ffrecord: {photos}/photos.ffr: ")


def test_what_was_dropped_meanwhile_is_not_claimed(
    photos: Path, ffrecord: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = photos / "photos.ffr"
    cold(archive)
    with monkeypatch.context() as without_disk:
        without_disk.setattr(warming, "announced", lambda steps: iter(()))
        done = ffrecord("warm", archive)
    said = done.out.decode()
    assert " of " in said
    assert said.endswith("MB in the page cache\n")


def test_a_file_larger_than_the_memory_gives_a_warning(
    photos: Path, ffrecord: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1_000_000)
    done = ffrecord("warm", photos / "photos.ffr")
    assert done.code == 0
    assert b"do not fit into the available memory of 1.0 MB" in done.err
    assert b"name a part" in done.err
    assert ffrecord("warm", photos / "photos.ffr", "cats/1").err == b""


def test_a_kernel_that_does_not_tell_gives_null(
    photos: Path, ffrecord: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagecache, "syscall", lambda *_args: -1)
    facts = json.loads(ffrecord("warm", photos / "photos.ffr", "--json").out)
    assert facts["cached_bytes"] is None
    assert facts["bytes"] == (photos / "photos.ffr").stat().st_size
    assert b" of " not in ffrecord("warm", photos / "photos.ffr").out


def test_a_damaged_record_is_no_error(tmp_path: Path, ffrecord: Command) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [b"one", b"two"])
    archives.flip(path, -1)
    assert ffrecord("warm", path).code == 0


def test_a_file_without_records_is_no_error(tmp_path: Path, ffrecord: Command) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [])
    assert ffrecord("warm", path).code == 0


def test_a_truncated_file_is_an_error(tmp_path: Path, ffrecord: Command) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [bytes(5000)] * 10)
    os.truncate(path, 20_000)
    done = ffrecord("warm", path)
    assert done.code == 4
    assert done.error.startswith(f"ffrecord: {path}: truncated")


def test_a_file_that_is_truncated_meanwhile_is_an_error(
    tmp_path: Path, ffrecord: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [bytes(5000)] * 1000)

    def shorten(*_args: object) -> None:
        os.truncate(path, 2_000_000)

    monkeypatch.setattr(warming, "excess", shorten)
    done = ffrecord("warm", path)
    assert done.code == 4
    assert "it ends at byte 2000000" in done.error


def test_the_disk_is_asked_for_later_steps_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [bytes(9 << 20)])
    events: list[tuple[str, int]] = []
    with FileReader(path) as reader:
        sources = table_of(reader).require_files()
        kind = type(sources[0])
        monkeypatch.setattr(kind, "will_need", lambda _, begin, size: events.append(("ask", begin)))
        monkeypatch.setattr(kind, "wait_for", lambda _, offset: events.append(("wait", offset)))
        sizes = list(warming.warm(warming.whole_files(sources)))
    assert sum(sizes) == path.stat().st_size
    steps = list(range(0, path.stat().st_size, warming.STEP))
    assert [at for what, at in events if what == "ask"] == steps
    ahead = -(-warming.BYTES_AHEAD // warming.STEP)
    assert [what for what, _ in events[: ahead + 2]] == ["ask"] * ahead + ["wait", "ask"]
    assert [at for what, at in events if what == "wait"] == [
        *(at - 1 for at in steps[1:]), path.stat().st_size - 1,
    ]  # fmt: skip


def test_a_name_in_a_dataset_is_refused(tmp_path: Path, ffrecord: Command) -> None:
    write_dataset(tmp_path / "set", [{"label": 1}], progress=False)
    done = ffrecord("warm", tmp_path / "set", "label")
    assert "typed dataset, not a packed folder" in done.error


def test_a_missing_file_of_a_dataset_is_an_error(tmp_path: Path, ffrecord: Command) -> None:
    write_dataset(tmp_path / "set", [{"label": 1}], progress=False)
    next((tmp_path / "set").glob("*.ffr")).unlink()
    done = ffrecord("warm", tmp_path / "set")
    assert done.code not in (0, SYSTEM)
    assert "is missing" in done.error

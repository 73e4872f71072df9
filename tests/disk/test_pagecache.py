"""`ffrecord.disk.pagecache` against mincore(2)."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ffrecord.aliases import Ints, Mask
from ffrecord.disk import pagecache
from ffrecord.disk.pagecache import HITS_TO_BE_WARM, PageCache
from ffrecord.disk.source import SourceSet
from tests.support import handmade

PAGE = mmap.PAGESIZE
PAGES = 256


@pytest.fixture
def cold_file(tmp_path: Path) -> Path:
    """Return a file without cached pages."""
    path = tmp_path / "data"
    path.write_bytes(handmade.random_records([PAGE * PAGES])[0])
    handmade.evict(path)
    if any(handmade.cached_pages(path)):
        pytest.skip("this file system keeps its files in memory")
    return path


@pytest.fixture
def fd(cold_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Open the cold file as if on a slow disk: a NOWAIT read gets only pages cached before.

    The kernel starts to read the missing pages. A fast disk may deliver them before the kernel
    looks again, so that the read would find pages that were not cached.
    """
    preadv = os.preadv

    def from_a_slow_disk(fd: int, buffers: list[memoryview], offset: int, flags: int = 0, /) -> int:
        if flags & os.RWF_NOWAIT:
            cached = handmade.cached_pages(cold_file)
            end = next((n for n in range(offset // PAGE, PAGES) if not cached[n]), PAGES) * PAGE
            if end <= offset:
                raise BlockingIOError(errno.EAGAIN, "not cached")
            buffers = [memoryview(buffer)[: end - offset] for buffer in buffers]
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", from_a_slow_disk)
    fd = os.open(cold_file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead of further pages
    yield fd
    os.close(fd)


def needs_cachestat(fd: int) -> None:
    one = np.array([fd]), np.array([0]), np.array([1])
    if pagecache._cachestat(*one) is None:
        pytest.skip("this kernel has no cachestat, or does not allow it")


def rows(fd: int, pages: list[int], length: int = PAGE) -> tuple[Ints, Ints, Ints]:
    n = len(pages)
    return np.full(n, fd), np.array(pages, np.int64) * PAGE, np.full(n, length)


def answers(cache: PageCache, fds: Ints | int, offsets: Ints, lengths: Ints) -> Mask:
    """Return the mask that `Fetch` uses: a few reads decide if they agree."""
    most = cache.has_most(fds, offsets, lengths)
    return cache.has_each(fds, offsets, lengths) if most is None else np.full(len(offsets), most)


def test_nothing_is_resident_in_an_evicted_file(fd: int) -> None:
    assert not answers(PageCache(), *rows(fd, list(range(PAGES)))).any()


def test_everything_is_resident_after_a_plain_read(cold_file: Path, fd: int) -> None:
    cold_file.read_bytes()
    assert answers(PageCache(), *rows(fd, list(range(PAGES)))).all()


def test_one_descriptor_can_serve_all_reads(cold_file: Path, fd: int) -> None:
    _fds, offsets, lengths = rows(fd, list(range(PAGES)))
    assert not answers(PageCache(), fd, offsets, lengths).any()
    for page in range(0, PAGES, 3):
        os.pread(fd, 1, page * PAGE)
    each = answers(PageCache(), *rows(fd, list(range(PAGES))))
    assert answers(PageCache(), fd, offsets, lengths).tolist() == each.tolist()
    cold_file.read_bytes()
    assert answers(PageCache(), fd, offsets, lengths).all()


def test_asking_does_not_change_the_cache(cold_file: Path, fd: int) -> None:
    needs_cachestat(fd)
    answers(PageCache(), *rows(fd, list(range(PAGES))))
    assert not any(handmade.cached_pages(cold_file))


def test_each_read_has_its_own_answer_when_the_first_few_differ(cold_file: Path, fd: int) -> None:
    needs_cachestat(fd)
    for page in range(0, PAGES, 3):
        os.pread(fd, 1, page * PAGE)
    expected = handmade.cached_pages(cold_file)
    assert any(expected)
    assert not all(expected)
    assert answers(PageCache(), *rows(fd, list(range(PAGES)))).tolist() == expected


def test_a_read_is_resident_only_when_all_its_pages_are(cold_file: Path, fd: int) -> None:
    needs_cachestat(fd)
    os.pread(fd, PAGE, 10 * PAGE)
    if handmade.cached_pages(cold_file)[9:13] != [False, True, False, False]:
        pytest.skip("this kernel reads ahead all the same")
    spans = [
        (10 * PAGE, PAGE),
        (10 * PAGE + 100, 50),
        (10 * PAGE - 1, 2),
        (11 * PAGE - 1, 1),
        (11 * PAGE - 1, 2),
        (9 * PAGE, 3 * PAGE),
    ]
    offset, length = np.array(spans).T
    found = answers(PageCache(), np.full(len(spans), fd), offset, length)
    assert found.tolist() == [True, True, False, True, False, False]


def test_a_direct_read_leaves_nothing_resident(cold_file: Path, fd: int) -> None:
    try:
        direct = os.open(cold_file, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    with mmap.mmap(-1, PAGE * PAGES) as memory:
        assert os.preadv(direct, [memory], 0) == PAGE * PAGES
        os.close(direct)
        assert memory[:] == cold_file.read_bytes()
    handmade.evict(cold_file)
    assert not answers(PageCache(), *rows(fd, list(range(PAGES)))).any()


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 15, 16, 100, 1000])
def test_a_few_reads_decide_when_they_agree(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def all_cached(_fds: object, offsets: Ints, _lengths: object) -> list[bool]:
        asked.append(len(offsets))
        return [True] * len(offsets)

    monkeypatch.setattr(pagecache, "_cachestat", all_cached)
    found = answers(PageCache(), *rows(-1, [0] * n))
    assert found.tolist() == [True] * n
    assert len(asked) == 1
    assert min(n, pagecache.SAMPLE) <= asked[0] < 2 * pagecache.SAMPLE


def test_a_descriptor_that_is_not_open_has_nothing_resident() -> None:
    assert answers(PageCache(), *rows(-1, [0, 1, 2])).tolist() == [False] * 3


@pytest.mark.parametrize("warm", [True, False])
def test_without_cachestat_a_few_reads_decide_for_all(
    warm: bool, cold_file: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if warm:
        cold_file.read_bytes()
    monkeypatch.setattr(pagecache, "syscall", lambda *_args: -1)
    found = answers(PageCache(), *rows(fd, list(range(PAGES))))
    assert found.tolist() == [warm] * PAGES


def test_without_any_way_to_ask_nothing_counts_as_cached(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(95, "not supported")

    monkeypatch.setattr(pagecache, "syscall", lambda *_args: -1)
    monkeypatch.setattr(os, "preadv", refuse)
    assert not answers(PageCache(), *rows(fd, list(range(20)))).any()


def test_a_failed_second_question_means_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[list[bool] | None] = [[True, False] * 4, None]
    monkeypatch.setattr(pagecache, "_cachestat", lambda *_args: replies.pop(0))
    assert answers(PageCache(), *rows(-1, [0] * 8)).tolist() == [False] * 8


def test_one_read_gets_the_same_answer_as_many(cold_file: Path, fd: int) -> None:
    needs_cachestat(fd)
    for page in range(0, PAGES, 3):
        os.pread(fd, 1, page * PAGE)
    expected = handmade.cached_pages(cold_file)
    cache = PageCache()
    assert [cache.has(fd, page * PAGE, PAGE) for page in range(PAGES)] == expected
    assert not cache.has(fd, 0, 2 * PAGE)


@pytest.mark.parametrize("warm", [True, False])
def test_without_cachestat_one_byte_decides_for_one_read(
    warm: bool, cold_file: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if warm:
        cold_file.read_bytes()
    monkeypatch.setattr(pagecache, "syscall", lambda *_args: -1)
    assert PageCache().has(fd, 17 * PAGE, 5 * PAGE) == warm


# ---- reads that do not wait ----------------------------------------------------------------


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the offsets of NOWAIT reads."""
    preadv, offsets = os.preadv, []

    def noted(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        offsets.append(offset)
        return preadv(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", noted)
    return offsets


def read(cache: PageCache, fd: int, page: int) -> bytes | None:
    memory = bytearray(PAGE)
    return bytes(memory) if cache.read(fd, memoryview(memory), page * PAGE) else None


def test_cached_reads_are_tried_without_asking(
    cold_file: Path, fd: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = cold_file.read_bytes()
    monkeypatch.setattr(pagecache, "syscall", None)  # asking the kernel would fail
    cache = PageCache()
    for page in range(20):
        assert read(cache, fd, page) == content[page * PAGE : (page + 1) * PAGE]
    assert len(tried) == 20


def test_after_a_miss_uncached_reads_are_not_tried(
    cold_file: Path, fd: int, tried: list[int]
) -> None:
    needs_cachestat(fd)
    cache = PageCache()
    assert read(cache, fd, 0) is None
    assert tried == [0]
    for page in range(100, 200):
        assert read(cache, fd, page) is None
    assert tried == [0]  # each try would have read a page into the cache for nothing
    content = cold_file.read_bytes()
    assert read(cache, fd, 3) == content[3 * PAGE : 4 * PAGE]
    assert tried == [0, 3 * PAGE]


def test_after_enough_hits_in_a_row_the_kernel_is_no_longer_asked(
    cold_file: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_cachestat(fd)
    cache = PageCache()
    assert read(cache, fd, 0) is None
    cold_file.read_bytes()
    for page in range(HITS_TO_BE_WARM):
        assert read(cache, fd, page) is not None
    monkeypatch.setattr(pagecache, "syscall", None)
    assert read(cache, fd, 100) is not None


def test_without_cachestat_a_read_is_tried_now_and_then(
    cold_file: Path, fd: int, tried: list[int]
) -> None:
    cache = PageCache()
    cache.use_cachestat = False
    for page in range(0, 30):
        assert read(cache, fd, 2 * page) is None
    assert tried == [page * 2 * PAGE for page in range(0, 30, HITS_TO_BE_WARM + 1)]
    content = cold_file.read_bytes()
    answers = [read(cache, fd, page) for page in range(30)]
    first = next(page for page, answer in enumerate(answers) if answer is not None)
    assert first <= HITS_TO_BE_WARM
    assert answers[first:] == [
        content[page * PAGE : (page + 1) * PAGE] for page in range(first, 30)
    ]


def test_a_partly_cached_read_is_a_miss(cold_file: Path, fd: int) -> None:
    os.pread(fd, PAGE, 10 * PAGE)
    if handmade.cached_pages(cold_file)[9:13] != [False, True, False, False]:
        pytest.skip("this kernel reads ahead all the same")
    assert not PageCache().read(fd, memoryview(bytearray(2 * PAGE)), 10 * PAGE)


@pytest.mark.in_memory
def test_a_file_in_memory_always_counts_as_cached(tmp_path: Path, tried: list[int]) -> None:
    """Such a file needs neither `cachestat` nor RWF_NOWAIT, which tmpfs does not support."""
    content = handmade.random_records([PAGE * 20])[0]
    (tmp_path / "data").write_bytes(content)
    handmade.require_memory(tmp_path / "data")
    sources = SourceSet([str(tmp_path / "data")], direct=False)
    sources.ask_about_the_cache()
    sources.cache.use_cachestat = False
    assert answers(sources.cache, *rows(sources[0].fd, list(range(20)))).all()
    assert not tried
    for page in range(20):
        found = read(sources.cache, sources[0].fd, page)
        assert found == content[page * PAGE : (page + 1) * PAGE]
    assert read(sources.cache, sources[0].fd, 20) is None  # beyond the end
    assert len(tried) == 21


def test_a_file_on_a_disk_does_not_count_as_in_memory(cold_file: Path) -> None:
    sources = SourceSet([str(cold_file)], direct=False)
    sources.ask_about_the_cache()
    assert not sources.cache.in_memory


def test_cachestat_is_not_trusted_if_it_misses_a_page_that_was_just_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On overlayfs, cachestat sees nothing. One-byte reads still find a cached file there."""
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    path.read_bytes()
    with open(path, "rb") as handle:
        assert pagecache.tells(handle.fileno())
        monkeypatch.setattr(pagecache, "_cachestat", lambda fds, offsets, lengths: [False])
        assert not pagecache.tells(handle.fileno())
        cache = PageCache()
        cache.use_cachestat = False
        rows = np.array([0, 4096, 50_000]), np.array([100, 100, 100])
        assert answers(cache, handle.fileno(), *rows).all()

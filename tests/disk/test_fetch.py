"""`ffrecord.disk.fetch`: a read returns the file's bytes or an error, whatever the kernel does.

Every test reads through `FileReader` and compares with records made by hand.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import FileReader, ReadFailedError, TruncatedError
from ffrecord.aliases import Bytes, Ints, Mask
from ffrecord.disk import aio, fetch, libc
from ffrecord.disk import source as disk_source
from ffrecord.disk.aio_queue import AioQueue
from ffrecord.disk.pagecache import PageCache
from ffrecord.records.reader import table_of
from tests.support import completions, handmade

needs_libaio = pytest.mark.skipif(aio._lib is None, reason="libaio is not installed")
LOADS = ["auto", "aio", "buffered"]
# The second request is read without sorting if it is cached; the third has an empty record too.
SCATTERED = np.random.default_rng(5).integers(0, 73, 200).tolist()
FAR_APART = [72, 1, 40, 60, 1]
REQUESTS = [SCATTERED, FAR_APART, [*FAR_APART, 8]]


def expect_right(path: Path, records: list[bytes], mode: str) -> None:
    """Read records all at once, scattered with duplicates, and asynchronously; compare all."""
    with FileReader(path, mode=mode) as reader:
        assert handmade.as_bytes(reader.read(range(len(records)))) == records
        for request in REQUESTS:
            assert handmade.as_bytes(reader.read(request)) == [records[i] for i in request]
            pending = reader.read_async(request)
            assert handmade.as_bytes(pending.result()) == [records[i] for i in request]


@pytest.mark.parametrize("mode", LOADS)
def test_every_mode_returns_the_bytes_of_the_file(
    mode: str, sample_file: Path, sample_records: list[bytes]
) -> None:
    expect_right(sample_file, sample_records, mode)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)


# ---- completions ---------------------------------------------------------------------------


@needs_libaio
@pytest.mark.parametrize("mode", LOADS)
@pytest.mark.parametrize(
    "change",
    [lambda r: r // 2, lambda r: 0, lambda r: 1, lambda r: r - 1, lambda r: max(r - 512, 0)],
    ids=["half", "nothing", "one byte", "one byte less", "one sector less"],
)
def test_short_completions_are_finished(
    change: Callable[[int], int], mode: str, sample_file: Path, sample_records: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = completions.change(monkeypatch, change)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)
    assert given


@needs_libaio
@pytest.mark.parametrize("mode", LOADS)
@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, errno.EAGAIN, errno.ENOMEM])
def test_failed_completions_are_read_another_way(
    code: int, mode: str, sample_file: Path, sample_records: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = completions.change(monkeypatch, lambda _result: -code)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)
    assert set(given) == {-code}


@needs_libaio
def test_only_the_completions_that_failed_are_read_again(
    sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, read_into = [0], disk_source.Source.read_into

    def counted(self: disk_source.Source, memory: Bytes, offset: int) -> None:
        plain[0] += 1
        read_into(self, memory, offset)

    with FileReader(sample_file, mode="aio") as reader:
        turns = iter(range(10**9))
        given = completions.change(monkeypatch, lambda r: -errno.EIO if next(turns) % 3 == 0 else r)
        monkeypatch.setattr(disk_source.Source, "read_into", counted)
        for _ in range(5):
            assert handmade.as_bytes(reader.read(SCATTERED)) == [
                sample_records[i] for i in SCATTERED
            ]
    failed = given.count(-errno.EIO)
    assert 0 < failed < len(given)
    assert plain[0] == failed


@needs_libaio
@pytest.mark.parametrize("mode", LOADS)
def test_a_read_that_fails_in_both_ways_is_an_error(
    mode: str, sample_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with FileReader(sample_file, mode=mode) as reader:
        completions.change(monkeypatch, lambda _result: -errno.EIO)
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(ReadFailedError):
            reader.read(range(20))
        with pytest.raises(ReadFailedError):
            reader.read_async(range(20)).result()


@needs_libaio
def test_a_failed_read_can_be_retried(sample_file: Path, sample_records: list[bytes]) -> None:
    with FileReader(sample_file, mode="aio") as reader:
        with pytest.MonkeyPatch.context() as broken:
            completions.change(broken, lambda _result: -errno.EIO)
            broken.setattr(disk_source.Source, "read_into", _always_fails)
            pending = reader.read_async(range(20))
            with pytest.raises(ReadFailedError):
                pending.result()
        assert handmade.as_bytes(pending.result()) == sample_records[:20]


def _always_fails(source: disk_source.Source, _memory: object, offset: int) -> None:
    raise ReadFailedError(source.path, errno.EIO, offset)


# ---- submitting ----------------------------------------------------------------------------


@needs_libaio
@pytest.mark.parametrize("mode", LOADS)
@pytest.mark.parametrize("at_once", [1, 3])
def test_a_kernel_that_takes_few_requests_at_once_gets_them_in_turns(
    at_once: int, mode: str, sample_file: Path, sample_records: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    submit = aio.Context.submit
    monkeypatch.setattr(
        aio.Context, "submit", lambda self, at, count: submit(self, at, min(count, at_once))
    )
    expect_right(sample_file, sample_records, mode)


@needs_libaio
@pytest.mark.parametrize("mode", LOADS)
@pytest.mark.parametrize("answer", [0, -errno.EAGAIN, -errno.EINVAL, -errno.EBADF, -errno.ENOSYS])
def test_without_accepted_requests_plain_reads_are_used(
    answer: int, mode: str, sample_file: Path, sample_records: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(aio.Context, "submit", lambda *_args: answer)
    expect_right(sample_file, sample_records, mode)


@needs_libaio
@pytest.mark.parametrize("mode", LOADS)
def test_interrupted_calls_lose_nothing(
    mode: str, sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(call: Callable[..., int]) -> Callable[..., int]:
        turns = iter(range(10**9))
        return lambda *args: call(*args) if next(turns) % 2 else -errno.EINTR

    monkeypatch.setattr(aio, "_io_submit", interrupted(aio._io_submit))
    monkeypatch.setattr(aio, "_io_getevents", interrupted(aio._io_getevents))
    expect_right(sample_file, sample_records, mode)


@needs_libaio
@pytest.mark.parametrize("mode", LOADS)
def test_one_read_in_flight_at_a_time_is_enough(
    mode: str, sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "WINDOW_READS", 1)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)


@needs_libaio
def test_the_window_grows_on_a_slow_disk(
    sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "WINDOW_READS", 1)
    monkeypatch.setattr(fetch, "SLOW_WINDOW", -1.0)
    most, launch = [0], AioQueue.launch

    def launched(self: AioQueue, up_to: int) -> None:
        most[0] = max(most[0], up_to)
        launch(self, up_to)

    monkeypatch.setattr(AioQueue, "launch", launched)
    with FileReader(sample_file, mode="aio") as reader:
        records = [i for i in SCATTERED if sample_records[i]] * 2  # duplicates make many reads
        expected = [sample_records[i] for i in records]
        assert handmade.as_bytes(reader.read(records)) == expected
    assert most[0] > 8


# ---- no O_DIRECT ---------------------------------------------------------------------------


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.parametrize("mode", LOADS)
def test_a_file_system_that_refuses_o_direct_is_read_buffered(
    mode: str, sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)
    assert not disk_source.SourceSet([str(sample_file)], direct=True).direct


@needs_libaio
def test_o_direct_is_given_up_if_it_opens_but_does_not_read(
    sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileReader(sample_file, mode="aio") as reader:
        sources = table_of(reader).require_open()
        if not sources.direct:
            pytest.skip("this file system has no O_DIRECT")
        with pytest.MonkeyPatch.context() as first_time:
            completions.change(first_time, lambda _result: -errno.EINVAL)
            assert handmade.as_bytes(reader.read(range(73))) == sample_records
        assert not sources.direct
        used: set[int] = set()
        fill = AioQueue.fill

        def watched(self: AioQueue, memory: Bytes, fds: Ints | int, *rows: Any) -> None:
            used.update(np.atleast_1d(fds).tolist())
            fill(self, memory, fds, *rows)

        monkeypatch.setattr(AioQueue, "fill", watched)
        assert handmade.as_bytes(reader.read(range(73))) == sample_records
        assert used == {sources[0].fd}


@pytest.mark.parametrize("mode", LOADS)
def test_one_file_without_o_direct_among_others_is_read_too(
    mode: str, tmp_path: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [handmade.write_records(tmp_path / f"{i}.ffr", sample_records) for i in range(3)]
    plain, refused = os.open, [0]

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_DIRECT and os.path.samefile(path, paths[1]):
            refused[0] += 1
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refusing)
    with FileReader([str(p) for p in paths], mode=mode) as reader:
        every_other = list(range(0, reader.n, 2))
        assert handmade.as_bytes(reader.read(every_other)) == (sample_records * 3)[::2]
    assert refused[0] == (0 if mode == "buffered" else 1)


@pytest.mark.parametrize("mode", LOADS)
@pytest.mark.parametrize("align", [512, 1024, 8192, 65536])
def test_any_alignment_gives_the_same_bytes(
    align: int, mode: str, sample_file: Path, sample_records: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(disk_source, "_direct_alignment", lambda _fd: align)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)


@pytest.mark.parametrize("mode", ["auto", "aio"])
def test_a_file_without_o_direct_according_to_the_kernel_is_read_buffered(
    mode: str, sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encrypted files, and all files of ext4 with data=journal, have alignment 0."""
    monkeypatch.setattr(disk_source, "_direct_alignment", lambda _fd: 0)
    expect_right(sample_file, sample_records, mode)


class _NoStatx:
    """A C library that is older than statx."""


class _Statx:
    """A C library whose statx returns these words."""

    def __init__(self, code: int, words: dict[int, int]) -> None:
        self._code, self._words = code, words

    def statx(self, _fd: int, _path: bytes, _flags: int, _mask: int, buffer: Any) -> int:
        for at, word in self._words.items():
            buffer._obj[at] = word
        return self._code


@pytest.mark.parametrize(
    ("library", "align"),
    [
        (_NoStatx(), 4096),
        (_Statx(-1, {}), 4096),
        (_Statx(0, {0: 0x7FF, 38: 1, 39: 1}), 4096),
        (_Statx(0, {0: 0x2000, 38: 4, 39: 512}), 512),
        (_Statx(0, {0: 0x27FF, 38: 512, 39: 4096}), 4096),
        (_Statx(0, {0: 0x2000, 38: 0, 39: 0}), 0),
    ],
)
def test_the_alignment_comes_from_statx_or_is_4096(
    library: object, align: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libc, "_libc", library)
    assert disk_source._direct_alignment(0) == align


# ---- no AIO --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", LOADS)
def test_without_contexts_everything_is_still_read(
    mode: str, sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_capacity: int) -> aio.Context:
        raise OSError(errno.EAGAIN, "used up")

    monkeypatch.setattr(aio, "contexts", aio.ContextPool())
    monkeypatch.setattr(aio, "Context", none_left)
    expect_right(sample_file, sample_records, mode)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)


@pytest.mark.parametrize("mode", LOADS)
def test_without_libaio_everything_is_still_read(
    mode: str, sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "contexts", aio.ContextPool())
    monkeypatch.setattr(aio, "_lib", None)
    handmade.evict(sample_file)
    expect_right(sample_file, sample_records, mode)


def test_a_process_without_libaio_imports_and_reads(
    sample_file: Path, sample_records: list[bytes], tmp_path: Path
) -> None:
    script = """
import sys
sys.modules["libaio"] = None
from ffrecord import FileReader
from ffrecord.disk import aio
assert aio._lib is None
sys.stdout.write(b"".join(r.tobytes() for r in FileReader(sys.argv[1])).hex())
"""
    out, err = handmade.python(script, str(sample_file)).communicate()
    assert bytes.fromhex(out) == b"".join(sample_records), err


@needs_libaio
def test_contexts_that_are_too_small_for_the_batch_serve_it_in_turns(
    sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = aio.Context

    def scarce(capacity: int) -> aio.Context:
        if capacity > 32:
            raise OSError(errno.EAGAIN, "used up")
        return real(capacity)

    pool = aio.ContextPool()
    monkeypatch.setattr(aio, "contexts", pool)
    monkeypatch.setattr(aio, "Context", scarce)
    with FileReader(sample_file, mode="aio") as reader:
        many = SCATTERED * 20
        assert handmade.as_bytes(reader.read(many)) == [sample_records[i] for i in many]
        pending = reader.read_async(many)
        assert handmade.as_bytes(pending.result()) == [sample_records[i] for i in many]
    for idle in pool._idle.values():
        for context in idle:
            context.close()


# ---- the page cache's answer is a hint -------------------------------------------------------


def random_mask(_self: object, _fds: object, offsets: Ints, _lengths: object) -> Mask:
    return np.random.default_rng(len(offsets)).random(len(offsets)) < 0.5


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("answer", [True, False, None], ids=["all", "none", "some"])
def test_a_wrong_answer_about_the_cache_gives_the_right_bytes(
    answer: bool | None, cached: bool, sample_file: Path, sample_records: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(PageCache, "has_most", lambda *_args: answer)
    monkeypatch.setattr(PageCache, "has_each", random_mask)
    if not cached:
        handmade.evict(sample_file)
    expect_right(sample_file, sample_records, "auto")


@needs_libaio
def test_cold_reads_bypass_the_page_cache(tmp_path: Path) -> None:
    records = handmade.random_records([20_000] * 100)
    path = handmade.write_records(tmp_path / "cold.ffr", records)
    with FileReader(path, mode="auto") as reader:
        handmade.evict(path)
        if any(handmade.cached_pages(path)) or not table_of(reader).require_open().direct:
            pytest.skip("this file system keeps its files in memory or has no O_DIRECT")
        assert handmade.as_bytes(reader.read(range(100))) == records
        assert sum(handmade.cached_pages(path)) < 50


# ---- plain reads ---------------------------------------------------------------------------


def test_short_plain_reads_are_continued(
    sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def piecewise(fd: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        return preadv(fd, [buffers[0][:1000]], offset, flags)

    monkeypatch.setattr(os, "preadv", piecewise)
    source = disk_source.Source(str(sample_file), direct=False)
    memory = np.empty(sample_file.stat().st_size, np.uint8)
    source.read_into(memory, 0)
    assert memory.tobytes() == sample_file.read_bytes()


def test_a_plain_read_beyond_the_end_names_the_byte(sample_file: Path) -> None:
    size = sample_file.stat().st_size
    source = disk_source.Source(str(sample_file), direct=False)
    with pytest.raises(TruncatedError, match=f"{sample_file}.*byte {size}"):
        source.read_into(np.empty(100, np.uint8), size - 50)


@needs_libaio
@pytest.mark.in_memory
def test_files_in_memory_are_copied_with_one_call(
    sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a special case, tmpfs would refuse RWF_NOWAIT for each read of a batch."""
    handmade.require_memory(sample_file)
    submit, taken = aio.Context.submit, list[int]()

    def noted(context: aio.Context, iocbs_at: int, count: int) -> int:
        taken.append(submit(context, iocbs_at, count))
        return taken[-1]

    monkeypatch.setattr(aio.Context, "submit", noted)
    with FileReader(sample_file) as reader:
        assert handmade.as_bytes(reader.read(SCATTERED)) == [sample_records[i] for i in SCATTERED]
    assert len(taken) == 1
    assert taken[0] > 0


def test_refused_advice_is_ignored(
    sample_file: Path, sample_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise OSError(errno.EINVAL, "no advice")

    handmade.evict(sample_file)
    monkeypatch.setattr(os, "posix_fadvise", refuse)
    expect_right(sample_file, sample_records, "buffered")


def test_a_source_closes_its_descriptors_when_it_is_dropped(sample_file: Path) -> None:
    before = handmade.open_descriptors()
    source = disk_source.Source(str(sample_file), direct=True)
    assert handmade.open_descriptors() > before
    del source
    assert handmade.open_descriptors() == before


def test_a_source_keeps_its_file_when_the_path_is_replaced(
    sample_file: Path, sample_records: list[bytes]
) -> None:
    with FileReader(sample_file) as reader:
        handmade.write_records(sample_file.with_name("new"), [b"other"]).rename(sample_file)
        assert handmade.as_bytes(reader.read(range(73))) == sample_records

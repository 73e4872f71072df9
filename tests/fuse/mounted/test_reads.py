"""Reads at random offsets, in every way of reading, compared with the packed files."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from ffrecord_fuse.mounting.mounttable import connection_of
from tests.fuse.mounted import mounting
from tests.fuse.mounted.mounting import BACKENDS, WHOLE, WHOLE_BY_FUSE, Mounted, require
from tests.support import archives, handmade, trees
from tests.support.trees import BLOCK

MANY, SOME = 100_000, 4_000
PAGE = mmap.PAGESIZE
MOST = 9 * BLOCK  # more than fits into one request of the kernel


@dataclass(slots=True)
class Sample:
    """A file of a mount, opened in every way, and its expected content."""

    due: bytes
    fd: int
    direct: int
    mapped: mmap.mmap | None

    def drop(self) -> None:
        """Drop the file from the mount's page cache, so that the daemon gets the next read."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)


Way: TypeAlias = Callable[[Sample, int, int], bytes]


@contextlib.contextmanager
def samples(mounted: Mounted) -> Iterator[list[Sample]]:
    """Yield files with sizes around multiples of the block, and others up to some MiB."""
    found = []
    with contextlib.ExitStack() as undo:
        for folder in ("sizes", "edges", "hard"):
            if not (mounted.source / folder).exists():
                continue
            for path in sorted((mounted.source / folder).iterdir()):
                if path.is_file():
                    place = mounted.path / folder / path.name
                    found.append(undo.enter_context(sample(path, place)))
        yield found


@contextlib.contextmanager
def sample(source: Path, place: Path) -> Iterator[Sample]:
    due = source.read_bytes()
    fd = os.open(place, os.O_RDONLY)
    try:
        direct = os.open(place, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # EROFS has no O_DIRECT for files in other files
        direct = os.open(place, os.O_RDONLY)
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ) if due else None
    try:
        yield Sample(due, fd, direct, mapped)
    finally:
        if mapped is not None:
            mapped.close()
        os.close(direct)
        os.close(fd)


def by_pread(sample: Sample, offset: int, size: int) -> bytes:
    return os.pread(sample.fd, size, offset)


def by_seek_and_read(sample: Sample, offset: int, size: int) -> bytes:
    os.lseek(sample.fd, offset, os.SEEK_SET)
    return os.read(sample.fd, size)


def by_mapping(sample: Sample, offset: int, size: int) -> bytes:
    return b"" if sample.mapped is None else sample.mapped[offset : offset + size]


_aligned = mmap.mmap(-1, MOST + PAGE)


def by_direct_read(sample: Sample, offset: int, size: int) -> bytes:
    """Read whole pages into page-aligned memory, as O_DIRECT demands on a disk."""
    begin = offset // PAGE * PAGE
    end = -(-(offset + size) // PAGE) * PAGE
    with memoryview(_aligned)[: end - begin] as memory:
        count = os.preadv(sample.direct, [memory], begin) if len(memory) else 0
        return bytes(memory[offset - begin : min(count, offset + size - begin)])


WAYS: list[Way] = [
    *[by_pread] * 12, *[by_seek_and_read] * 4, *[by_mapping] * 3, by_direct_read,
]  # fmt: skip


def test_reads_at_random_places_give_the_bytes_of_the_source(mounted: Mounted) -> None:
    chance = random.Random(f"{mounted.form} {mounted.backend}")
    count = MANY if (mounted.form, mounted.backend) == ("file", "native") else SOME
    before = reads(mounted)
    with samples(mounted) as files:
        for number in range(count):
            file = chance.choice(files)
            if number % 50 == 0:
                file.drop()
            if number % 1_000 == 0:
                forget(mounted.archive)
            offset, size = a_span(chance, len(file.due))
            way = chance.choice(WAYS)
            found = way(file, offset, size)
            due = file.due[offset : offset + size]
            assert found == due, (number, way.__name__, offset, size, len(file.due))
    # Not all bytes came from the page cache.
    assert mounted.backend == "kernel" or reads(mounted) > before


def reads(mounted: Mounted) -> int:
    """Return the number of reads that a daemon has answered."""
    return 0 if mounted.backend == "kernel" else mounted.stats()["reads"]


def forget(archive: Path) -> None:
    """Drop the archive from the page cache, so that the next read comes from the disk."""
    for path in sorted(archive.iterdir()) if archive.is_dir() else [archive]:
        handmade.evict(path)


def a_span(chance: random.Random, length: int) -> tuple[int, int]:
    """Return a random span in a file or across its end, often around the edge of a block."""
    if chance.random() < 0.3:
        edge = chance.randrange(length // BLOCK + 2) * BLOCK
        offset = max(0, edge + chance.choice((-4097, -4096, -513, -2, -1, 0, 1, 2, 4095)))
    else:
        offset = chance.randrange(length + 2)
    limit = chance.choice((3, 100, 5_000, 5_000, 5_000, 50_000, MOST))
    return offset, chance.randrange(min(limit, MOST - 2 * PAGE))


@WHOLE_BY_FUSE
def test_direct_reads_need_no_alignment(mounted: Mounted) -> None:
    """Unlike a disk, the daemon answers any span."""
    due = (mounted.source / "sizes/blocks").read_bytes()
    fd = os.open(mounted.path / "sizes/blocks", os.O_RDONLY | os.O_DIRECT)
    try:
        for offset, size in ((1, 1), (BLOCK - 1, 2), (3, BLOCK), (5 * BLOCK + 6, 100), (7, 0)):
            assert os.pread(fd, size, offset) == due[offset : offset + size]
    finally:
        os.close(fd)


@WHOLE
def test_a_read_beyond_the_end_gives_nothing(mounted: Mounted) -> None:
    direct = () if mounted.backend == "kernel" else (os.O_RDONLY | os.O_DIRECT,)
    for name, size in trees.SIZES.items():
        for flags in (os.O_RDONLY, *direct):
            fd = os.open(mounted.path / "sizes" / name, flags)
            try:
                for offset in (size, size + 1, size + 10 * BLOCK, 1 << 62):
                    assert os.pread(fd, 10, offset) == b""
            finally:
                os.close(fd)


@WHOLE
def test_seeks_to_the_end_and_to_data_and_holes_work(mounted: Mounted) -> None:
    """Files in an archive have no holes: all bytes are data, and the only hole is at the end."""
    size = trees.SIZES["blocks"]
    with open(mounted.path / "sizes/blocks", "rb") as file:
        assert file.seek(0, os.SEEK_END) == size
        assert file.seek(-7, os.SEEK_END) == size - 7
        assert os.lseek(file.fileno(), 5, os.SEEK_DATA) == 5
        assert os.lseek(file.fileno(), 5, os.SEEK_HOLE) == size


@WHOLE
def test_a_folder_cannot_be_read_as_a_file(mounted: Mounted) -> None:
    fd = os.open(mounted.path / "sizes", os.O_RDONLY)
    try:
        with mounting.fails_with(errno.EISDIR):
            os.read(fd, 10)
    finally:
        os.close(fd)


# ---- libraries and system calls that need a real file ------------------------------------------

LARGE = "sizes/batches"


@WHOLE
def test_numpy_maps_a_file(mounted: Mounted) -> None:
    array = np.memmap(mounted.path / LARGE, np.uint8, "r")
    due = np.frombuffer((mounted.source / LARGE).read_bytes(), np.uint8)
    np.testing.assert_array_equal(array[:: BLOCK - 1], due[:: BLOCK - 1])
    np.testing.assert_array_equal(array, due)
    array._mmap.close()  # type: ignore[attr-defined]


@WHOLE
def test_sendfile_sends_a_file(mounted: Mounted, tmp_path: Path) -> None:
    with open(mounted.path / LARGE, "rb") as file, open(tmp_path / "out", "wb") as out:
        left, offset = trees.SIZES["batches"], 0
        while left:
            count = os.sendfile(out.fileno(), file.fileno(), offset, left)
            assert count > 0
            left, offset = left - count, offset + count
        assert os.sendfile(out.fileno(), file.fileno(), offset, 1) == 0
    assert (tmp_path / "out").read_bytes() == (mounted.source / LARGE).read_bytes()


@WHOLE
def test_copy_file_range_copies_a_file_or_says_that_it_cannot(
    mounted: Mounted, tmp_path: Path
) -> None:
    """Some kernels refuse to copy between two file systems, and callers then copy by themselves."""
    with open(mounted.path / LARGE, "rb") as file, open(tmp_path / "out", "wb") as out:
        copied = 0
        while True:
            try:
                count = os.copy_file_range(file.fileno(), out.fileno(), 1 << 20)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP):
                    raise
                pytest.skip(f"this kernel refuses copy_file_range: {error.strerror}")
            if count == 0:
                break
            copied += count
    assert copied == trees.SIZES["batches"]
    assert (tmp_path / "out").read_bytes() == (mounted.source / LARGE).read_bytes()


@WHOLE
def test_splice_moves_a_file_through_a_pipe(mounted: Mounted) -> None:
    due = (mounted.source / "sizes/block+1").read_bytes()
    taker, giver = os.pipe()
    found = b""
    with open(mounted.path / "sizes/block+1", "rb") as file:
        try:
            while len(found) < len(due):
                count = os.splice(file.fileno(), giver, PAGE)
                assert count > 0
                found += os.read(taker, count)
        finally:
            os.close(taker)
            os.close(giver)
    assert found == due


@pytest.fixture(scope="module", params=BACKENDS)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Mount files in formats that libraries read at random offsets."""
    backend: str = request.param
    require(backend)
    place = tmp_path_factory.mktemp(f"library-{backend}")
    source = trees.plain_tree(place / "tree", {"empty": b""})
    make_zip(source / "files.zip")
    make_database(source / "table.sqlite")
    make_image(source / "image.png")
    np.save(source / "array.npy", np.arange(300_000).reshape(300, 1000))
    archives.pack(source, place / "library.ffr")
    with mounting.mounted(place / "library.ffr", place / "mnt", backend=backend) as path:
        yield path


def make_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for number in range(50):
            out.writestr(f"file {number}", trees.content(number * 1_000, number))


def make_database(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("create table squares (n integer primary key, square integer)")
        database.executemany(
            "insert into squares values (?, ?)", ((n, n * n) for n in range(20_000))
        )


def make_image(path: Path) -> None:
    with contextlib.suppress(ImportError):
        from PIL import Image

        pixels = np.arange(64 * 48 * 3, dtype=np.uint8).reshape(48, 64, 3)
        Image.fromarray(pixels).save(path)


def test_zipfile_reads_every_member(library: Path) -> None:
    with zipfile.ZipFile(library / "files.zip") as files:
        assert files.testzip() is None
        for number in range(50):
            assert files.read(f"file {number}") == trees.content(number * 1_000, number)


def test_sqlite_queries_a_database(library: Path) -> None:
    uri = f"file:{library}/table.sqlite?immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        (total,) = database.execute("select sum(square) from squares").fetchone()
        assert total == sum(n * n for n in range(20_000))
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            database.execute("delete from squares")


def test_pillow_opens_an_image(library: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    with image_module.open(library / "image.png") as image:
        pixels = np.asarray(image)
    due = np.arange(64 * 48 * 3, dtype=np.uint8).reshape(48, 64, 3)
    np.testing.assert_array_equal(pixels, due)


def test_numpy_loads_an_array_by_mapping_it(library: Path) -> None:
    array = np.load(library / "array.npy", mmap_mode="r")
    assert array[299, 999] == 299_999
    assert int(array.sum()) == 300_000 * 299_999 // 2
    array._mmap.close()


# ---- many readers ------------------------------------------------------------------------------


@WHOLE
def test_threads_that_read_at_once_each_get_their_own_bytes(mounted: Mounted) -> None:
    with samples(mounted) as files, ThreadPoolExecutor(8) as threads:

        def read(seed: int) -> int:
            chance = random.Random(seed)
            wrong = 0
            for _ in range(300):
                file = chance.choice(files)
                file.drop()
                offset, size = a_span(chance, len(file.due))
                wrong += os.pread(file.fd, size, offset) != file.due[offset : offset + size]
            return wrong

        assert sum(threads.map(read, range(8))) == 0


def test_the_kernel_reads_far_ahead_if_permitted(mounted: Mounted) -> None:
    path = Path(f"/sys/class/bdi/0:{connection_of(str(mounted.path))}/read_ahead_kb")
    if mounted.backend != "native" or not os.access(path, os.W_OK):
        pytest.skip("only the native back end sets read_ahead_kb after FUSE_INIT, if permitted")
    assert int(path.read_text()) == 1024

"""`ffrecord.disk.sequence`, and the bytes that a reader takes from the disk."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord import FileReader, FileWriter
from ffrecord.disk.sequence import LONGEST, NEAR, SHORTEST, Sequence
from ffrecord.disk.source import Source

KIB, MIB = 1 << 10, 1 << 20


def read_all(reads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges that a `Sequence` reads ahead for these reads."""
    sequence = Sequence()
    return [ahead for begin, end in reads if (ahead := sequence.after(begin, end)) is not None]


def test_reads_in_order_are_read_ahead_further_and_further() -> None:
    ranges = read_all([(at, at + 10 * KIB) for at in range(0, 20 * MIB, 10 * KIB)])
    lengths = [end - begin for begin, end in ranges]
    assert lengths[:5] == [SHORTEST, 2 * SHORTEST, 4 * SHORTEST, 8 * SHORTEST, LONGEST]
    assert set(lengths[4:]) == {LONGEST}


@given(st.lists(st.integers(1, 100 * KIB), min_size=3, max_size=200))
def test_ranges_of_reads_in_order_join_and_stay_ahead_of_the_reads(sizes: list[int]) -> None:
    ends = np.cumsum(sizes).tolist()
    ranges = read_all(list(zip([0, *ends], ends, strict=False)))
    assert ranges[0][0] == ends[2]
    for (_, end), (begin, _) in pairwise(ranges):
        assert begin >= end
    assert ends[-1] < ranges[-1][1] <= ends[-1] + 3 * LONGEST


@given(st.permutations(range(50)))
def test_reads_far_from_one_another_are_not_read_ahead(order: list[int]) -> None:
    far = 2 * NEAR
    assert read_all([(k * far, k * far + 100) for k in order]) == []


def test_a_single_neighbour_starts_no_readahead() -> None:
    assert read_all([(0, 100), (100, 200), (5 * MIB, 5 * MIB + 100)]) == []


# ---- bytes from the disk ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8,000 records of 10 kB: larger than the readahead of any usual disk."""
    path = tmp_path_factory.mktemp("sequence") / "records.ffr"
    with FileWriter(path) as writer:
        for record in range(8000):
            writer.write_one(np.full(10_000, record % 251, np.uint8))
    return path


def from_disk() -> int:
    """Return the bytes that this process has read from disks so far."""
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


def cold(path: Path) -> None:
    """Drop the file's pages from the page cache; skip where that has no effect."""
    source = Source(str(path), direct=True)
    if source.direct_fd < 0:
        pytest.skip("the file system has no O_DIRECT")
    os.posix_fadvise(source.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def test_random_batches_of_a_cold_file_read_only_their_own_bytes(records: Path) -> None:
    cold(records)
    before = from_disk()
    with FileReader(records, memory=0) as reader:  # a busy machine must not look like a slow disk
        for batch in np.random.default_rng(1).permutation(reader.n)[:5120].reshape(-1, 256):
            returned = reader.read(batch)
    read = from_disk() - before
    assert len(returned[0]) == 10_000
    # Sectors and joined neighbours cost 8 % here; marks of the kernel's readahead cost 125 %.
    assert read < 1.5 * 5120 * 10_000, "bytes were read that nobody asked for"


def test_records_read_one_by_one_in_order_are_read_ahead(records: Path) -> None:
    cold(records)
    with FileReader(records) as reader:
        if not reader._table.require_files().cache.use_cachestat:
            pytest.skip("cachestat is not available")
        for record in range(100):
            reader.read_one(record)
        source = reader._table.require_files()[0]
        begin, _, _ = reader._table.entry(110)
        # The disk may still be at work on it: a read waits for the page, then it is cached.
        source.read_bytes(begin, 1)
        assert reader._table.require_files().cache.has(source.fd, begin, 10_000)

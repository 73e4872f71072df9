"""`PathRows` is compared with paths that are built one by one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.archive.index.pathrows import MOST_FOLDERS, NARROWEST, WIDEST, PathRows

BEFORE = 200  # bytes of other tables, in which every bit is set
NAME_BYTES = st.integers(1, 255).filter(lambda byte: byte != ord("/"))
NAMES = st.lists(NAME_BYTES, min_size=1, max_size=40).map(bytes)


class Names:
    """Names end to end, as in an image, with other bytes before and after them."""

    def __init__(self, names: Sequence[bytes], behind: int = WIDEST) -> None:
        image = b"\xff" * BEFORE + b"".join(names) + b"\xff" * behind
        self.end = np.cumsum([len(name) for name in names])
        self.begin = self.end - [len(name) for name in names]
        self.rows = PathRows(image, BEFORE, MOST_FOLDERS + 10)

    def paths(self, folders: Sequence[int]) -> list[bytes] | None:
        return self.rows.paths(np.array(folders), self.begin, self.end)

    def paths_when_wide(self, folders: Sequence[int]) -> list[bytes] | None:
        """Return the paths of a second call, after the first has widened the rows."""
        self.paths(folders)
        return self.paths(folders)


@given(st.lists(st.tuples(st.lists(NAMES, max_size=2), NAMES), min_size=1, max_size=30))
def test_rows_equal_the_paths(parts: list[tuple[list[bytes], bytes]]) -> None:
    prefixes = [b"".join(folder + b"/" for folder in folders) for folders, _ in parts]
    names = Names([name for _, name in parts])
    for folder, prefix in enumerate(prefixes):
        names.rows.add(folder, prefix)
    due = [prefix + name for prefix, (_, name) in zip(prefixes, parts, strict=True)]
    assert names.paths_when_wide(range(len(parts))) == due


@pytest.mark.parametrize("prefix", [b"", b"f/", b"f" * 27 + b"/"])
@pytest.mark.parametrize("longest", [1, 8, 31, 32, 33, 63, 64, 65, 127, 128])
def test_paths_of_every_length_fit(prefix: bytes, longest: int) -> None:
    lengths = range(1, max(2, longest - len(prefix) + 1))
    due = [prefix + b"n" * length for length in lengths]
    names = Names([path[len(prefix) :] for path in due])
    names.rows.add(3, prefix)
    assert names.paths_when_wide([3] * len(due)) == due


def test_a_longer_path_is_not_cut_off() -> None:
    for length in NARROWEST + 1, WIDEST + 1, WIDEST + 200:
        names = Names([b"a", b"n" * length])
        names.rows.add(0, b"")
        assert names.paths([0, 0]) is None
    assert names.paths_when_wide([0, 0]) is None


def test_a_folder_that_was_not_added_is_not_the_root() -> None:
    names = Names([b"a", b"b"])
    names.rows.add(0, b"")
    assert names.paths([0, 1]) is None


def test_a_prefix_that_is_too_long_is_left_out() -> None:
    names = Names([b"a"])
    names.rows.add(1, b"f" * WIDEST + b"/")
    assert names.paths_when_wide([1]) is None


def test_folders_beyond_the_limit_are_left_out() -> None:
    names = Names([b"a", b"b"])
    for folder in range(MOST_FOLDERS + 9):
        names.rows.add(folder, b"%d/" % folder)
    assert names.paths([0, MOST_FOLDERS - 2]) == [b"0/a", b"%d/b" % (MOST_FOLDERS - 2)]
    assert names.paths([0, MOST_FOLDERS - 1]) is None
    assert names.paths([0, MOST_FOLDERS + 8]) is None


def test_nothing_is_read_beyond_the_image() -> None:
    names = Names([b"a" * NARROWEST, b"b"], behind=7)
    names.rows.add(0, b"")
    assert names.paths([0, 0]) is None
    names.begin, names.end = names.begin[:1], names.end[:1]
    assert names.paths([0]) == [b"a" * NARROWEST]


def test_a_name_that_begins_at_the_end_of_the_names_has_no_row() -> None:
    """`Index.find` may pass the end of the last name as the beginning of the first."""
    for count in range(1, 60):
        names = Names([b"%d" % number for number in range(count)], behind=7)
        names.rows.add(0, b"")
        names.begin, names.end = names.end[-1:], names.end[:1]
        assert names.paths([0]) is None


def test_an_empty_batch_has_no_paths() -> None:
    names = Names([b"a"])
    assert names.rows.paths(*[np.empty(0, np.int64)] * 3) == []


def test_threads_can_add_folders_at_the_same_time() -> None:
    count = 2000
    names = Names([b"n"] * count)
    start = threading.Barrier(4)

    def add(first: int) -> None:
        start.wait()
        for folder in range(first, count, 2):  # each folder is added by two threads
            names.rows.add(folder, b"%d/" % folder)

    threads = [threading.Thread(target=add, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names.paths(range(count)) == [b"%d/n" % folder for folder in range(count)]

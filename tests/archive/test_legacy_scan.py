"""The fast scan of the original's index against the interpreter, which is the reference.

For every pickle, with and without the scan, the tree is the same or the error is the same.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ffrecord import PackedFolder
from ffrecord.archive.index import legacy, legacy_scan, legacy_tree
from ffrecord.archive.index.build import Tree
from ffrecord.archive.index.legacy_scan import scan
from ffrecord.archive.index.legacy_tree import arrange
from ffrecord.errors import IndexStructureError
from tests.archive.test_legacy_index import (
    FOLDERS,
    MAGIC,
    PROTOCOLS,
    STRUCTURES,
    Structure,
    dumped,
    original_archive,
    pickled_by_python,
    plain,
)
from tests.robustness.attacks.builders import ITEMS, PIECES

Seen: TypeAlias = "tuple[Any, ...] | str"

SIZES = np.arange(70_000) % 1000
OWNER = os.stat(os.sep)
OWNED = (OWNER.st_uid, OWNER.st_gid, OWNER.st_mtime_ns)
MOST = 10_000
HEADERS = tuple(pickle.dumps(OrderedDict(), protocol)[:-1] for protocol in PROTOCOLS)


def columns(tree: Tree) -> tuple[Any, ...]:
    """Return all that a tree of the original has."""
    return (*tree.columns, tree.names.bytes, tree.names.ends, tree.inode, tree.parent)


def fast(raw: bytes, most_entries: int = MOST) -> Seen | None:
    """Return the tree of a pickle, or None if it is not read by the scan."""
    entries = scan(raw, 0, most_entries)
    tree = arrange(entries, SIZES, OWNED) if entries else None
    return None if tree is None else columns(tree)


def tree_or_error(read: Callable[[], Tree]) -> Seen:
    try:
        return columns(read())
    except IndexStructureError as error:
        return str(error)


def interpreted(raw: bytes, most_entries: int) -> Tree:
    """Return the tree of a pickle that is interpreted opcode by opcode."""
    structure = legacy.parse("f.ffr", raw, 0, most_entries)
    return legacy.tree_of("f.ffr", structure, SIZES.tolist(), OWNED)


def compare(raw: bytes, most_entries: int = MOST) -> bool:
    """Read a pickle with and without the scan; return True if the scan did not decline it."""
    found = fast(raw, most_entries)
    expected = tree_or_error(lambda: interpreted(raw, most_entries))
    assert found in (None, expected)
    both = tree_or_error(lambda: legacy.read_tree("f.ffr", MAGIC + raw, SIZES, OWNER, most_entries))
    assert both == expected
    return found is not None


def after_root(rest: bytes) -> bytes:
    """Return a pickle of protocol 4; its memo has the class at 2 and the root at 3."""
    return b"\x80\x04\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94" + rest


def framed(structure: Structure, size: int) -> bytes:
    """Pickle with frames of about `size` bytes, so that frames begin between any two objects.

    As in the original's pickles, no frame begins before the first name.
    """
    framer: Any = pickle._Pickler(io.BytesIO(), 4).framer  # type: ignore[attr-defined]
    with mock.patch.multiple(type(framer), _FRAME_SIZE_TARGET=size, _FRAME_SIZE_MIN=0):
        raw = pickled_by_python(structure, 4)
    header = re.match(
        rb".*?OrderedDict\x94\x93\x94(?:\x95.{8})?\)(?:\x95.{8})?R\x94", raw, re.DOTALL
    )
    assert header is not None
    return after_root(raw[header.end() :])


@contextlib.contextmanager
def in_parts(size: int) -> Iterator[None]:
    """Read parts of so many bytes, and as many names, at a time."""
    with (
        mock.patch.object(legacy_scan, "AT_A_TIME", size),
        mock.patch.object(legacy_tree, "AT_A_TIME", size),
    ):
        yield


def sorted_tree(structure: Structure) -> Structure:
    """Return the structure with sorted names and small record numbers, as the original has it."""
    return OrderedDict(
        (name, sorted_tree(value) if isinstance(value, dict) else value % 70_000)
        for name, value in sorted(structure.items())
    )


def pickles(structure: Structure, protocol: int) -> list[bytes]:
    """Return pickles of a structure by all picklers."""
    return [
        pickle.dumps(structure, protocol),
        pickled_by_python(structure, protocol),
        framed(structure, 1),
        framed(structure, 40),
        pickle.dumps(plain(structure), protocol),
        pickletools.optimize(pickle.dumps(structure, protocol)),
    ]


# ---- random pickles --------------------------------------------------------------------------


@given(STRUCTURES | STRUCTURES.map(sorted_tree) | FOLDERS.map(sorted_tree),
       st.sampled_from(PROTOCOLS), st.sampled_from([1, 20, 1 << 18]))  # fmt: skip
def test_a_pickle_gives_the_same_tree_or_error_with_the_scan(
    structure: Structure, protocol: int, at_a_time: int
) -> None:
    with in_parts(at_a_time):
        for raw in pickles(structure, protocol):
            compare(raw)


@given(st.data(), FOLDERS.map(sorted_tree), st.sampled_from(PROTOCOLS))
@settings(max_examples=400)
def test_a_changed_pickle_gives_the_same_tree_or_error_with_the_scan(
    data: st.DataObject, structure: Structure, protocol: int
) -> None:
    raw = bytearray(data.draw(st.sampled_from(pickles(structure, protocol)[:4])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        removed = data.draw(st.integers(0, 5))
        raw[at : at + removed] = data.draw(st.sampled_from(PIECES) | st.binary(max_size=5))
    compare(bytes(raw), data.draw(st.sampled_from([0, 1, 5, MOST])))


@given(st.sampled_from(HEADERS), st.lists(st.sampled_from(PIECES + ITEMS * 4), max_size=30),
       st.sampled_from(["", "u", "s", "uu", "su", "us"]))  # fmt: skip
@example(HEADERS[0], [b"(", b"X\1\0\0\0aq\2K\1", b"h\2K\2"], "u")
@example(HEADERS[2], [b"(", b"\x8c\1a\x94K\1", b"h\0K\2"], "u")
@settings(max_examples=1000)
def test_any_opcodes_after_the_root_give_the_same_tree_or_error_with_the_scan(
    header: bytes, pieces: list[bytes], end: str
) -> None:
    compare(header + b"(" + b"".join(pieces) + end.encode() + b".")
    compare(header + b"".join(pieces) + end.encode() + b".")


@given(FOLDERS.map(sorted_tree), st.sampled_from(PROTOCOLS))
@settings(max_examples=30)
def test_a_truncated_pickle_gives_the_same_error_with_the_scan(
    structure: Structure, protocol: int
) -> None:
    raw = pickle.dumps(structure, protocol)
    for end in range(len(raw)):
        assert not compare(raw[:end])


# ---- the scan reads the pickles of the original ----------------------------------------------

MANY: Structure = OrderedDict((f"{number:05d}.jpg", number) for number in range(5000))
COPIES = [f"copy-{number:03d}" for number in range(300)]
TYPICAL: dict[str, Structure] = {
    "nothing": OrderedDict(),
    "one file": OrderedDict(a=0),
    "one folder": OrderedDict(a=OrderedDict()),
    "a chain": OrderedDict(a=OrderedDict(b=OrderedDict(c=OrderedDict(d=7)))),
    "folders and files": OrderedDict(
        a=0, b=OrderedDict(x=1), c=OrderedDict(), d=OrderedDict(x=2, y=OrderedDict(z=3)), e=4
    ),
    "a full batch": OrderedDict((f"{number:04d}", number) for number in range(1000)),
    "a full batch and one": OrderedDict((f"{number:04d}", number) for number in range(1001)),
    "many files": OrderedDict(a=MANY, b=70_000 - 1),
    "many folders": OrderedDict((f"{n:04d}", OrderedDict(a=n, b=n + 1)) for n in range(2500)),
    "long names": OrderedDict([("m" * 255, 0), ("n" * 200, OrderedDict([("o" * 240, 1)]))]),
    "names of UTF-8": OrderedDict([("a", 0), ("é", OrderedDict([("日本\x8cK", 1)])), ("😀", 2)]),
    "names like opcodes": OrderedDict(
        {
            "\x8c\1ahK": 0, "h.K.": 1, "h\1K\1": OrderedDict({"X\1": 2, "jpg1K": 3}),
            "hjXqruRs": 4, "同!" + "a" * 33: 5, "\u748c\4abcd": 6,
        }
    ),
    "names in the memo": OrderedDict(
        (f"{each}", OrderedDict((name, number) for number, name in enumerate(COPIES)))
        for each in range(3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", TYPICAL)
def test_the_scan_reads_the_pickles_that_the_original_writes(name: str, protocol: int) -> None:
    """Otherwise these pickles would still be read, but slowly."""
    structure = sorted_tree(TYPICAL[name])
    assert compare(pickle.dumps(structure, protocol))
    assert compare(pickled_by_python(structure, protocol))
    assert compare(pickle.dumps(structure, protocol) + b"behind the end")


@pytest.mark.parametrize("size", [1, 30])
@pytest.mark.parametrize("name", TYPICAL)
def test_the_scan_reads_pickles_with_frames_at_any_place(name: str, size: int) -> None:
    assert compare(framed(sorted_tree(TYPICAL[name]), size))


@pytest.mark.parametrize(
    ("name", "at_a_time"),
    [(name, size) for name in TYPICAL for size in (1, 64) if size > 1 or "many" not in name],
)
def test_the_scan_reads_pickles_in_parts_of_any_size(name: str, at_a_time: int) -> None:
    with in_parts(at_a_time):
        assert compare(pickle.dumps(sorted_tree(TYPICAL[name]), 4))


@given(FOLDERS.map(sorted_tree))
@settings(max_examples=50)
def test_the_scan_reads_the_pickles_that_are_written_here(structure: Structure) -> None:
    """`ffrecord verify` reads them. Names that are not UTF-8 are left to the interpreter."""
    raw = dumped(structure)[len(MAGIC) :]
    assert compare(raw) or b"\xed" in raw


def test_an_archive_of_the_original_is_opened_by_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [b"%d" % number for number in range(3000)]
    structure: Structure = OrderedDict(
        (f"{n:02d}", OrderedDict((f"{n:02d}-{m:03d}.jpg", 100 * n + m) for m in range(100)))
        for n in range(30)
    )
    path = original_archive(tmp_path / "original.ffr", structure, files)
    monkeypatch.setattr(legacy, "parse", None)
    with PackedFolder(path) as packed:
        assert packed.num_files() == 3000
        assert packed.read_one("17/17-042.jpg").tobytes() == b"1742"
        assert packed.list("29") == [f"29-{number:03d}.jpg" for number in range(100)]


# ---- the scan declines all others ------------------------------------------------------------


def _files(count: int) -> bytes:
    return b"".join(b"\x8c\4%04d\x94K\0" % number for number in range(count))


FOLDER = b"h\x02)R\x94"
UNUSUAL: dict[str, bytes] = {
    "no pickle": b"",
    "a plain dictionary": pickle.dumps({"a": 0}, 4),
    "another class": pickle.dumps(OrderedDict(a=0), 4).replace(b"OrderedDict", b"disorderly!"),
    "another protocol": pickle.dumps(OrderedDict(a=0), 4).replace(b"\x80\x04", b"\x80\x06"),
    "no end": after_root(b""),
    "an end in a batch": after_root(b"(\x8c\1a\x94K\0."),
    "an open batch": after_root(b"(."),
    "a second end of a batch": after_root(b"(uu."),
    "an item without a folder": after_root(b"s."),
    "an item of a file": after_root(b"(\x8c\1a\x94K\0\x8c\1b\x94K\0su."),
    "an item of a file before a frame": after_root(
        b"(\x8c\1a\x94K\0\x95" + bytes(8) + b"\x8c\1b\x94K\0su."
    ),
    "a batch of a file": after_root(b"(\x8c\1a\x94K\0(\x8c\1b\x94K\0uu."),
    "a mark in the middle of a run": after_root(
        b"(\x8c\1a\x94" + FOLDER + b"\x8c\1x\x94" + FOLDER + b"(ss"
        + b"\x8c\1b\x94K\0\x8c\1c\x94K\0\x8c\1d\x94K\0\x8c\1e\x94" + FOLDER
        + b"\x8c\1x\x94K\0uu."
    ),
    "an item on the other side of a mark": after_root(b"\x8c\1a\x94" + FOLDER + b"(s."),
    "a number that is too long": after_root(b"\x8c\1a\x94\x8a\1\0s."),
    "a negative number": after_root(b"\x8c\1a\x94J\xff\xff\xff\xffs."),
    "a missing record": after_root(b"\x8c\1a\x94J\xff\xff\xff\x7fs."),
    "a class that was not fetched": after_root(b"\x8c\1a\x94h\1)R\x94s."),
    "a name that is a class": after_root(b"h\2K\0s."),
    "a name that is a folder": after_root(b"h\3K\0s."),
    "a name of the class": after_root(b"h\1K\0s."),
    "a name that is not in the memo": after_root(b"h\4K\0s."),
    "a name that is put later": after_root(b"(\x8c\1a\x94K\0h\5K\0\x8c\1b\x94K\0u."),
    "a put to a used number": after_root(b"\x8c\1aq\0K\0s."),
    "a put to a higher number": after_root(b"\x8c\1ar\5\0\0\0K\0s."),
    "a second put": after_root(b"\x8c\1a\x94\x94K\0s."),
    "a put of a number": after_root(b"\x8c\1a\x94K\0\x94s."),
    "a frame that is too long": after_root(b"\x95\4\0\0\0\0\0\0\0" + b"(u."),
    "a first frame that is too long": b"\x80\x04\x95\xff\0\0\0\0\0\0\0" + after_root(b".")[2:],
    "an empty name": after_root(b"\x8c\0\x94K\0s."),
    "a dot": after_root(b"\x8c\1.\x94K\0s."),
    "two dots": after_root(b"\x8c\2..\x94K\0s."),
    "a slash": after_root(b"\x8c\3a/b\x94K\0s."),
    "a NUL": after_root(b"\x8c\3a\0b\x94K\0s."),
    "a name that is too long": after_root(b"X\0\1\0\0" + b"a" * 256 + b"\x94K\0s."),
    "a name that is not UTF-8": pickle.dumps(OrderedDict({"\udcff": 0}), 4),
    "names that are not UTF-8 alone": after_root(b"(\x8c\2a\xc3\x94K\0\x8c\2\xa9b\x94K\0u."),
    "a name twice": after_root(b"(\x8c\1a\x94K\0\x8c\1a\x94K\0u."),
    "a name twice, in two batches": after_root(b"(\x8c\1a\x94K\0u(\x8c\1a\x94K\0u."),
    "names out of order": after_root(b"(\x8c\1b\x94K\0\x8c\1a\x94K\0u."),
    "more than a batch": after_root(b"(" + _files(2001) + b"u."),
    "more than the stack can hold": after_root(b"(" + _files(9999) + b"u."),
    "4,098 marks": after_root(b"(" * 4098 + b"u" * 4098 + b"."),
    "4,097 levels": after_root((b"(\x8c\1a\x94" + FOLDER) * 4097 + b"u" * 4097 + b"."),
    "4,098 levels, half of them without marks": after_root(
        (b"(\x8c\1a\x94" + FOLDER + b"\x8c\1a\x94" + FOLDER) * 2049 + b"su" * 2049 + b"."
    ),
}  # fmt: skip


def test_the_scan_itself_declines_numbers_and_names_that_no_archive_can_have() -> None:
    """The tree is not needed to see that they are wrong."""
    for name in ("a negative number", "a name that is too long", "a name that is put later"):
        assert scan(UNUSUAL[name], 0, MOST) is None


@pytest.mark.parametrize("name", UNUSUAL)
def test_the_scan_declines_pickles_that_the_original_does_not_write(name: str) -> None:
    assert not compare(UNUSUAL[name])


@pytest.mark.parametrize("name", ["a name twice", "names out of order"])
def test_the_scan_compares_names_of_neighbouring_parts(name: str) -> None:
    with in_parts(1):
        assert not compare(UNUSUAL[name])


def test_the_scan_declines_a_cut_number_in_front_of_its_padding() -> None:
    """Behind the data, the scan reads zeros."""
    for number in (b"K", b"M", b"M\1", b"J", b"J\1\0\0"):
        assert not compare(after_root(b"(\x8c\1a\x94" + number))


def test_the_scan_declines_more_names_than_are_allowed() -> None:
    raw = pickle.dumps(sorted_tree(MANY), 4)
    assert compare(raw, 5000)
    assert not compare(raw, 4999)


def test_the_scan_reads_as_many_levels_as_the_interpreter() -> None:
    assert compare(after_root((b"(\x8c\1a\x94" + FOLDER) * 4096 + b"u" * 4096 + b"."))


def test_python_frames_are_small_enough_to_test_all_places() -> None:
    """Otherwise the tests with frames might test none."""
    raw = framed(sorted_tree(TYPICAL["folders and files"]), 1)
    file = io.BytesIO(raw)
    places = [place for opcode, _, place in pickletools.genops(file) if opcode.name == "FRAME"]
    assert len(places) > 20

"""Hypothesis strategies for the most used parsers: record files, indexes, pickles, FUSE requests.

They make valid input, change a few numbers in it, and correct the checksums. The targets judge the
outcome. Hypothesis shrinks a failing input.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.robustness.attacks.builders import ITEMS, PIECES, Symlink, plant, sealed, text
from tests.robustness.fuzzing import indexes, records, reference, table, wire
from tests.robustness.fuzzing.mutate import NUMBERS
from tests.robustness.fuzzing.target import Target, try_one
from tests.support import handmade, kernel

pytestmark = pytest.mark.filterwarnings("ignore::ffrecord.errors.LegacyFileWarning")

PLACES = st.integers(0, 1 << 16)
CHANGES = st.lists(
    st.tuples(PLACES, st.sampled_from([4, 8]), st.integers(0, 20) | st.sampled_from(NUMBERS)),
    max_size=4,
)


@functools.cache
def target(name: str) -> Target:
    return table.make(name)


def changed(data: bytes, changes: list[tuple[int, int, int]]) -> bytes:
    """Return data with other numbers in some places, each at a multiple of four."""
    spoiled = bytearray(data)
    for place, width, number in changes:
        at = 4 * place % max(1, len(data) - width + 1)
        if len(data) >= width:
            spoiled[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(spoiled)


def tried(name: str, data: bytes) -> None:
    event(try_one(target(name), data).word)


RECORD_FILES = st.builds(
    handmade.record_bytes, st.lists(st.binary(max_size=20), max_size=8), st.sampled_from([0, 4, 30])
)


@given(RECORD_FILES, CHANGES, st.booleans())
def test_record_files_are_refused_or_read_as_specified(
    data: bytes, changes: list[tuple[int, int, int]], whole: bool
) -> None:
    seal = records.sealed_with_records if whole else records.sealed
    spoiled = seal(changed(data, changes))
    for name in ("header", "reading", "salvage"):
        tried(name, spoiled)


NAMES = st.binary(min_size=1, max_size=6).filter(
    lambda name: not set(name) & {0, 47} and name not in (b".", b"..")
)
LEAVES = st.one_of(
    st.sampled_from(indexes.DRAFT.files), st.builds(Symlink, st.binary(min_size=1, max_size=9))
)
TREES: Any = st.dictionaries(
    NAMES, st.recursive(LEAVES, lambda below: st.dictionaries(NAMES, below, max_size=4)), max_size=5
)


def image_of(tree: Any) -> bytes:
    """Return the image of a tree whose files have contents of the sample's files."""
    draft = plant(tree)
    for row in draft.inodes:
        if draft.attributes[row.attributes].mode >> 12 == 0o10:
            row.data = indexes.DRAFT.files.index(draft.files[row.data])
    return draft.image()


@given(TREES)
def test_an_index_of_any_tree_is_accepted(tree: Any) -> None:
    image = image_of(tree)
    assert reference.index(image, indexes.SIZES) is not None
    assert try_one(target("index"), image).word in ("sound", "odd attributes")


@given(TREES.map(image_of) | st.sampled_from(indexes.IMAGES), CHANGES)
@settings(max_examples=400)
def test_indexes_are_refused_or_looked_up_as_specified(
    image: bytes, changes: list[tuple[int, int, int]]
) -> None:
    image = changed(image, changes)
    tried("index", image)
    tried("archive", sealed(indexes.DRAFT.files, image))


@given(st.lists(st.sampled_from(PIECES + ITEMS * 4), max_size=30), st.binary(max_size=3))
@settings(max_examples=400)
def test_pickles_are_refused_or_read_as_by_pickle(pieces: list[bytes], end: bytes) -> None:
    tried("pickle", b"\x80\x04}(" + b"".join(pieces) + end + b"u.")


def test_no_opcode_of_a_pickle_does_harm_at_any_place() -> None:
    for opcode in range(256):
        for before in (b"", b"}", b"(", b"}(", text("a"), b"}" + text("a"), b"K\0", b"))", b"}}}"):
            for after in (b"", b"\0", b"\xff" * 12, b"\n\n", b"a\nb\n"):
                try_one(target("pickle"), before + bytes([opcode]) + after)


REQUESTS = st.builds(
    kernel.request,
    st.sampled_from([*range(60), 4096, (1 << 32) - 1]),
    st.sampled_from([*wire.NODES.values(), 0, 7, 1 << 63]),
    st.one_of(
        st.binary(max_size=80),
        st.sampled_from([b"a\0", b"deep\0", b"..\0", bytes(40), bytes(8) + b"user.a\0"]),
        st.builds(
            lambda offset, size: struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0),
            st.sampled_from(NUMBERS), st.integers(0, 140_000),
        ),
    ),
    st.integers(0, (1 << 64) - 1),
)  # fmt: skip


@given(REQUESTS, CHANGES, st.booleans())
def test_requests_are_malformed_or_answered_correctly(
    data: bytes, changes: list[tuple[int, int, int]], mend: bool
) -> None:
    spoiled = changed(data, changes)
    spoiled = wire.with_length(spoiled) if mend else spoiled
    for name in ("request", "session"):
        tried(name, spoiled)

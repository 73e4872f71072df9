"""Archives with random changes and right checksums: they open, or raise one of our errors."""

from __future__ import annotations

import contextlib
import io
import pickle
import stat
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import PackedFolder
from ffrecord.archive.index import legacy
from ffrecord.errors import FFRecordError, IndexStructureError
from tests.robustness.attacks.builders import sample, sealed, text

DRAFT = sample()
IMAGE = DRAFT.image()
NUMBERS = st.one_of(
    st.integers(0, 20),
    st.sampled_from([stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777]),
    st.sampled_from([255, 256, 4096, 1 << 31, (1 << 32) - 1]),
)
CHANGES = st.lists(st.tuples(st.integers(0, len(IMAGE) // 4 - 1), NUMBERS), min_size=1, max_size=4)


@given(CHANGES)
@settings(max_examples=400)
def test_an_image_with_changed_numbers_is_refused_or_consistent(
    tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    image = bytearray(IMAGE)
    for place, number in changes:
        struct.pack_into("<I", image, 4 * place, number)
    path = tmp_path / "spoilt.ffr"
    path.write_bytes(sealed(DRAFT.files, bytes(image)))
    refused_or_sound(path)


@given(st.integers(0, len(IMAGE) - 1), st.integers(0, 255))
def test_an_image_with_a_changed_byte_is_refused_or_consistent(
    tmp_path: Path, place: int, byte: int
) -> None:
    image = IMAGE[:place] + bytes([byte]) + IMAGE[place + 1 :]
    path = tmp_path / "spoilt.ffr"
    path.write_bytes(sealed(DRAFT.files, image))
    refused_or_sound(path)


def refused_or_sound(path: Path) -> None:
    try:
        packed = PackedFolder(path)
    except FFRecordError as error:
        message = str(error)
    else:
        with packed:
            look_at_everything(packed)
        return
    assert str(path) in message


def look_at_everything(packed: PackedFolder) -> None:
    """Check that an archive is consistent. Reading symlinks and attributes may be refused."""
    files = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        assert packed.is_dir(folder)
        for name, inode in packed.archive.index.children(packed.stat(folder).st_ino - 1):
            path = f"{folder}/{name.decode('utf-8', 'surrogateescape')}".lstrip("/")
            status = packed.stat(path, follow_symlinks=False)
            assert status.st_ino == inode + 1
            refusable(packed.xattrs, path, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            elif stat.S_ISREG(status.st_mode):
                files.append(path)
                assert len(packed.read_one(path)) == status.st_size
            else:
                refusable(packed.readlink, path)
                refusable(packed.read_one, path)
    assert sorted(packed) == sorted(files)
    assert [len(content) for content in packed.read(files)] == [
        packed.stat(file).st_size for file in files
    ]


def refusable(look: Any, *args: Any, **options: Any) -> None:
    try:
        look(*args, **options)
    except (IndexStructureError, OSError):
        return


# The opcodes of pickled folders, some other opcodes, and their arguments.
PIECES = [
    b"}", b"(", b"u", b"s", b")", b"R", b"\x81", b"\x94", b"K\0", b"K\1", b"M\1\1", b"J\xff\0\0\0",
    b"\x8a\1\5", b"\x8a\0", b"q\0", b"q\1", b"h\0", b"h\1", b"r\1\0\0\0", b"j\1\0\0\0",
    b"\x8c\1a", b"\x8c\0", b"\x8d\1\0\0\0\0\0\0\0c", b"\x93", b"ccollections\nOrderedDict\n",
    b"c", b"\n", b".", b"\x80\x02", b"0", b"N", b"\x88", b"\x95\0\0\0\0\0\0\0\0",
    text("b"), text("\udce9"), text("collections"), text("OrderedDict"),
]  # fmt: skip
ITEMS = [b"\x8c\1a\x94K\0", text("b") + b"q\1K\1", text("c") + b"}", b"h\0K\0", text("d") + b"}("]


class OnlyFolders(pickle.Unpickler):
    """Python's unpickler, for comparison. It allows only the class OrderedDict."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name}")


@given(st.lists(st.sampled_from(PIECES + ITEMS * 4), max_size=30), st.binary(max_size=3))
@settings(max_examples=1000)
def test_any_pickle_is_refused_or_read_as_by_pickle(pieces: list[bytes], end: bytes) -> None:
    raw = b"\x80\x04}(" + b"".join(pieces) + end + b"u."
    found = parsed(raw)
    expected = found
    with contextlib.suppress(Exception):  # pickle may refuse more, such as a misplaced mark
        expected = OnlyFolders(io.BytesIO(raw)).load()
    assert found is None or found == expected


def parsed(raw: bytes) -> dict[str, Any] | None:
    """Return the parsed folder; None if it is refused."""
    try:
        return legacy.parse("folder.ffr", raw)
    except IndexStructureError as error:
        message = str(error)
    assert "folder.ffr" in message
    return None


def test_the_pieces_of_pickles_are_read_as_by_pickle() -> None:
    """Otherwise the test above might see only refused pickles."""
    raw = b"\x80\x04}(" + b"".join([ITEMS[0], ITEMS[1], ITEMS[2], ITEMS[4], ITEMS[3], b"u"]) + b"u."
    expected = {"a": 0, "b": 1, "c": {}, "d": {"a": 0}}
    assert legacy.parse("folder.ffr", raw) == OnlyFolders(io.BytesIO(raw)).load() == expected


@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic_number_are_refused_or_a_folder(raw: bytes) -> None:
    found = parsed(raw)
    assert found is None or found == OnlyFolders(io.BytesIO(raw)).load()


@pytest.mark.parametrize("opcode", range(256))
def test_no_opcode_does_harm_at_any_place(opcode: int) -> None:
    for before in (b"", b"}", b"(", b"}(", text("a"), b"}" + text("a"), b"K\0", b"))", b"}}}"):
        for after in (b"", b"\0", b"\xff" * 12, b"\n\n", b"a\nb\n"):
            raw = before + bytes([opcode]) + after
            found = parsed(raw)
            assert found is None or found == OnlyFolders(io.BytesIO(raw)).load()

"""`open_if_packed` tells packed folders from plain records that resemble one."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import pytest

from ffrecord import FileReader, IndexChecksumError, IndexStructureError
from ffrecord.archive.detect import open_if_packed
from ffrecord.text import Advised, for_shell
from tests.support import archives, handmade, trees

LEGACY_MAGIC = b"piouhjgbr"  # the first bytes of an index of the original FFRecord
TRAILER_MAGIC = b"FFRINDEX"  # the last bytes of our index
ADVICE = Advised("call ", "python()", "shell")


def is_packed(path: Path) -> bool:
    with FileReader(path) as reader:
        return open_if_packed(reader, ADVICE) is not None


@pytest.mark.parametrize("legacy_index", [True, False])
@pytest.mark.parametrize("shard_size", [None, 100])
def test_a_packed_folder_is_opened(
    shard_size: int | None, legacy_index: bool, tmp_path: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"a": b"a" * 90, "d/b": b"b" * 90})
    archives.pack(tree, tmp_path / "packed", shard_size=shard_size, legacy_index=legacy_index)
    assert is_packed(tmp_path / "packed")


def test_a_packed_folder_of_the_original_is_opened(tmp_path: Path) -> None:
    index = LEGACY_MAGIC + pickle.dumps({"file": 0})
    assert is_packed(handmade.write_records(tmp_path / "a.ffr", [b"file", index]))


@pytest.mark.parametrize(
    "records",
    [
        [],
        [b""],
        [b"first", b"last"],
        [b"first", LEGACY_MAGIC],
        [b"first", LEGACY_MAGIC + b" is how the index begins"],
        [LEGACY_MAGIC + b"\x80\x04N."],  # a pickle of None
        [b"first", TRAILER_MAGIC],
    ],
    ids=["none", "empty", "other", "magic alone", "magic and text", "another pickle", "trailer"],
)
def test_plain_records_are_not_a_packed_folder(records: list[bytes], tmp_path: Path) -> None:
    assert not is_packed(handmade.write_records(tmp_path / "plain.ffr", records))


def test_several_files_of_plain_records_are_not_a_packed_folder(tmp_path: Path) -> None:
    handmade.write_records(tmp_path / "1.ffr", [b"first"])
    handmade.write_records(tmp_path / "2.ffr", [LEGACY_MAGIC + b"!"])
    assert not is_packed(tmp_path)


@pytest.mark.parametrize(
    "last",
    [
        LEGACY_MAGIC + pickle.dumps({"file": 7}),  # there is no record 7
        b"\xff" * 16 + TRAILER_MAGIC,
        struct.pack("<QII", 1 << 40, 0, 1).rjust(96, b"x") + TRAILER_MAGIC,
        struct.pack("<QII", 80, 0, 1).rjust(96, b"x") + TRAILER_MAGIC,
    ],
    ids=["record out of range", "unknown version", "impossible length", "wrong checksum"],
)
def test_an_undecidable_record_is_an_error_with_the_advice(last: bytes, tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "plain.ffr", [b"first", last])
    with pytest.raises((IndexStructureError, IndexChecksumError)) as caught:
        is_packed(path)
    assert str(caught.value).startswith(f"{path}: ")
    due = "; the file is treated as a damaged packed folder; if it contains plain records, call {}"
    assert str(caught.value).endswith(due.format("python()"))
    assert for_shell(caught.value).endswith(due.format("shell"))


def test_a_missing_shard_is_an_error_without_the_advice(tmp_path: Path) -> None:
    """The checksum of the index is right, so the file is certainly the index of a packed folder."""
    tree = trees.plain_tree(tmp_path / "tree", {"a": b"a" * 90, "b": b"b" * 90})
    archives.pack(tree, tmp_path / "packed", shard_size=100)
    with pytest.raises(IndexStructureError, match=r"pass its folder: .*/packed$"):
        is_packed(tmp_path / "packed/index.ffr")


def test_a_damaged_index_is_an_error_without_the_advice(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"a": b"a"})
    archives.pack(tree, tmp_path / "a.ffr")
    archives.flip(tmp_path / "a.ffr", -30)
    with pytest.raises(IndexChecksumError, match=r"of its files, without names$"):
        is_packed(tmp_path / "a.ffr")

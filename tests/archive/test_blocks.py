"""Plans of reads are compared with the bytes of the files and of the archive."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffrecord.archive.archive import Archive
from ffrecord.archive.blocks import UNNUMBERED
from ffrecord.archive.index.resolve import resolve
from ffrecord.format.index import BLOCK, LEGACY_MAGIC
from tests.support import archives, handmade, trees

SIZES = [0, 1, 500, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 77]
FILES = {f"{size:07d}": trees.content(size, size) for size in SIZES}


@pytest.fixture(scope="module", params=[None, 2 * BLOCK], ids=["one file", "shards"])
def archive(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Archive]:
    top = tmp_path_factory.mktemp("blocks")
    trees.plain_tree(top / "tree", {**FILES, "folder/": b""})
    archives.pack(top / "tree", top / "packed", shard_size=request.param)
    with Archive.open(top / "packed") as opened:
        assert (len(opened.reader.fnames) > 1) == (request.param is not None)
        yield opened


def bytes_at(archive: Archive, file: int, begin: int, length: int) -> bytes:
    return Path(archive.reader.fnames[file]).read_bytes()[begin : begin + length]


def noting(asked: list[tuple[int, int]], *, right: bool) -> Callable[[int, int], bool]:
    """Return a `Known` that notes its arguments and returns `right`."""

    def known(number: int, count: int) -> bool:
        asked.append((number, count))
        return right

    return known


@given(st.sampled_from(sorted(FILES)), st.data(), st.booleans())
def test_a_piece_has_the_requested_bytes_and_the_checksums_of_its_blocks(
    archive: Archive, name: str, data: st.DataObject, check: bool
) -> None:
    whole = FILES[name]
    near = st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK])
    offset, size = data.draw(near | st.integers(0, 4 * BLOCK)), data.draw(near)
    inode = resolve(archive.index, name.encode())
    piece = archive.blocks.piece(inode, offset, size, check)
    due = whole[offset : offset + size]
    if not due:
        assert piece is None
        return
    assert piece is not None
    read = bytes_at(archive, piece.file, piece.begin, piece.length)
    assert read[piece.skip : piece.skip + piece.asked] == due
    if check:
        cut = [read[at : at + BLOCK] for at in range(0, len(read), BLOCK)]
        assert piece.checksums == list(map(zlib.crc32, cut))
        assert len(cut) <= len(due) // BLOCK + 2
        asked: list[tuple[int, int]] = []
        assert archive.blocks.piece(inode, offset, size, True, noting(asked, right=False)) == piece
        assert asked == [(piece.block, len(cut))]
        piece = archive.blocks.piece(inode, offset, size, True, noting(asked, right=True))
        assert piece is not None
        assert bytes_at(archive, piece.file, piece.begin, piece.length) == due
    assert piece[3:] == (len(due), 0, len(due), None, UNNUMBERED)


def test_no_two_blocks_have_the_same_number(archive: Archive) -> None:
    numbers = []
    for name, whole in FILES.items():
        inode = resolve(archive.index, name.encode())
        for offset in range(0, len(whole), BLOCK):
            piece = archive.blocks.piece(inode, offset, 1)
            assert piece is not None
            numbers.append(piece.block)
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < len(archive.blocks) for number in numbers)


def test_a_folder_has_no_pieces(archive: Archive) -> None:
    with pytest.raises(IsADirectoryError):
        archive.blocks.piece(resolve(archive.index, b"folder"), 0, 1)


def test_checksums_of_blocks_are_derived_once_if_none_are_stored(tmp_path: Path) -> None:
    whole = FILES[max(FILES)]
    index = LEGACY_MAGIC + pickle.dumps({"large": 0, "small": 1})
    path = handmade.write_records(tmp_path / "original.ffr", [whole, b"small", index])
    with Archive.open(path) as archive:
        large, small = (resolve(archive.index, name) for name in (b"large", b"small"))
        assert archive.blocks.are_known(small)
        assert not archive.blocks.are_known(large)
        piece = archive.blocks.piece(large, BLOCK, 1)
        assert piece is not None
        assert piece.checksums == [zlib.crc32(whole[BLOCK : 2 * BLOCK])]
        assert piece.block == UNNUMBERED
        assert archive.blocks.are_known(large)
        assert archive.blocks.derive(large) is archive.blocks.derive(large)

"""Aligned archives: the place of every byte, compared with bytes made by hand.

Other tests of this room also read, damage and extract aligned archives, see `conftest.FORMS`.
"""

from __future__ import annotations

import base64
import os
import pickle
import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import ChangedWarning, PackedFolder, pack_folder
from ffrecord.archive.archive import Archive
from ffrecord.cli.arguments import ALIGNMENT
from ffrecord.convert import convert
from ffrecord.format import padding
from tests.support import archives, handmade, trees
from tests.support.packing import contents, require_valid
from tests.support.writing import without_insert_range

MAGIC = b"piouhjgbr"
EDGES = [0, 1, 511, 512, 513, 1023, 1024, 1025, 4096, 5000]
FILES = {f"{size:06}": trees.content(size, size) for size in EDGES}
SEVERAL_BATCHES = {
    **FILES,
    "large": trees.content(trees.BATCH + 700, 1),
    "larger": trees.content(2 * trees.BATCH + 512, 2),
    "block": trees.content(trees.BLOCK, 3),
    "z": b"last",
}


def aligned_bytes(files: Sequence[bytes], index: Sequence[bytes] = ()) -> bytes:
    """Return an aligned record file: a gap, each file with its padding, and further records."""
    records = [*handmade.with_padding(files), *index]
    return handmade.record_bytes(records, handmade.aligning_gap(len(records)), b"\0")


def last_record(path: Path) -> bytes:
    return handmade.records_in(path.read_bytes())[-1]


def in_order(files: dict[str, bytes]) -> list[bytes]:
    return [files[name] for name in sorted(files)]


# ---- what is written -----------------------------------------------------------------------


@pytest.mark.parametrize("files", [{}, {"one": b"x"}, FILES, SEVERAL_BATCHES], ids=len)
def test_an_aligned_archive_equals_bytes_made_by_hand(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", files)
    pack_folder(tree, tmp_path / "a.ffr", align=512)
    index = last_record(tmp_path / "a.ffr")
    made = aligned_bytes(in_order(files), [index])
    assert (tmp_path / "a.ffr").read_bytes() == made
    # The original's index names every file by the number of its record among the padding.
    assert index.startswith(MAGIC)
    records = handmade.with_padding(in_order(files))
    named = pickle.loads(index[len(MAGIC) :])
    assert {name: records[number] for name, number in named.items()} == files
    assert contents(tmp_path / "a.ffr") == files
    require_valid(tmp_path / "a.ffr")


def test_every_shard_is_aligned_and_ends_with_padding(tmp_path: Path) -> None:
    files = {f"{k}": trees.content(700 + k, k) for k in range(9)}
    tree = trees.plain_tree(tmp_path / "tree", files)
    report = pack_folder(tree, tmp_path / "shards", shard_size=3 * 1024, align=512)
    assert report.shards == 3
    for number in range(3):
        part = in_order(files)[3 * number : 3 * number + 3]
        made = (tmp_path / "shards" / f"PART_{number:05}.ffr").read_bytes()
        assert made == aligned_bytes(part)
        assert len(made) % 512 == 0
    assert contents(tmp_path / "shards") == files
    require_valid(tmp_path / "shards")


@settings(max_examples=40)
@given(
    sizes=st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 3000)), max_size=30),
    shard_size=st.sampled_from([None, 1, 1000, 10_000]),
)
def test_any_files_are_aligned_and_read_back(
    sizes: list[int], shard_size: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("any")
    files = {f"{k:03}": trees.content(size, k) for k, size in enumerate(sizes)}
    tree = trees.plain_tree(place / "tree", files)
    report = pack_folder(tree, place / "out", align=512, shard_size=shard_size)
    assert (report.files, report.bytes) == (len(files), sum(sizes))
    shards = sorted((place / "out").glob("PART*")) if shard_size else [place / "out"]
    found = []
    for path in shards:
        raw = path.read_bytes()
        _, n = struct.unpack_from("<Iq", raw)
        offsets = struct.unpack_from(f"<{n}q", raw, 12 + 4 * n)
        for offset, record in zip(offsets, handmade.records_in(raw), strict=True):
            if offset % 512:
                assert not any(record)
                assert len(record) == 512 - offset % 512
            else:
                found.append(record)
    if not shard_size:
        found.pop()  # the index
    assert found == in_order(files)
    assert contents(place / "out") == files
    with Archive.open(place / "out") as archive:
        assert archive.alignment == 512


def test_hard_links_and_symlinks_need_no_padding(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"a": b"one", "d/b": b"two"})
    os.link(tree / "a", tree / "d/same")
    (tree / "link").symlink_to("d/b")
    pack_folder(tree, tmp_path / "a.ffr", align=512)
    raw = (tmp_path / "a.ffr").read_bytes()
    assert raw == aligned_bytes([b"one", b"two"], [last_record(tmp_path / "a.ffr")])
    with PackedFolder(tmp_path / "a.ffr") as folder:
        assert folder.read_one("d/same").tobytes() == b"one"
        assert folder.read_one("link").tobytes() == b"two"


def test_the_other_files_stay_aligned_if_one_disappears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without alignment, zeros take the place of the file, and no name leads there."""
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    plain = os.open

    def opening(path: Any, *arguments: Any, **options: Any) -> int:
        if os.path.basename(os.fsencode(path)) == b"000513":
            raise FileNotFoundError(2, "gone", path)
        return plain(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opening)
    with pytest.warns(ChangedWarning, match="disappeared"):
        pack_folder(tree, tmp_path / "a.ffr", align=512, ignore_changed=True)
    monkeypatch.undo()
    left = {name: content for name, content in FILES.items() if name != "000513"}
    assert contents(tmp_path / "a.ffr") == left
    stored = {**FILES, "000513": bytes(513)}
    index = last_record(tmp_path / "a.ffr")
    assert (tmp_path / "a.ffr").read_bytes() == aligned_bytes(in_order(stored), [index])


@pytest.mark.parametrize("align", [0, 1, 256, 511, 4096, -512, True])
def test_other_alignments_are_value_errors(align: int, tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    for make in (pack_folder, convert):
        with pytest.raises(ValueError, match="align must be 512"):
            make(tree, tmp_path / "a.ffr", align=align)
    assert os.listdir(tmp_path) == ["tree"]


@pytest.mark.parametrize("align", ["512", 512.0, b"512"])
def test_an_alignment_that_is_not_a_whole_number_is_a_type_error(
    align: Any, tmp_path: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    with pytest.raises(TypeError, match="align"):
        pack_folder(tree, tmp_path / "a.ffr", align=align)
    assert os.listdir(tmp_path) == ["tree"]


def test_the_command_line_has_the_same_alignment() -> None:
    assert ALIGNMENT == padding.ALIGNMENT == 512


# ---- the alignment of an archive -----------------------------------------------------------


def of_original(files: dict[str, bytes], records: list[bytes]) -> bytes:
    """Return the original's index of records; each file is the first record that equals it."""
    named = OrderedDict((name, records.index(content)) for name, content in files.items())
    return MAGIC + pickle.dumps(named)


def alignment(path: Path) -> int:
    with Archive.open(path) as archive:
        return archive.alignment


def test_an_aligned_archive_of_the_original_is_read(tmp_path: Path) -> None:
    files = {name: content for name, content in FILES.items() if content}
    records = handmade.with_padding(list(files.values()))
    raw = aligned_bytes(list(files.values()), [of_original(files, records)])
    (tmp_path / "a.ffr").write_bytes(raw)
    assert alignment(tmp_path / "a.ffr") == 512
    assert contents(tmp_path / "a.ffr") == files


GAPS = {
    "aligned": (0, 512),
    "one byte later": (1, 1),
    "256 bytes later": (256, 1),
    "512 bytes later": (512, 512),
}


@pytest.mark.parametrize("case", GAPS)
def test_the_alignment_is_computed_from_the_offsets(case: str, tmp_path: Path) -> None:
    more, due = GAPS[case]
    records = [b"x" * 512, b"y" * 100, bytes(412), b"z", bytes(511)]
    records.append(of_original({"x": records[0], "y": records[1], "z": b"z"}, records))
    gap = handmade.aligning_gap(len(records)) + more
    handmade.write_records(tmp_path / "a.ffr", records, gap)
    assert alignment(tmp_path / "a.ffr") == due


def test_one_unaligned_file_makes_an_archive_unaligned(tmp_path: Path) -> None:
    records = [b"x" * 512, b"y" * 100, bytes(411), b"z", bytes(512)]
    records.append(of_original({"x": records[0], "y": records[1], "z": b"z"}, records))
    path = tmp_path / "a.ffr"
    handmade.write_records(path, records, handmade.aligning_gap(len(records)))
    assert alignment(path) == 1


def test_empty_files_and_folders_are_aligned_anywhere(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"none": b"", "folder/": b""})
    pack_folder(tree, tmp_path / "a.ffr")
    assert alignment(tmp_path / "a.ffr") == 512


def test_a_shard_that_ends_inside_512_bytes_is_unaligned(tmp_path: Path) -> None:
    """The kernel reads whole blocks: without padding, the last file could not be read."""
    tree = trees.plain_tree(tmp_path / "tree", {"a": b"x" * 512, "b": b"y" * 100})
    pack_folder(tree, tmp_path / "shards", shard_size=1, align=512)
    assert alignment(tmp_path / "shards") == 512
    handmade.write_records(tmp_path / "PART_0.ffr", [b"x" * 512], handmade.aligning_gap(1))
    handmade.write_records(tmp_path / "PART_1.ffr", [b"y" * 100], handmade.aligning_gap(1))
    index = of_original({"a": b"x" * 512, "b": b"y" * 100}, [b"x" * 512, b"y" * 100])
    handmade.write_records(tmp_path / "index.ffr", [index])
    with Archive.open([tmp_path / f"{name}.ffr" for name in ("PART_0", "PART_1", "index")]) as it:
        assert it.alignment == 1


def test_the_rich_tree_is_aligned_only_if_asked(forms: dict[str, Path]) -> None:
    found = {form: alignment(path) for form, path in forms.items()}
    assert found == {form: 512 if "aligned" in form else 1 for form in forms}


# ---- version 0.1.0 -------------------------------------------------------------------------

# An archive that version 0.1.0 wrote, compressed by zlib.
STORED = zlib.decompress(base64.b85decode(
    "c-jkne*On50|Xp$R51n7Wu}QTVzuXa9b_h&dO+p8(P<_K9S)@vlad)2nV4Bv+1NQaxwv_F`S=9{g@i>!#l$5frKD"
    "wK<>VC<m6TOf)zmdKwX}6~_4Ex4jf_o9&CD$<t*mWq?d%;Kot#}<-P}Dqy}W&V{rm$0gMvds!@?sXqoQMC<Kh#5c"
    "BG`HrDtSjW#{DP<rfqd6_=Ejl~+_&RoB$k)i*RYHMg|3wRd!Ob@%l4^-q{MY4Vh*)27duIcxTux%1{PSh#5MlBLU"
    "*uUNTi^_sQo)^FIjY4et?+qUo6xoh{Hz5DhbIC$vrk)y|spE!By^qI5g&R@8A>GGAU*RJ2VdF%F_yZ7!tc=+h?lc"
    "&#~zj*oT^_#cv-hcS`>GPMb-@gC&`Rn(ezyJP^bpMxRq$=bj7MCdG=cN{8=9gw<r6(0Nu=H>z=jY_4CYNO9=N0#G"
    "`xm987Nw@RWG0tPo}w9~5y1#bJzk(R6u|-{ax(L>y_jIUJfK-#AQchJK%%%bDT4u~Ckdho#7y=A$wq+EacXWsNhM"
    "fODcFFF#G(|i;iaW|9MH6jPQ%haBLjXQ1f|8%#95%U=-J=*Tf<GnK<xiO0F!4%lSj9Q6-}NA>K1f$FnN%9Oi1=(v"
    "md4g445$Wvmm*P2aEZvNa2HSKS(bdlKU9Z`~kC<6V3lTXzt}j(gzabgYwy+d|@b`9m*F+vJb?+lMpEXapoGcJ55X"
    "x=NTr{?+IDhpR47%^0$=JJ?DMfU$8^f!oq?L$u1Ch;fU}XGm<|SG$PncNOt~Th!AJQp&nTr*?cA}@y!W!3ou#hCz"
    "Teb7U|{Xm!xK=7L-8CR8U?3<p7|9q-03S1}0~Q6Hvo)e}+E*+2`gK<mu<)8UX-MK7q>"
))  # fmt: skip
NOW = 1_600_000_000_123_456_789
STORED_FILES = {"a": b"abc", "none": b"", "sub/b": bytes(range(256)) * 2, "sub/c": b"the last one"}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (tmp_path / "stored.ffr").write_bytes(STORED)
    return tmp_path / "stored.ffr"


def test_an_archive_of_version_0_1_0_is_read(stored: Path) -> None:
    require_valid(stored)
    assert alignment(stored) == 1
    with PackedFolder(stored) as folder:
        assert sorted(folder) == ["a", "none", "sub/b", "sub/c", "sub/hard"]
        files = {name: folder.read_one(name).tobytes() for name in folder}
        assert files == {**STORED_FILES, "sub/hard": b"abc"}
        assert folder.readlink("link") == "sub/b"
        assert folder.is_dir("sub/empty")
        assert folder.stat("a").st_mtime_ns == NOW
        assert folder.stat("a").st_nlink == 2
        assert (folder.stat("a").st_mode, folder.stat("sub").st_mode) == (0o100640, 0o040750)
        assert folder.xattrs("a") == {"user.note": b"kept"}


def test_without_alignment_the_bytes_are_those_of_version_0_1_0(
    stored: Path, tmp_path: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {**STORED_FILES, "sub/empty/": b""})
    (tree / "link").symlink_to("sub/b")
    os.link(tree / "a", tree / "sub/hard")
    try:
        os.setxattr(tree / "a", "user.note", b"kept")
    except OSError as error:
        pytest.skip(f"this file system has no extended attributes: {error}")
    for path in [*tree.rglob("*"), tree]:
        if not path.is_symlink():
            path.chmod(0o750 if path.is_dir() else 0o640)
        os.utime(path, ns=(0, NOW), follow_symlinks=False)
    pack_folder(tree, tmp_path / "a.ffr", align=None)
    archives.set_owners(tmp_path / "a.ffr", 0, 0)
    assert (tmp_path / "a.ffr").read_bytes() == STORED


@pytest.mark.parametrize("inserting", [True, False])
def test_convert_aligns_an_archive_of_version_0_1_0(
    inserting: bool, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convert writes the header last. Without insert_range, it copies the records behind it."""
    if not inserting:
        without_insert_range(monkeypatch)
    convert(stored, tmp_path / "a.ffr", align=512)
    require_valid(tmp_path / "a.ffr")
    assert alignment(tmp_path / "a.ffr") == 512
    for path in (stored, tmp_path / "a.ffr"):
        with PackedFolder(path) as folder:
            folder.extract(tmp_path / path.stem)
    assert trees.differences(tmp_path / "stored", tmp_path / "a") == []

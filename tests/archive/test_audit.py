"""The checks of an index that only `verify` makes, and their cost."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from ffrecord import IndexStructureError
from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit
from ffrecord.archive.index import Index
from ffrecord.errors import FFRecordError
from tests.robustness.attacks.builders import (
    LEGACY_MAGIC,
    Draft,
    Symlink,
    folder,
    legacy,
    nested,
    plant,
    sample,
    sealed,
    text,
)
from tests.robustness.attacks.case import Case
from tests.robustness.attacks.cases import CASES
from tests.robustness.attacks.test_attacks import write

MIB = 1 << 20
SAID: OrderedDict[str, Any] = OrderedDict(
    alpha=0,
    beta=1,
    folder=OrderedDict(gamma=2, inner=OrderedDict(delta=3), other=OrderedDict()),
    link=2,
)


def with_pickle(draft: Draft, pickled: bytes) -> bytes:
    """Return an archive with this pickle as the index for the original FFRecord."""
    return sealed(draft.files, draft.image(), before=LEGACY_MAGIC + pickled)


def audited(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    path.write_bytes(archive)
    with Archive.open(path) as opened:
        audit(opened)


def expect_wrong(archive: bytes, tmp_path: Path, says: str = "") -> None:
    with pytest.raises(IndexStructureError, match=rf"a\.ffr: .*{says}"):
        audited(archive, tmp_path)


@pytest.fixture
def no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when a whole path is built: it can be a megabyte long."""

    def build_path(self: Index, number: int) -> bytes:
        raise AssertionError("a path was built")

    monkeypatch.setattr(Index, "inode_path", build_path)


# ---- cost ------------------------------------------------------------------------------------


def deep_pickle(levels: int, name: bytes, files: int) -> bytes:
    """Return the pickle of `nested(levels, …, name)` with files 0, 1, … in the last folder."""
    items = b"".join(
        text(f"{number:04}") + b"J" + struct.pack("<i", number) for number in range(files)
    )
    step = b"(" + text(name.decode()) + b"}"
    return b"\x80\x04}" + step * levels + b"(" + items + b"u" + b"u" * levels + b"."


@pytest.mark.parametrize("name", [b"dd", b"d" * 255])
def test_names_in_deep_folders_take_memory_for_names_and_not_for_paths(
    name: bytes, tmp_path: Path, no_paths: None
) -> None:
    levels, files = 4_000, 3_000
    draft = plant(nested(levels, {b"%04d" % number: b"" for number in range(files)}, name))
    path = tmp_path / "a.ffr"
    path.write_bytes(with_pickle(draft, deep_pickle(levels, name, files)))
    with Archive.open(path) as archive:
        tracemalloc.start()
        try:
            audit(archive)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        known = list(archive.index._prefixes.values())
    assert peak < 20 * MIB
    assert known == [b""]


def test_a_pickled_name_that_is_too_long_is_refused_when_it_is_read(tmp_path: Path) -> None:
    """The folder of this name has 20,000 files, whose paths would take two gigabytes."""
    children = b"".join(text(f"{number}") + b"K\0" for number in range(20_000))
    pickled = folder(text("n" * 100_000) + b"}(" + children + b"u")
    tracemalloc.start()
    try:
        expect_wrong(with_pickle(sample(), pickled), tmp_path, "too long for a file name")
        assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    finally:
        tracemalloc.stop()


def test_a_pickle_larger_than_its_names_need_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    draft = sample()
    before, after = draft.files, draft.image()
    hole = 1 << 40
    header = sealed(before, after, before=LEGACY_MAGIC)
    at = header.index(LEGACY_MAGIC) + len(LEGACY_MAGIC)
    with path.open("wb") as file:
        file.write(header[:at])
        file.seek(at + hole)
        file.write(header[at:])
    with (
        Archive.open(path) as archive,
        pytest.raises(IndexStructureError, match=r"a\.ffr: .* bytes"),
    ):
        audit(archive)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{number:03d} {case.title}")
        for number, case in CASES.items()
        if case.use is not None
    ],
)
def test_an_audit_finds_faults_that_reading_finds_only_on_use(case: Case, tmp_path: Path) -> None:
    """The audit raises one of our errors, or finds nothing if the attack is harmless."""
    for form, made in enumerate(case.archives()):
        path = write(made, tmp_path / f"{form}.ffr")
        with Archive.open(path) as archive:
            found = ""
            try:
                audit(archive)
            except FFRecordError as error:
                found = str(error)
        assert str(tmp_path) in found or (case.error is None and not found)


# ---- symlinks and extended attributes --------------------------------------------------------


def test_targets_of_symlinks_are_checked(tmp_path: Path) -> None:
    draft = plant({b"a": {b"link": Symlink(b"x"), b"other": Symlink(b"x\0y")}})
    expect_wrong(draft.archive(), tmp_path, "NUL")


@pytest.mark.parametrize(
    "name", [b"security.capability", b"user", b"user.a\0b", b"trusted.x", b"xuser.a"]
)
def test_names_of_extended_attributes_are_checked(name: bytes, tmp_path: Path) -> None:
    draft = sample()
    draft.set_xattrs(draft.find(b"folder/inner"), [(b"user.first", b"1"), (name, b"2")])
    expect_wrong(draft.archive(), tmp_path, "extended attribute")


def shared_xattrs(*spans: tuple[int, int]) -> bytes:
    """Return an archive of files that share the rows of the extended attributes a, b, c, a, d, b.

    Each span is the first row of a file, and the row after its last.
    """
    draft = plant({b"%d" % number: b"" for number in range(len(spans))})
    pairs = [(b"user." + bytes([name]), b"value") for name in b"abcadb"]
    draft.set_xattrs(0, pairs)
    draft.attributes[0].xattrs = 0
    for number, (first, last) in enumerate(spans):
        row = draft.attributes_of(b"%d" % number)
        row.xattr, row.xattrs = first, last - first
    return draft.archive()


def test_rows_of_extended_attributes_may_be_shared(tmp_path: Path) -> None:
    audited(shared_xattrs((0, 3), (1, 5), (2, 6), (0, 0), (6, 6), (3, 4), (3, 6)), tmp_path)


@pytest.mark.parametrize("span", [(0, 4), (0, 6), (1, 6), (0, 5)])
def test_a_duplicate_extended_attribute_is_found(span: tuple[int, int], tmp_path: Path) -> None:
    expect_wrong(shared_xattrs((0, 3), span), tmp_path, "twice")


# ---- hashes ----------------------------------------------------------------------------------


def test_two_entries_with_equal_hashes_must_both_be_in_the_table(tmp_path: Path) -> None:
    """The two names have the same CRC-32."""
    names = (b"plumless", b"buckeroo")
    draft = plant(dict.fromkeys(names, b""))
    assert draft.hashes[0][0] == draft.hashes[1][0]
    audited(draft.archive(), tmp_path)
    draft.hashes[0] = draft.hashes[1]
    expect_wrong(draft.archive(), tmp_path, "hash")


# ---- the original's index --------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_of_the_same_files_is_accepted(protocol: int, tmp_path: Path) -> None:
    audited(with_pickle(sample(), pickle.dumps(SAID, protocol)), tmp_path)


def changed(**changes: Any) -> OrderedDict[str, Any]:
    return OrderedDict(SAID, **changes)


DISAGREEING = {
    "paths for names": OrderedDict(
        [("alpha", 0), ("beta", 1), ("folder/gamma", 2), ("./folder/inner/delta", 3), ("link", 2)]
    ),
    "a symlink to a file is missing": OrderedDict(alpha=0, beta=1, folder=SAID["folder"]),
    "a symlink is another file": changed(link=0),
    "a symlink is a folder": changed(link=OrderedDict()),
    "an empty folder is missing": changed(
        folder=OrderedDict(gamma=2, inner=OrderedDict(delta=3)),
    ),
    "a folder is empty": changed(folder=OrderedDict()),
    "a file is in the folder above": changed(
        folder=OrderedDict(delta=3, gamma=2, inner=OrderedDict(), other=OrderedDict()),
    ),
    "a file is missing": OrderedDict(beta=1, folder=SAID["folder"], link=2),
    "an additional file": changed(more=0),
    "a missing record": changed(alpha=4),
    "another record": changed(alpha=1),
    "two names of the same bytes": OrderedDict([*SAID.items(), ("é", 0), ("\udcc3\udca9", 0)]),
}


@pytest.mark.parametrize("what", DISAGREEING)
def test_a_pickle_of_other_files_is_refused(what: str, tmp_path: Path) -> None:
    expect_wrong(with_pickle(sample(), pickle.dumps(DISAGREEING[what])), tmp_path)


def test_two_pickled_names_of_the_same_bytes_are_found(tmp_path: Path) -> None:
    draft = plant({"é".encode(): b""})
    said = pickle.dumps(OrderedDict([("é", 0), ("\udcc3\udca9", 0)]))
    expect_wrong(with_pickle(draft, said), tmp_path, "twice")


def test_a_lone_surrogate_in_a_pickle_is_an_error_of_ours(tmp_path: Path) -> None:
    raw = b"\x80\x04}X\x03\0\0\0\xed\xa0\x80K\0s."
    expect_wrong(with_pickle(sample(), raw), tmp_path, "not a file name")


def test_symlinks_are_resolved_from_their_own_folder(tmp_path: Path) -> None:
    """The symlinks lead up, through other symlinks, to folders, out of the archive and nowhere."""
    draft = plant(
        {
            b"d": {b"up": Symlink(b"../f"), b"again": Symlink(b"up"), b"f": b"inner"},
            b"f": b"outer",
            b"folder": Symlink(b"d"),
            b"out": Symlink(b"../f"),
            b"none": Symlink(b"nothing"),
            b"self": Symlink(b"self"),
            b"through": Symlink(b"folder/f"),
        }
    )
    assert draft.files == [b"outer", b"inner"]
    said = OrderedDict(d=OrderedDict(again=0, f=1, up=0), f=0, through=1)
    audited(with_pickle(draft, pickle.dumps(said)), tmp_path)
    for name in ("folder", "out", "none", "self"):
        wrong = with_pickle(draft, pickle.dumps(OrderedDict(said, **{name: 0})))
        expect_wrong(wrong, tmp_path, name)


def test_an_error_in_a_deep_folder_shows_the_end_of_its_path(tmp_path: Path) -> None:
    name = b"n" * 255
    draft = plant(nested(4_000, {b"file": b""}, name))
    with pytest.raises(IndexStructureError) as caught:
        audited(with_pickle(draft, deep_pickle(4_000, name, 0)), tmp_path)
    message = str(caught.value)
    assert "…/nnn" in message
    assert "nnn/file'" in message
    assert len(message) < 6_000


def test_an_archive_of_the_original_is_audited(tmp_path: Path) -> None:
    audited(legacy(pickle.dumps(OrderedDict(a=0, folder=OrderedDict(b=1)))), tmp_path)

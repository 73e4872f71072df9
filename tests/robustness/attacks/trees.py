"""Attacks on the shape of a tree, on its hashes, and on its symlinks."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import zlib
from pathlib import Path

import pytest

from ffrecord import PackedFolder
from ffrecord.archive.extract import extract
from ffrecord.errors import (
    IndexStructureError,
)
from tests.robustness.attacks.builders import (
    NO_ENTRY,
    SAMPLE,
    Draft,
    Entry,
    Symlink,
    Tree,
    chain,
    nested,
    plant,
    sample,
)
from tests.robustness.attacks.case import U32, U64, Archive, Attacks, Use, extracting

attack = Attacks()

# ---- the tree --------------------------------------------------------------------------------


@attack(IndexStructureError, "root")
def the_root_is_not_a_folder() -> list[Archive]:
    found: list[Archive] = []
    for kind in (stat.S_IFREG, stat.S_IFLNK):
        draft = sample()
        draft.attributes[0].mode = kind | 0o755
        draft.inodes[0].length = len(draft.files[0])  # valid for a file and for a symlink
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "root")
def the_root_has_a_name() -> list[Archive]:
    draft = sample()
    draft.inodes[0].entry = 0
    inside = sample()
    inside.entry(b"folder/other").inode = 0
    inside.inodes[0].entry = inside.inode(b"folder").entry + 2
    return [draft.archive(), inside.archive()]


@attack(IndexStructureError)
def a_folder_is_its_own_child() -> Archive:
    draft = sample()
    draft.entry(b"folder/other").inode = draft.find(b"folder")
    return draft.archive()


def a_ring() -> Draft:
    """Return a draft with two folders inside each other, outside the root.

    All other numbers are right. Only the order of the inodes reveals the ring.
    """
    draft = plant({b"file": b""})
    one, two = (draft.add_inode(stat.S_IFDIR | 0o755) for _ in range(2))
    for inner, outer in ((one, two), (two, one)):
        draft.inodes[inner].entry = len(draft.entries)
        draft.entries.append(Entry(b"ring", inner, outer))
        draft.attributes[inner].links = 3
    # The folders' ranges of entries follow each other: the first folder has the second's entry.
    draft.entries[1], draft.entries[2] = draft.entries[2], draft.entries[1]
    for number, inner in ((1, one), (2, two)):
        draft.inodes[inner].data, draft.inodes[inner].length = number, 1
    draft.inodes[one].entry, draft.inodes[two].entry = 2, 1
    draft.hashes = [(0, number) for number in range(3)]
    return draft


@attack(IndexStructureError)
def folders_are_inside_each_other_in_a_ring() -> Archive:
    return a_ring().archive()


@attack(IndexStructureError, "inside itself")
def a_folder_is_only_inside_itself() -> Archive:
    """All tables are right, except that the folder's only name is in the folder itself."""
    draft = plant({b"file": b""})
    alone = draft.add_inode(stat.S_IFDIR | 0o755, data=1, length=1)
    draft.inodes[alone].entry = len(draft.entries)
    draft.entries.append(Entry(b"me", alone, alone))
    draft.attributes[alone].links = 3
    draft.hashes = [(0, 0), (0, 1)]
    return draft.archive()


@attack(IndexStructureError)
def a_folder_has_two_names() -> list[Archive]:
    twice = sample()
    twice.entry(b"folder/other").inode = twice.find(b"folder/inner")
    again = sample()
    again.entry(b"alpha").inode = again.find(b"folder")
    more = plant({b"one": {}})
    more.entries.append(Entry(b"two", 1, 0))
    more.inodes[0].length = more.inodes[1].data = 2
    more.rehash()
    return [draft.archive() for draft in (twice, again, more)]


@attack(IndexStructureError)
def an_inode_has_no_name() -> list[Archive]:
    found: list[Archive] = []
    for mode in (stat.S_IFREG, stat.S_IFDIR):
        for entry in (NO_ENTRY, 0):
            draft = sample()
            draft.inodes[draft.add_inode(mode | 0o755)].entry = entry
            found.append(draft.archive())
    return found


@attack(IndexStructureError, "inode")
def an_entry_names_a_missing_inode() -> list[Archive]:
    found: list[Archive] = []
    for inode in (len(sample().inodes), 1 << 31, U32):
        draft = sample()
        draft.entry(b"alpha").inode = inode
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "inode")
def the_entry_of_an_inode_is_missing_or_names_another() -> list[Archive]:
    found: list[Archive] = []
    for entry in (0, len(sample().entries), 1 << 31, NO_ENTRY):
        draft = sample()
        draft.inode(b"beta").entry = entry
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "another folder")
def an_entry_claims_to_be_in_another_folder() -> list[Archive]:
    found: list[Archive] = []
    for parent in (1, sample().find(b"folder/other"), 1 << 31, U32):
        draft = sample()
        draft.entry(b"alpha").parent = parent
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "folders")
def folders_share_entries_or_leave_some_out() -> list[Archive]:
    overlap, gap, left, more = (sample() for _ in range(4))
    overlap.inode(b"folder/inner").data -= 1
    gap.inode(b"folder/inner").data += 1
    left.inode(b"folder/inner").length -= 1
    more.inode(b"folder/other").length += 1
    return [draft.archive() for draft in (overlap, gap, left, more)]


@attack(IndexStructureError, "folder")
def the_counts_of_folders_overflow_to_the_right_sum() -> list[Archive]:
    """The sum of all counts is right if it wraps around at 2**64."""
    found: list[Archive] = []
    for too_many in (1 << 63, U64, U64 - 2):
        draft = sample()
        draft.inode(b"folder").length = (draft.inode(b"folder").length + too_many) & U64
        draft.inode(b"folder/other").length = -too_many & U64
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "breadth first")
def folders_are_not_numbered_breadth_first() -> Archive:
    """Swap the numbers of two empty folders."""
    draft = plant({b"one": {}, b"two": {}})
    draft.entries[0].inode, draft.entries[1].inode = 2, 1
    draft.inodes[1].entry, draft.inodes[2].entry = 1, 0
    return draft.archive()


@attack(IndexStructureError, "levels deep")
def folders_are_30_000_levels_deep() -> list[Archive]:
    return [chain(30_000).archive(), chain(4_097).archive()]


def going_all_the_way_down(packed: PackedFolder) -> None:
    path = "/".join(["d" * 255] * 4_096 + ["end"])
    assert packed.read_one(path).tobytes() == b"the end"
    assert packed.read_one(f"./{path}").tobytes() == b"the end"  # resolved name by name
    assert list(packed) == [path]


@attack(None, use=going_all_the_way_down)
def paths_are_a_megabyte_long() -> Archive:
    """Use the most levels and the longest names. All paths together would take 2 GB."""
    return chain(4_096, b"d" * 255).archive()


def extracting_both_names(packed: PackedFolder) -> None:
    with tempfile.TemporaryDirectory() as dest:
        extract(packed.archive, dest)
        one, two = (Path(dest, top, "d/" * 140, "file") for top in ("one", "two"))
        assert one.read_bytes() == b"it"
        assert two.samefile(one)
        assert sum(len(files) for _, _, files in os.walk(dest)) == 142


@attack(None, use=extracting_both_names)
def the_names_of_a_file_are_in_deep_folders_far_apart() -> Archive:
    """Between the two names lie more folders than extraction keeps open."""
    between: Tree = {b"%03d" % number: {b"file": b""} for number in range(140)}
    draft = plant(
        {
            b"one": nested(140, {b"file": b"it"}),
            b"rest": nested(139, between),
            b"two": nested(140, {b"file": b""}),
        }
    )
    for last in (draft.inodes, draft.attributes, draft.files):
        last.pop()
    first = draft.find(b"one/" + b"d/" * 140 + b"file")
    draft.entries[-1].inode, draft.attributes[first].links = first, 2
    return draft.archive()


# ---- hashes ----------------------------------------------------------------------------------


def reading_all_of_the_sample(packed: PackedFolder) -> None:
    """Read files as a batch, and one by one with `./`, which is resolved name by name.

    Missing names must be reported as missing.
    """
    names = ["alpha", "beta", "folder/gamma", "folder/inner/delta"]
    contents = [b"the first file", b"", b"a third one", b"deep down"]
    assert [array.tobytes() for array in packed.read(names)] == contents
    assert [packed.read_one(f"./{name}").tobytes() for name in names] == contents
    assert packed.read_one("link").tobytes() == b"a third one"
    assert packed.list(recursive=True) == [
        "alpha", "beta", "folder", Path("folder/gamma"), Path("folder/inner"),
        Path("folder/inner/delta"), Path("folder/other"), "link",
    ]  # fmt: skip
    for name in ["alphabet", "alph", "folder/alpha", "gamma", "folder/inner/delta2", "zeta"]:
        with pytest.raises(FileNotFoundError):
            packed.read_one(name)
        with pytest.raises(FileNotFoundError):
            packed.read(["alpha", name])
        assert not packed.exists(name)


@attack(IndexStructureError, "hash")
def there_are_more_or_fewer_hashes_than_entries() -> list[Archive]:
    more, fewer, none = (sample() for _ in range(3))
    more.hashes.append((U32, 0))
    del fewer.hashes[-1]
    none.hashes.clear()
    return [draft.archive() for draft in (more, fewer, none)]


@attack(IndexStructureError, "hash")
def a_hash_points_to_a_missing_entry() -> list[Archive]:
    found: list[Archive] = []
    for entry in (len(sample().entries), 1 << 31, U32):
        draft = sample()
        draft.hashes[0] = (draft.hashes[0][0], entry)
        found.append(draft.archive())
    return found


@attack(None, use=reading_all_of_the_sample)
def all_hashes_are_the_same() -> list[Archive]:
    found: list[Archive] = []
    for crc in (0, zlib.crc32(b"alpha"), U32):
        draft = sample()
        draft.hashes = [(crc, entry) for _, entry in draft.hashes]
        found.append(draft.archive())
    return found


@attack(None, use=reading_all_of_the_sample)
def hashes_are_not_sorted() -> Archive:
    draft = sample()
    draft.hashes.reverse()
    return draft.archive()


@attack(None, use=reading_all_of_the_sample)
def each_hash_points_to_another_entry() -> list[Archive]:
    turned, one = sample(), sample()
    entries = [entry for _, entry in turned.hashes]
    turned.hashes = [
        (crc, entry)
        for (crc, _), entry in zip(turned.hashes, entries[1:] + entries[:1], strict=True)
    ]
    one.hashes = [(crc, 0) for crc, _ in one.hashes]
    return [turned.archive(), one.archive()]


# ---- symlinks --------------------------------------------------------------------------------


def reading_the_link(packed: PackedFolder) -> None:
    packed.readlink("link")


def following_the_link(packed: PackedFolder) -> None:
    packed.read_one("link")


def refusing_the_link(code: int) -> Use:
    def use(packed: PackedFolder) -> None:
        assert packed.readlink("link")
        assert not packed.exists("link")
        with pytest.raises(OSError, match=r"link") as caught:
            packed.read_one("link")
        assert caught.value.errno == code

    return use


def linked(target: bytes) -> bytes:
    return plant({**SAMPLE, b"link": Symlink(target)}).archive()


@attack(IndexStructureError, "symlink")
def the_target_of_a_symlink_is_out_of_range() -> list[Archive]:
    found: list[Archive] = []
    for at in (1, len(sample().texts), 1 << 32, 1 << 63, U64, U64 - 11):
        draft = plant(SAMPLE)
        draft.inode(b"link").data = at
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "symlink")
def the_target_of_a_symlink_is_empty() -> Archive:
    return linked(b"")


@attack(IndexStructureError, "too long")
def the_target_of_a_symlink_has_5_000_bytes() -> list[Archive]:
    found: list[Archive] = [linked(b"t" * 4_096), linked(b"t" * 5_000)]
    for length in (1 << 32, 1 << 63, U64):
        draft = sample()
        draft.inode(b"link").length = length
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "NUL", use=reading_the_link)
def the_target_of_a_symlink_has_a_nul_in_it() -> list[Archive]:
    return [linked(target) for target in (b"\0", b"folder/gamma\0", b"al\0pha")]


@attack(IndexStructureError, "NUL", use=following_the_link)
def a_symlink_with_a_nul_in_it_is_followed() -> Archive:
    return linked(b"alpha\0")


@attack(IndexStructureError, "NUL", use=extracting)
def a_symlink_with_a_nul_in_it_is_extracted() -> Archive:
    return linked(b"alpha\0")


@attack(None, use=refusing_the_link(errno.ELOOP))
def a_symlink_leads_to_itself() -> list[Archive]:
    return [linked(target) for target in (b"link", b"./folder/../link", b"link/alpha")]


@attack(None, use=refusing_the_link(errno.EXDEV))
def a_symlink_leads_out_of_the_archive() -> list[Archive]:
    targets = (b"/etc/passwd", b"/", b"..", b"../../../etc/passwd", b"folder/inner/../../../alpha")
    return [linked(target) for target in targets]


def writing_nothing_outside(packed: PackedFolder) -> None:
    """Extract over an existing symlink, and extract a symlink. Both lead outside."""
    with tempfile.TemporaryDirectory() as top:
        outside, dest = Path(top, "outside"), Path(top, "dest")
        outside.mkdir()
        dest.mkdir()
        (dest / "sub").symlink_to("../outside")
        with pytest.raises(OSError, match="sub"):
            extract(packed.archive, dest)
        extract(packed.archive, dest, overwrite=True)
        assert list(outside.iterdir()) == []
        assert (dest / "sub" / "file").read_bytes() == b"here"
        assert (dest / "way-out").readlink() == Path("../outside")


@attack(None, use=writing_nothing_outside)
def a_symlink_to_the_outside_lies_where_a_folder_is_extracted() -> Archive:
    return plant({b"sub": {b"file": b"here"}, b"way-out": Symlink(b"../outside")}).archive()

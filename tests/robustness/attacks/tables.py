"""Attacks on the tables of an index: trailer, counts, names, records, attributes."""

from __future__ import annotations

import stat
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from ffrecord import PackedFolder
from ffrecord.archive.extract import extract
from ffrecord.errors import (
    IndexChecksumError,
    IndexStructureError,
    NotPackedFolderError,
)
from tests.robustness.attacks.builders import (
    BLOCK,
    SAMPLE,
    Attributes,
    Entry,
    Inode,
    Large,
    Symlink,
    plant,
    sample,
    sealed,
)
from tests.robustness.attacks.case import U32, U64, Archive, Attacks
from tests.support.handmade import record_bytes

attack = Attacks()

# ---- the trailer and the counts --------------------------------------------------------------


@attack(IndexStructureError, "claims")
def the_trailer_claims_one_byte_more_than_the_record_has() -> Archive:
    image = sample().image()
    return sealed(sample().files, image, length=len(image) + 1)


@attack(IndexStructureError, "claims")
def the_trailer_claims_more_bytes_than_any_memory_has() -> Archive | list[Archive]:
    image = sample().image()
    return [sealed([], image, length=length) for length in (1 << 40, 1 << 63, U64, U64 - 23)]


@attack(IndexStructureError, "claims")
def the_trailer_claims_fewer_bytes_than_the_counts_need() -> list[Archive]:
    image = sample().image()
    return [
        sealed([], image, length=length, crc=zlib.crc32(image[len(image) - length :]))
        for length in (0, 1, 79)
    ]


@attack(IndexStructureError)
def the_trailer_cuts_the_image_off() -> list[Archive]:
    image = sample().image()
    return [
        sealed([], image, length=length, crc=zlib.crc32(image[-length:]))
        for length in range(80, len(image), 7)
    ]


@attack(IndexStructureError, "version")
def the_version_is_unknown() -> list[Archive]:
    draft = sample()
    return [sealed(draft.files, draft.image(), version=version) for version in (0, 2, 256, U32)]


@attack(IndexChecksumError, "damaged")
def the_checksum_of_the_image_is_wrong() -> list[Archive]:
    draft = sample()
    image = draft.image()
    right = zlib.crc32(image)
    return [sealed(draft.files, image, crc=crc) for crc in (0, right ^ 1, right ^ 1 << 31)]


@attack(NotPackedFolderError, "no index")
def the_last_record_is_not_an_index() -> list[Archive]:
    draft = sample()
    return [
        sealed(draft.files, draft.image(), magic=b"FFRINDEY"),
        record_bytes([b"a", b"b"]),
        record_bytes([b"a", b""]),
        record_bytes([b"a", b"FFRINDEX"]),
        record_bytes([b"a", b"piouhjgb"]),
    ]


@attack(NotPackedFolderError, "no index")
def there_are_no_records() -> Archive:
    return record_bytes([])


@attack(IndexStructureError, "its tables need")
def bytes_are_left_over_after_the_tables() -> list[Archive]:
    draft = sample()
    return [sealed(draft.files, draft.image() + bytes(extra)) for extra in (1, 8, 4096)]


@attack(IndexStructureError, "no root")
def all_counts_are_zero() -> Archive:
    return sealed([], bytes(80))


@attack(IndexStructureError, "claims")
def a_count_is_as_large_as_possible() -> list[Archive]:
    return [
        sample().archive(**{name: count})
        for name in ("inodes", "entries", "hashes", "attributes", "xattrs", "large", "blocks",
                     "shards", "texts", "names")
        for count in (U64, 1 << 63, (1 << 63) - 1, 1 << 32)
    ]  # fmt: skip


@attack(IndexStructureError, "claims")
def a_count_wraps_around_to_the_right_number_of_bytes() -> list[Archive]:
    draft = sample()
    return [
        draft.archive(inodes=(1 << 59) + len(draft.inodes)),  # rows of 32 bytes
        draft.archive(entries=(1 << 60) + len(draft.entries)),  # 16 bytes
        draft.archive(hashes=(1 << 62) + len(draft.hashes)),  # 4 bytes
        draft.archive(attributes=(1 << 61) + len(draft.attributes)),  # 24 bytes
        draft.archive(shards=1 << 61),
        draft.archive(blocks=1 << 62),
    ]


@attack(IndexStructureError)
def a_count_is_one_too_many_or_too_few() -> list[Archive]:
    draft = sample()
    rows = {
        "inodes": len(draft.inodes), "entries": len(draft.entries), "hashes": len(draft.hashes),
        "attributes": len(draft.attributes), "xattrs": len(draft.xattrs),
        "names": sum(len(entry.name) for entry in draft.entries),
    }  # fmt: skip
    rows |= {"shards": 0, "large": 0, "blocks": 0}
    return [
        draft.archive(**{name: count + by})
        for name, count in rows.items()
        for by in (1, 2, -1)
        if count + by >= 0
    ]


@attack(IndexStructureError, "can be in use")
def a_table_has_more_rows_than_the_others_can_use() -> list[Archive]:
    """The extra rows are zeros, which a file with holes can have without using disk space."""
    drafts = [sample() for _ in range(6)]
    drafts[0].inodes += [Inode() for _ in range(100)]
    drafts[1].hashes += [(0, 0)] * 100
    drafts[2].attributes += [Attributes(0) for _ in range(100)]
    drafts[3].large += [Large(0, 0) for _ in range(100)]
    drafts[4].texts += bytes(200_000)
    drafts[5].names = bytes(200_000)
    return [draft.archive() for draft in drafts]


@attack(IndexStructureError, "zero")
def bytes_between_tables_are_not_zero() -> list[Archive]:
    """Change each padding byte, one at a time, after tables whose length is no multiple of 8."""
    draft = plant({b"large": bytes(2 * BLOCK + 1), b"some": b"", b"text": Symlink(b"some")})
    image, padding = draft.image(), draft.padding()
    assert len(padding) == 4 + 4 + 4 + 4 + 3  # hashes, hashed, blocks, texts, names
    found: list[Archive] = []
    for at in padding:
        assert image[at] == 0
        found.append(sealed(draft.files, image[:at] + b"\1" + image[at + 1 :]))
    return found


# ---- names -----------------------------------------------------------------------------------


def renamed(path: bytes, name: bytes) -> bytes:
    draft = sample()
    draft.rename(path, name)
    return draft.archive()


@attack(IndexStructureError, "empty")
def a_name_is_empty() -> list[Archive]:
    return [renamed(path, b"") for path in (b"alpha", b"beta", b"folder/gamma", b"link")]


@attack(IndexStructureError, "'.'")
def a_name_is_a_dot() -> list[Archive]:
    return [renamed(path, b".") for path in (b"alpha", b"folder/gamma")]


@attack(IndexStructureError, "'..'")
def a_name_is_two_dots() -> list[Archive]:
    return [renamed(path, b"..") for path in (b"alpha", b"folder/gamma")]


@attack(IndexStructureError, "a slash")
def a_name_has_a_slash_in_it() -> list[Archive]:
    names = (b"a/b", b"/", b"/etc", b"a/", b"../a", b"alpha/../../etc/passwd")
    return [renamed(b"alpha", name) for name in names]


@attack(IndexStructureError, "a NUL")
def a_name_has_a_nul_in_it() -> list[Archive]:
    return [renamed(b"alpha", name) for name in (b"\0", b"al\0pha", b"alpha\0", b"\0alpha")]


@attack(IndexStructureError, "name")
def a_name_has_256_bytes() -> list[Archive]:
    return [renamed(b"alpha", b"a" * length) for length in (256, 257, 65_536, 1 << 20)]


@attack(IndexStructureError, "the same")
def two_entries_of_a_folder_have_the_same_name() -> list[Archive]:
    return [renamed(b"beta", b"alpha"), renamed(b"folder/inner", b"gamma")]


@attack(IndexStructureError, "not in order")
def names_are_not_sorted() -> list[Archive]:
    return [
        renamed(b"alpha", b"c"),
        renamed(b"beta", b"alp"),  # must come before "alpha", which begins with it
        renamed(b"folder/other", b"inne"),
        renamed(b"alpha", b"\xff"),  # in order only if bytes were signed
    ]


@attack(IndexStructureError, "not in order")
def names_far_from_the_first_are_not_sorted() -> list[Archive]:
    """Names are checked thousands at a time. The wrong names lie at the borders of such chunks."""
    draft = plant({b"000000": b""})
    names = [b"%06d" % number for number in range(70_000)]  # all are names of one file
    draft.entries = [Entry(name, 1, 0) for name in names]
    draft.inodes[0].length = draft.attributes[1].links = len(names)
    draft.hashes = [(0, number) for number in range(len(names))]
    found: list[Archive] = []
    for wrong in (32_767, 32_768, 65_535, 65_536, 69_999):
        draft.entries[wrong].name = names[wrong - 1]
        found.append(draft.archive())
        draft.entries[wrong].name = names[wrong]
    return found


@attack(IndexStructureError)
def the_end_of_a_name_is_out_of_range() -> list[Archive]:
    found: list[Archive] = []
    for end in (U64, 1 << 63, (1 << 63) - 1, 1 << 32, 1000):
        for entry in (0, 3, -1):
            draft = sample()
            draft.entries[entry].end = end
            found.append(draft.archive())
    return found


@attack(IndexStructureError)
def the_end_of_a_name_is_before_its_beginning() -> list[Archive]:
    found: list[Archive] = []
    for entry in (1, 3, -1):
        for end in (0, 1):
            draft = sample()
            draft.entries[entry].end = end
            found.append(draft.archive())
    return found


@attack(IndexStructureError, "left over")
def names_are_left_over() -> Archive:
    draft = sample()
    draft.names = b"".join(entry.name for entry in draft.entries) + b"more"
    return draft.archive()


# ---- records and sizes -----------------------------------------------------------------------


@attack(IndexStructureError, "record")
def a_record_is_the_index_itself() -> Archive:
    draft = sample()
    draft.inode(b"alpha").data = len(draft.files)
    draft.inode(b"alpha").length = len(draft.image()) + 24
    return draft.archive()


@attack(IndexStructureError, "record")
def a_record_is_negative_or_beyond_the_last() -> list[Archive]:
    found: list[Archive] = []
    for record in (U64, U64 - 1, 1 << 63, (1 << 63) - 1, 1 << 32, 1000):
        draft = sample()
        draft.inode(b"folder/gamma").data = record
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "size")
def a_size_differs_from_its_record() -> list[Archive]:
    found: list[Archive] = []
    for size in (0, 13, 15, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63, U64):
        draft = sample()
        draft.inode(b"alpha").length = size
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "attributes")
def a_row_of_attributes_is_missing() -> list[Archive]:
    found: list[Archive] = []
    for row in (len(sample().attributes), 1 << 31, U32):
        for inode in (0, 1, -1):
            draft = sample()
            draft.inodes[inode].attributes = row
            found.append(draft.archive())
    return found


@attack(IndexStructureError, "mode")
def a_mode_is_a_socket_a_fifo_or_a_device() -> list[Archive]:
    found: list[Archive] = []
    for kind in (stat.S_IFSOCK, stat.S_IFIFO, stat.S_IFBLK, stat.S_IFCHR):
        draft = sample()
        draft.attributes_of(b"alpha").mode = kind | 0o644
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "mode")
def a_mode_is_invalid() -> list[Archive]:
    found: list[Archive] = []
    for mode in (0, 0o644, 0o170644, 1 << 16 | stat.S_IFREG, 1 << 31 | stat.S_IFREG, U32):
        draft = sample()
        draft.attributes_of(b"alpha").mode = mode
        found.append(draft.archive())
    return found


@attack(IndexStructureError)
def a_file_claims_to_be_a_folder_or_a_symlink() -> list[Archive]:
    found: list[Archive] = []
    for path in (b"alpha", b"beta"):
        for kind in (stat.S_IFDIR, stat.S_IFLNK):
            draft = plant(SAMPLE)
            draft.attributes_of(path).mode = kind | 0o644
            found.append(draft.archive())
    return found


def restoring_the_extremes(packed: PackedFolder) -> None:
    for path, mtime in (("alpha", -(1 << 63)), ("folder", (1 << 63) - 1)):
        status = packed.stat(path)
        assert (status.st_uid, status.st_gid, status.st_mtime_ns) == (U32, U32 - 1, mtime)
    with tempfile.TemporaryDirectory() as dest:
        extract(packed.archive, dest)
        assert Path(dest, "alpha").read_bytes() == b"the first file"


@attack(None, use=restoring_the_extremes)
def owners_and_times_are_as_extreme_as_possible() -> Archive:
    draft = plant(SAMPLE)
    for path, mtime in ((b"alpha", -(1 << 63)), (b"folder", (1 << 63) - 1)):
        draft.inode(path).mtime = mtime
        draft.attributes_of(path).uid, draft.attributes_of(path).gid = U32, U32 - 1
    return draft.archive()


@attack(IndexStructureError, "links")
def a_count_of_links_is_wrong() -> list[Archive]:
    found: list[Archive] = []
    for path in (b"alpha", b"link", b"folder", b"folder/other"):
        right = sample().attributes_of(path).links
        for links in (0, right - 1, right + 1, U32):
            draft = sample()
            draft.attributes_of(path).links = links
            if links != right:
                found.append(draft.archive())
    # A file with one name more than it states, and two files with each other's number of names.
    return [*found, hard_links([2], [1]), hard_links([1, 2], [1, 1]), hard_links([2, 3], [3, 2])]


def hard_links(names: Sequence[int], stated: Sequence[int]) -> bytes:
    """Return an archive of files with `names` names each, which state `stated` links."""
    draft = plant({b"%d" % number: b"" for number in range(len(names))})
    draft.entries = []
    for inode, count in enumerate(names, start=1):
        draft.inodes[inode].entry = len(draft.entries)
        draft.entries += [Entry(b"%d-%d" % (inode, name), inode, 0) for name in range(count)]
        draft.attributes[inode].links = stated[inode - 1]
    draft.inodes[0].length = len(draft.entries)
    draft.rehash()
    return draft.archive()

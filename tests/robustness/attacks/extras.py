"""Attacks on extended attributes, checksums of blocks, and shards."""

from __future__ import annotations

from ffrecord import PackedFolder
from ffrecord.errors import (
    IndexStructureError,
    SampleChecksumError,
)
from tests.robustness.attacks.builders import (
    BLOCK,
    LARGE_FILES,
    SAMPLE,
    Large,
    Shard,
    Xattr,
    large_files,
    plant,
    sample,
    sharded,
)
from tests.robustness.attacks.case import U32, U64, Archive, Attacks, extracting
from tests.support.handmade import record_bytes

attack = Attacks()

# ---- extended attributes ---------------------------------------------------------------------


def reading_attributes(packed: PackedFolder) -> None:
    packed.xattrs("alpha")


@attack(IndexStructureError, "extended attributes")
def rows_of_extended_attributes_are_missing() -> list[Archive]:
    found: list[Archive] = []
    for first, count in ((0, 3), (2, 1), (3, 0), (U32, 1), (1, U32), (U32, U32), (U32, 2)):
        draft = sample()
        draft.attributes_of(b"alpha").xattr = first
        draft.attributes_of(b"alpha").xattrs = count
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "attribute")
def an_extended_attribute_is_out_of_range() -> list[Archive]:
    found: list[Archive] = []
    total = len(sample().texts)
    for text_at in (total, total - 3, 1 << 32, 1 << 63, U64, U64 - 15):
        draft = sample()
        draft.xattrs[0].text = text_at
        found.append(draft.archive())
    return found


@attack(IndexStructureError, "extended attribute")
def an_extended_attribute_is_too_long() -> list[Archive]:
    rows = [
        Xattr(0, 256, 0), Xattr(0, U32, 0), Xattr(0, 5, 65_537), Xattr(0, 5, U32),
        Xattr(0, U32, U32), Xattr(0, U32 - 4, 16), Xattr(0, 5, U32 - 4),
    ]  # fmt: skip
    found: list[Archive] = []
    for row in rows:
        draft = sample()
        draft.texts += bytes(100_000)
        draft.xattrs[0] = row
        found.append(draft.archive())
    return found


def with_xattrs(*pairs: tuple[bytes, bytes]) -> bytes:
    draft = plant(SAMPLE)
    draft.set_xattrs(draft.find(b"alpha"), pairs)
    return draft.archive()


@attack(IndexStructureError, "extended attribute", use=reading_attributes)
def an_extended_attribute_is_outside_the_user_namespace() -> list[Archive]:
    names = (b"security.capability", b"trusted.overlay.opaque", b"system.posix_acl_access", b"",
             b"user", b"USER.name", b"xuser.a")  # fmt: skip
    return [with_xattrs((name, b"value")) for name in names]


@attack(IndexStructureError, "extended attribute", use=extracting)
def an_extended_attribute_outside_the_user_namespace_is_extracted() -> Archive:
    return with_xattrs((b"security.capability", b"\1\0\0\2" + bytes(16)))


@attack(IndexStructureError, "extended attribute", use=reading_attributes)
def the_name_of_an_extended_attribute_has_a_nul_in_it() -> list[Archive]:
    return [with_xattrs((name, b"value")) for name in (b"user.\0", b"user.a\0b", b"user.a\0")]


@attack(IndexStructureError, "extended attribute", use=reading_attributes)
def an_extended_attribute_occurs_twice() -> Archive:
    return with_xattrs((b"user.a", b"1"), (b"user.b", b"2"), (b"user.a", b"3"))


@attack(IndexStructureError, "attributes")
def extended_attributes_share_bytes_and_add_up_to_gigabytes() -> Archive:
    """30,000 attributes of 64 KiB lie in half a megabyte: each begins 10 bytes after the last."""
    draft = plant(SAMPLE)
    names = [b"user.%05d" % number for number in range(30_000)]
    draft.texts += b"".join(names) + bytes(65_536)
    attributes = draft.attributes_of(b"alpha")
    attributes.xattr, attributes.xattrs = 0, len(names)
    first = len(draft.texts) - 65_536 - 10 * len(names)
    draft.xattrs = [Xattr(first + 10 * number, 10, 65_526) for number in range(len(names))]
    return draft.archive()


# ---- checksums of blocks ---------------------------------------------------------------------


def reading_the_first_byte(packed: PackedFolder) -> None:
    packed.read_range("first", 0, 1)


@attack(IndexStructureError, "large files")
def only_some_large_files_have_checksums() -> list[Archive]:
    found: list[Archive] = []
    for row in (0, 1):
        draft = large_files()
        del draft.large[row]
        found.append(draft.archive())
    nothing = large_files()
    nothing.large.clear()
    return [*found, nothing.archive()]


@attack(IndexStructureError, "large")
def a_small_file_has_checksums_of_blocks() -> list[Archive]:
    small = sample()
    small.large, small.blocks = [Large(1, 0)], [0]
    third = large_files()
    third.large.insert(1, Large(third.find(b"second"), 1))
    return [small.archive(), third.archive()]


@attack(IndexStructureError, "checksums")
def checksums_of_blocks_belong_to_other_files() -> list[Archive]:
    found: list[Archive] = []
    for inode in (0, 2, 3, 4, 1 << 31, U32):
        draft = large_files()
        draft.large[0].inode = inode
        found.append(draft.archive())
    turned = large_files()
    turned.large.reverse()
    return [*found, turned.archive()]


@attack(IndexStructureError, "checksums")
def checksums_of_blocks_overlap() -> list[Archive]:
    found: list[Archive] = []
    for first in (0, 1, 3, 1 << 32, (1 << 63) - 1, 1 << 63, U64):
        draft = large_files()
        draft.large[1].first = first
        found.append(draft.archive())
    return found


@attack(IndexStructureError)
def there_are_more_or_fewer_checksums_of_blocks_than_blocks() -> list[Archive]:
    more, fewer, none, lonely = large_files(), large_files(), large_files(), sample()
    more.blocks.append(0)
    fewer.blocks.pop()
    none.blocks.clear()
    lonely.blocks.append(0)
    return [draft.archive() for draft in (more, fewer, none, lonely)]


@attack(SampleChecksumError, "record 0", use=reading_the_first_byte)
def the_checksum_of_a_block_is_wrong() -> Archive:
    draft = large_files()
    draft.blocks[0] ^= 1
    return draft.archive()


@attack(SampleChecksumError, "record 0", use=extracting)
def a_file_with_a_wrong_checksum_of_a_block_is_extracted() -> Archive:
    """The record's own checksum is right. The wrong checksum of a block must still be reported."""
    content = bytes(9 << 20)
    draft = plant({b"first": content})
    draft.blocks[-1] ^= 1
    return draft.archive()


def reading_large_files(packed: PackedFolder) -> None:
    for name, content in LARGE_FILES.items():
        assert isinstance(content, bytes)
        assert packed.read_one(name.decode()).tobytes() == content
        part = packed.read_range(name.decode(), BLOCK - 2, 7)
        assert part.tobytes() == content[BLOCK - 2 : BLOCK + 5]


@attack(None, use=reading_large_files)
def no_file_has_checksums_of_blocks() -> Archive:
    """The checksums are computed from the whole record, as for archives of the original."""
    draft = large_files()
    draft.large.clear()
    draft.blocks.clear()
    return draft.archive()


@attack(IndexStructureError, "zero")
def a_large_file_has_padding_that_is_not_zero() -> list[Archive]:
    found: list[Archive] = []
    for row, value in ((0, 1), (1, 1), (1, 1 << 31)):
        draft = large_files()
        draft.large[row].zero = value
        found.append(draft.archive())
    return found


# ---- shards ----------------------------------------------------------------------------------


@attack(IndexStructureError, "missing")
def a_shard_is_missing() -> list[Archive]:
    alone = sample()
    alone.shards.append(Shard(1, alone.add_text(b"PART_00000.ffr"), 14, 0))
    files = sharded(sample())
    del files["PART_00001.ffr"]
    return [alone.archive(), files]


@attack(IndexStructureError, "is not the shard that was packed")
def a_shard_is_not_the_file_that_was_packed() -> list[Archive]:
    swapped = sharded(sample())
    swapped["PART_00001.ffr"] = record_bytes([b"other", b"files"])
    return [sharded(sample(), {"records": 1}), sharded(sample(), {"crc": 0}), swapped]


@attack(IndexStructureError, "missing")
def the_name_of_a_shard_leads_elsewhere() -> list[Archive]:
    found: list[Archive] = []
    for name in (b"../PART_00001.ffr", b"/etc/passwd", b"", b"PART_00001.ffr\0"):
        draft = sample()
        at = draft.add_text(name)
        found.append(sharded(draft, {"text": at, "name": len(name)}))
    return found


@attack(IndexStructureError)
def the_name_of_a_shard_is_out_of_range() -> list[Archive]:
    return [
        sharded(sample(), {"text": at, "name": length})
        for at, length in ((U64, 14), (1 << 63, 14), (0, U32), (1 << 32, U32))
    ]


@attack(IndexStructureError)
def the_counts_of_records_of_shards_overflow() -> list[Archive]:
    return [sharded(sample(), {"records": records}) for records in (U64, 1 << 63, (1 << 63) - 1)]


@attack(IndexStructureError)
def the_names_of_shards_share_bytes_and_add_up_to_gigabytes() -> Archive:
    """3,000 shards share one name of half a megabyte."""
    draft = sample()
    draft.texts += bytes(1 << 19)
    draft.shards = [Shard(1, 0, 1 << 19, 0) for _ in range(3_000)]
    return draft.archive()


@attack(IndexStructureError, "not the shards of one packed folder")
def a_whole_archive_lies_beside_other_files() -> Archive:
    return {"PART_00000.ffr": record_bytes([b"other"]), "index.ffr": sample().archive()}


@attack(IndexStructureError, "not one of its shards")
def another_file_lies_beside_the_shards() -> Archive:
    return sharded(sample()) | {"PART_00002.ffr": record_bytes([b"one more"])}

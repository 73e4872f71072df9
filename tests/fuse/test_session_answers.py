"""A session without a mount: its answer to each request of the kernel."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import pytest

from ffrecord_fuse.filesystem import Ownership
from tests.support import archives, kernel, trees
from tests.support.kernel import Kernel, Reply
from tests.support.session import BLOCK, FILES, NODES, NOWHERE, attr, entry, talk

LARGEST_READ = 150_000  # fits through a socket for every user who runs the tests


# ---- names and attributes ------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NODES if name])
def test_lookup_gives_the_node_and_attributes_of_a_name(
    warm: Kernel, tree: Path, name: str
) -> None:
    folder, _, last = name.rpartition("/")
    reply = warm.ask(kernel.lookup(NODES[folder], last.encode(), 99))
    assert reply == Reply(99, 0, entry(tree, name))


def test_lookup_finds_dot_and_dot_dot(warm: Kernel, tree: Path) -> None:
    assert warm.ask(kernel.lookup(7, b".")).payload == entry(tree, "sub")
    assert warm.ask(kernel.lookup(7, b"..")).payload == entry(tree, "")
    assert warm.ask(kernel.lookup(1, b"..")).payload == entry(tree, "")


@pytest.mark.parametrize(
    "name",
    [b"a", b"a.txt ", b"A.TXT", b"deep", b"sub/deep", b"/", b"a.txt/", b"a.txt\0", b"\0", b"\xff",
     b"\0\0\0", b"..\0", b"x" * 255],
)  # fmt: skip
def test_a_missing_name_is_cached_as_missing(warm: Kernel, name: bytes) -> None:
    reply = warm.ask(kernel.lookup(1, name))
    assert reply == Reply(2, 0, struct.pack("=3Q", 0, 0, kernel.FOREVER) + bytes(104))


@pytest.mark.parametrize("length", [256, 1024, 4096, 60_000])
def test_a_name_that_is_too_long_is_an_error(warm: Kernel, length: int) -> None:
    assert warm.ask(kernel.lookup(1, b"x" * length)) == Reply(2, errno.ENAMETOOLONG)


def test_an_empty_name_is_malformed(warm: Kernel) -> None:
    assert warm.ask(kernel.lookup(1, b"")) == Reply(2, errno.EINVAL)


@pytest.mark.parametrize("name", ["a.txt", "link"])
def test_lookup_works_only_in_folders(warm: Kernel, name: str) -> None:
    assert warm.ask(kernel.lookup(NODES[name], b"x")) == Reply(2, errno.ENOTDIR)
    for plus in (False, True):
        asked = kernel.readdir(NODES[name], 0, 4096, plus=plus)
        assert warm.ask(asked) == Reply(2, errno.ENOTDIR)


@pytest.mark.parametrize("name", NODES)
def test_getattr_equals_lstat_of_the_source(warm: Kernel, tree: Path, name: str) -> None:
    due = struct.pack("=QII", kernel.FOREVER, 0, 0) + attr(tree, name)
    assert warm.ask(kernel.getattr_(NODES[name])) == Reply(2, 0, due)


@pytest.mark.parametrize("node", NOWHERE)
def test_a_node_that_does_not_exist_is_stale_to_every_handler(talking: Kernel, node: int) -> None:
    for asked in (
        kernel.lookup(node, b"x"), kernel.getattr_(node), kernel.read(node, 0, 10),
        kernel.readdir(node, 0, 4096, plus=False), kernel.readdir(node, 0, 4096, plus=True),
        kernel.request(kernel.READLINK, node), kernel.getxattr(node, b"user.x", 0),
        kernel.listxattr(node, 0),
    ):  # fmt: skip
        assert talking.ask(asked) == Reply(2, errno.ESTALE), asked


def test_readlink_gives_the_target_without_a_nul(warm: Kernel) -> None:
    assert warm.ask(kernel.request(kernel.READLINK, NODES["link"])).payload == b"sub/deep"
    for name in ("", "a.txt"):
        asked = kernel.request(kernel.READLINK, NODES[name])
        assert warm.ask(asked) == Reply(2, errno.EINVAL)


def test_statfs_has_the_archives_blocks_and_inodes_and_nothing_free(
    warm: Kernel, packed: Path
) -> None:
    blocks = -(-packed.stat().st_size // 4096)
    due = struct.pack("=5Q3I", blocks, 0, 0, 9, 0, 4096, 255, 4096) + bytes(28)
    assert warm.ask(kernel.request(kernel.STATFS)) == Reply(2, 0, due)


def test_owners_and_modes_can_be_replaced(packed: Path, tree: Path) -> None:
    with talk(packed, ownership=Ownership(uid=7, gid=8, umask=0o027)) as talking:
        found = talking.ask(kernel.getattr_(NODES["a.txt"])).payload
        assert struct.unpack_from("=4I", found, 16 + 60) == (0o100750, 2, 7, 8)
        listed = talking.ask(kernel.readdir(1, 2, 1 << 16, plus=True)).payload
        assert struct.unpack_from("=4I", listed, 40 + 60) == (0o100750, 2, 7, 8)


# ---- folders -------------------------------------------------------------------------------


def expected_entries(tree: Path, name: str, plus: bool) -> list[bytes]:
    above = name.rpartition("/")[0]
    inside = sorted(path.name for path in (tree / name).iterdir())
    listed = [(".", name), ("..", above)]
    listed += [(each, f"{name}/{each}".removeprefix("/")) for each in inside]
    found = []
    for position, (last, path) in enumerate(listed):
        node, kind = NODES[path], os.lstat(tree / path).st_mode >> 12
        raw = kernel.packed_dirent(last.encode(), node, kind, position)
        if plus:
            nodeid = 0 if position < 2 else node
            raw = kernel.packed_entry(attr(tree, path), nodeid) + raw
        found.append(raw)
    return found


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("name", ["", "sub", "sub/inner"])
def test_a_folder_is_listed_from_any_position_into_any_buffer(
    warm: Kernel, tree: Path, name: str, plus: bool
) -> None:
    entries = expected_entries(tree, name, plus)
    for position in range(len(entries)):
        left = entries[position:]
        sizes = {0, len(left[0]) - 1, len(left[0]), len(left[0]) + 1, 1000, 4096, (1 << 32) - 1}
        for size in sizes:
            reply = warm.ask(kernel.readdir(NODES[name], position, size, plus=plus))
            due = kernel.fitting(left, size)
            assert reply == (Reply(2, 0, due) if due else Reply(2, errno.EINVAL)), (position, size)


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("size", [0, 4096, (1 << 32) - 1])
@pytest.mark.parametrize("past", [0, 1, 219, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 9])
def test_a_listing_after_the_last_entry_is_empty(
    warm: Kernel, past: int, size: int, plus: bool
) -> None:
    asked = kernel.readdir(NODES["sub/inner"], 2 + past, size, plus=plus)
    assert warm.ask(asked) == Reply(2, 0)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Pack a folder with more entries than are rendered together, and one with exactly as many."""
    top = tmp_path_factory.mktemp("crowded")
    names = [f"{'n' * (number % 60)}{number:04d}" for number in range(2500)]
    trees.plain_tree(top / "tree", {f"many/{name}": b"" for name in names})
    trees.plain_tree(top / "tree", {f"even/{number}": b"" for number in range(1022)})
    archives.pack(top / "tree", top / "tree.ffr")
    return top / "tree.ffr", sorted(names)


def listed_names(raw: bytes, plus: bool) -> list[tuple[str, int]]:
    """Return the names in a part of a listing, each with the position of the next entry."""
    found, at = [], 0
    while at < len(raw):
        at += 128 if plus else 0
        _, position, length, _ = kernel.DIRENT.unpack_from(raw, at)
        found.append((raw[at + 24 : at + 24 + length].decode(), position))
        at += 24 + length + -(24 + length) % 8
    assert at == len(raw)
    return found


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("size", [512, 4096, 32768])
def test_a_crowded_folder_has_every_name_once(
    crowded: tuple[Path, list[str]], size: int, plus: bool
) -> None:
    archive, names = crowded
    with talk(archive) as talking:
        many = struct.unpack_from("=Q", talking.ask(kernel.lookup(1, b"many")).payload)[0]
        found: list[str] = []
        position = 0
        while True:
            part = talking.ask(kernel.readdir(many, position, size, plus=plus)).payload
            if not part:
                break
            for name, position in listed_names(part, plus):
                found.append(name)
                assert position == len(found)
        assert found == [".", "..", *names]


@pytest.mark.parametrize("plus", [False, True])
def test_a_folder_can_be_listed_from_any_position_and_backwards(
    crowded: tuple[Path, list[str]], plus: bool
) -> None:
    archive, names = crowded
    everything = [".", "..", *names]
    with talk(archive) as talking:
        many = struct.unpack_from("=Q", talking.ask(kernel.lookup(1, b"many")).payload)[0]
        for position in (2501, 2048, 2047, 1025, 1024, 1023, 2, 1, 0):
            part = talking.ask(kernel.readdir(many, position, 400, plus=plus)).payload
            found = [name for name, _ in listed_names(part, plus)]
            assert found
            assert found == everything[position : position + len(found)]
        even = struct.unpack_from("=Q", talking.ask(kernel.lookup(1, b"even")).payload)[0]
        last = talking.ask(kernel.readdir(even, 1023, 400, plus=plus)).payload
        assert [position for _, position in listed_names(last, plus)] == [1024]
        assert talking.ask(kernel.readdir(even, 1024, 400, plus=plus)) == Reply(2, 0)


# ---- extended attributes -------------------------------------------------------------------


def test_extended_attributes_have_sizes_and_values(warm: Kernel, tree: Path) -> None:
    if not trees.has_xattrs(tree):
        pytest.skip("the file system of the temporary folder has no extended attributes")
    node = NODES["a.txt"]
    name = b"user.colour"
    assert warm.ask(kernel.getxattr(node, name, 0)).payload == struct.pack("=II", 5, 0)
    assert warm.ask(kernel.getxattr(node, name, 4)) == Reply(2, errno.ERANGE)
    for size in (5, 6, 65536, (1 << 32) - 1):
        assert warm.ask(kernel.getxattr(node, name, size)) == Reply(2, 0, b"green")
    assert warm.ask(kernel.getxattr(node, b"user.none", 0)).payload == bytes(8)
    assert warm.ask(kernel.getxattr(node, b"user.none", 9)) == Reply(2, 0, b"")
    listed = b"user.colour\0user.none\0"
    assert warm.ask(kernel.listxattr(node, 0)).payload == struct.pack("=II", len(listed), 0)
    assert warm.ask(kernel.listxattr(node, len(listed) - 1)) == Reply(2, errno.ERANGE)
    assert sorted(warm.ask(kernel.listxattr(node, 100)).payload.split(b"\0")) == sorted(
        listed.split(b"\0")
    )


@pytest.mark.parametrize(
    "name", [b"user.x", b"user", b"u", b"user.colour\0", b"user.ffrecord.", b"user.ffrecord.stat",
             b"security.capability", b"system.posix_acl_access", b"x" * 1024],
)  # fmt: skip
def test_a_missing_attribute_is_enodata(warm: Kernel, name: bytes) -> None:
    for node in NODES.values():
        assert warm.ask(kernel.getxattr(node, name, 0)) == Reply(2, errno.ENODATA)


def test_our_attributes_describe_the_archive_and_are_not_listed(
    warm: Kernel, tree: Path, packed: Path
) -> None:
    crc = b"%08x" % zlib.crc32((tree / "a.txt").read_bytes())
    assert warm.ask(kernel.getxattr(2, b"user.ffrecord.crc32", 64)).payload == crc
    assert warm.ask(kernel.getxattr(2, b"user.ffrecord.record", 64)).payload.isdigit()
    where = warm.ask(kernel.getxattr(1, b"user.ffrecord.archive", 4096)).payload
    assert where == os.fsencode(packed)
    assert b'"lookups": ' in warm.ask(kernel.getxattr(1, b"user.ffrecord.stats", 4096)).payload
    for node, name in ((1, "crc32"), (7, "record"), (5, "crc32"), (2, "stats"), (2, "archive")):
        asked = kernel.getxattr(node, f"user.ffrecord.{name}".encode(), 0)
        assert warm.ask(asked) == Reply(2, errno.ENODATA)
    assert warm.ask(kernel.listxattr(1, 0)).payload == bytes(8)


# ---- contents ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_read_gives_the_files_bytes(talking: Kernel, tree: Path, name: str) -> None:
    whole = (tree / name).read_bytes()
    edges = {0, 1, len(whole) // 2, len(whole), BLOCK, 2 * BLOCK, 3 * BLOCK}
    offsets = {max(0, edge + by) for edge in edges for by in (-1, 0, 1)}
    for offset in sorted(offsets):
        for size in (0, 1, 2, 4096, BLOCK, LARGEST_READ):
            due = whole[offset : offset + size]
            assert talking.ask(kernel.read(NODES[name], offset, size)) == Reply(2, 0, due)


@pytest.mark.parametrize("offset", [5000, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("size", [0, 1, (1 << 32) - 1])
def test_a_read_after_the_end_is_empty(talking: Kernel, offset: int, size: int) -> None:
    assert talking.ask(kernel.read(NODES["sub/deep"], offset, size)) == Reply(2, 0)


def test_a_read_across_the_end_stops_at_the_end(talking: Kernel, tree: Path) -> None:
    whole = (tree / "sub/deep").read_bytes()
    assert talking.ask(kernel.read(NODES["sub/deep"], 0, (1 << 32) - 1)).payload == whole
    assert talking.ask(kernel.read(NODES["sub/deep"], 4999, (1 << 32) - 1)).payload == whole[-1:]


@pytest.mark.parametrize("name", ["", "sub", "link"])
def test_only_files_can_be_read(talking: Kernel, name: str) -> None:
    assert talking.ask(kernel.read(NODES[name], 0, 10)) == Reply(2, errno.EISDIR)


@pytest.mark.parametrize("verify", ["first", "always", "off"])
def test_every_way_to_verify_gives_the_same_bytes(packed: Path, tree: Path, verify: str) -> None:
    whole = (tree / "big").read_bytes()
    with talk(packed, verify) as talking:
        for _ in range(2):
            for offset in (0, BLOCK - 5, 3 * BLOCK):
                reply = talking.ask(kernel.read(NODES["big"], offset, 100))
                assert reply.payload == whole[offset : offset + 100]


# ---- requests without a specific answer ----------------------------------------------------


@pytest.mark.parametrize("opcode", kernel.UNANSWERED)
@pytest.mark.parametrize("body", [b"", struct.pack("=Q", 1), bytes([0xDB]) * 60_000])
def test_forget_is_never_answered(warm: Kernel, opcode: int, body: bytes) -> None:
    assert warm.replies(kernel.request(opcode, 2, body, 99)) == []


@pytest.mark.parametrize("opcode", [kernel.RELEASE, kernel.RELEASEDIR, kernel.DESTROY])
def test_release_always_succeeds(warm: Kernel, opcode: int) -> None:
    assert warm.ask(kernel.request(opcode, 2, bytes(24), 99)) == Reply(99, 0)


@pytest.mark.parametrize("name", kernel.CHANGES)
def test_every_change_is_refused_as_read_only(warm: Kernel, name: str) -> None:
    for body in (b"", b"x", bytes(128)):
        asked = kernel.request(kernel.CHANGES[name], 2, body)
        assert warm.ask(asked) == Reply(2, errno.EROFS)


@pytest.mark.parametrize("name", kernel.UNKNOWN)
def test_other_opcodes_are_answered_with_enosys(warm: Kernel, name: str) -> None:
    body = bytes(128)
    assert warm.ask(kernel.request(kernel.UNKNOWN[name], 2, body)) == Reply(2, errno.ENOSYS)


def test_an_ioctl_is_answered_with_enotty(warm: Kernel) -> None:
    assert warm.ask(kernel.request(kernel.IOCTL, 2, bytes(32))) == Reply(2, errno.ENOTTY)

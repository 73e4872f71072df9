"""A session without a mount: driven over a socket with the bytes of requests.

The tree is small and every number in it is chosen such that the byte 0xDB is in no reply, but for
the contents of one file. Whatever a reply holds of it beyond that came out of a buffer that was
used before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from ffrecord.archive.archive import Archive
from ffrecord.archive.blocks import FilePiece
from ffrecord.disk.slabs import SlabPool
from ffrecord.errors import FFRecordError
from ffrecord_fuse.filesystem import Filesystem, Ownership
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.coldreads import NO_SLOT, ColdReads
from ffrecord_fuse.serve.readahead import LONGEST
from ffrecord_fuse.serve.reading import Reading
from ffrecord_fuse.serve.report import Counters
from ffrecord_fuse.serve.session import Session
from tests.support import archives, handmade, kernel, trees
from tests.support.kernel import Kernel, Reply

POISON = 0xDB
BLOCK = 128 << 10
WHEN = 1_600_000_000_123_456_789
# A node is an inode and 1; inodes are counted from the root, level by level, in the order of names.
NODES = {
    "": 1, "a.txt": 2, "big": 3, "empty": 4, "hard": 2, "link": 5, "poison": 6, "sub": 7,
    "sub/deep": 8, "sub/inner": 9,
}  # fmt: skip
FILES = ("a.txt", "big", "empty", "sub/deep")
NOWHERE = (0, 10, 219, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
LARGEST_READ = 150_000  # what goes through a socket, whoever runs the tests


def content(size: int, seed: int) -> bytes:
    return trees.content(size, seed).replace(bytes([POISON]), b"\x01")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("session") / "tree"
    files = {
        "a.txt": b"hello, kernel\n",
        "big": content(3 * BLOCK + 77, 1),
        "empty": b"",
        "poison": bytes([POISON]) * 140_000,
        "sub/deep": content(5000, 2),
        "sub/inner/": b"",
    }
    trees.plain_tree(top, files)
    os.link(top / "a.txt", top / "hard")
    (top / "link").symlink_to("sub/deep")
    if trees.has_xattrs(top):
        os.setxattr(top / "a.txt", "user.colour", b"green")
        os.setxattr(top / "a.txt", "user.none", b"")
    for path in [*top.rglob("*"), top]:
        os.utime(path, ns=(WHEN, WHEN), follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return top


@pytest.fixture(scope="module")
def packed(tree: Path) -> Path:
    path = tree.parent / "tree.ffr"
    archives.pack(tree, path)
    return path


class ColdReading(Reading):
    """Finds nothing in the page cache."""

    def _cached(self, piece: FilePiece) -> None:
        return None


class GatedReading(ColdReading):
    """Stops at its first read until the gate is open: what was sent meanwhile is one batch."""

    gate = threading.Event()

    def _cached(self, piece: FilePiece) -> None:
        assert self.gate.wait(kernel.LIMIT)


@contextlib.contextmanager
def talk(
    archive: Path,
    verify: str = "first",
    ownership: Ownership | None = None,
    reading: type[Reading] = Reading,
) -> Iterator[Kernel]:
    """A session that serves an archive, and does not spin: it shares this process."""
    with Archive.open(archive) as opened:
        counters, contents = Counters(), CheckedContent(opened, verify)
        filesystem = Filesystem(opened, ownership, counters.json)

        def run(fd: int, log: Callable[[str], None]) -> None:
            with mock.patch("ffrecord_fuse.serve.session.Reading", reading):
                session = Session(fd, filesystem, contents, spin=0, counts=counters.row(0), log=log)
            with contextlib.closing(session):
                session.run()

        with kernel.conversation(run) as talking:
            yield talking


# One session for many tests: whatever one of them sends, the next finds it well.


@pytest.fixture(scope="module", params=[Reading, ColdReading], ids=["warm", "cold"])
def talking(packed: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """A session whose reads all come from the page cache, or all from the disk."""
    with talk(packed, reading=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def warm(packed: Path) -> Iterator[Kernel]:
    with talk(packed) as found:
        yield found


def attr(tree: Path, name: str) -> bytes:
    return kernel.packed_attr(os.lstat(tree / name), NODES[name])


def entry(tree: Path, name: str) -> bytes:
    return kernel.packed_entry(attr(tree, name), NODES[name])


# ---- names and attributes ------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NODES if name])
def test_lookup_gives_the_node_and_attributes_of_a_name(
    warm: Kernel, tree: Path, name: str
) -> None:
    folder, _, last = name.rpartition("/")
    reply = warm.ask(kernel.lookup(NODES[folder], last.encode(), 99))
    assert reply == Reply(99, 0, entry(tree, name))


def test_lookup_knows_the_dots(warm: Kernel, tree: Path) -> None:
    assert warm.ask(kernel.lookup(7, b".")).payload == entry(tree, "sub")
    assert warm.ask(kernel.lookup(7, b"..")).payload == entry(tree, "")
    assert warm.ask(kernel.lookup(1, b"..")).payload == entry(tree, "")


@pytest.mark.parametrize(
    "name",
    [b"a", b"a.txt ", b"A.TXT", b"deep", b"sub/deep", b"/", b"a.txt/", b"a.txt\0", b"\0", b"\xff",
     b"\0\0\0", b"..\0", b"x" * 255],
)  # fmt: skip
def test_a_name_that_is_not_there_is_remembered_as_missing(warm: Kernel, name: bytes) -> None:
    reply = warm.ask(kernel.lookup(1, name))
    assert reply == Reply(2, 0, struct.pack("=3Q", 0, 0, kernel.FOREVER) + bytes(104))


@pytest.mark.parametrize("length", [256, 1024, 4096, 60_000])
def test_a_name_that_is_too_long_is_told_so(warm: Kernel, length: int) -> None:
    assert warm.ask(kernel.lookup(1, b"x" * length)) == Reply(2, errno.ENAMETOOLONG)


def test_a_name_without_a_byte_is_malformed(warm: Kernel) -> None:
    assert warm.ask(kernel.lookup(1, b"")) == Reply(2, errno.EINVAL)


@pytest.mark.parametrize("name", ["a.txt", "link"])
def test_there_are_no_names_in_what_is_no_folder(warm: Kernel, name: str) -> None:
    assert warm.ask(kernel.lookup(NODES[name], b"x")) == Reply(2, errno.ENOTDIR)
    for plus in (False, True):
        asked = kernel.readdir(NODES[name], 0, 4096, plus=plus)
        assert warm.ask(asked) == Reply(2, errno.ENOTDIR)


@pytest.mark.parametrize("name", NODES)
def test_getattr_is_what_lstat_says_of_the_source(warm: Kernel, tree: Path, name: str) -> None:
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


def test_owners_and_modes_can_be_given(packed: Path, tree: Path) -> None:
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
def test_a_folder_is_listed_from_any_position_into_any_room(
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
def test_after_the_last_entry_there_is_nothing(
    warm: Kernel, past: int, size: int, plus: bool
) -> None:
    asked = kernel.readdir(NODES["sub/inner"], 2 + past, size, plus=plus)
    assert warm.ask(asked) == Reply(2, 0)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder of more entries than are rendered at once, and one that is as large as that."""
    top = tmp_path_factory.mktemp("crowded")
    names = [f"{'n' * (number % 60)}{number:04d}" for number in range(2500)]
    trees.plain_tree(top / "tree", {f"many/{name}": b"" for name in names})
    trees.plain_tree(top / "tree", {f"even/{number}": b"" for number in range(1022)})
    archives.pack(top / "tree", top / "tree.ffr")
    return top / "tree.ffr", sorted(names)


def listed_names(raw: bytes, plus: bool) -> list[tuple[str, int]]:
    """Names in a part of a listing, each with the position that comes after it."""
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
def test_a_folder_can_be_entered_anywhere_and_backwards(
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
        pytest.skip("the temporary folder's file system has no extended attributes")
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
def test_an_attribute_that_is_not_there_is_no_data(warm: Kernel, name: bytes) -> None:
    for node in NODES.values():
        assert warm.ask(kernel.getxattr(node, name, 0)) == Reply(2, errno.ENODATA)


def test_attributes_of_ours_tell_of_the_archive_and_are_not_listed(
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


def test_a_read_of_more_than_there_is_ends_with_the_file(talking: Kernel, tree: Path) -> None:
    whole = (tree / "sub/deep").read_bytes()
    assert talking.ask(kernel.read(NODES["sub/deep"], 0, (1 << 32) - 1)).payload == whole
    assert talking.ask(kernel.read(NODES["sub/deep"], 4999, (1 << 32) - 1)).payload == whole[-1:]


@pytest.mark.parametrize("name", ["", "sub", "link"])
def test_what_is_no_file_is_not_read(talking: Kernel, name: str) -> None:
    assert talking.ask(kernel.read(NODES[name], 0, 10)) == Reply(2, errno.EISDIR)


@pytest.mark.parametrize("verify", ["first", "always", "off"])
def test_every_way_to_verify_gives_the_same_bytes(packed: Path, tree: Path, verify: str) -> None:
    whole = (tree / "big").read_bytes()
    with talk(packed, verify) as talking:
        for _ in range(2):
            for offset in (0, BLOCK - 5, 3 * BLOCK):
                reply = talking.ask(kernel.read(NODES["big"], offset, 100))
                assert reply.payload == whole[offset : offset + 100]


# ---- files one after the other ---------------------------------------------------------------

IN_A_ROW = 300


@pytest.fixture
def row(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """An archive of small files, and what is in each."""
    contents = [content(9_000 + 37 * number, number) for number in range(IN_A_ROW)]
    top = tmp_path / "row"
    trees.plain_tree(top, {f"{number:03d}": each for number, each in enumerate(contents)})
    archives.pack(top, tmp_path / "row.ffr")
    return tmp_path / "row.ffr", contents


@pytest.fixture
def disk_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Begin and length of each read that goes to the disk."""
    found: list[tuple[int, int]] = []
    add = ColdReads.add

    def noted(
        self: ColdReads, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None:
        found.append((begin, length))
        add(self, token, file, begin, length, kept=kept)

    monkeypatch.setattr(ColdReads, "add", noted)
    return found


def read_row(talking: Kernel, number: int) -> Reply:
    return talking.ask(kernel.read(number + 2, 0, 1 << 16))


def test_cold_files_in_a_row_are_right_and_few_reads(
    row: tuple[Path, list[bytes]], disk_reads: list[tuple[int, int]]
) -> None:
    archive, contents = row
    with talk(archive, reading=ColdReading) as talking:
        for number, whole in enumerate(contents):
            assert read_row(talking, number) == Reply(2, 0, whole)
        assert talking.log == []
    assert len(disk_reads) < IN_A_ROW / 10
    assert sum(length for _, length in disk_reads) < 1.1 * sum(map(len, contents))


def test_cold_files_in_a_row_that_are_asked_for_together_are_all_answered(
    row: tuple[Path, list[bytes]],
) -> None:
    archive, contents = row
    with talk(archive, reading=GatedReading) as talking:
        for begin in range(0, IN_A_ROW, 20):
            numbers = range(begin, begin + 20)
            GatedReading.gate.clear()
            for number in numbers:
                talking.send(kernel.read(number + 2, 0, 1 << 16, 1000 + number))
            GatedReading.gate.set()
            found = {reply.unique: reply for reply in (talking.receive() for _ in numbers)}
            for number in numbers:
                unique = 1000 + number
                assert found[unique] == Reply(unique, 0, contents[number])


@pytest.mark.parametrize("verify", ["first", "off"])
def test_what_was_read_ahead_stays_what_it_was(tmp_path: Path, verify: str) -> None:
    """Also where little was, and what comes from the disk meanwhile needs memory as well."""
    sizes = ([3000] * 8 + [1_300_000]) * 10
    contents = [content(size, number) for number, size in enumerate(sizes)]
    top = tmp_path / "rows"
    trees.plain_tree(top, {f"{number:03d}": each for number, each in enumerate(contents)})
    archives.pack(top, tmp_path / "rows.ffr")
    small = [number for number, size in enumerate(sizes) if size == 3000]
    rows = [small[first : first + 8] for first in range(0, len(small), 8)]
    with talk(tmp_path / "rows.ffr", verify, reading=ColdReading) as talking:
        for _ in range(2):  # the second time nothing is verified any more
            for row in rows:
                for number in row[:3]:
                    assert read_row(talking, number) == Reply(2, 0, contents[number])
            for number in random.Random(7).sample(small, 40):
                assert read_row(talking, number) == Reply(2, 0, contents[number])
            for row in rows:
                for number in row[3:]:
                    assert read_row(talking, number) == Reply(2, 0, contents[number])


def test_windows_end_where_records_do_in_each_shard(tmp_path: Path) -> None:
    contents = [content(9_000 + 37 * number, number) for number in range(60)]
    trees.plain_tree(tmp_path / "row", {f"{n:03d}": each for n, each in enumerate(contents)})
    archives.pack(tmp_path / "row", tmp_path / "shards", shard_size=200_000)
    with Archive.open(tmp_path / "shards") as opened:
        reader = opened.reader
        assert len(reader.fnames) > 2
        for file in range(len(reader.fnames)):
            starts = reader.get_offsets(file).tolist()
            for start, end in pairwise(starts):
                assert opened.blocks.last_start(file, start) == start
                assert opened.blocks.last_start(file, end - 1) == start
            assert opened.blocks.last_start(file, starts[-1]) == starts[-1]
            assert opened.blocks.last_start(file, starts[-1] + LONGEST) == starts[-1]


def test_a_damaged_file_in_a_row_is_the_only_one_that_is_not_served(
    row: tuple[Path, list[bytes]], disk_reads: list[tuple[int, int]]
) -> None:
    archive, contents = row
    archives.damage(archive, "150", 3)
    with talk(archive, reading=ColdReading) as talking:
        for number, whole in enumerate(contents):
            due = Reply(2, errno.EIO) if number == 150 else Reply(2, 0, whole)
            assert read_row(talking, number) == due
        assert [line.split(" (")[0] for line in talking.log] == ["damaged: /150"]
    assert len(disk_reads) < IN_A_ROW / 10


def test_a_row_that_cannot_be_read_ahead_is_read_file_by_file(
    row: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a disk with a bad sector somewhere: what is beside it is still to be had."""
    archive, contents = row
    add = ColdReads.add
    failed = []

    def add_if_short(
        self: ColdReads, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None:
        if length > 1 << 16:
            failed.append(length)
            self._done.append((token, FFRecordError("a bad sector"), NO_SLOT))
        else:
            add(self, token, file, begin, length, kept=kept)

    monkeypatch.setattr(ColdReads, "add", add_if_short)
    with talk(archive, reading=ColdReading) as talking:
        for number, whole in enumerate(contents):
            assert read_row(talking, number) == Reply(2, 0, whole)
        assert talking.log == []
    assert failed


@pytest.mark.parametrize("which", range(1, 5))
def test_no_memory_to_read_ahead_with_costs_no_file_and_leaves_none_waiting(
    row: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    archive, contents = row
    take, turns = SlabPool.take, iter(range(1, 1 << 30))

    def take_if_there_is(self: SlabPool, size: int) -> npt.NDArray[np.uint8]:
        if 1 << 16 < size < 3 << 19 and next(turns) == which:  # that of a window
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return take(self, size)

    with talk(archive, reading=ColdReading) as talking:
        monkeypatch.setattr(SlabPool, "take", take_if_there_is)
        for number, whole in enumerate(contents):
            assert read_row(talking, number) == Reply(2, 0, whole)
        assert talking.log == []
    assert next(turns) > which


def test_a_block_found_right_elsewhere_is_not_taken_for_right_in_what_was_read_before(
    tmp_path: Path,
) -> None:
    """An archive is mended in its place while what was read ahead of it is still at hand."""
    sizes = [3000] * 4 + [2 * BLOCK + 5000] + [3000] * 20
    contents = [content(size, number) for number, size in enumerate(sizes)]
    trees.plain_tree(tmp_path / "row", {f"{n:03d}": each for n, each in enumerate(contents)})
    archive = tmp_path / "row.ffr"
    archives.pack(tmp_path / "row", archive)
    archives.damage(archive, "004", BLOCK + 17)
    large, whole = 4 + 2, contents[4]
    second = kernel.read(large, BLOCK, BLOCK)
    with talk(archive, reading=ColdReading) as talking:
        for number in range(4):
            assert read_row(talking, number) == Reply(2, 0, contents[number])
        assert talking.ask(kernel.read(large, 0, BLOCK)).error == 0
        assert talking.ask(second) == Reply(2, errno.EIO)
        archives.damage(archive, "004", BLOCK + 17)  # once more: it is as it was
        for _ in range(2):  # before and after it was verified as part of a longer read
            assert talking.ask(second) == Reply(2, 0, whole[BLOCK : 2 * BLOCK])
            assert talking.ask(kernel.read(large, 0, 3 * BLOCK)) == Reply(2, 0, whole)


def test_an_error_with_one_of_those_that_wait_for_a_window_is_only_its_own(
    row: tuple[Path, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, contents = row
    add, turns = ColdReads.add, iter(range(1 << 30))

    def fail(
        self: ColdReads, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None:
        if kept:
            self._done.append((token, FFRecordError("a bad sector"), NO_SLOT))
        elif next(turns) == 5:  # three come before any window, so that this one was in one
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        else:
            add(self, token, file, begin, length)

    monkeypatch.setattr(ColdReads, "add", fail)
    with talk(archive, reading=GatedReading) as talking:
        GatedReading.gate.clear()
        for number in range(12):
            talking.send(kernel.read(number + 2, 0, 1 << 16, 1000 + number))
        GatedReading.gate.set()
        found = {reply.unique: reply for reply in (talking.receive() for _ in range(12))}
        wrong = [n for n in range(12) if found[1000 + n] != Reply(1000 + n, 0, contents[n])]
        assert len(wrong) == 1
        assert found[1000 + wrong[0]].error == errno.EIO
        assert read_row(talking, 20) == Reply(2, 0, contents[20])


# ---- archives of the original, which have no checksums of blocks -----------------------------


@pytest.fixture
def original(tmp_path: Path) -> tuple[Path, bytes]:
    """With a file of several blocks, and what is in that."""
    whole = content(3 * BLOCK + 99, 6)
    index = b"piouhjgbr" + pickle.dumps({"large": 0, "small": 1})
    path = handmade.write_records(tmp_path / "original.ffr", [whole, b"small", index])
    return path, whole


def node_of(talking: Kernel, name: bytes) -> int:
    found = talking.ask(kernel.lookup(1, name)).payload
    return int(struct.unpack_from("=Q", found)[0])


def test_a_large_file_of_the_original_is_read_beside_the_loop(
    original: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, whole = original
    gate, learn = threading.Event(), CheckedContent.learn

    def slowly(self: CheckedContent, inode: int) -> None:
        assert gate.wait(kernel.LIMIT)
        learn(self, inode)

    monkeypatch.setattr(CheckedContent, "learn", slowly)
    with talk(archive) as talking:
        large, small = node_of(talking, b"large"), node_of(talking, b"small")
        talking.send(kernel.read(large, BLOCK - 5, 10, 101))
        talking.send(kernel.read(large, 0, 10, 102))
        assert talking.ask(kernel.read(small, 0, 10)).payload == b"small"  # others do not wait
        assert talking.until_fence() == []
        gate.set()
        found = {reply.unique: reply for reply in (talking.receive(), talking.receive())}
        assert found == {
            101: Reply(101, 0, whole[BLOCK - 5 : BLOCK + 5]),
            102: Reply(102, 0, whole[:10]),
        }
        assert talking.ask(kernel.read(large, 3 * BLOCK, 999)).payload == whole[3 * BLOCK :]


def test_no_thread_to_be_had_for_a_file_of_the_original_leaves_nobody_waiting(
    original: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, whole = original
    with talk(archive) as talking:
        large = node_of(talking, b"large")
        with monkeypatch.context() as patched:
            patched.setattr(
                threading.Thread, "start", mock.Mock(side_effect=RuntimeError("no thread"))
            )
            assert talking.ask(kernel.read(large, 0, 10)) == Reply(2, errno.EIO)
        assert talking.ask(kernel.read(large, 0, 10)) == Reply(2, 0, whole[:10])


def test_a_damaged_file_of_the_original_is_an_error_each_time(
    original: tuple[Path, bytes],
) -> None:
    archive, whole = original
    raw = bytearray(archive.read_bytes())
    raw[raw.index(whole[:100]) + 2 * BLOCK] ^= 1
    archive.write_bytes(raw)
    with talk(archive) as talking:
        large, small = node_of(talking, b"large"), node_of(talking, b"small")
        for _ in range(2):
            assert talking.ask(kernel.read(large, 0, 10)) == Reply(2, errno.EIO)
        assert talking.ask(kernel.read(small, 0, 10)).payload == b"small"
        assert [line.split(" (record ")[0] for line in talking.log] == ["damaged: /large"]


# ---- requests without an answer of their own -----------------------------------------------


@pytest.mark.parametrize("opcode", kernel.UNANSWERED)
@pytest.mark.parametrize("body", [b"", struct.pack("=Q", 1), bytes([0xDB]) * 60_000])
def test_forgetting_is_never_answered(warm: Kernel, opcode: int, body: bytes) -> None:
    assert warm.replies(kernel.request(opcode, 2, body, 99)) == []


@pytest.mark.parametrize("opcode", [kernel.RELEASE, kernel.RELEASEDIR, kernel.DESTROY])
def test_letting_go_always_works(warm: Kernel, opcode: int) -> None:
    assert warm.ask(kernel.request(opcode, 2, bytes(24), 99)) == Reply(99, 0)


@pytest.mark.parametrize("name", kernel.CHANGES)
def test_whatever_would_change_something_is_refused_as_read_only(warm: Kernel, name: str) -> None:
    for body in (b"", b"x", bytes(128)):
        asked = kernel.request(kernel.CHANGES[name], 2, body)
        assert warm.ask(asked) == Reply(2, errno.EROFS)


@pytest.mark.parametrize("name", kernel.UNKNOWN)
def test_what_is_not_done_here_is_not_implemented(warm: Kernel, name: str) -> None:
    body = bytes(128)
    assert warm.ask(kernel.request(kernel.UNKNOWN[name], 2, body)) == Reply(2, errno.ENOSYS)


def test_an_ioctl_is_none_for_this_kind_of_file(warm: Kernel) -> None:
    assert warm.ask(kernel.request(kernel.IOCTL, 2, bytes(32))) == Reply(2, errno.ENOTTY)


# ---- what the kernel never sends -----------------------------------------------------------

SOUND = {
    kernel.LOOKUP: b"a.txt\0",
    kernel.READ: kernel.READ_IN.pack(0, 0, 100, 0, 0, 0, 0),
    kernel.READDIR: kernel.READ_IN.pack(0, 0, 4096, 0, 0, 0, 0),
    kernel.READDIRPLUS: kernel.READ_IN.pack(0, 0, 4096, 0, 0, 0, 0),
    kernel.GETXATTR: kernel.XATTR_IN.pack(64, 0) + b"user.colour\0",
    kernel.LISTXATTR: kernel.XATTR_IN.pack(64, 0),
    kernel.INIT: kernel.INIT_IN.pack(7, 45, 1 << 17, 0xFFFFFFFF, 0xFF, *[0] * 11),
}
OPCODES = [*range(61), 4096, 65535, 1 << 31, (1 << 32) - 1]


def is_well(talking: Kernel, tree: Path) -> bool:
    """Whether a session still answers rightly."""
    reply = talking.ask(kernel.lookup(1, b"a.txt", 4242))
    return reply == Reply(4242, 0, entry(tree, "a.txt"))


@pytest.mark.parametrize("opcode", OPCODES)
def test_a_request_cut_off_at_any_byte_harms_nobody(warm: Kernel, tree: Path, opcode: int) -> None:
    whole = kernel.request(opcode, 2, SOUND.get(opcode, bytes(16)), 99)
    for length in range(1, len(whole)):
        cut = whole[:length]
        replies = warm.replies(cut)  # its length says more than there is
        assert replies == ([Reply(99, errno.EINVAL)] if length >= 40 else [])
        if length < 40:
            continue
        mended = struct.pack("=I", length) + cut[4:]
        for reply in warm.replies(mended):  # shorter than the opcode needs
            assert reply.unique == 99
    assert is_well(warm, tree)


@pytest.mark.parametrize("claimed", [0, 1, 39, 40, 47, 49, 65536, (1 << 31), (1 << 32) - 1])
@pytest.mark.parametrize("opcode", [1, 3, 15, 44, 2, 77])
def test_a_wrong_length_is_malformed_whatever_it_is_of(
    warm: Kernel, tree: Path, opcode: int, claimed: int
) -> None:
    raw = struct.pack("=I", claimed) + kernel.request(opcode, 2, bytes(8), 99)[4:]
    assert warm.replies(raw) == [Reply(99, errno.EINVAL)]
    assert warm.log
    assert is_well(warm, tree)


def test_a_malformed_request_without_a_unique_gets_no_reply(warm: Kernel, tree: Path) -> None:
    assert warm.replies(kernel.lookup(1, b"", 0)) == []
    assert is_well(warm, tree)


EXTREMES = (
    0, 1, 7, 255, 4096, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1,
)  # fmt: skip


def mutated(generator: random.Random) -> bytes:
    """A request of any opcode, spoiled in a few places or not at all."""
    opcode = generator.choice([*SOUND] if generator.random() < 0.6 else OPCODES)
    body = bytearray(SOUND.get(opcode) or generator.randbytes(generator.randrange(80)))
    for _ in range(generator.choice((0, 0, 0, 1, 1, 2, 3))):
        if len(body) >= 8:
            at = generator.randrange(len(body) - 7)
            struct.pack_into("=Q", body, at, generator.choice(EXTREMES))
    if generator.random() < 0.1:
        body[generator.randrange(len(body) + 1) :] = generator.randbytes(generator.randrange(60))
    node = generator.choice([*NODES.values()] if generator.random() < 0.8 else NOWHERE)
    raw = bytearray(kernel.request(opcode, node, bytes(body), generator.getrandbits(63) | 1))
    if generator.random() < 0.1:
        struct.pack_into("=I", raw, 0, generator.choice(EXTREMES) & 0xFFFFFFFF)
    if generator.random() < 0.2:
        raw[generator.randrange(len(raw))] ^= 1 << generator.randrange(8)
    if generator.random() < 0.1:
        del raw[1 + generator.randrange(len(raw)) :]
    return bytes(raw)


def may_have_poison(raw: bytes) -> bool:
    """Whether the answer to a request may have the bytes of the file `poison`."""
    return raw[4:8] == struct.pack("=I", kernel.READ) and raw[16:24] == struct.pack(
        "=Q", NODES["poison"]
    )


def fill_buffers_with_poison(talking: Kernel) -> None:
    assert talking.replies(kernel.request(kernel.BATCH_FORGET, 1, bytes([POISON]) * 60_000)) == []
    filled = talking.ask(kernel.read(NODES["poison"], 0, 140_000)).payload
    assert filled == bytes([POISON]) * 140_000


def storm(talking: Kernel, tree: Path, count: int, seed: int) -> int:
    """Send spoiled requests; how many of them were answered with something."""
    generator = random.Random(seed)
    answered = 0
    for number in range(0, count, talking.at_once):
        if number % 100 == 0:
            fill_buffers_with_poison(talking)
        asked = [mutated(generator) for _ in range(talking.at_once)]
        for raw, reply in answers(talking, asked):
            answered += bool(reply.payload)
            if not may_have_poison(raw):
                assert POISON not in reply.payload, (seed, number)
        if number % 1000 == 0:
            assert is_well(talking, tree), (seed, number)
    assert is_well(talking, tree), seed
    return answered


def answers(talking: Kernel, asked: list[bytes]) -> Iterator[tuple[bytes, Reply]]:
    """Requests and what is answered to them: at most one reply to each, and no others."""
    waiting = {unique_of(raw): raw for raw in asked if len(raw) >= 40}
    for raw in asked:
        talking.send(raw)
    for reply in talking.until_fence():
        yield waiting.pop(reply.unique), reply
    while any(map(is_sound_read, waiting.values())):  # from the disk, whenever that has it
        reply = talking.receive()
        yield waiting.pop(reply.unique), reply


def unique_of(raw: bytes) -> int:
    return int(struct.unpack_from("=Q", raw, 8)[0])


def is_sound_read(raw: bytes) -> bool:
    """Which is always answered, but maybe later."""
    return len(raw) >= 80 and struct.unpack_from("=II", raw) == (len(raw), kernel.READ)


def test_twenty_thousand_spoiled_requests_do_not_end_the_loop(talking: Kernel, tree: Path) -> None:
    assert storm(talking, tree, 10_000, seed=1) > 800


@pytest.mark.long
def test_a_million_spoiled_requests_do_not_end_the_loop(talking: Kernel, tree: Path) -> None:
    for seed in range(2, 52):
        storm(talking, tree, 10_000, seed)
        talking.log.clear()


def test_replies_have_no_byte_of_a_buffer_that_was_used_before(talking: Kernel, tree: Path) -> None:
    asked = [kernel.lookup(1, b"a.txt"), kernel.lookup(1, b"missing"), kernel.getattr_(3)]
    asked += [kernel.request(opcode, 5) for opcode in (kernel.READLINK, kernel.STATFS)]
    asked += [kernel.readdir(1, 0, 4096, plus=plus) for plus in (False, True)]
    asked += [kernel.listxattr(2, size) for size in (0, 100)]
    asked += [kernel.getxattr(2, b"user.ffrecord.crc32", size) for size in (0, 100)]
    asked += [
        kernel.read(NODES[name], offset, size)
        for name in FILES
        for offset in (0, 1, 4095, 4999, BLOCK - 1, 3 * BLOCK)
        for size in (1, 511, 5000, BLOCK)
    ]
    for raw in asked:
        fill_buffers_with_poison(talking)
        reply = talking.ask(raw)
        assert reply.error == 0
        assert POISON not in reply.payload, raw


# ---- what goes wrong is one request's --------------------------------------------------------


def test_a_handler_that_raises_answers_eio_and_the_loop_lives(
    warm: Kernel, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(self: Filesystem, inode: int) -> bytes:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(Filesystem, "readlink", defect)
    assert warm.ask(kernel.request(kernel.READLINK, 5)) == Reply(2, errno.EIO)
    assert any("a defect" in line for line in warm.log)
    assert is_well(warm, tree)


@pytest.mark.parametrize("error", [ZeroDivisionError("a defect"), FFRecordError("a defect")])
def test_a_check_that_raises_answers_eio_and_the_loop_lives(
    talking: Kernel, tree: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def defect(self: CheckedContent, piece: object, memory: object) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(CheckedContent, "check", defect)
        assert talking.ask(kernel.read(NODES["a.txt"], 0, 100)) == Reply(2, errno.EIO)
    assert any("a defect" in line for line in talking.log)
    assert talking.ask(kernel.read(NODES["a.txt"], 0, 100)).payload == b"hello, kernel\n"
    assert is_well(talking, tree)


@pytest.fixture
def own_copy(packed: Path, tmp_path: Path) -> Path:
    """To be damaged."""
    copy = tmp_path / "copy.ffr"
    copy.write_bytes(packed.read_bytes())
    return copy


@pytest.mark.parametrize("reading", [Reading, ColdReading])
def test_damage_is_an_error_and_a_line_in_the_log_for_that_file_only(
    own_copy: Path, tree: Path, reading: type[Reading]
) -> None:
    archives.damage(own_copy, "sub/deep", 17)
    archives.damage(own_copy, "big", BLOCK + 5)
    whole = (tree / "big").read_bytes()
    with talk(own_copy, reading=reading) as talking:
        for _ in range(2):
            for offset, size in ((0, 1), (17, 1), (0, 5000), (4999, 1)):
                asked = kernel.read(NODES["sub/deep"], offset, size)
                assert talking.ask(asked) == Reply(2, errno.EIO)
            assert talking.ask(kernel.read(NODES["big"], 0, BLOCK)).payload == whole[:BLOCK]
            assert talking.ask(kernel.read(NODES["big"], BLOCK - 1, 2)) == Reply(2, errno.EIO)
            assert (
                talking.ask(kernel.read(NODES["big"], 2 * BLOCK, 9)).payload
                == (whole[2 * BLOCK : 2 * BLOCK + 9])
            )
            assert talking.ask(kernel.read(NODES["a.txt"], 0, 99)).payload == b"hello, kernel\n"
        lines = [line for line in talking.log if line.startswith("damaged: ")]
        assert len(lines) == len(talking.log) == 2
        assert "/sub/deep (record " in lines[0]
        assert "of copy.ffr)" in lines[0]
        assert "/big (record " in lines[1]
        assert is_well(talking, tree)


@pytest.mark.parametrize("reading", [Reading, ColdReading])
def test_a_file_that_is_cut_off_while_it_is_served_is_an_error_and_not_a_crash(
    own_copy: Path, tree: Path, reading: type[Reading]
) -> None:
    with talk(own_copy, reading=reading) as talking:
        assert talking.ask(kernel.read(NODES["sub/deep"], 0, 9)).error == 0
        os.truncate(own_copy, 90)  # the first record begins at 84
        for name in ("a.txt", "big", "sub/deep"):
            assert talking.ask(kernel.read(NODES[name], 0, 100)) == Reply(2, errno.EIO)
        assert sum(line.startswith("damaged: ") for line in talking.log) == 3
        assert is_well(talking, tree)


def test_statistics_are_those_of_the_archive_that_is_open(own_copy: Path) -> None:
    blocks = -(-own_copy.stat().st_size // 4096)
    with talk(own_copy) as talking:
        own_copy.unlink()
        reply = talking.ask(kernel.request(kernel.STATFS))
        assert reply.error == 0
        assert struct.unpack_from("=Q", reply.payload)[0] == blocks


def test_the_poison_is_where_the_tests_believe_it_to_be(warm: Kernel, tree: Path) -> None:
    assert stat.S_ISREG(os.lstat(tree / "poison").st_mode)
    assert warm.ask(kernel.read(NODES["poison"], 5, 3)).payload == bytes([POISON]) * 3

"""`archive.index` is compared with dictionaries, Python's sorting, and folders on a disk."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import PackedFolder, pack_folder
from ffrecord.archive.index import ROOT, Index, Status
from ffrecord.archive.index.build import Shard, Tree, build
from ffrecord.archive.index.check import _in_order
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.index.resolve import resolve
from ffrecord.errors import IndexStructureError
from ffrecord.format import index as index_layout

BLOCK = 128 << 10
COLLIDING = (b"plumless", b"buckeroo")  # two names with the same CRC-32


# ---- a model of a tree in plain dictionaries -------------------------------------------------


@dataclass(eq=False)
class Node:
    """A file, a folder or a symlink. A file with several names is in several dictionaries."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    children: dict[bytes, Node] = field(default_factory=dict)
    target: bytes = b""
    size: int = 0
    record: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


def a_folder(**children: Node) -> Node:
    named = {name.encode(): node for name, node in children.items()}
    return Node(stat.S_IFDIR | 0o755, children=named)


def a_file(size: int = 0, record: int = 0) -> Node:
    return Node(stat.S_IFREG | 0o644, size=size, record=record)


def a_symlink(target: bytes) -> Node:
    return Node(stat.S_IFLNK | 0o777, target=target)


def breadth_first(root: Node) -> Iterator[tuple[bytes, Node, Node]]:
    """Yield every path, its folder and its node."""
    waiting = [(b"", root)]
    for path, folder in waiting:  # the list grows during the loop
        for name, node in sorted(folder.children.items(), key=lambda item: item[0]):
            yield path + name, folder, node
            if node.is_folder:
                waiting.append((path + name + b"/", node))


def numbered(root: Node) -> dict[Node, int]:
    """Return the inode numbers of a model: the root first, then in the order of `breadth_first`."""
    numbers = {root: ROOT}
    for _, _, node in breadth_first(root):
        numbers.setdefault(node, len(numbers))
    return numbers


def tree_of(root: Node) -> Tree:
    tree = Tree()
    numbers = numbered(root)
    for node, number in numbers.items():
        length = node.size if node.is_file else len(node.target)
        assert tree.add_inode(node.mode, node.uid, node.gid, node.mtime, length) == number
        tree.record[number] = node.record
        if node.target:
            tree.targets[number] = node.target
        if node.xattrs:
            tree.xattrs[number] = node.xattrs
        if node.blocks:
            tree.blocks[number] = array("I", node.blocks)
    for path, folder, node in breadth_first(root):
        tree.add_entry(numbers[folder], path.rpartition(b"/")[2], numbers[node])
    return tree


def record_sizes(root: Node) -> npt.NDArray[np.int64]:
    """Return the sizes of all records. Records that hold no file have one byte."""
    files = [node for node in numbered(root) if node.is_file]
    sizes = np.ones(max((file.record for file in files), default=-1) + 2, np.int64)
    for file in files:
        sizes[file.record] = file.size
    return sizes


def index_of(root: Node) -> Index:
    return Index("model.ffr", build(tree_of(root)), record_sizes(root))


ALLOWED = bytes.maketrans(b"\0/", b"\1\2")  # replaces the two bytes that no name can have
NAMES = (
    st.one_of(
        st.text("ab", min_size=1, max_size=3).map(str.encode),
        st.binary(min_size=1, max_size=20),
        st.binary(min_size=255, max_size=255),
        st.integers(0, 3).map(lambda length: b"long" * 63 + b"x" * length),
    )
    .map(lambda name: name.translate(ALLOWED))
    .filter(lambda name: name not in (b".", b".."))
)
TARGETS = st.binary(min_size=1, max_size=100).map(lambda target: target.translate(ALLOWED))
SIZES = st.one_of(
    st.integers(0, 300), st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 7])
)
XATTRS = st.lists(
    st.tuples(st.text("xyz", max_size=9).map(str.encode), st.binary(max_size=20)),
    max_size=3,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: tuple((b"user." + name, value) for name, value in pairs))
U32 = st.integers(0, (1 << 32) - 1)


@st.composite
def models(draw: st.DrawFn) -> Node:
    root = Node(stat.S_IFDIR | draw(st.integers(0, 0o7777)))
    folders: list[Node] = [root]
    others: list[Node] = []
    for _ in range(draw(st.integers(0, 20))):
        folder, name = draw(st.sampled_from(folders)), draw(NAMES)
        if name in folder.children:
            continue
        kind = draw(st.sampled_from(["file", "file", "folder", "symlink", "another name"]))
        if kind == "another name" and others:
            folder.children[name] = draw(st.sampled_from(others))
            continue
        node = Node(
            draw(st.integers(0, 0o7777)), draw(U32), draw(U32),
            draw(st.integers(-(1 << 63), (1 << 63) - 1)), draw(XATTRS),
        )  # fmt: skip
        folder.children[name] = node
        if kind == "folder":
            node.mode |= stat.S_IFDIR
            folders.append(node)
        elif kind == "symlink":
            node.mode |= stat.S_IFLNK
            node.target = draw(TARGETS)
            others.append(node)
        else:
            node.mode |= stat.S_IFREG
            node.size = draw(SIZES)
            if node.size > BLOCK:
                count = -(-node.size // BLOCK)
                node.blocks = draw(st.lists(U32, min_size=count, max_size=count))
            others.append(node)
    files = [node for node in others if node.is_file]
    records = draw(st.permutations(range(len(files) + 2)))  # any order; two records hold no file
    for file, record in zip(files, records, strict=False):
        file.record = record
    return root


# ---- everything in a tree is found in its index ----------------------------------------------


@given(models())
def test_every_inode_has_the_attributes_it_was_built_with(root: Node) -> None:
    index, numbers = index_of(root), numbered(root)
    names = [node for _, _, node in breadth_first(root)]
    assert len(index) == len(numbers)
    for node, inode in numbers.items():
        size = 4096 if node.is_folder else node.size if node.is_file else len(node.target)
        links = names.count(node)
        if node.is_folder:
            links = 2 + sum(child.is_folder for child in node.children.values())
        expected = Status(inode, node.mode, links, node.uid, node.gid, size, node.mtime)
        assert index.status(inode) == expected
        assert index.mode(inode) == node.mode
        assert index.xattrs(inode) == dict(node.xattrs)
        if node.target:
            assert index.target(inode) == node.target
        if node.is_file:
            assert index.record(inode) == node.record
            checksums = index.block_checksums(inode)
            assert (checksums.tolist() if checksums is not None else []) == node.blocks
    records = [node.record if node.is_file else MISSING for node in numbers]
    assert index.records(np.arange(len(numbers))).tolist() == records


@given(models())
def test_every_folder_has_the_children_it_was_built_with(root: Node) -> None:
    index, numbers = index_of(root), numbered(root)
    for node, inode in numbers.items():
        if not node.is_folder:
            continue
        expected = sorted((name, numbers[child]) for name, child in node.children.items())
        assert list(index.children(inode)) == expected
        assert [index.name(entry) for entry in index.entries(inode)] == sorted(node.children)
        for name, child in expected:
            assert index.child(inode, name) == child
            for other in (name + b"x", name[:-1], name + b"/", b"/" + name, b"", b".", b".."):
                assert (index.child(inode, other) == MISSING) == (other not in node.children)


@given(models())
def test_every_path_leads_to_its_inode_and_back(root: Node) -> None:
    index, numbers = index_of(root), numbered(root)
    first: dict[Node, tuple[bytes, Node]] = {root: (b"", root)}
    for path, folder, node in breadth_first(root):
        first.setdefault(node, (path, folder))
        assert resolve(index, path, follow=False) == numbers[node]
        assert resolve(index, b"/./" + path, follow=False) == numbers[node]
    for node, (path, folder) in first.items():
        assert index.inode_path(numbers[node]) == path
        assert index.parent(numbers[node]) == numbers[folder]


@given(models(), st.data())
def test_paths_of_a_batch_are_found_or_missing_but_never_wrong(
    root: Node, data: st.DataObject
) -> None:
    index, numbers = index_of(root), numbered(root)
    there = {path: numbers[node] for path, _, node in breadth_first(root)}
    others = [b"", b"/", b"..", b"missing", b"missing/too"]
    for path in there:
        others += [path + b"x", path[:-1], path + b"/", b"/" + path, path + b"/..", path + b"/a"]
    paths = data.draw(st.lists(st.sampled_from([*there] * 3 + others), max_size=40))
    for _ in range(3):  # first with folders that are not cached, then with cached ones
        for path, inode in zip(paths, index.find(paths).tolist(), strict=True):
            # A hash may be hidden by others, but a result is always right.
            assert inode in (there.get(path, MISSING), MISSING)


def test_nearly_all_paths_are_found_by_their_hash() -> None:
    names = {b"%d.jpg" % (number * 7919): a_file(3, number) for number in range(5000)}
    root = Node(stat.S_IFDIR | 0o755, children={b"a": Node(stat.S_IFDIR, children=names)})
    index, numbers = index_of(root), numbered(root)
    paths = [b"a/" + name for name in names]
    due = np.array([numbers[names[path[2:]]] for path in paths])
    for size in len(paths), 100:  # the paths of the last names are built in another way
        for at in range(0, len(paths), size):
            found, right = index.find(paths[at : at + size]), due[at : at + size]
            assert (found == right).mean() > 0.97
            assert np.isin(found[found != right], MISSING).all()


def test_an_empty_path_is_not_a_file() -> None:
    """The hash of an empty path is 0. Any entry may be at the place of this hash."""
    for count in range(1, 60):
        names = {b"%d" % (number * 7919): a_file(3, number) for number in range(count)}
        index = index_of(Node(stat.S_IFDIR, children=names))
        for path in b"", b"/", b"//", b".":
            assert index.find([path, path]).tolist() == [MISSING] * 2
        assert index.find([min(names)]).tolist() == [1]


def test_names_with_the_same_hash_are_distinguished() -> None:
    assert zlib.crc32(COLLIDING[0]) == zlib.crc32(COLLIDING[1])
    for prefix in ("", "sub/"):
        files = [a_file(number, number) for number in range(2)]
        folder = Node(stat.S_IFDIR, children=dict(zip(COLLIDING, files, strict=True)))
        folder.children[b"a"] = a_file(7, 2)
        root = a_folder(sub=folder) if prefix else folder
        index, numbers = index_of(root), numbered(root)
        paths = [prefix.encode() + name for name in COLLIDING]
        for name, path, file in zip(COLLIDING, paths, files, strict=True):
            assert index.child(numbers[folder], name) == numbers[file]
            assert resolve(index, path) == numbers[file]
        found = index.find(paths).tolist()
        right = [numbers[file] for file in files]
        assert all(got in (due, MISSING) for got, due in zip(found, right, strict=True))
        assert found != [MISSING, MISSING]


@pytest.mark.parametrize("there", COLLIDING)
def test_a_name_with_the_hash_of_another_is_missing(there: bytes) -> None:
    (missing,) = set(COLLIDING) - {there}
    index = index_of(Node(stat.S_IFDIR, children={b"a": a_file(), there: a_file(0, 1)}))
    assert index.find([there, missing]).tolist() == [2, MISSING]
    assert index.child(ROOT, missing) == MISSING
    with pytest.raises(FileNotFoundError):
        resolve(index, missing)


@given(models(), st.lists(U32, min_size=1, max_size=5))
def test_wrong_hashes_change_no_answer(root: Node, hashes: list[int]) -> None:
    image = bytearray(build(tree_of(root)))
    tables = index_layout.parse("model.ffr", bytes(image))
    count = len(tables.hashes)
    wrong = np.resize(np.array(hashes, np.uint32), count).tobytes()
    image[(at := index_layout.section_offset(tables, "hashes")) : at + len(wrong)] = wrong
    index, numbers = Index("model.ffr", bytes(image), record_sizes(root)), numbered(root)
    for path, folder, node in breadth_first(root):
        assert index.find([path]).tolist()[0] in (numbers[node], MISSING)
        assert index.find([path]).tolist()[0] in (
            numbers[node],
            MISSING,
        )  # now the folder is cached
        assert index.child(numbers[folder], path.rpartition(b"/")[2]) == numbers[node]
        assert resolve(index, path, follow=False) == numbers[node]
        assert index.child(numbers[folder], b"\xff" * 300) == MISSING


@pytest.mark.parametrize("inode", [-1, 1, 1 << 40])
def test_a_missing_inode_is_an_index_error(inode: int) -> None:
    index = index_of(a_folder())
    for look in (index.status, index.mode, index.record, index.target, index.entries):
        with pytest.raises(
            IndexError, match=rf"model\.ffr: inode {inode} is not among its 1 inode"
        ):
            look(inode)


# ---- the image -------------------------------------------------------------------------------


def test_the_image_of_a_small_folder_follows_the_format() -> None:
    """The expected bytes are all made here, with `struct`."""
    root = a_folder(a=a_file(5, record=1), d=a_folder(), s=a_symlink(b"a"))
    for number, node in enumerate(numbered(root)):
        node.mtime, node.uid, node.gid = 1000 + number, 10 + number, 20 + number
    root.children[b"a"].xattrs = ((b"user.x", b"why"),)
    hashes = sorted((zlib.crc32(name), entry) for entry, name in enumerate([b"a", b"d", b"s"]))
    inode, entry = struct.Struct("<QQqII"), struct.Struct("<QII")
    expected = (
        struct.pack("<10Q", 4, 3, 3, 4, 1, 0, 0, 1, 24, 3)
        + inode.pack(0, 3, 1000, 0, 0xFFFFFFFF)  # the root: entries 0 to 2
        + inode.pack(1, 5, 1001, 1, 0)  # a: record 1
        + inode.pack(3, 0, 1002, 2, 1)  # d: no entries, after the entries of the root
        + inode.pack(0, 1, 1003, 3, 2)  # s: the first text
        + entry.pack(1, 1, 0) + entry.pack(2, 2, 0) + entry.pack(3, 3, 0)
        + struct.pack("<3I4x", *(crc for crc, _ in hashes))
        + struct.pack("<3I4x", *(number for _, number in hashes))
        + struct.pack("<6I", stat.S_IFDIR | 0o755, 10, 20, 3, 0, 0)
        + struct.pack("<6I", stat.S_IFREG | 0o644, 11, 21, 1, 0, 1)
        + struct.pack("<6I", stat.S_IFDIR | 0o755, 12, 22, 2, 0, 0)
        + struct.pack("<6I", stat.S_IFLNK | 0o777, 13, 23, 1, 0, 0)
        + struct.pack("<QII", 1, 6, 3)
        + struct.pack("<QQII", 2, 10, 14, 0xC0FFEE)
        + b"a" + b"user.xwhy" + b"PART_00000.ffr"
        + b"ads" + bytes(5)
    )  # fmt: skip
    assert build(tree_of(root), [Shard(b"PART_00000.ffr", 2, 0xC0FFEE)])[:] == expected


@given(models())
@settings(max_examples=30)
def test_the_same_tree_gives_the_same_bytes(root: Node) -> None:
    assert build(tree_of(root))[:] == build(tree_of(root))[:]


@given(models())
@settings(max_examples=50)
def test_equal_attributes_are_stored_once(root: Node) -> None:
    index, numbers = index_of(root), numbered(root)
    kept = set()
    for node, inode in numbers.items():
        xattrs = tuple(sorted(node.xattrs))
        kept.add((node.mode, node.uid, node.gid, index.status(inode).links, xattrs))
    assert len(index.tables.attributes) == len(kept)


@given(st.integers(0, 1 << 40), U32, U32)
def test_a_trailer_is_found_only_at_the_end_of_a_record(size: int, crc: int, salt: int) -> None:
    image = bytes(80 + salt % 3 * 8)
    raw = index_layout.trailer(image, crc)
    found = index_layout.parse_trailer("f.ffr", raw, size + len(image) + len(raw))
    assert found == index_layout.Trailer(len(image), crc)
    assert index_layout.parse_trailer("f.ffr", raw[1:], 1000) is None
    assert index_layout.parse_trailer("f.ffr", raw[:-1] + b"?", 1000) is None
    with pytest.raises(IndexStructureError, match=r"f\.ffr: .* its image claims"):
        index_layout.parse_trailer("f.ffr", raw, len(image) + len(raw) - 1)


@given(models())
@settings(max_examples=50)
def test_path_order_is_a_folder_and_then_its_contents(root: Node) -> None:
    tree = tree_of(root)
    paths = [path for path, _, _ in breadth_first(root)]  # entry by entry
    found = [(paths[entry], depth) for entry, depth in tree.in_path_order()]
    expected = sorted(paths, key=lambda path: path.split(b"/"))
    assert found == [(path, path.count(b"/") + 1) for path in expected]


@given(models(), st.data())
@settings(max_examples=60)
def test_removing_files_equals_never_adding_them(root: Node, data: st.DataObject) -> None:
    files = [node for node in numbered(root) if node.is_file]
    gone = data.draw(st.sets(st.sampled_from(files))) if files else set()
    numbers = {numbered(root)[node] for node in gone}
    left = tree_of(root).without(numbers)
    for folder in [node for node in numbered(root) if node.is_folder]:
        kept = {name: node for name, node in folder.children.items() if node not in gone}
        folder.children = kept
    assert build(left)[:] == build(tree_of(root))[:]


def test_a_wrong_hash_does_not_lead_into_a_folder_whose_path_is_too_long() -> None:
    deep = Node(stat.S_IFDIR, children={b"x": a_file(0, 1)})
    for _ in range(20):
        deep = Node(stat.S_IFDIR, children={b"d" * 255: deep})
    root = Node(stat.S_IFDIR, children={**deep.children, b"x": a_file(0, 0)})
    image = bytearray(build(tree_of(root)))
    tables = index_layout.parse("model.ffr", bytes(image))
    far_down = len(tables.entries) - 1
    hashed = np.full(len(tables.hashed), far_down, np.uint32).tobytes()
    hashes = np.full(len(tables.hashes), zlib.crc32(b"x"), np.uint32).tobytes()
    for section, column in (("hashes", hashes), ("hashed", hashed)):
        at = index_layout.section_offset(tables, section)
        image[at : at + len(column)] = column
    index, numbers = Index("model.ffr", bytes(image), record_sizes(root)), numbered(root)
    assert index.find([b"x", b"", b"/"]).tolist() == [MISSING] * 3
    assert resolve(index, b"x") == numbers[root.children[b"x"]]


# ---- the order of names ----------------------------------------------------------------------

BYTES = bytes(set(range(1, 256)) - {ord("/")})
PREFIXES = [b"", b"a", b"\xff", b"abcdefg", b"abcdefgh", b"abcdefghi", b"\x80" * 16, b"n" * 200]
SUFFIXES = st.lists(st.sampled_from(BYTES), max_size=10).map(bytes)
SIMILAR = st.tuples(st.sampled_from(PREFIXES), SUFFIXES).map(b"".join).filter(bool)
NUMBERED = st.integers(0, 200).map(lambda number: b"%04d" % number)


def in_order(folders: list[list[bytes]]) -> bool:
    """Call `_in_order` with the names of some folders, end to end as in an index."""
    names = [name for folder in folders for name in folder]
    length = np.array([len(name) for name in names], np.int64)
    owner = np.repeat(np.arange(len(folders)), [len(folder) for folder in folders])
    begin = np.cumsum(length) - length
    padded = bytearray(b"".join([*names, b"whatever"]))
    return _in_order(padded, begin, length, owner[1:] == owner[:-1])


def rising(folders: list[list[bytes]]) -> bool:
    return all(a < b for folder in folders for a, b in itertools.pairwise(folder))


@pytest.mark.parametrize("names", [SIMILAR, NUMBERED, SIMILAR | NUMBERED])
def test_names_are_in_order_if_python_sorts_them_the_same(names: st.SearchStrategy[bytes]) -> None:
    @given(st.lists(st.lists(names, min_size=1, max_size=80), min_size=1, max_size=3), st.data())
    @settings(max_examples=150)
    def check(folders: list[list[bytes]], data: st.DataObject) -> None:
        assert in_order(folders) == rising(folders)
        ordered = [sorted(set(folder)) for folder in folders]
        assert in_order(ordered)
        # Two neighbours in the wrong order, or equal, among many in the right order.
        folder = data.draw(st.sampled_from(ordered))
        if len(folder) > 1:
            at = data.draw(st.integers(1, len(folder) - 1))
            folder[at - 1 : at + 1] = [folder[at], folder[at - 1]]
            assert not in_order(ordered)
            folder[at - 1] = folder[at]
            assert not in_order(ordered)

    check()


@given(SIMILAR, SUFFIXES.filter(bool))
def test_a_name_comes_before_longer_names_that_begin_with_it(name: bytes, more: bytes) -> None:
    assert in_order([[name, name + more]])
    assert not in_order([[name + more, name]])
    assert in_order([[name + more], [name]])  # the order of folders does not matter


BYTES_OF_NAMES = st.integers(1, 255).filter(lambda byte: byte != ord("/"))


@given(BYTES_OF_NAMES, BYTES_OF_NAMES)
def test_bytes_compare_as_unsigned_numbers(low: int, high: int) -> None:
    for before, after in ((b"", b""), (b"12345678", b""), (b"1234567", b"x" * 9), (b"", b"xyz")):
        pair = [before + bytes([low]) + after, before + bytes([high]) + after]
        assert in_order([pair]) == (low < high)
        many = [b"\1" * len(pair[0])] * (pair[0] > b"\1" * len(pair[0])) + pair
        assert in_order([many]) == (low < high)


# ---- paths, compared with a folder on a disk -------------------------------------------------

SYMLINKS = {
    "link": "file", "folder-link": "folder", "slash": "folder/", "file-slash": "file/",
    "file-dot": "file/.", "here": ".", "loop": "loop", "loop-1": "folder/loop-2",
    "folder/loop-2": "../loop-1", "dangling": "missing", "folder/up": "..",
    "folder/up-file": "../file", "folder/sub/far": "../../folder-link/./sub/deep",
    "folder/sub/round": "../up/folder//sub", "through-file": "file/file",
    # out of the archive
    "out": "../outside", "out-file": "../outside/secret", "out-up": "..",
    "folder/sub/out": "../../../outside", "by-out": "out/secret", "folder/deep-out": "up/out-up",
}  # fmt: skip
CHAIN = 42
COMPONENTS = [
    "", ".", "..", "..", "file", "folder", "folder", "sub", "sub", "deep", "empty", "missing",
    "secret", "c01", "c30", "c39", "c40", "c41", "k01", "k20", "k39", "k40",
    *(Path(name).name for name in SYMLINKS),
]  # fmt: skip


@dataclass(frozen=True)
class OnDisk:
    """A folder with symlinks of all kinds, and the index of its archive."""

    root: str
    index: Index


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnDisk]:
    top = tmp_path_factory.mktemp("resolve")
    root = top / "root"
    for folder in ("root/folder/sub", "root/empty", "outside"):
        (top / folder).mkdir(parents=True)
    for file in ("root/file", "root/folder/file", "root/folder/sub/deep", "outside/secret"):
        (top / file).write_text(file)
    for name, target in SYMLINKS.items():
        (root / name).symlink_to(target)
    (root / "absolute").symlink_to(top / "outside")
    for letter, end in (("c", "file"), ("k", "folder")):  # number k needs k symlinks
        for number in range(1, CHAIN):
            target = f"{letter}{number - 1:02d}" if number > 1 else end
            (root / f"{letter}{number:02d}").symlink_to(target)
    pack_folder(root, top / "packed.ffr")
    with PackedFolder(top / "packed.ffr") as packed:
        yield OnDisk(os.path.realpath(root), packed.archive.index)


def found_on_disk(root: str, path: str, follow: bool) -> str | int:
    """Return where a path leads on a disk, from the root, or the number of the error."""
    at = root
    names = path.split("/")
    for number, name in enumerate(names):
        if name == ".." and os.path.realpath(at) == root:
            continue  # the root is its own parent
        at = f"{at}/{name}"
        look = os.stat if follow or number < len(names) - 1 else os.lstat
        try:
            status = look(at)
        except OSError as error:
            return error.errno or 0
        if stat.S_ISLNK(status.st_mode):
            real = os.path.join(os.path.realpath(os.path.dirname(at)), name)
        else:
            real = os.path.realpath(at)
        if real != root and not real.startswith(root + "/"):
            return errno.EXDEV
    real = os.path.relpath(real, root) if at != root else "."
    return "" if real == "." else real


def found_in_archive(index: Index, path: str, follow: bool) -> str | int:
    try:
        return index.inode_path(resolve(index, path.encode(), follow=follow)).decode()
    except OSError as error:
        named, code = error.filename, error.errno or 0
    assert named == path
    return code


@given(st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=7), st.booleans())
@settings(max_examples=1000)
def test_a_path_leads_to_the_same_place_as_on_a_disk(
    on_disk: OnDisk, names: list[str], follow: bool
) -> None:
    path = "/".join(names)
    expected = found_on_disk(on_disk.root, path, follow)
    assert found_in_archive(on_disk.index, path, follow) == expected


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing", errno.ENOENT), ("file/", errno.ENOTDIR), ("file/.", errno.ENOTDIR),
        ("file/..", errno.ENOTDIR), ("dangling", errno.ENOENT), ("loop", errno.ELOOP),
        ("loop-1", errno.ELOOP), ("loop/..", errno.ELOOP), ("c41", errno.ELOOP),
        ("k21/../k20", errno.ELOOP), ("through-file", errno.ENOTDIR),
        ("file-slash", errno.ENOTDIR), ("out", errno.EXDEV), ("out/secret", errno.EXDEV),
        ("out/missing", errno.EXDEV), ("folder/deep-out", errno.EXDEV),
    ],
)  # fmt: skip
def test_a_broken_path_raises_the_same_error_as_on_a_disk(
    on_disk: OnDisk, path: str, code: int
) -> None:
    assert found_on_disk(on_disk.root, path, follow=True) == code
    assert found_in_archive(on_disk.index, path, follow=True) == code


@pytest.mark.parametrize("path", ["absolute", "absolute/secret", "absolute/../root/file"])
def test_an_absolute_symlink_leaves_the_archive(on_disk: OnDisk, path: str) -> None:
    """Even if the symlink leads into the packed folder: the archive may be used anywhere."""
    assert found_in_archive(on_disk.index, path, follow=True) == errno.EXDEV
    assert found_in_archive(on_disk.index, "absolute", follow=False) == "absolute"


@pytest.mark.parametrize("path", ["c40", "k20/../k20/deep/../../k01", "k40"])
def test_forty_symlinks_are_followed(on_disk: OnDisk, path: str) -> None:
    expected = found_on_disk(on_disk.root, path, follow=True)
    assert found_in_archive(on_disk.index, path, follow=True) == expected


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("", ""), ("/", ""), ("..", ""), ("/../..//.", ""), ("/file", "file"),
        ("folder/../file", "file"), ("../folder//sub/", "folder/sub"),
        ("slash/file", "folder/file"), ("folder/sub/far", "folder/sub/deep"),
        ("here/here/link", "file"),
    ],
)  # fmt: skip
def test_the_archive_is_the_root(on_disk: OnDisk, path: str, leads_to: str) -> None:
    assert found_in_archive(on_disk.index, path, follow=True) == leads_to


@given(st.lists(st.sampled_from(COMPONENTS), min_size=1, max_size=4), st.booleans())
def test_a_path_may_start_at_any_folder(on_disk: OnDisk, names: list[str], follow: bool) -> None:
    path = "/".join(names).lstrip("/")
    start = resolve(on_disk.index, b"folder/sub")
    expected = found_on_disk(on_disk.root, f"folder/sub/{path}", follow)
    try:
        inode = resolve(on_disk.index, path.encode(), follow=follow, start=start)
        found: str | int = on_disk.index.inode_path(inode).decode()
    except OSError as error:
        found = error.errno or 0
    assert found == expected
    absolute = resolve(on_disk.index, b"/file", start=start)
    assert on_disk.index.inode_path(absolute) == b"file"

"""Targets: our index, the original's pickle, whole archives and their shards."""

from __future__ import annotations

import io
import os
import pickle
import stat
import struct
import warnings
import zlib
from collections import OrderedDict
from typing import Any

import numpy as np

from ffrecord import PackedFolder
from ffrecord.archive.index import Index, legacy
from ffrecord.archive.index.lookup import MISSING
from ffrecord.archive.index.resolve import resolve
from ffrecord.errors import IndexStructureError, LegacyFileWarning
from tests.robustness.attacks.builders import (
    ITEMS,
    LEGACY_MAGIC,
    PICKLED_FILES,
    PIECES,
    Draft,
    Symlink,
    large_files,
    plant,
    sample,
    sharded,
)
from tests.robustness.attacks.builders import folder as pickled_folder
from tests.robustness.fuzzing import records, reference
from tests.robustness.fuzzing.scratch import Scratch, folder
from tests.robustness.fuzzing.target import Target
from tests.support import handmade

DRAFT = sample()
SIZES = [*(len(each) for each in DRAFT.files), 2 * 131072 + 5]
"""Sizes of the records that an image may name: the files of the sample, and a large file."""

OWNER = os.stat(os.sep)
NUMBERS = (0o040755, 0o100644, 0o120777, (1 << 32) - 1)


def _with_a_large_file() -> Draft:
    draft = plant({b"a": b"x", b"sub": {b"l": Symlink(b"../a")}, b"z": bytes(SIZES[-1])})
    for row in draft.inodes:
        if row.length == SIZES[-1]:
            row.data = len(SIZES) - 1
    draft.inode(b"a").data, draft.inode(b"a").length = 0, SIZES[0]
    return draft


def _with_hard_links() -> Draft:
    draft = plant({b"a": DRAFT.files[0], b"b": b"gone", b"c": DRAFT.files[1]})
    draft.entry(b"b").inode = draft.find(b"a")
    draft.inodes[3].entry = 2
    draft.inodes.pop(2)
    draft.entries[2].inode = 2
    draft.attributes_of(b"a").links = 2
    draft.inodes[2].data = 1
    return draft


IMAGES = (
    DRAFT.image(), _with_a_large_file().image(), _with_hard_links().image(), plant({}).image(),
    plant({bytes([97 + i]) * (1 + i % 9): DRAFT.files[0] for i in range(20)}).image(),
)  # fmt: skip


# ---- our index -------------------------------------------------------------------------------


def index() -> Target:
    sizes = np.array(SIZES, np.int64)

    def run(data: bytes) -> str:
        expected = reference.index(data, SIZES)
        try:
            found = Index("folder.ffr", data, sizes)
        except IndexStructureError:
            assert expected is None, "a valid index is refused"
            raise
        assert expected is not None, "an invalid index is accepted"
        return _compared(found, expected)

    tokens = (*(struct.pack("<I", number) for number in NUMBERS), b"..", b".", b"/", b"\0")
    return Target("index", run, IMAGES, tokens=tokens, in_place=True)


def _compared(found: Index, expected: reference.Index) -> str:
    """Check that every name, from the root down and all at once, leads to the expected inode."""
    paths = {0: b""}
    spelled: list[bytes] = []
    inodes: list[int] = []
    odd = False
    for folder_, (first, count, *_) in enumerate(expected.inodes):
        if folder_ not in paths:
            continue
        rows = range(first, first + count)
        due = [(expected.names[row], expected.entries[row][1]) for row in rows]
        assert list(found.children(folder_)) == due
        for name, inode in due:
            assert found.child(folder_, name) == inode
            assert found.child(folder_, name + b"x") != inode or (name + b"x", inode) in due
            path = paths[folder_] + name
            spelled.append(path)
            inodes.append(inode)
            assert resolve(found, path, follow=False) == inode
            if found.status(inode).is_folder:
                paths[inode] = path + b"/"
    for inode, due_inode in zip(found.find(spelled).tolist(), inodes, strict=True):
        assert inode in (due_inode, MISSING)  # a wrong hash makes a lookup slow, not wrong
    for inode in range(len(found)):
        odd |= _looked_at(found, expected, inode)
    return "odd attributes" if odd else "sound"


def _looked_at(found: Index, expected: reference.Index, inode: int) -> bool:
    """Compare one inode; return True if its target or attributes are refused on access."""
    status, (data, length, mtime, row, _) = found.status(inode), expected.inodes[inode]
    mode, uid, gid, links, first, count = expected.attributes[row]
    assert (status.mode, status.uid, status.gid, status.links) == (mode, uid, gid, links)
    assert status.mtime_ns == mtime
    odd = False
    if status.is_file:
        assert (status.size, found.record(inode)) == (length, data)
        assert SIZES[data] == length
    elif status.is_symlink:
        target = expected.texts[data : data + length]
        try:
            assert found.target(inode) == target
        except IndexStructureError:
            assert b"\0" in target
            odd = True
    try:
        xattrs = found.xattrs(inode)
    except IndexStructureError:
        return True
    due = {}
    for text, name, value in expected.xattrs[first : first + count]:
        both = expected.texts[text : text + name + value]
        due[both[:name]] = both[name:]
    assert xattrs == due
    assert all(name.startswith(b"user.") for name in xattrs)
    return odd


# ---- the original's --------------------------------------------------------------------------


class _OnlyFolders(pickle._Unpickler):
    """Python's own unpickler, restricted to the class OrderedDict.

    This is the version in Python. The version in C reads a stream with nested frames differently
    from the same bytes in memory.
    """

    asked_for_more = False

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("collections", "OrderedDict"):
            self.asked_for_more = True
            raise pickle.UnpicklingError(f"{module}.{name}")
        return OrderedDict


_NAMES = tuple("ab")
_REPEATED = OrderedDict((top, OrderedDict((name, 1) for name in _NAMES)) for top in "cdé")
PICKLES = (
    pickle.dumps({"a": 0, "b": {"c": 1, "d": {}}}, 4),
    pickle.dumps(OrderedDict(a=0, b=OrderedDict(c=1), d=OrderedDict()), 2),
    pickle.dumps(OrderedDict(a=0, b=OrderedDict(c=300), d=1 << 40), 5),
    pickled_folder(b"".join([ITEMS[0], ITEMS[1], ITEMS[2], ITEMS[4], ITEMS[3], b"u"])),
    b"\x80\x02}(" + ITEMS[1] + ITEMS[2] + b"u.",
    *(pickle.dumps(_REPEATED, protocol) for protocol in (3, 4)),
)
DANGEROUS = (b"cos\nsystem\n", b"cbuiltins\neval\n", b"\x8c\x02os\x8c\x06system\x93", b"(lp0\n")


def pickles() -> Target:
    def run(data: bytes) -> str:
        try:
            found = legacy.parse("folder.ffr", data)
        except IndexStructureError:
            _tree(data)
            raise
        python = _OnlyFolders(io.BytesIO(data))
        try:
            expected = python.load()
        except Exception:  # Python refuses more, such as a misplaced mark
            assert not python.asked_for_more, "a pickle with a call is accepted"
            expected = found
        assert found == expected
        tree = _tree(data)
        return "a tree" if tree else "other names or records"

    return Target("pickle", run, PICKLES, tokens=(*PIECES, *ITEMS, *DANGEROUS))


def _tree(data: bytes) -> bool:
    """Build the tree in both ways; return False if its names or records are refused."""
    owned = (OWNER.st_uid, OWNER.st_gid, OWNER.st_mtime_ns)
    try:
        structure = legacy.parse("folder.ffr", data, most_entries=1000)
        tree = legacy.tree_of("folder.ffr", structure, [5, 7], owned)
    except IndexStructureError as error:
        _refused_in_the_same_words(data, str(error))
        return False
    scanned = legacy.read_tree("folder.ffr", LEGACY_MAGIC + data, np.array([5, 7]), OWNER, 1000)
    assert scanned.columns == tree.columns
    assert list(scanned.names) == list(tree.names)
    assert (scanned.inode, scanned.parent) == (tree.inode, tree.parent)
    assert all(name not in (b"", b".", b"..") for name in tree.names)
    assert not any(b"/" in name or b"\0" in name for name in tree.names)
    assert all(not tree.is_file(i) or tree.length[i] in (5, 7) for i in range(len(tree)))
    return True


def _refused_in_the_same_words(data: bytes, expected: str) -> None:
    try:
        legacy.read_tree("folder.ffr", LEGACY_MAGIC + data, np.array([5, 7]), OWNER, 1000)
    except IndexStructureError as error:
        found = str(error)
    else:
        raise AssertionError("the scan accepts what the interpreter refuses")
    assert found == expected


# ---- whole archives --------------------------------------------------------------------------


def sealed_archive(data: bytes) -> bytes:
    """Return an archive with correct checksums of its index, records and header."""
    found = reference.header(records.sealed(data))
    if found is not None and found[0] and len(data) - found[1][-2] >= 24:
        length, _, version, magic = struct.unpack("<QII8s", data[-24:])
        if magic == b"FFRINDEX" and length <= len(data) - found[1][-2] - 24:
            crc = zlib.crc32(data[len(data) - 24 - length : len(data) - 24])
            data = data[:-24] + struct.pack("<QII8s", length, crc, version, magic)
    return records.sealed_with_records(data)


ARCHIVES = (
    DRAFT.archive(), plant({}).archive(),
    plant({b"a": b"x", b"b": {b"c": Symlink(b"../a")}}).archive(),
    *(handmade.record_bytes([*PICKLED_FILES, LEGACY_MAGIC + each]) for each in PICKLES),
)  # fmt: skip


def look_at_everything(packed: PackedFolder) -> None:
    """Check that an archive is consistent. Reading symlinks and attributes may be refused."""
    files = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        assert packed.is_dir(folder)
        for name, inode in packed.archive.index.children(packed.stat(folder).st_ino - 1):
            path = f"{folder}/{name.decode('utf-8', 'surrogateescape')}".lstrip("/")
            status = packed.stat(path, follow_symlinks=False)
            assert status.st_ino == inode + 1
            refusable(packed.xattrs, path, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            elif stat.S_ISREG(status.st_mode):
                files.append(path)
                assert len(packed.read_one(path)) == status.st_size
            else:
                refusable(packed.readlink, path)
                refusable(packed.read_one, path)
    assert sorted(packed) == sorted(files)
    assert [len(content) for content in packed.read(files)] == [
        packed.stat(file).st_size for file in files
    ]


def refusable(look: Any, *args: Any, **options: Any) -> None:
    try:
        look(*args, **options)
    except (IndexStructureError, OSError):
        return


def archives() -> Target:
    """Fuzz whole archives: open one and read every file in it."""
    scratch = Scratch(folder() / "folder.ffr")
    warnings.simplefilter("ignore", LegacyFileWarning)

    def run(data: bytes) -> str:
        with PackedFolder(scratch.fill(data), mode="buffered") as packed:
            look_at_everything(packed)
        return "sound"

    tokens = (b"FFRINDEX", LEGACY_MAGIC)
    return Target("archive", run, ARCHIVES, sealed_archive, tokens, in_place=True)


# ---- shards ----------------------------------------------------------------------------------

_SHARDS = sharded(sample())


def joined(files: dict[str, bytes]) -> bytes:
    """Join files into one input: the length of each, then all of them end to end."""
    lengths = [len(each) for each in files.values()]
    return struct.pack(f"<{len(files)}H", *lengths) + b"".join(files.values())


def split(data: bytes, names: list[str]) -> dict[str, bytes]:
    """Split an input as `joined` made it; leftover bytes belong to the last file."""
    front = 2 * len(names)
    lengths = struct.unpack(f"<{len(names)}H", data[:front].ljust(front, b"\0"))
    files, at = {}, front
    for name, length in zip(names, lengths, strict=True):
        end = None if name == names[-1] else at + length
        files[name] = data[at:end]
        at += length
    return files


def sealed_shards(data: bytes) -> bytes:
    """Correct the checksums of each file, but not the shards' checksums in the index."""
    files = split(data, list(_SHARDS))
    return joined({name: sealed_archive(each)[:65535] for name, each in files.items()})


def shards() -> Target:
    top = folder() / "folder"
    top.mkdir()
    warnings.simplefilter("ignore", LegacyFileWarning)
    scratches = {name: Scratch(top / name) for name in _SHARDS}

    def run(data: bytes) -> str:
        for name, content in split(data, list(_SHARDS)).items():
            scratches[name].fill(content)
        with PackedFolder(top, mode="buffered") as packed:
            look_at_everything(packed)
        return "sound"

    large = sharded(large_files())
    assert list(large) == list(_SHARDS)
    return Target("shards", run, (joined(_SHARDS),), sealed_shards, in_place=True)

"""The index of the original FFRecord.

Its pickles are compared with `pickle`, its archives are made by hand, and archives of this library
are read as the original reads them.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import stat
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import PackedFolder, pack_folder
from ffrecord.archive.index import legacy
from ffrecord.archive.index.build import Tree
from ffrecord.errors import IndexStructureError, NotPackedFolderError, SampleChecksumError
from ffrecord.records.table import Table
from tests.support import handmade

Structure: TypeAlias = "OrderedDict[str, int | Structure]"

MAGIC = b"piouhjgbr"
PROTOCOLS = (2, 3, 4, 5)
BLOCK = 128 << 10

# Only a few names, so that many folders have the same name and pickles take it from the memo.
SHARED_NAMES = ["a", "b", "train", "é", "日本", "\udcff.bin", "n" * 300]
NAMES = st.one_of(st.sampled_from(SHARED_NAMES), st.text(min_size=0, max_size=5))
RECORDS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
STRUCTURES: st.SearchStrategy[Structure] = st.deferred(
    lambda: st.lists(st.tuples(NAMES, RECORDS | STRUCTURES), max_size=5).map(OrderedDict)
)


def plain(structure: Structure) -> dict[str, Any]:
    """Return the same structure as plain dictionaries."""
    return {
        name: plain(value) if isinstance(value, dict) else value
        for name, value in structure.items()
    }


def names_in(structure: Structure) -> int:
    return sum(1 + names_in(v) if isinstance(v, dict) else 1 for v in structure.values())


def pickled_by_python(structure: Structure, protocol: int) -> bytes:
    """Pickle with the pickler written in Python, whose output differs from the one in C."""
    file = io.BytesIO()
    pickle._Pickler(file, protocol).dump(structure)
    return file.getvalue()


def opcodes(raw: bytes) -> set[str]:
    return {opcode.name for opcode, _, _ in pickletools.genops(raw)}


# ---- reading pickles -------------------------------------------------------------------------


@given(STRUCTURES, st.sampled_from(PROTOCOLS))
def test_a_pickle_of_folders_is_read_like_pickle_reads_it(
    structure: Structure, protocol: int
) -> None:
    for raw in (
        pickle.dumps(structure, protocol),
        pickled_by_python(structure, protocol),
        pickle.dumps(plain(structure), protocol),
        pickletools.optimize(pickle.dumps(structure, protocol)),
    ):
        found = legacy.parse("f.ffr", raw, most_entries=names_in(structure))
        assert found == pickle.loads(raw)
        assert list(found) == list(structure)  # the same order


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2000, 2001, 5000])
def test_a_folder_of_any_number_of_files_is_read(count: int, protocol: int) -> None:
    """`pickle` sets a single item alone, and several items a thousand at a time."""
    structure: Structure = OrderedDict((f"{number}.jpg", number) for number in range(count))
    structure["inner"] = OrderedDict(structure)
    raw = pickle.dumps(structure, protocol)
    assert legacy.parse("f.ffr", raw) == pickle.loads(raw) == structure


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_pickles_of_these_tests_use_all_opcodes_of_the_parser(protocol: int) -> None:
    """Otherwise the tests above might miss opcodes of real pickles."""
    many: Structure = OrderedDict((f"{number}", 70_000 * number) for number in range(300))
    structure: Structure = OrderedDict(
        one=OrderedDict(many=0), many=many, none=OrderedDict(), small=300, large=1 << 40
    )
    structure["n" * 300] = OrderedDict(many=1)
    raw = pickle.dumps(structure, protocol)
    assert legacy.parse("f.ffr", raw) == structure
    expected = {
        "PROTO", "MARK", "STOP", "EMPTY_TUPLE", "REDUCE", "SETITEM", "SETITEMS", "BINUNICODE",
        "BININT1", "BININT2", "BININT", "LONG1", "BINGET",
    }  # fmt: skip
    if protocol < 4:
        expected |= {"GLOBAL", "BINPUT", "LONG_BINPUT"}
    else:
        expected |= {"FRAME", "STACK_GLOBAL", "MEMOIZE", "SHORT_BINUNICODE"}
    assert opcodes(raw) == expected


def test_names_beyond_the_first_256_in_the_memo_are_fetched() -> None:
    names = [f"name-{number}" for number in range(400)]
    structure: Structure = OrderedDict(
        one=OrderedDict((name, 0) for name in names), two=OrderedDict((name, 1) for name in names)
    )
    for protocol in PROTOCOLS:
        raw = pickle.dumps(structure, protocol)
        assert {"LONG_BINGET", "BINGET"} <= opcodes(raw)
        assert legacy.parse("f.ffr", raw) == structure


@given(STRUCTURES, st.sampled_from(PROTOCOLS), st.binary(max_size=50))
@settings(max_examples=50)
def test_bytes_after_a_pickle_are_ignored(
    structure: Structure, protocol: int, garbage: bytes
) -> None:
    raw = pickle.dumps(structure, protocol)
    assert legacy.parse("f.ffr", raw + garbage) == pickle.loads(raw + garbage)


@given(STRUCTURES, st.sampled_from(PROTOCOLS))
@settings(max_examples=30)
def test_a_truncated_pickle_is_refused(structure: Structure, protocol: int) -> None:
    raw = pickle.dumps(structure, protocol)
    for end in range(len(raw)):
        with pytest.raises(IndexStructureError, match=r"^f\.ffr: "):
            legacy.parse("f.ffr", raw[:end])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("width", [1, 2])
def test_4_096_levels_of_folders_are_read_without_recursion(protocol: int, width: int) -> None:
    """Deeper pickles are refused. Each level has one item (SETITEM) or more (SETITEMS)."""
    make = b"ccollections\nOrderedDict\n)R"
    name, other = b"X\1\0\0\0d", b"X\1\0\0\0eK\0"
    begin, end = (name, b"s") if width == 1 else (b"(" + other + name, b"u")
    raw = bytes([0x80, protocol]) + make + (begin + make) * 4_096 + end * 4_096 + b"."
    found, depth = legacy.parse("f.ffr", raw), 0
    while found:
        assert set(found) == {"d"} | ({"e"} if width == 2 else set())
        found, depth = found["d"], depth + 1
    assert depth == 4_096


# ---- writing pickles -------------------------------------------------------------------------


def dumped(structure: Structure, link_from: int = 1 << 63) -> bytes:
    """Return the pickle of a tree of these names.

    Names with records from `link_from` on are symlinks to files; names with negative records are
    broken symlinks.
    """
    tree = Tree()
    links: dict[int, int | None] = {}
    waiting = [(tree.add_inode(stat.S_IFDIR | 0o755, 0, 0, 0), structure)]
    for parent, folder in waiting:  # the list grows during the loop
        for name in sorted(folder, key=os.fsencode):
            value = folder[name]
            if isinstance(value, dict):
                inode = tree.add_inode(stat.S_IFDIR | 0o755, 0, 0, 0)
                waiting.append((inode, value))
            elif not 0 <= value < link_from:
                inode = tree.add_inode(stat.S_IFLNK | 0o777, 0, 0, 0)
                links[len(tree.names)] = value if value >= 0 else None
            else:
                inode = tree.add_inode(stat.S_IFREG | 0o644, 0, 0, 0, record=value)
            tree.add_entry(parent, os.fsencode(name), inode)
    return b"".join(legacy.pickled(tree, links.__getitem__))


FILE_NAMES = (
    st.binary(min_size=1, max_size=20)
    .map(lambda name: name.translate(bytes.maketrans(b"\0/", b"\1\2")))
    .filter(lambda name: name not in (b".", b".."))
    .map(os.fsdecode)
)
FOLDERS: st.SearchStrategy[Structure] = st.deferred(
    lambda: st.lists(
        st.tuples(FILE_NAMES, st.integers(0, (1 << 63) - 1) | FOLDERS), max_size=4
    ).map(OrderedDict)
)


@given(FOLDERS)
def test_pickle_loads_a_pickle_that_was_written_here(structure: Structure) -> None:
    raw = dumped(structure)
    assert raw.startswith(MAGIC)
    loaded = pickle.loads(raw[len(MAGIC) :])
    assert plain(loaded) == plain(structure)
    assert legacy.parse("f.ffr", raw[len(MAGIC) :]) == plain(structure)
    waiting = [loaded]
    for folder in waiting:
        assert type(folder) is OrderedDict
        assert list(folder) == sorted(folder, key=os.fsencode)
        waiting += [value for value in folder.values() if isinstance(value, dict)]


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 3001])
def test_a_folder_of_any_number_of_files_is_written(count: int) -> None:
    structure: Structure = OrderedDict((f"{number:06d}", number) for number in range(count))
    structure["inner"] = OrderedDict(structure)
    assert pickle.loads(dumped(structure)[len(MAGIC) :]) == structure


def test_symlinks_are_written_as_the_files_they_lead_to_or_left_out() -> None:
    structure: Structure = OrderedDict(a=0, b=OrderedDict(c=1, d=-1), e=3, f=-1)
    loaded = pickle.loads(dumped(structure, link_from=3)[len(MAGIC) :])
    assert loaded == {"a": 0, "b": {"c": 1}, "e": 3}


# ---- archives of the original ----------------------------------------------------------------

CONTENTS = handmade.random_records([0, 1, 5000, BLOCK, 3 * BLOCK + 12_345])
ORIGINAL: Structure = OrderedDict(
    [
        ("empty.bin", 0),
        ("folder", OrderedDict([("one.bin", 1), ("sub", OrderedDict([("some.bin", 2)]))])),
        ("large", OrderedDict([("block.bin", 3), ("blocks.bin", 4)])),
        ("nothing", OrderedDict()),
    ]
)
PATHS = [
    "empty.bin", "folder/one.bin", "folder/sub/some.bin", "large/block.bin", "large/blocks.bin",
]  # fmt: skip


def original_archive(
    path: Path, structure: Structure = ORIGINAL, files: Sequence[bytes] = CONTENTS, **options: Any
) -> Path:
    """Write an archive like `pack_folder` of the original FFRecord."""
    return handmade.write_records(path, [*files, MAGIC + pickle.dumps(structure, **options)])


@pytest.fixture(params=PROTOCOLS)
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return original_archive(tmp_path / "original.ffr", protocol=request.param)


def test_an_archive_of_the_original_lists_and_reads(original: Path) -> None:
    with PackedFolder(original) as packed:
        assert sorted(packed) == PATHS
        assert packed.num_files() == len(PATHS)
        assert packed.list() == ["empty.bin", "folder", "large", "nothing"]
        assert packed.list("nothing") == []
        assert handmade.as_bytes(packed.read(PATHS)) == CONTENTS
        assert handmade.as_bytes(map(packed.read_one, PATHS)) == CONTENTS
        with pytest.raises(FileNotFoundError):
            packed.read_one("folder/two.bin")


def test_files_of_an_archive_of_the_original_are_read_only_with_its_time(original: Path) -> None:
    os.utime(original, ns=(1, 1_234_567_890_123_456_789))
    owner = original.stat()
    with PackedFolder(original) as packed:
        for path in [*PATHS, "", "folder", "folder/sub", "nothing"]:
            status = packed.stat(path)
            is_file = path in PATHS
            assert status.st_mode == (stat.S_IFREG | 0o444 if is_file else stat.S_IFDIR | 0o555)
            assert status.st_mtime_ns == 1_234_567_890_123_456_789
            assert (status.st_uid, status.st_gid) == (owner.st_uid, owner.st_gid)
            if is_file:
                assert status.st_size == len(CONTENTS[PATHS.index(path)])
                assert status.st_nlink == 1
            assert packed.xattrs(path) == {}
        assert [packed.stat(path).st_nlink for path in ("", "folder", "nothing")] == [5, 3, 2]


@given(st.integers(0, 4 * BLOCK), st.integers(0, 4 * BLOCK))
@settings(max_examples=30)
def test_ranges_of_a_large_file_of_the_original_are_read(
    tmp_path: Path, offset: int, length: int
) -> None:
    path = tmp_path / "original.ffr"
    if not path.exists():
        original_archive(path)
    with PackedFolder(path) as packed:
        found = packed.read_range("large/blocks.bin", offset, length).tobytes()
        assert found == CONTENTS[4][offset : offset + length]
        with packed.open("large/blocks.bin") as file:
            file.seek(offset)
            assert file.read(length) == found


@pytest.mark.parametrize("place", [0, BLOCK, 2 * BLOCK + 7, 3 * BLOCK + 12_344])
def test_a_flipped_byte_in_a_large_file_of_the_original_is_found_by_any_range(
    tmp_path: Path, place: int
) -> None:
    """Without block checksums, only the whole record can be verified."""
    path = original_archive(tmp_path / "original.ffr")
    raw = bytearray(path.read_bytes())
    raw[raw.index(CONTENTS[4]) + place] ^= 0x40
    path.write_bytes(raw)
    with PackedFolder(path) as packed:
        assert packed.read_one("large/block.bin").tobytes() == CONTENTS[3]
        for offset in (0, BLOCK, place):
            with pytest.raises(SampleChecksumError, match=r"original\.ffr: record 4 is damaged"):
                packed.read_range("large/blocks.bin", offset, 10)
        with pytest.raises(SampleChecksumError):
            packed.read_one("large/blocks.bin")
    with PackedFolder(path, check_data=False) as packed:
        assert len(packed.read_range("large/blocks.bin", place, 1)) == 1


def test_a_byte_flipped_after_a_range_was_verified_is_found(tmp_path: Path) -> None:
    """Later reads are compared with the block checksums that were computed first."""
    path = original_archive(tmp_path / "original.ffr")
    at = path.read_bytes().index(CONTENTS[4])
    with PackedFolder(path) as packed:
        assert packed.read_range("large/blocks.bin", 7, 3).tobytes() == CONTENTS[4][7:10]
        with path.open("r+b") as file:
            file.seek(at + BLOCK + 1)
            file.write(bytes([CONTENTS[4][BLOCK + 1] ^ 1]))
        assert packed.read_range("large/blocks.bin", 7, 3).tobytes() == CONTENTS[4][7:10]
        with pytest.raises(SampleChecksumError):
            packed.read_range("large/blocks.bin", BLOCK, 1)


def test_a_flipped_byte_in_the_index_of_the_original_is_found(original: Path) -> None:
    raw = bytearray(original.read_bytes())
    raw[raw.rindex(b"one.bin")] ^= 1
    original.write_bytes(raw)
    with pytest.raises(SampleChecksumError, match="record 5 is damaged"):
        PackedFolder(original)


def test_records_without_an_index_are_not_a_packed_folder(tmp_path: Path) -> None:
    for number, last in enumerate([b"", MAGIC[:-1], b"x" + MAGIC, pickle.dumps(ORIGINAL)]):
        path = handmade.write_records(tmp_path / f"{number}.ffr", [b"a file", last])
        with pytest.raises(NotPackedFolderError, match="not a packed folder"):
            PackedFolder(path)
        with pytest.raises(ValueError, match="not a packed folder"):  # as in the original
            PackedFolder(path)


def test_an_empty_folder_of_the_original_opens(tmp_path: Path) -> None:
    path = original_archive(tmp_path / "empty.ffr", OrderedDict(), [])
    with PackedFolder(path) as packed:
        assert packed.list(recursive=True) == []
        assert packed.is_dir("")


@given(FOLDERS)
@settings(max_examples=30)
def test_any_folder_of_the_original_opens_with_all_its_files(
    tmp_path: Path, structure: Structure
) -> None:
    files: list[bytes] = []

    def numbered(folder: Structure, prefix: str) -> Iterator[tuple[str, bytes]]:
        for name, value in folder.items():
            if isinstance(value, dict):
                yield from numbered(value, f"{prefix}{name}/")
            else:
                folder[name] = len(files)
                files.append(os.fsencode(prefix + name) * 3)
                yield prefix + name, files[-1]

    expected = dict(numbered(structure, ""))
    path = original_archive(tmp_path / "original.ffr", structure, files)
    with PackedFolder(path) as packed:
        assert {name: packed.read_one(name).tobytes() for name in packed} == expected
        assert handmade.as_bytes(packed.read(list(expected))) == list(expected.values())


def sparse_index(path: Path, size: int, files: Sequence[bytes] = (b"a file",)) -> Path:
    """Write an archive whose pickle is a hole, which takes no space on the disk."""
    handmade.write_records(path, [*files, MAGIC])
    os.truncate(path, path.stat().st_size + size - len(MAGIC))
    return path


def test_a_pickle_larger_than_its_files_need_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holes take no space on the disk, but would take memory."""
    read: list[int] = []
    real = Table.read_pieces

    def recording(self: Table, index: int, begin: Any, end: Any, checksums: Any) -> Any:
        read.extend((end - begin).tolist())
        return real(self, index, begin, end, checksums)

    monkeypatch.setattr(Table, "read_pieces", recording)
    path = sparse_index(tmp_path / "sparse.ffr", 1 << 40)
    with pytest.raises(IndexStructureError, match=r"sparse\.ffr: .* 1099511627776 bytes"):
        PackedFolder(path)
    assert read == []
    path = sparse_index(tmp_path / "smaller.ffr", 1 << 20)
    with pytest.raises(SampleChecksumError):  # this one is read, and its checksum is wrong
        PackedFolder(path)
    assert sum(read) == 1 << 20


def test_a_million_names_that_no_file_needs_are_refused() -> None:
    raw = pickle.dumps(OrderedDict((f"{number}", 0) for number in range(1_000_000)))
    with pytest.raises(IndexStructureError, match=r"f\.ffr: .* names"):
        legacy.parse("f.ffr", raw)
    assert len(legacy.parse("f.ffr", raw, most_entries=1_000_000)) == 1_000_000


@pytest.mark.parametrize("files", [0, 1, 200_000])
def test_an_index_with_as_many_folders_as_files_is_within_the_limits(files: int) -> None:
    """The names are as long as possible, of bytes that are not UTF-8 and take three bytes each."""
    longest = len(dumped(OrderedDict({"\udcff" * 255: OrderedDict(a=1 << 40)})))
    assert legacy.most_bytes(files) >= 2 * longest * files
    assert legacy.most_entries(files) >= 2 * files


def test_the_memo_of_a_pickle_is_limited() -> None:
    with pytest.raises(IndexStructureError, match="the memo of its pickle has more items"):
        legacy.parse("f.ffr", b"\x80\x04}" + b"\x94" * 100 + b".", most_entries=10)
    puts = b"".join(b"r" + number.to_bytes(4, "little") for number in range(100))
    with pytest.raises(IndexStructureError, match="of its memo, which is out of range"):
        legacy.parse("f.ffr", b"\x80\x04}" + puts + b".", most_entries=10)


# ---- our archives, read like the original does -----------------------------------------------


class OriginalFolder:
    """The original's `PackedFolder` in a few lines, on a simple reader of records."""

    def __init__(self, path: Path) -> None:
        self.records = records_of(path.read_bytes())
        meta = self.records[-1]
        if len(meta) <= len(MAGIC) or meta[: len(MAGIC)] != MAGIC:
            raise ValueError(f"{path} is not a packed folder")
        self.structure = pickle.loads(meta[len(MAGIC) :])

    def num_files(self) -> int:
        return len(self.records) - 1

    def read_one(self, name: str) -> bytes:
        found = self.structure
        for part in Path(name).parts:
            found = found[part]
        assert isinstance(found, int)
        return self.records[found]

    def files(self) -> Iterator[str]:
        waiting = [("", self.structure)]
        for prefix, folder in waiting:
            assert isinstance(folder, OrderedDict)
            for name, value in folder.items():
                if isinstance(value, int):
                    yield prefix + name
                else:
                    waiting.append((f"{prefix}{name}/", value))


def records_of(raw: bytes) -> list[bytes]:
    """Return all records of a file, each verified, without using the package."""
    n = int.from_bytes(raw[4:12], "little")
    checksums = [int.from_bytes(raw[12 + 4 * i : 16 + 4 * i], "little") for i in range(n)]
    first = 12 + 4 * n
    starts = [int.from_bytes(raw[first + 8 * i : first + 8 * i + 8], "little") for i in range(n)]
    records = [raw[a:b] for a, b in zip(starts, [*starts[1:], len(raw)], strict=True)]
    assert [zlib.crc32(record) for record in records] == checksums
    return records


@pytest.fixture(params=[None, 512], ids=["", "aligned"])
def packed_here(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """Pack a folder of every kind of file; return the archive and the contents of its files."""
    top = tmp_path / "folder"
    contents = dict(zip(PATHS, CONTENTS, strict=True))
    contents |= {f"many/{number}": b"%d" % number for number in range(1500)}
    contents |= {"é/日本.txt": b"text", os.fsdecode(b"not-utf-8-\xff"): b"bytes"}
    for name, content in contents.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(content)
    (top / "nothing/inside").mkdir(parents=True)
    (top / "hard-link").hardlink_to(top / "folder/one.bin")
    (top / "link").symlink_to("folder/sub/some.bin")
    (top / "folder/up").symlink_to("../link")
    (top / "dangling").symlink_to("missing")
    (top / "outside").symlink_to("/etc/passwd")
    (top / "folder-link").symlink_to("folder")
    contents["hard-link"] = contents["folder/one.bin"]
    contents["link"] = contents["folder/up"] = contents["folder/sub/some.bin"]
    pack_folder(top, tmp_path / "packed.ffr", align=request.param)
    return tmp_path / "packed.ffr", contents


def test_the_original_reads_every_file_of_our_archives(
    packed_here: tuple[Path, dict[str, bytes]],
) -> None:
    """Symlinks to files read as the files; broken symlinks are missing."""
    path, contents = packed_here
    theirs = OriginalFolder(path)
    assert {name: theirs.read_one(name) for name in theirs.files()} == contents
    assert theirs.structure["nothing"] == {"inside": {}}
    named = {id(theirs.read_one(name)) for name in theirs.files()}
    assert len(named) == len(contents) - 3  # a file with several names is one record
    padding = [record for record in theirs.records[:-1] if id(record) not in named]
    assert theirs.num_files() == len(named) + len(padding)  # the original counts records
    assert not any(map(any, padding))


def test_our_archives_read_the_same_here_and_in_the_original(
    packed_here: tuple[Path, dict[str, bytes]],
) -> None:
    path, contents = packed_here
    theirs = OriginalFolder(path)
    with PackedFolder(path) as ours:
        names = list(theirs.files())
        assert handmade.as_bytes(ours.read(names)) == list(map(theirs.read_one, names))
        assert sorted(ours) == sorted(set(contents) - {"link", "folder/up"})


def test_without_a_legacy_index_the_original_finds_no_packed_folder(
    packed_here: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    _, contents = packed_here
    pack_folder(tmp_path / "folder", tmp_path / "ours.ffr", legacy_index=False)
    with pytest.raises(ValueError, match="not a packed folder"):
        OriginalFolder(tmp_path / "ours.ffr")
    with PackedFolder(tmp_path / "ours.ffr") as ours:
        assert ours.read_one("link").tobytes() == contents["link"]


# ---- other locales ---------------------------------------------------------------------------

# The environment of a process in which Python does not decode names as UTF-8.
PLAIN_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PACKING = "import sys, ffrecord; ffrecord.pack_folder(sys.argv[1], sys.argv[2])"
LISTING = """
import sys, ffrecord
with ffrecord.PackedFolder(sys.argv[1]) as folder:
    print(ascii([(name, folder.read_one(name).tobytes()) for name in folder]))
"""


def in_plain_c(script: str, *arguments: str | Path) -> str:
    """Return the output of a script in a process with the C locale."""
    process = handmade.python(script, *map(str, arguments), **PLAIN_C)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def test_the_locale_does_not_change_an_archive(tmp_path: Path) -> None:
    top = os.fsencode(tmp_path / "folder")
    os.mkdir(top)
    for name in ("ü.txt".encode(), b"not-utf-8-\xff", "日本".encode()):
        Path(os.fsdecode(os.path.join(top, name))).write_bytes(name)
    pack_folder(tmp_path / "folder", tmp_path / "here.ffr")
    in_plain_c(PACKING, tmp_path / "folder", tmp_path / "there.ffr")
    assert (tmp_path / "there.ffr").read_bytes() == (tmp_path / "here.ffr").read_bytes()


def test_an_archive_of_the_original_opens_in_any_locale(tmp_path: Path) -> None:
    structure: Structure = OrderedDict([("\udcff.bin", 0), ("ü", OrderedDict(日本=1))])
    path = original_archive(tmp_path / "original.ffr", structure, [b"first", b"second"])
    expected = ascii([("\udcff.bin", b"first"), ("ü/日本", b"second")])
    assert in_plain_c(LISTING, path) == expected + "\n"

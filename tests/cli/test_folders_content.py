"""`pack`, `cat`, `extract` and `verify` as users run them: output, exit codes and error lines."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import PackedFolder
from ffrecord.dataset import DatasetWriter
from ffrecord.errors import (
    ChangedError,
    IndexChecksumError,
    IndexStructureError,
    NoRoomError,
    SampleChecksumError,
)
from tests.robustness.attacks import builders
from tests.support import archives, handmade, trees
from tests.support.commands import (
    FILES,
    INTERRUPTED,
    SYSTEM,
    TOP,
    USAGE,
    Command,
    Result,
    in_a_shell,
)
from tests.support.trees import BLOCK

# ---- pack --------------------------------------------------------------------------------------


def test_pack_counts_the_packed_files(ffrecord: Command, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.ffr"
    result = ffrecord("pack", tree, out)
    size = sum(map(len, FILES.values()))
    counts = "6 files, 3 folders, 1 symlink, 1 hard link"
    assert result.lines == [f"{out}: {counts}, {size / 1000:.1f} kB"]
    assert (result.code, result.err) == (0, b"")
    with PackedFolder(out) as folder:
        assert folder.read("d/b").tobytes() == FILES["d/b"]


def test_pack_prints_singular_and_plural(ffrecord: Command, tmp_path: Path) -> None:
    for count, words in ((0, "0 files"), (1, "1 file"), (2, "2 files")):
        tree = trees.plain_tree(tmp_path / f"{count}", {f"{k}": b"x" for k in range(count)})
        out = tmp_path / f"{count}.ffr"
        assert ffrecord("pack", tree, out).lines == [f"{out}: {words}, {count} B"]


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        (["--exclude", "*.txt", "--exclude=d/e"], {"a.txt", "d/e", "d/e/c"}),
        (["--exclude", "d/"], {"d", "d/b", "d/e", "d/e/c", "d/large", "d/same"}),
        (["--jobs", "1", "--no-progress", "--ignore-changed"], set()),
        (["--no-legacy-index"], set()),
        (["--shard-size", "100kB"], set()),
    ],
)
@pytest.mark.parametrize("place", ["before", "between", "after"])
def test_options_of_pack_may_come_anywhere(
    place: str,
    options: list[str],
    left_out: set[str],
    ffrecord: Command,
    tree: Path,
    tmp_path: Path,
) -> None:
    words: list[Any] = ["pack", tree, tmp_path / "out"]
    at = {"before": 1, "between": 2, "after": 3}[place]
    result = ffrecord(*words[:at], *options, *words[at:])
    assert (result.code, result.err) == (0, b"")
    everything = {os.fsdecode(path) for path in trees.paths(tree)} - {"."}
    with PackedFolder(tmp_path / "out") as folder:
        assert set(map(str, folder.list(recursive=True))) == everything - left_out
        assert bool(folder.archive.legacy_size) == ("--no-legacy-index" not in options)
    assert (tmp_path / "out").is_dir() == ("--shard-size" in options)


def test_pack_follows_symlinks_with_dereference(
    ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    for option in ("-L", "--dereference"):
        assert ffrecord("pack", option, tree, tmp_path / f"o{option}").code == 0
        with PackedFolder(tmp_path / f"o{option}") as folder:
            assert not folder.is_symlink("link")
            assert folder.read("link/b").tobytes() == FILES["d/b"]


def test_skipped_files_give_one_line(ffrecord: Command, rich: Path, tmp_path: Path) -> None:
    result = ffrecord("pack", rich, tmp_path / "o.ffr")
    assert result.code == 0
    assert result.error == f"ffrecord: warning: {rich}: not packed: 1 fifo, 1 socket"


def test_pack_of_a_changing_file_gives_one_line(
    ffrecord: Command, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open

    def opening(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == os.fsencode(tree / "d/b"):
            (tree / "d/b").write_bytes(b"now it is longer than it was\n")
        return plain(path, *args, **kwargs)

    with monkeypatch.context() as changing:
        changing.setattr(os, "open", opening)
        result = ffrecord("pack", tree, tmp_path / "o.ffr")
    assert result.code == ChangedError.exit_code
    assert result.error.startswith(f"ffrecord: {tree}/d/b: changed")
    assert not (tmp_path / "o.ffr").exists()
    (tree / "d/b").write_bytes(b"short again\n")
    with monkeypatch.context() as changing:
        changing.setattr(os, "open", opening)
        result = ffrecord("pack", tree, tmp_path / "o.ffr", "--ignore-changed")
    assert result.code == 0
    assert result.error.startswith(f"ffrecord: warning: {tree}/d/b: changed")
    assert (tmp_path / "o.ffr").exists()


def test_an_interrupted_pack_reports_the_interrupt(
    ffrecord: Command, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "preadv", interrupt)
    result = ffrecord("pack", tree, tmp_path / "o.ffr")
    assert (result.code, result.error) == (INTERRUPTED, "ffrecord: interrupted")
    assert not (tmp_path / "o.ffr").exists()


def test_too_many_shards_give_one_line(
    ffrecord: Command, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.archive.packer.MOST_SHARDS", 2)
    result = ffrecord("pack", tree, tmp_path / "o", "--shard-size", "1B")
    assert result.code != 0
    assert "shard" in result.error


@pytest.mark.parametrize(
    ("size", "meant"),
    [
        ("10", "10 bytes"), ("1", "1 byte"), ("1.5", "1 byte"), ("999999", "999,999 bytes"),
        ("1000000", None), ("10B", None), ("1kB", None), ("0.5MB", None), ("10GB", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["pack", "convert"])
def test_a_small_shard_size_without_a_unit_is_refused(
    command: str, size: str, meant: str | None, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tree)
    trees.plain_tree(tree, {"a": b"12345678", "b": b"12345678"})
    options = ["--to", "tar"] if command == "convert" else []
    result = ffrecord(command, tree, tmp_path / "o", "--shard-size", size, *options)
    assert os.path.isdir(tmp_path / "o") == (meant is None)
    if meant is None:
        assert (result.code, len(result.lines), result.err) == (0, 1, b"")
        return
    assert (result.code, result.out) == (USAGE, b"")
    why = f"{size} means {meant}; write {size}MB or {size}GB, or {size}B if you do mean bytes"
    assert result.error.startswith(f"ffrecord: argument --shard-size: {why}; see ")


# ---- cat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "due"),
    [
        (["a.txt"], ["a.txt"]),
        (["d/b", "a.txt", "d/b"], ["d/b", "a.txt", "d/b"]),
        (["z"], ["z"]),
        (["d/large", "z", "d/e/c"], ["d/large", "z", "d/e/c"]),
        (["link/b", "/d//b", "d/../a.txt"], ["d/b", "d/b", "a.txt"]),
        (["--", "-rf", "a.txt"], ["-rf", "a.txt"]),
        (["./-rf"], ["-rf"]),
    ],
)
def test_cat_writes_files_one_after_the_other(
    paths: list[str], due: list[str], ffrecord: Command, archive: Path
) -> None:
    result = ffrecord("cat", archive, *paths)
    assert result == Result(0, b"".join(FILES[name] for name in due), b"")


def test_cat_writes_a_record(ffrecord: Command, archive: Path) -> None:
    with PackedFolder(archive) as folder:
        record = folder.record("d/b")
    assert ffrecord("cat", archive, "--record", str(record)).out == FILES["d/b"]
    assert ffrecord("cat", "--record", str(record), archive).out == FILES["d/b"]


def test_cat_writes_no_damaged_bytes(ffrecord: Command, archive: Path) -> None:
    archives.damage(archive, "d/b")
    result = ffrecord("cat", archive, "a.txt", "d/b", "z")
    assert result.code == SampleChecksumError.exit_code
    assert result.out == FILES["a.txt"]
    assert "is damaged" in result.error


def test_cat_writes_into_a_pipe(archive: Path) -> None:
    result = in_a_shell('f cat "$1" d/large d/large | cksum', archive)
    due = subprocess.run(["cksum"], input=FILES["d/large"] * 2, capture_output=True, check=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, due.stdout, b"")


def test_the_program_that_reads_a_file_may_end_early(archive: Path) -> None:
    result = in_a_shell('f cat "$1" d/large d/large d/large d/large | head -c 1', archive)
    assert (result.returncode, result.stderr) == (141, b"")
    assert result.stdout == FILES["d/large"][:1]


# ---- extract -----------------------------------------------------------------------------------


def test_extract_restores_everything_and_counts_it(
    ffrecord: Command, archive: Path, tree: Path, tmp_path: Path
) -> None:
    result = ffrecord("extract", archive, "-C", tmp_path / "x/y")
    assert (result.code, result.err) == (0, b"")
    (line,) = result.lines
    assert line.startswith(f"{tmp_path}/x/y: 6 files, 3 folders, 1 symlink")
    assert trees.differences(tree, tmp_path / "x/y") == []


def test_extract_goes_into_the_current_folder(
    ffrecord: Command, archive: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert ffrecord("extract", archive).code == 0
    assert trees.differences(tree, tmp_path / "here") == []


@pytest.mark.parametrize(
    "words",
    [
        ["{a}", "-C", "{x}", "d/b", "a.txt"], ["{a}", "d/b", "a.txt", "-C", "{x}"],
        ["{a}", "d/b", "-C", "{x}", "a.txt"], ["-C", "{x}", "{a}", "d/b", "a.txt"],
        ["--directory={x}", "{a}", "d/b", "--no-progress", "a.txt"],
        ["{a}", "-C", "{x}", "--", "d/b", "a.txt"],
        ["{a}", "d/b", "--overwrite", "-C", "{x}", "a.txt"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_of_extract_may_come_anywhere(
    words: list[str], ffrecord: Command, archive: Path, tmp_path: Path
) -> None:
    result = ffrecord("extract", *(word.format(a=archive, x=tmp_path / "x") for word in words))
    assert result.code == 0
    assert {os.fsdecode(path) for path in trees.paths(tmp_path / "x")} == {".", "a.txt", "d", "d/b"}


def test_extract_refuses_to_overwrite_without_force(
    ffrecord: Command, archive: Path, tree: Path, tmp_path: Path
) -> None:
    dest = trees.plain_tree(tmp_path / "x", {"d/b": b"precious"})
    result = ffrecord("extract", archive, "-C", dest)
    assert result.code == SYSTEM
    assert result.error == f"ffrecord: {dest}/d/b: already exists; pass --force to replace it"
    assert (dest / "d/b").read_bytes() == b"precious"
    assert ffrecord("extract", archive, "-C", dest, "--overwrite").code == 0
    shutil.copystat(tree, dest)
    assert trees.differences(tree, dest) == []


def test_extract_to_a_full_disk_is_an_error_with_its_exit_code(
    ffrecord: Command, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        result = ffrecord("extract", archive, "-C", tmp_path / "x")
    assert result.code == NoRoomError.exit_code
    assert result.error.endswith(
        "-rf: no room to write: No space left on device; free some space or write to another disk"
    )


def test_extract_leaves_damaged_files_out_and_names_them(
    ffrecord: Command, archive: Path, tmp_path: Path
) -> None:
    archives.damage(archive, "d/b")
    archives.damage(archive, "d/large", 2 * BLOCK)
    dest = tmp_path / "x"
    result = ffrecord("extract", archive, "-C", dest)
    assert result.code == SampleChecksumError.exit_code
    *said, total = result.err.decode().splitlines()
    assert sorted(line.split(": ")[1] for line in said) == [f"{dest}/d/b", f"{dest}/d/large"]
    assert "2 damaged files" in total
    left = {os.fsdecode(path) for path in trees.paths(dest)}
    assert left == {".", *TOP, "d/e", "d/e/c", "d/same"}


# ---- verify ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_verify_extract_and_cat_report_a_damaged_large_file_alike(
    sharded: bool, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    archives.pack(tree, packed, shard_size=100 if sharded else None)
    archives.damage(packed, "d/large", 3 * BLOCK + 2)  # in the last block, which is 7 bytes long
    right = FILES["d/large"][3 * BLOCK :]
    wrong = right[:2] + bytes([right[2] ^ 1]) + right[3:]
    with pytest.raises(SampleChecksumError) as caught, PackedFolder(packed) as folder:
        folder.read("d/large")
    file, record = caught.value.path, caught.value.record
    checksums = f"is {zlib.crc32(wrong):#010x}, the file says {zlib.crc32(right):#010x}"
    part = f"the checksum of its bytes {3 * BLOCK} to {3 * BLOCK + 6} {checksums}"
    assert bad_lines(ffrecord("verify", packed)) == [
        f"BAD: {file}: record {record} is damaged: {part} (d/large)"
    ]
    extracted = ffrecord("extract", packed, "-C", tmp_path / "x")
    line = f"ffrecord: {tmp_path}/x/d/large: {file}: record {record} is damaged: {part}"
    assert extracted.err.decode().splitlines()[0] == line
    shown = ffrecord("cat", packed, "d/large")
    said, _, advice = shown.error.partition("; ")
    assert said == f"ffrecord: {file}: record {record} is damaged (d/large): {part}"
    assert advice.startswith("copy the file again, or save the undamaged records with `ffrecord")
    converted = ffrecord("convert", packed, tmp_path / "out.tar")
    assert converted.error == shown.error
    assert converted.code == 7


def test_verify_reports_a_whole_record_in_an_archive_of_the_original(
    ffrecord: Command, tmp_path: Path
) -> None:
    """The index of the original has no block checksums."""
    large = FILES["d/large"]
    archive = handmade.write_records(
        tmp_path / "a.ffr", [large, b"piouhjgbr" + pickle.dumps(OrderedDict(large=0), 2)]
    )
    archives.damage(archive, "large", 5)
    wrong = large[:5] + bytes([large[5] ^ 1]) + large[6:]
    checksums = (
        f"its checksum is {zlib.crc32(wrong):#010x}, the file says {zlib.crc32(large):#010x}"
    )
    said = f"{archive}: record 0 is damaged: {checksums}"
    assert bad_lines(ffrecord("verify", archive)) == [f"BAD: {said} (large)"]
    extracted = ffrecord("extract", archive, "-C", tmp_path / "x")
    assert extracted.err.decode().splitlines()[0] == f"ffrecord: {tmp_path}/x/large: {said}"


def test_verify_of_a_good_archive_says_ok(
    ffrecord: Command, archive: Path, tree: Path, rich_archive: Path, tmp_path: Path
) -> None:
    archives.pack(tree, tmp_path / "shards", shard_size=100)
    archives.pack(tree, tmp_path / "bare.ffr", legacy_index=False)
    for path in (archive, tmp_path / "shards", tmp_path / "bare.ffr", rich_archive):
        result = ffrecord("verify", path)
        assert (result.code, result.err) == (0, b"")
        (line,) = result.lines
        with PackedFolder(path) as folder:
            names = len(folder.list(recursive=True))
            assert line == f"{path}: OK, {folder.reader.n} records, {names} names"


def bad_lines(result: Result) -> list[str]:
    assert result.code == 1
    assert result.err == b""
    return [line for line in result.lines if line.startswith("BAD: ")]


@pytest.mark.parametrize(
    "words", [["{a}", "{a}", "--no-progress"], ["{a}", "--no-progress", "{a}"]]
)
def test_options_of_verify_may_come_anywhere(
    words: list[str], ffrecord: Command, archive: Path
) -> None:
    result = ffrecord("verify", *(word.format(a=archive) for word in words))
    assert (result.code, len(result.lines)) == (0, 2)


@pytest.mark.parametrize(("name", "byte"), [("d/b", 0), ("d/large", 2 * BLOCK), ("-rf", 3)])
@pytest.mark.parametrize("sharded", [False, True])
def test_verify_names_a_damaged_file(
    sharded: bool, name: str, byte: int, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    path = tmp_path / "v"
    archives.pack(tree, path, shard_size=100 if sharded else None)
    archives.damage(path, name, byte)
    result = ffrecord("verify", path)
    (line,) = bad_lines(result)
    assert f"({name})" in line
    assert result.lines[-1].startswith(f"{path}: 1 damaged of ")


def test_verify_names_every_damaged_file_and_continues(
    ffrecord: Command, archive: Path, rich_archive: Path
) -> None:
    for name in ("d/b", "d/e/c"):
        archives.damage(archive, name)
    result = ffrecord("verify", archive, rich_archive)
    assert [re.findall(r"\((.*)\)", line) for line in bad_lines(result)] == [["d/b"], ["d/e/c"]]
    assert result.lines[-1].startswith(f"{rich_archive}: OK")


@pytest.mark.parametrize("sharded", [False, True])
def test_verify_says_that_damaged_padding_affects_no_file(
    sharded: bool, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    path = tmp_path / "v"
    archives.pack(tree, path, shard_size=600 if sharded else None, align=512)
    assert ffrecord("verify", path).lines[-1].startswith(f"{path}: OK, ")
    with PackedFolder(path) as folder:
        size = folder.stat("d/b").st_size
    archives.damage(path, "d/b", size)  # the first byte after the file
    (line,) = bad_lines(ffrecord("verify", path))
    assert line.endswith(" (padding, or left over: no file uses this record)")
    (problem,) = json.loads(ffrecord("verify", "--json", path).out)["files"][0]["problems"]
    assert problem["paths"] == []


def test_verify_names_a_few_of_the_files_that_share_a_damaged_record(
    ffrecord: Command, tmp_path: Path
) -> None:
    """A path can be a megabyte long, and any number of inodes can share a record."""
    files = dict.fromkeys((b"%04d" % number for number in range(1000)), b"")
    draft = builders.plant(builders.nested(4000, {**files, b"other": b"whole"}, b"d" * 255))
    draft.files = [b"spoiled", b"whole"]
    for inode in draft.inodes[4001:5001]:
        inode.data, inode.length = 0, len(b"spoiled")
    draft.inodes[5001].data = 1
    (tmp_path / "a.ffr").write_bytes(draft.archive().replace(b"spoiled", b"sp0iled", 1))
    (line,) = bad_lines(ffrecord("verify", tmp_path / "a.ffr"))
    assert re.search(r"…/d.*/0000, .*/0001, .*/0002 and 997 more\)$", line)
    assert len(line) < 20_000


@pytest.mark.parametrize("where", ["the image", "the trailer", "the original's index"])
def test_verify_finds_a_damaged_index(where: str, ffrecord: Command, archive: Path) -> None:
    image, trailer = archives.index_offsets(archive)
    at = {"the image": image + 90, "the trailer": trailer + 9, "the original's index": image - 20}
    archives.flip(archive, at[where])
    assert bad_lines(ffrecord("verify", archive))


@pytest.mark.parametrize("inside", ["nothing", "a file", "a dataset"])
def test_verify_checks_record_files_beside_other_files(
    inside: str, ffrecord: Command, tmp_path: Path
) -> None:
    (tmp_path / "all").mkdir()
    damaged = handmade.write_records(tmp_path / "all" / "a.ffr", [b"right"])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    beside = tmp_path / "all" / "000000"  # named like a shard of a dataset
    if inside == "a dataset":
        with DatasetWriter(beside, {"x": "int"}) as writer:
            writer.append({"x": 1})
    else:
        beside.mkdir()
        if inside == "a file":
            handmade.write_records(beside / "b.ffr", [b"sound"])
    result = ffrecord("verify", tmp_path / "all")
    assert result.code == 1
    assert b"a.ffr" in result.out


def test_verify_finds_a_missing_shard(ffrecord: Command, tree: Path, tmp_path: Path) -> None:
    archives.pack(tree, tmp_path / "s", shard_size=100)
    (tmp_path / "s" / "PART_00001.ffr").unlink()
    assert any("PART_00001.ffr" in line for line in bad_lines(ffrecord("verify", tmp_path / "s")))


def spoil_table(path: Path, name: str, offset: int = 0) -> None:
    """Change a byte of a table, then correct every checksum."""

    def change(image: bytearray) -> None:
        image[archives.table_offset(image, name) + offset] ^= 1

    archives.spoil_image(path, change)


def test_verify_finds_block_checksums_that_contradict_the_file(
    ffrecord: Command, archive: Path
) -> None:
    spoil_table(archive, "blocks", 4)
    lines = bad_lines(ffrecord("verify", archive))
    assert any("d/large" in line and "block" in line for line in lines)


@pytest.mark.parametrize("offset", [0, 7, 12])
def test_verify_finds_hashes_that_contradict_the_paths(
    offset: int, ffrecord: Command, archive: Path
) -> None:
    """Readers still work, only slower."""
    spoil_table(archive, "hashes", offset)
    assert any("hash" in line for line in bad_lines(ffrecord("verify", archive)))
    assert ffrecord("cat", archive, "d/b", "a.txt").out == FILES["d/b"] + FILES["a.txt"]


def test_verify_finds_hashes_of_other_entries(ffrecord: Command, archive: Path) -> None:
    def change(image: bytearray) -> None:
        at = archives.table_offset(image, "hashed")
        first, second = struct.unpack_from("<II", image, at)
        struct.pack_into("<II", image, at, second, first)

    archives.spoil_image(archive, change)
    assert any("hash" in line for line in bad_lines(ffrecord("verify", archive)))


Structure: TypeAlias = "OrderedDict[str, Any]"


def structure_of(folder: PackedFolder, path: str = "") -> Structure:
    """Return the original's index of a folder. It has no symlinks to folders."""
    found: Structure = OrderedDict()
    for name in folder.list(path):
        inner = f"{path}/{name}" if path else name
        if folder.is_file(inner):
            found[name] = folder.record(inner)
        elif not folder.is_symlink(inner):
            found[name] = structure_of(folder, inner)
    return found


def set_structure(path: Path, change: Callable[[Structure], object]) -> None:
    """Replace the index for the original, with correct checksums."""
    with PackedFolder(path) as folder:
        structure = structure_of(folder)
    change(structure)
    parts = archives.take_apart(path)
    parts.before = b"piouhjgbr" + pickle.dumps(structure)
    parts.write(path)


def test_verify_accepts_any_pickle_with_the_same_content(ffrecord: Command, archive: Path) -> None:
    set_structure(archive, lambda structure: None)
    assert ffrecord("verify", archive).code == 0


DISAGREEING: dict[str, tuple[Callable[[Structure], object], str]] = {
    "another record": (lambda s: s.update({"a.txt": s["z"]}), "'a.txt'"),
    "another record inside": (lambda s: s["d"].update(b=s["z"]), "'d/b'"),
    "a missing file": (lambda s: s["d"].pop("large"), "'d/large'|6 for the original"),
    "an extra file": (lambda s: s.update(more=0), "'more'"),
    "an extra folder": (lambda s: s.update(more=OrderedDict(x=0)), "'more'"),
    "a folder for a file": (lambda s: s.update(z=OrderedDict()), "'z'"),
    "a file for a folder": (lambda s: s.update(d=0), "'d'"),
    "files swapped": (
        lambda s: s["d"].update(b=s["d"]["large"], large=s["d"]["b"]),
        "'d/(b|large)'",
    ),
    "another name": (lambda s: s["d"].update(B=s["d"].pop("b")), "'d/[bB]'"),
}


@pytest.mark.parametrize("what", DISAGREEING)
def test_verify_finds_an_index_for_the_original_that_disagrees(
    what: str, ffrecord: Command, archive: Path
) -> None:
    change, said = DISAGREEING[what]
    set_structure(archive, change)
    lines = bad_lines(ffrecord("verify", archive))
    assert any(re.search(said, line) for line in lines), lines


def test_verify_finds_a_folder_that_the_original_would_read_as_a_file(
    ffrecord: Command, archive: Path
) -> None:
    """The pickle gives the folder each possible record number in turn."""
    for record in range(len(FILES) - 1):
        set_structure(archive, lambda structure, record=record: structure.update(empty=record))  # type: ignore[misc]
        lines = bad_lines(ffrecord("verify", archive))
        assert any("'empty'" in line for line in lines), record


def test_verify_finds_bytes_that_the_original_cannot_read_as_an_index(
    ffrecord: Command, archive: Path
) -> None:
    for before in (b"x", b"piouhjgbr", b"piouhjgbr\x80\x04N.", b"some other bytes" * 10):
        parts = archives.take_apart(archive)
        parts.before = before
        parts.write(archive)
        assert bad_lines(ffrecord("verify", archive))


def test_a_damaged_index_has_its_own_exit_code(ffrecord: Command, archive: Path) -> None:
    whole = archive.read_bytes()
    archives.flip(archive, archives.index_offsets(archive)[0] + 90)
    for words in (
        ["ls", archive],
        ["cat", archive, "a.txt"],
        ["extract", archive],
        ["info", archive],
    ):
        result = ffrecord(*words)
        assert (result.code, result.out) == (IndexChecksumError.exit_code, b"")
        assert result.error.startswith(f"ffrecord: {archive}: its index is damaged")
        assert result.error.endswith(
            "`ffrecord salvage` saves the contents of its files, without names"
        )
    archive.write_bytes(whole)
    archives.spoil_image(archive, lambda image: image.__setitem__(0, 0))
    for words in (
        ["ls", archive],
        ["cat", archive, "a.txt"],
        ["extract", archive],
        ["info", archive],
    ):
        result = ffrecord(*words)
        assert (result.code, result.out) == (IndexStructureError.exit_code, b"")
        assert result.error.startswith(f"ffrecord: {archive}: ")


# ---- records that resemble an index ------------------------------------------------------------


def test_info_and_verify_treat_a_record_that_only_begins_like_an_index_as_a_record(
    ffrecord: Command, tmp_path: Path
) -> None:
    path = handmade.write_records(tmp_path / "plain.ffr", [b"first", b"piouhjgbr is how it begins"])
    described = ffrecord("info", path, "--json")
    assert (described.code, described.err) == (0, b"")
    facts = json.loads(described.out)
    assert (facts["kind"], facts["records"]) == ("records", 2)
    verified = ffrecord("verify", path)
    assert (verified.code, verified.err) == (0, b"")
    assert verified.lines == [f"{path}: OK, 2 records"]


def test_info_and_verify_treat_an_undecidable_record_as_a_damaged_index(
    ffrecord: Command, tmp_path: Path
) -> None:
    path = handmade.write_records(tmp_path / "plain.ffr", [b"first", b"\xff" * 16 + b"FFRINDEX"])
    due = (
        "; the file is treated as a damaged packed folder; if it contains plain records, "
        "`ffrecord cat --record N` writes one"
    )
    described = ffrecord("info", path)
    assert described.code == IndexStructureError.exit_code
    assert described.error.startswith(f"ffrecord: {path}: ")
    assert described.error.endswith(due)
    (line,) = bad_lines(ffrecord("verify", path))
    assert line.startswith(f"BAD: {path}: ")
    assert line.endswith(due)
    assert ffrecord("cat", path, "--record", "0").out == b"first"

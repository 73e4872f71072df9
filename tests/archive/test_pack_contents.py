"""`pack_folder`: everything is restored by extraction; its options, reports and output."""

from __future__ import annotations

import errno
import hashlib
import inspect
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import (
    ChangedWarning,
    FFRecordError,
    FileReader,
    PackedFolder,
    PackReport,
    SkippedWarning,
    pack_folder,
    packing_bar,
)
from ffrecord.archive import source_files
from ffrecord.archive.pack import PackProgress
from ffrecord.atomic import file as atomic_file
from ffrecord.format import index as index_layout
from ffrecord.text import parse_size
from tests.support import handmade, trees
from tests.support.archives import pack
from tests.support.packing import ALL, contents, names, require_valid


@pytest.fixture(scope="module")
def packed(rich: Path) -> Path:
    """Pack the rich tree with default options."""
    pack(rich, rich.with_name("packed.ffr"))
    return rich.with_name("packed.ffr")


def extracted(archive: Path, dest: Path) -> Path:
    with PackedFolder(archive) as folder:
        folder.extract(dest)
    return dest


def digests(archive: Path) -> list[tuple[str, str]]:
    """Return the digest of a file, or of each shard by name: a failed test prints little."""
    files = sorted(archive.iterdir()) if archive.is_dir() else [archive]
    shown = [file.name if archive.is_dir() else "" for file in files]
    return [
        (name, hashlib.sha256(file.read_bytes()).hexdigest())
        for name, file in zip(shown, files, strict=True)
    ]


# ---- packing and extracting ----------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "one file": {},
    "without the original's index": {"legacy_index": False},
    "one job": {"jobs": 1},
    "shards": {"shard_size": 300_000},
    "a shard for every file": {"shard_size": 1},
    "aligned": {"align": 512},
    "aligned shards": {"shard_size": 300_000, "align": 512},
}


@pytest.mark.parametrize("way", WAYS)
def test_extracted_files_equal_the_packed_ones(way: str, rich: Path, tmp_path: Path) -> None:
    pack(rich, tmp_path / "archive.ffr", **WAYS[way])
    copy = extracted(tmp_path / "archive.ffr", tmp_path / "copy")
    assert trees.differences(rich, copy) == []


@pytest.mark.parametrize("way", ["one file", "shards"])
def test_rsync_finds_nothing_to_do_after_extraction(way: str, rich: Path, tmp_path: Path) -> None:
    if not trees.rsync_is_there():
        pytest.skip("rsync is not installed")
    pack(rich, tmp_path / "archive.ffr", **WAYS[way])
    copy = extracted(tmp_path / "archive.ffr", tmp_path / "copy")
    assert trees.rsync_differences(rich, copy) == []


def test_the_tree_has_every_kind_of_file(rich: Path) -> None:
    """Otherwise the tests above would prove little."""
    found = trees.snapshot(rich)
    kinds = {each.kind for each in found.values()}
    assert kinds == {"file", "folder", "symlink", "fifo", "socket"}
    assert trees.BLOCK == index_layout.BLOCK
    assert trees.BATCH == source_files.BATCH_BYTES
    assert len(os.listdir(rich / "many")) > source_files.BATCH_FILES
    assert max(len(each.same_file) for each in found.values()) == 4
    assert {each.mtime_ns < 0 for each in found.values()} == {True, False}


CHANGES_TO_A_COPY: dict[str, Callable[[Path], object]] = {
    "mode": lambda copy: (copy / "nested/a/shallow").chmod(0o601),
    "time": lambda copy: os.utime(copy / "sizes/one", ns=(0, 5)),
    "time of a link": lambda copy: os.utime(
        copy / "links/dangling", ns=(0, 5), follow_symlinks=False
    ),
    "time of the top": lambda copy: os.utime(copy, ns=(0, 5)),
    "a file is missing": lambda copy: (copy / "zzz after all").unlink(),
    "an empty folder is missing": lambda copy: (copy / "empty").rmdir(),
    "a new file": lambda copy: (copy / "special" / "new").touch(),
}


def test_every_change_to_a_copy_is_noticed(rich: Path, packed: Path, tmp_path: Path) -> None:
    copy = extracted(packed, tmp_path / "copy")
    before, before_rsync = set[str](), set[str]()
    for change, make in CHANGES_TO_A_COPY.items():
        make(copy)
        found = set(trees.differences(rich, copy))
        assert found - before, change
        before = found
        if trees.rsync_is_there():
            found = set(trees.rsync_differences(rich, copy))
            assert found - before_rsync, change
            before_rsync = found


@pytest.mark.parametrize("way", ["one file", "shards"])
def test_the_same_folder_gives_the_same_bytes(way: str, rich: Path, tmp_path: Path) -> None:
    options = WAYS[way]
    for name, jobs in (("first", None), ("one job", 1), ("eight jobs", 8)):
        pack(rich, tmp_path / name, jobs=jobs, **options)
    # The copy has other inode numbers, another order on disk and another ctime.
    copy = extracted(tmp_path / "first", tmp_path / "copy")
    pack(copy, tmp_path / "of the copy", **options)
    due = digests(tmp_path / "first")
    for name in ("one job", "eight jobs", "of the copy"):
        assert digests(tmp_path / name) == due, name


def test_files_are_records_in_the_order_of_their_paths_and_the_index_is_the_last(
    rich: Path, packed: Path
) -> None:
    found = trees.snapshot(rich)
    files = [path for path, each in found.items() if each.kind == "file"]
    first_names = [path for path in files if path == found[path].same_file[0]]
    with FileReader(packed) as reader:
        assert reader.n == len(first_names) + 1
        for path, record in zip(first_names, reader, strict=False):
            assert record.tobytes() == found[path].content


def test_the_report_counts_everything(rich: Path, out: Path) -> None:
    report = pack(rich, out)
    found = [each for path, each in trees.snapshot(rich).items() if path != b"."]
    files = [each for each in found if each.kind == "file"]
    once = {each.same_file[0]: each for each in files}
    symlinks = {each.same_file[0] for each in found if each.kind == "symlink"}
    names_kept = sum(each.kind in trees.KEPT for each in found)
    folders = sum(each.kind == "folder" for each in found)
    assert report.files == len(once)
    assert report.folders == folders
    assert report.symlinks == len(symlinks)
    assert report.hard_links == names_kept - folders - len(once) - len(symlinks)
    assert report.bytes == sum(each.size for each in once.values())
    assert report.shards == 0
    assert report.changed == []


def test_an_empty_folder_is_packed_too(tmp_path: Path, out: Path) -> None:
    (tmp_path / "nothing").mkdir(mode=0o750)
    assert pack_folder(tmp_path / "nothing", out) == PackReport()
    assert trees.differences(tmp_path / "nothing", extracted(out, tmp_path / "copy")) == []
    pack_folder(tmp_path / "nothing", tmp_path / "shards", shard_size=1)
    assert (
        trees.differences(tmp_path / "nothing", extracted(tmp_path / "shards", tmp_path / "2"))
        == []
    )


def test_folders_may_be_passed_in_any_form(small: Path, out: Path, monkeypatch: Any) -> None:
    pack_folder(small, out)
    due = out.read_bytes()
    link = small.parent / "link"
    link.symlink_to(small)
    monkeypatch.chdir(small.parent)
    for folder in (str(small), f"{small}/", f"{small}//.", "small", link, small / "sub" / ".."):
        pack_folder(folder, str(out))
        assert out.read_bytes() == due


def test_a_tree_deeper_than_the_recursion_limit_is_packed_and_extracted(
    tmp_path: Path,
) -> None:
    top = trees.chain(tmp_path / "t", 300)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 150)
    descriptors = handmade.open_descriptors()
    try:
        pack_folder(top, tmp_path / "a.ffr")
        copy = extracted(tmp_path / "a.ffr", tmp_path / "c")
    finally:
        sys.setrecursionlimit(limit)
    assert handmade.open_descriptors() == descriptors
    assert len(trees.paths(copy)) == 300 + 3 + 1
    assert trees.differences(top, copy) == []


def test_large_files_are_packed_with_o_direct_and_the_same_bytes(
    rich: Path, packed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", 64 << 10)
    monkeypatch.setattr(atomic_file, "DIRECT_BUFFER", 256 << 10)
    monkeypatch.setattr(atomic_file, "DIRECT_FROM", 512 << 10)
    pack(rich, out)
    assert digests(out) == digests(packed)


def test_a_symlink_with_two_names_leads_to_two_files_in_the_original(
    tmp_path: Path,
) -> None:
    top = trees.plain_tree(tmp_path / "t", {"f": b"top", "a/f": b"of a", "a/b/x": b""})
    (top / "link").symlink_to("f")
    os.link(top / "link", top / "a/link", follow_symlinks=False)
    os.link(top / "link", top / "a/b/link", follow_symlinks=False)
    pack_folder(top, tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder:
        records = {name: folder.record(name) for name in ("f", "a/f")}
        last = folder.reader.read_one(-1).tobytes()
    seen = pickle.loads(last[len(b"piouhjgbr") :])
    assert seen["link"] == records["f"]
    assert seen["a"]["link"] == records["a/f"]
    assert "link" not in seen["a"]["b"]


# ---- options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        ([], set()),
        (["*.tmp"], {"b.tmp"}),
        (["a.txt"], {"a.txt", "sub/a.txt"}),
        (["/a.txt"], {"a.txt"}),
        (["sub/a.txt"], {"sub/a.txt"}),
        (
            ["logs"],
            {"logs", "logs/1.log", "logs/2.log", "logs/deep", "logs/deep/3.log", "sub/logs"},
        ),
        (["logs/"], {"logs", "logs/1.log", "logs/2.log", "logs/deep", "logs/deep/3.log"}),
        (["logs/*"], {"logs/1.log", "logs/2.log", "logs/deep", "logs/deep/3.log"}),
        (["*/[12].log"], {"logs/1.log", "logs/2.log"}),
        (["deep", "*.t?p", "empty/"], {"logs/deep", "logs/deep/3.log", "b.tmp", "empty"}),
        (["A.TXT", "nothing"], set()),
        (["*"], ALL),
    ],
)
def test_excluded_patterns_are_left_out(
    patterns: list[str], left_out: set[str], small: Path, out: Path
) -> None:
    report = pack_folder(small, out, exclude=iter(patterns))
    assert names(out) == ALL - left_out
    with PackedFolder(out) as folder:
        assert report.files == len(folder)


def test_a_pattern_matches_names_of_any_bytes(tmp_path: Path, out: Path) -> None:
    trees.plain_tree(tmp_path / "t", {"\udcff\n.x": b"1", "\udcfe.y": b"2", "z": b"3"})
    pack_folder(tmp_path / "t", out, exclude=["\udcff*"])
    assert names(out) == {"\udcfe.y", "z"}


def test_one_pattern_without_a_list_is_a_type_error(small: Path, out: Path) -> None:
    with pytest.raises(TypeError, match="exclude"):
        pack_folder(small, out, exclude="*.tmp")
    assert not out.exists()


def test_the_hard_link_that_is_not_excluded_is_packed(tmp_path: Path, out: Path) -> None:
    trees.plain_tree(tmp_path / "t", {"a.tmp": b"shared"})
    os.link(tmp_path / "t/a.tmp", tmp_path / "t/b")
    pack_folder(tmp_path / "t", out, exclude=["*.tmp"])
    assert contents(out) == {"b": b"shared"}
    with PackedFolder(out) as folder:
        assert folder.stat("b").st_nlink == 1


def test_dereference_packs_the_targets_of_symlinks(tmp_path: Path, out: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"files/a": b"aa", "files/in/b": b"bbb", "c": b"c"})
    outside = trees.plain_tree(tmp_path / "outside", {"x": b"from elsewhere", "y/z": b"zz"})
    (tree / "to file").symlink_to("files/a")
    (tree / "to folder").symlink_to("files")
    (tree / "files/in/to link").symlink_to("../../to file")
    (tree / "outside file").symlink_to(outside / "x")
    (tree / "outside folder").symlink_to(outside)
    due = Path(shutil.copytree(tree, tmp_path / "due", symlinks=False))
    report = pack_folder(tree, out, dereference=True)
    assert trees.differences(due, extracted(out, tmp_path / "copy")) == []
    assert report.symlinks == 0


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_dereferencing_a_loop_is_an_error_that_names_it(
    target: str, tmp_path: Path, out: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"d/in/f": b"x"})
    (tree / "d/in/self").symlink_to(target)
    with pytest.raises(OSError, match="d/in/self") as caught:
        pack_folder(tree, out, dereference=True)
    assert caught.value.errno == errno.ELOOP
    assert os.listdir(out.parent) == []


NOWHERE = ["nowhere", "f/x", "dangling"]  # missing, below a file, the symlink itself


@pytest.mark.parametrize("target", NOWHERE)
def test_dereferencing_a_broken_symlink_is_an_error_that_names_it(
    target: str, tmp_path: Path, out: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"d/f": b"x"})
    (tree / "d/dangling").symlink_to(target)
    with pytest.raises(FFRecordError, match="d/dangling"):
        pack_folder(tree, out, dereference=True)
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize("target", NOWHERE)
def test_a_broken_symlink_can_be_left_out_of_a_dereferenced_archive(
    target: str, tmp_path: Path, out: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"d/f": b"x"})
    (tree / "d/dangling").symlink_to(target)
    with pytest.warns(ChangedWarning, match="d/dangling"):
        pack_folder(tree, out, dereference=True, ignore_changed=True)
    assert names(out) == {"d", "d/f"}


def test_the_index_for_the_original_can_be_left_out(small: Path, out: Path) -> None:
    with_it, without = out, out.with_name("without.ffr")
    pack_folder(small, with_it)
    pack_folder(small, without, legacy_index=False)
    last = {}
    for path in (with_it, without):
        with FileReader(path) as reader:
            last[path] = reader.read_one(-1).tobytes()
    assert last[with_it].startswith(index_layout.LEGACY_MAGIC)
    assert last[with_it].endswith(last[without])
    assert contents(with_it) == contents(without)


@pytest.mark.parametrize(
    ("size", "due"),
    [
        (1, 1), ("10", 10), ("10B", 10), ("10kB", 10_000), ("10KB", 10_000), ("10k", 10_000),
        ("10KiB", 10_240), ("1.5MB", 1_500_000), ("1.5 MiB", 1_572_864), ("2GB", 2 * 10**9),
        ("2GiB", 2 << 30), (" 1TB ", 10**12), ("1TiB", 1 << 40), (1 << 62, 1 << 62),
        ("9" * 400, 10**400 - 1), ("0.001kB", 1), ("4.35 kB", 4350), (np.int64(5), 5),
    ],
)  # fmt: skip
def test_sizes_are_parsed_with_units(size: int | str, due: int) -> None:
    assert parse_size(size) == due


@pytest.mark.parametrize(
    "size", [0, -1, "", "0", "0.4", "-5MB", "ten", "1XB", "1 0", "MB", "1e9", "nan"]
)
def test_an_invalid_size_is_a_value_error(size: int | str, small: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"size|shard"):
        pack_folder(small, tmp_path / "shards", shard_size=size)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize(
    "options",
    [{"jobs": 1.5}, {"jobs": "2"}, {"shard_size": float("nan")}, {"shard_size": 1e9}],
    ids=str,
)
def test_a_number_that_is_not_whole_is_a_type_error(
    options: dict[str, Any], small: Path, out: Path
) -> None:
    with pytest.raises(TypeError):
        pack_folder(small, out, **options)
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize(
    ("size", "due"),
    [
        ("3kB", [3, 3, 2, 2]),
        (2999, [2, 2, 2, 2, 2]),
        ("1GB", [10]),
        (1, [1] * 10),
        (999, [1] * 10),
        (10_000, [9, 1]),
        (10_001, [10]),
    ],
)
def test_shards_hold_as_many_files_as_fit(size: int | str, due: list[int], tmp_path: Path) -> None:
    files = {f"{k}": trees.content(1000, k) for k in range(9)} | {"7a": trees.content(1001)}
    tree = trees.plain_tree(tmp_path / "t", files)
    report = pack_folder(tree, tmp_path / "shards", shard_size=size)
    parts = [f"PART_{number:05d}.ffr" for number in range(len(due))]
    assert sorted(os.listdir(tmp_path / "shards")) == [*parts, "index.ffr"]
    assert report.shards == len(due)
    counts = []
    for part in parts:
        with FileReader(tmp_path / "shards" / part) as reader:
            counts.append(reader.n)
            size_limit = parse_size(size)
            assert reader.n == 1 or int(reader.record_sizes().sum()) <= size_limit
    assert counts == due
    assert contents(tmp_path / "shards") == files


def test_too_many_shards_are_refused_before_anything_is_written(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.archive.packer.MOST_SHARDS", 3)
    with pytest.raises(ValueError, match="shard_size"):
        pack_folder(small, tmp_path / "shards", shard_size=1)
    assert os.listdir(tmp_path) == ["small"]


@pytest.mark.parametrize("jobs", [0, -1])
def test_less_than_one_job_is_a_value_error(jobs: int, small: Path, out: Path) -> None:
    with pytest.raises(ValueError, match="jobs"):
        pack_folder(small, out, jobs=jobs)


@pytest.mark.parametrize(
    "options", [{}, {"shard_size": 200_000}, {"align": 512}], ids=["file", "shards", "aligned"]
)
def test_progress_only_grows_and_ends_with_everything(
    options: dict[str, Any], rich: Path, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    totals = set()

    def progress(now: PackProgress) -> None:
        told.append((now.files, now.bytes))
        totals.add((now.total_files, now.total_bytes))

    report = pack(rich, tmp_path / "a", progress=progress, **options)
    assert len(told) > 5
    assert told == sorted(told)
    assert [b for _, b in told] == sorted(b for _, b in told)
    assert totals == {(report.files, report.bytes)}
    assert told[-1] == (report.files, report.bytes)


def test_a_packing_bar_shows_files_and_bytes_on_standard_error(
    small: Path, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with packing_bar(shown=True) as progress:
        report = pack_folder(small, out, progress=progress)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "packing: 100%" in shown.err
    assert f" {report.bytes}.0/{report.bytes}.0 " in shown.err
    assert "7 of 7 files" in shown.err
    with packing_bar(shown=False) as progress:
        pack_folder(small, out, progress=progress)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "options", [{}, {"shard_size": 100}, {"align": 512}], ids=["one file", "shards", "aligned"]
)
def test_verbose_prints_the_number_and_path_of_each_record(
    options: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {f"{i}/{i:03}": b"x" * i for i in range(60)})
    (tree / "link").symlink_to("5/005")
    os.link(tree / "7/007", tree / "7/hard link")
    pack_folder(tree, tmp_path / "out", verbose=True, **options)
    shown = capfd.readouterr()
    with PackedFolder(tmp_path / "out") as folder:
        paths = sorted((path for path in folder if "hard" not in path), key=folder.record)
    due = [f"{number:02}/60 {tree}/{path}" for number, path in enumerate(paths)]
    assert len(due) == 60
    assert shown.out.splitlines() == due
    assert shown.err == ""


def test_verbose_prints_names_that_standard_output_cannot_show(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"new\nline": b"", "ünï": b""})
    (tree / os.fsdecode(b"\xff")).write_bytes(b"")
    code = "import sys, ffrecord; ffrecord.pack_folder(*sys.argv[1:], verbose=True)"
    run = subprocess.run(
        [sys.executable, "-c", code, tree, tmp_path / "out.ffr"],
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"}, capture_output=True, check=True,
    )  # fmt: skip
    names = [line.rpartition(b"/")[2] for line in run.stdout.splitlines()]
    assert names == [rb"new\nline", rb"\xfcn\xef", rb"\udcff"]


def test_skipped_files_are_counted_and_reported(rich: Path, out: Path) -> None:
    with pytest.warns(SkippedWarning, match=r"tree: not packed: 1 fifo, 1 socket") as caught:
        report = pack_folder(rich, out)
    assert len(caught) == 1
    assert report.skipped == {"fifo": 1, "socket": 1}
    assert "special/file" in names(out)
    assert not names(out) & {"special/fifo", "special/socket"}


def test_a_device_is_skipped(tmp_path: Path, out: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"file": b"x"})
    try:
        os.mknod(tree / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this user may not make devices")
    with pytest.warns(SkippedWarning, match="1 character device"):
        pack_folder(tree, out)
    assert names(out) == {"file"}


class AnotherTime:
    """A stat_result with any time, even one that the file system of the tests cannot hold."""

    def __init__(self, real: os.stat_result, mtime_ns: int) -> None:
        self._real, self.st_mtime_ns = real, mtime_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


YEAR = 365.2425 * 24 * 3600 * 10**9


@pytest.mark.parametrize(
    ("year", "due"), [(2300, (1 << 63) - 1), (10_000, (1 << 63) - 1), (1600, 1 - (1 << 63))]
)
def test_a_time_out_of_range_is_packed_as_the_nearest_with_a_warning(
    year: int, due: int, small: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mtime = int((year - 1970) * YEAR)
    plain, far = os.stat, {b"a.txt", b"deep"}

    def looking(path: Any, **kwargs: Any) -> Any:
        now = plain(path, **kwargs)
        return AnotherTime(now, mtime) if path in far else now

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "stat", looking)
        with pytest.warns(UserWarning, match="time") as caught:
            pack_folder(small, out)
    named = [str(each.message).split(": ")[0] for each in caught]
    assert sorted(named) == [str(small / name) for name in ("a.txt", "logs/deep", "sub/a.txt")]
    require_valid(out)
    with PackedFolder(out) as folder:
        assert folder.stat("a.txt").st_mtime_ns == due
        assert folder.stat("logs/deep").st_mtime_ns == due
        assert folder.stat("b.tmp").st_mtime_ns == (small / "b.tmp").stat().st_mtime_ns

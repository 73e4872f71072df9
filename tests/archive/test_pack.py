"""`pack_folder`: what it packs, what it says, and what is left when it does not end well."""

from __future__ import annotations

import errno
import fcntl
import gc
import hashlib
import inspect
import os
import pickle
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import (
    BusyError,
    ChangedError,
    ChangedWarning,
    FFRecordError,
    FileReader,
    NoRoomError,
    PackedFolder,
    PackReport,
    SkippedWarning,
    pack_folder,
    packing_bar,
)
from ffrecord.archive import source_files
from ffrecord.archive.audit import audit
from ffrecord.archive.pack import PackProgress
from ffrecord.atomic import file as atomic_file
from ffrecord.format import index as index_layout
from ffrecord.text import parse_size
from tests.support import handmade, trees, users
from tests.support.archives import pack

OLD = handmade.record_bytes([b"what was there before"])


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.rich_tree(tmp_path_factory.mktemp("rich") / "tree")


@pytest.fixture(scope="module")
def packed(rich: Path) -> Path:
    """The archive of all of it, with the usual options."""
    pack(rich, rich.with_name("packed.ffr"))
    return rich.with_name("packed.ffr")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder of a few files."""
    files = {
        "a.txt": b"first",
        "b.tmp": b"temporary",
        "logs/1.log": b"one",
        "logs/2.log": b"two two",
        "logs/deep/3.log": b"three",
        "sub/a.txt": b"another a",
        "sub/logs": b"a file called logs",
        "empty/": b"",
    }
    return trees.plain_tree(tmp_path / "small", files)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where an archive can be put, in a folder of its own."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "archive.ffr"


def extracted(archive: Path, dest: Path) -> Path:
    with PackedFolder(archive) as folder:
        folder.extract(dest)
    return dest


def names(archive: Path) -> set[str]:
    with PackedFolder(archive) as folder:
        return {str(name) for name in folder.list(recursive=True)}


def contents(archive: Path) -> dict[str, bytes]:
    with PackedFolder(archive) as folder:
        return {name: folder.read_one(name).tobytes() for name in folder}


def require_valid(archive: Path) -> None:
    """The archive opens, its index holds, and every record of it is what its checksum says."""
    with PackedFolder(archive) as folder:
        audit(folder.archive)
        folder.reader.read(range(folder.reader.n))


def digests(archive: Path) -> list[tuple[str, str]]:
    """Of a file, or of each shard by its name: short enough to be shown if they differ."""
    files = sorted(archive.iterdir()) if archive.is_dir() else [archive]
    shown = [file.name if archive.is_dir() else "" for file in files]
    return [
        (name, hashlib.sha256(file.read_bytes()).hexdigest())
        for name, file in zip(shown, files, strict=True)
    ]


# ---- there and back ------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "one file": {},
    "without the original's index": {"legacy_index": False},
    "one job": {"jobs": 1},
    "shards": {"shard_size": 300_000},
    "a shard for every file": {"shard_size": 1},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_extracted_is_what_was_packed(way: str, rich: Path, tmp_path: Path) -> None:
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


def test_the_tree_has_what_it_is_said_to_have(rich: Path) -> None:
    """Else the tests above would prove little."""
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
    "file gone": lambda copy: (copy / "zzz after all").unlink(),
    "empty folder gone": lambda copy: (copy / "empty").rmdir(),
    "one more": lambda copy: (copy / "empty" / "new").touch(),
}


@pytest.mark.parametrize("change", CHANGES_TO_A_COPY)
def test_a_copy_that_is_not_the_same_is_noticed(
    change: str, rich: Path, packed: Path, tmp_path: Path
) -> None:
    copy = extracted(packed, tmp_path / "copy")
    CHANGES_TO_A_COPY[change](copy)
    assert trees.differences(rich, copy)
    if trees.rsync_is_there():
        assert trees.rsync_differences(rich, copy)


@pytest.mark.parametrize("way", ["one file", "shards"])
def test_the_same_folder_gives_the_same_bytes(way: str, rich: Path, tmp_path: Path) -> None:
    options = WAYS[way]
    for name, jobs in (("first", None), ("one job", 1), ("eight jobs", 8)):
        pack(rich, tmp_path / name, jobs=jobs, **options)
    # Other inode numbers, another order on disk, another time: the same tree.
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


def test_the_report_counts_what_is_there(rich: Path, out: Path) -> None:
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


def test_folders_may_be_given_in_any_way(small: Path, out: Path, monkeypatch: Any) -> None:
    pack_folder(small, out)
    due = out.read_bytes()
    link = small.parent / "link"
    link.symlink_to(small)
    monkeypatch.chdir(small.parent)
    for folder in (str(small), f"{small}/", f"{small}//.", "small", link, small / "sub" / ".."):
        pack_folder(folder, str(out))
        assert out.read_bytes() == due


def test_a_tree_of_more_levels_than_python_recurses_is_packed_and_extracted(
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


# ---- options -------------------------------------------------------------------------------

ALL = {
    "a.txt", "b.tmp", "logs", "logs/1.log", "logs/2.log", "logs/deep", "logs/deep/3.log",
    "sub", "sub/a.txt", "sub/logs", "empty",
}  # fmt: skip


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


def test_one_pattern_that_is_no_list_is_a_type_error(small: Path, out: Path) -> None:
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


def test_dereference_packs_what_a_copy_that_follows_symlinks_has(tmp_path: Path, out: Path) -> None:
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


NOWHERE = ["nowhere", "f/x", "dangling"]  # not there, not a folder, itself


@pytest.mark.parametrize("target", NOWHERE)
def test_dereferencing_a_symlink_that_leads_nowhere_is_an_error_that_names_it(
    target: str, tmp_path: Path, out: Path
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"d/f": b"x"})
    (tree / "d/dangling").symlink_to(target)
    with pytest.raises(FFRecordError, match="d/dangling"):
        pack_folder(tree, out, dereference=True)
    assert os.listdir(out.parent) == []


@pytest.mark.parametrize("target", NOWHERE)
def test_a_symlink_that_leads_nowhere_can_be_left_out_of_a_dereferenced_archive(
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
def test_sizes_are_read_as_people_write_them(size: int | str, due: int) -> None:
    assert parse_size(size) == due


@pytest.mark.parametrize(
    "size", [0, -1, "", "0", "0.4", "-5MB", "ten", "1XB", "1 0", "MB", "1e9", "nan"]
)
def test_a_size_that_is_none_is_a_value_error(size: int | str, small: Path, tmp_path: Path) -> None:
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
    monkeypatch.setattr("ffrecord.archive.pack.MOST_SHARDS", 3)
    with pytest.raises(ValueError, match="shard_size"):
        pack_folder(small, tmp_path / "shards", shard_size=1)
    assert os.listdir(tmp_path) == ["small"]


@pytest.mark.parametrize("jobs", [0, -1])
def test_fewer_jobs_than_one_are_a_value_error(jobs: int, small: Path, out: Path) -> None:
    with pytest.raises(ValueError, match="jobs"):
        pack_folder(small, out, jobs=jobs)


@pytest.mark.parametrize("options", [{}, {"shard_size": 200_000}], ids=["file", "shards"])
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


@pytest.mark.parametrize("options", [{}, {"shard_size": 100}], ids=["one file", "shards"])
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


def test_what_is_skipped_is_counted_and_said(rich: Path, out: Path) -> None:
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
        pytest.skip("this user makes no devices")
    with pytest.warns(SkippedWarning, match="1 character device"):
        pack_folder(tree, out)
    assert names(out) == {"file"}


class AnotherTime:
    """A stat_result of a file system that holds later and earlier times than the tests' own."""

    def __init__(self, real: os.stat_result, mtime_ns: int) -> None:
        self._real, self.st_mtime_ns = real, mtime_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


YEAR = 365.2425 * 24 * 3600 * 10**9


@pytest.mark.parametrize(
    ("year", "due"), [(2300, (1 << 63) - 1), (10_000, (1 << 63) - 1), (1600, 1 - (1 << 63))]
)
def test_a_time_that_no_archive_holds_is_packed_as_the_nearest_with_a_warning_for_each_file(
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


# ---- the target ----------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
def test_an_archive_inside_its_folder_is_not_packed_into_itself(there: bool, small: Path) -> None:
    if there:
        (small / "sub/archive.ffr").write_bytes(OLD)
    for _ in range(2):  # the second time it is an archive
        pack_folder(small, small / "sub/archive.ffr")
        assert names(small / "sub/archive.ffr") == ALL
        require_valid(small / "sub/archive.ffr")


def test_an_archive_inside_its_folder_may_be_named_through_a_symlink(
    small: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.ffr").symlink_to(small / "archive.ffr")
    for _ in range(2):
        pack_folder(small, tmp_path / "link.ffr")
        assert names(small / "archive.ffr") == ALL
    assert (tmp_path / "link.ffr").is_symlink()


@pytest.mark.parametrize("through", ["its path", "a symlink to its folder"])
def test_a_hard_link_to_the_archive_that_is_replaced_is_packed(
    through: str, small: Path, tmp_path: Path
) -> None:
    """It keeps the old archive; only the name that is replaced is left out."""
    (small / "sub/archive.ffr").write_bytes(OLD)
    os.link(small / "sub/archive.ffr", small / "kept.ffr")
    os.link(small / "sub/archive.ffr", small / "logs/archive.ffr")
    target = small / "sub/archive.ffr"
    if through == "a symlink to its folder":
        (tmp_path / "link").symlink_to(small / "sub")
        target = tmp_path / "link/archive.ffr"
    pack_folder(small, target)
    assert names(target) == ALL | {"kept.ffr", "logs/archive.ffr"}
    assert contents(target)["kept.ffr"] == OLD
    assert (small / "kept.ffr").read_bytes() == OLD


def test_a_symlink_to_the_archive_does_not_pack_it_into_itself(small: Path) -> None:
    (small / "archive.ffr").write_bytes(OLD)
    (small / "sub/latest").symlink_to("../archive.ffr")
    pack_folder(small, small / "archive.ffr", dereference=True)
    assert names(small / "archive.ffr") == ALL


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "what a killed process left"])
def test_shards_inside_their_folder_are_not_packed_into_themselves(there: str, small: Path) -> None:
    if there == "an empty folder":
        (small / "shards").mkdir()
    elif there == "what a killed process left":
        trees.plain_tree(small / ".shards.packing", {"PART_00000.ffr": OLD})
    pack_folder(small, small / "shards", shard_size=10)
    assert names(small / "shards") == ALL
    assert set(os.listdir(small)) == {name for name in ALL if "/" not in name} | {"shards"}


def test_an_archive_may_have_the_longest_name_that_there_is(small: Path, out: Path) -> None:
    longest = out.with_name("x" * 255)
    pack_folder(small, longest)
    assert names(longest) == ALL


def test_a_folder_in_the_way_is_an_error(small: Path, out: Path) -> None:
    out.mkdir()
    with pytest.raises(IsADirectoryError, match=r"archive\.ffr"):
        pack_folder(small, out)
    assert os.listdir(out.parent) == ["archive.ffr"]


def test_a_fifo_in_the_way_is_an_error(small: Path, out: Path) -> None:
    os.mkfifo(out)
    with pytest.raises(OSError, match=r"archive\.ffr") as caught:
        pack_folder(small, out)
    assert caught.value.errno == errno.EINVAL
    assert stat.S_ISFIFO(out.stat().st_mode)


def test_a_missing_folder_is_the_systems_error(small: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        pack_folder(small, tmp_path / "missing" / "a.ffr")
    with pytest.raises(FileNotFoundError, match="missing"):
        pack_folder(small, tmp_path / "missing" / "shards", shard_size=1)
    with pytest.raises(FileNotFoundError, match="nothing here"):
        pack_folder(tmp_path / "nothing here", tmp_path / "a.ffr")


@pytest.mark.parametrize("options", [{}, {"shard_size": 1}], ids=["file", "shards"])
@pytest.mark.parametrize("where", ["missing/x", "file/x", "link"])
def test_a_target_that_can_have_no_name_is_found_before_the_folder_is_walked(
    where: str, options: dict[str, Any], small: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("missing/x")

    def walk(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("it was walked")

    monkeypatch.setattr("ffrecord.archive.pack.Scan", walk)
    with pytest.raises(OSError, match=where.split("/")[0] + "|missing"):
        pack_folder(small, tmp_path / where, **options)


def test_a_file_is_not_packed_as_a_folder(small: Path, out: Path) -> None:
    with pytest.raises(NotADirectoryError, match=r"a\.txt"):
        pack_folder(small / "a.txt", out)
    assert not out.exists()


@pytest.mark.parametrize("there", ["a file in it", "a file", "a symlink to a folder", "dangling"])
def test_shards_want_a_new_folder(there: str, small: Path, tmp_path: Path) -> None:
    target = tmp_path / "shards"
    if there == "a file in it":
        trees.plain_tree(target, {"mine": b"precious"})
    elif there == "a file":
        target.write_bytes(b"precious")
    elif there == "a symlink to a folder":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    else:
        target.symlink_to("nowhere")
    before = trees.snapshot(tmp_path)
    opened: list[PackProgress] = []
    with pytest.raises(OSError, match="shards"):
        pack_folder(small, target, shard_size=1, progress=opened.append)
    assert opened == [], "it was noticed only after all was read"
    assert trees.snapshot(tmp_path) == before


def test_shards_take_an_empty_folder(small: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    pack_folder(small, tmp_path / "shards", shard_size=10)
    require_valid(tmp_path / "shards")
    assert sorted(os.listdir(tmp_path)) == ["shards", "small"]


def test_what_a_killed_process_left_is_cleaned_up(small: Path, tmp_path: Path) -> None:
    trees.plain_tree(tmp_path / ".shards.packing", {"PART_00000.ffr": OLD, ".x.tmp": b"half"})
    pack_folder(small, tmp_path / "shards", shard_size="1GB")
    assert sorted(os.listdir(tmp_path)) == ["shards", "small"]
    assert sorted(os.listdir(tmp_path / "shards")) == ["PART_00000.ffr", "index.ffr"]
    require_valid(tmp_path / "shards")


def test_shards_that_another_process_is_packing_are_refused(small: Path, tmp_path: Path) -> None:
    refused = []

    def again(_now: PackProgress) -> None:
        with pytest.raises(BusyError, match="shards") as caught:
            pack_folder(small, tmp_path / "shards", shard_size=10)
        refused.append(caught.value)

    pack_folder(small, tmp_path / "shards", shard_size=10, progress=again)
    assert refused
    require_valid(tmp_path / "shards")


@pytest.mark.parametrize("next_one", [True, False])
def test_shards_that_others_finish_and_begin_at_this_moment_are_left_alone(
    next_one: bool, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a folder says nothing of another one that has its name by now."""
    packing, theirs = tmp_path / ".shards.packing", {"PART_00000.ffr": OLD}
    trees.plain_tree(packing, theirs)
    plain = fcntl.flock

    def late(fd: int, how: int) -> None:
        packing.rename(tmp_path / "shards")
        if next_one:
            trees.plain_tree(packing, theirs)
        plain(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(FileExistsError, match="shards"):
        pack_folder(small, tmp_path / "shards", shard_size=10)
    assert (tmp_path / "shards/PART_00000.ffr").read_bytes() == OLD
    if next_one:
        assert (packing / "PART_00000.ffr").read_bytes() == OLD


def test_a_folder_that_may_not_be_written_to_is_a_permission_error(tmp_path: Path) -> None:
    place = tmp_path / "ordinary"
    trees.plain_tree(place / "tree", {"f": b"x"})
    (place / "locked").mkdir(mode=0o555)
    script = """
source, target = sys.argv[1:]
for options in ({}, {"shard_size": 1}):
    try:
        pack_folder(source, target, **options)
    except PermissionError as error:
        print(target in str(error.filename) or os.path.dirname(target) in str(error.filename))
print(os.listdir(os.path.dirname(target)))
"""
    with users.reachable(place):
        out = users.run(script, place / "tree", place / "locked" / "a.ffr")
    assert out == "True\nTrue\n[]\n"


# ---- what changes meanwhile ----------------------------------------------------------------


def when_opened(
    monkeypatch: pytest.MonkeyPatch, victim: Path, change: Callable[[], object]
) -> None:
    """Do something just before a file is opened to be packed, the first time."""
    plain, waiting = os.open, [change]

    def opening(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if waiting and path == os.fsencode(victim):
            waiting.pop()()
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", opening)


def when_read(monkeypatch: pytest.MonkeyPatch, victim: Path, change: Callable[[], object]) -> None:
    """Do something when a part of a file has been read."""
    plain, waiting = os.preadv, [change]

    def reading(fd: int, *args: Any) -> int:
        count = plain(fd, *args)
        if waiting and os.readlink(f"/proc/self/fd/{fd}") == str(victim):
            waiting.pop()()
        return count

    monkeypatch.setattr(os, "preadv", reading)


def other_bytes(victim: Path) -> None:
    """As many as before, so that only the times tell. Kernels before 6.13 count those in ticks of
    some milliseconds: go on until the clock has moved."""
    before = victim.stat()
    victim.write_bytes(trees.content(before.st_size, 99))
    while victim.stat().st_ctime_ns == before.st_ctime_ns:
        os.utime(victim)


def grow(victim: Path) -> None:
    with victim.open("ab") as file:
        file.write(b"and more")


def move_away(victim: Path) -> Path:
    return victim.rename(victim.parent.parent.parent / "moved away")


def replace_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(victim: Path) -> None:
        move_away(victim)
        make(victim)

    return change


def replace_its_folder(victim: Path) -> None:
    elsewhere = victim.parent.rename(victim.parent.parent.parent / "elsewhere")
    other_bytes(elsewhere / victim.name)
    victim.parent.symlink_to(elsewhere)


CHANGES: dict[str, Callable[[Path], object]] = {
    "gets other bytes": other_bytes,
    "grows": grow,
    "shrinks": lambda victim: os.truncate(victim, victim.stat().st_size // 2),
    "is emptied": lambda victim: os.truncate(victim, 0),
    "becomes another file": replace_by(lambda victim: victim.write_bytes(b"another one")),
    "goes away": move_away,
    "becomes a symlink": replace_by(lambda victim: victim.symlink_to("../../moved away")),
    "becomes a symlink to nothing": replace_by(lambda victim: victim.symlink_to("nothing")),
    "becomes a fifo": replace_by(os.mkfifo),
    "becomes a socket": replace_by(lambda victim: os.mknod(victim, stat.S_IFSOCK | 0o600)),
    "becomes a folder": replace_by(os.mkdir),
    "goes away with its folder": lambda victim: move_away(victim.parent),
    "is in a folder that becomes a symlink": replace_its_folder,
}
AFTER_READING = ["gets other bytes", "grows", "shrinks", "is emptied"]


PIECE = 2 * trees.BLOCK


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read in pieces that are smaller than usual: less to write for these tests."""
    monkeypatch.setattr(source_files, "BATCH_BYTES", PIECE)


@pytest.fixture(params=["small", "large"])
def changing(request: pytest.FixtureRequest, tmp_path: Path, _small_pieces: None) -> Path:
    """A folder with `sub/victim`, which has one piece or three."""
    size = 100 if request.param == "small" else 2 * PIECE + 5
    files = {"before": b"before", "sub/victim": trees.content(size), "then": b"after"}
    return trees.plain_tree(tmp_path / "home" / "changing", files)


def refuses_to_pack(tree: Path, out: Path, name: str = "sub/victim", **options: Any) -> None:
    """ChangedError, and what was there before is as it was."""
    out.write_bytes(OLD)
    with pytest.raises(ChangedError, match=re.escape(str(tree / name))):
        pack_folder(tree, out, **options)
    assert out.read_bytes() == OLD
    assert os.listdir(out.parent) == [out.name]


def packs_the_rest(tree: Path, out: Path, name: str = "sub/victim", **options: Any) -> None:
    """A warning, and a valid archive in which the others are as they are on disk."""
    before = {path: each.size for path, each in trees.snapshot(tree).items() if each.kind == "file"}
    with pytest.warns(ChangedWarning, match=re.escape(str(tree / name))) as caught:
        report = pack_folder(tree, out, ignore_changed=True, **options)
    assert len(caught) == 1
    assert report.changed == [str(tree / name)]
    require_valid(out)
    packed = contents(out)
    victim = packed.pop(name, None)
    assert victim is None or len(victim) == before[name.encode()]
    assert packed == {"before": b"before", "then": b"after"}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_before_it_is_read_is_an_error_that_names_it(
    change: str, changing: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = changing / "sub/victim"
    when_opened(monkeypatch, victim, lambda: CHANGES[change](victim))
    refuses_to_pack(changing, out)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_before_it_is_read_can_be_ignored(
    change: str, changing: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = changing / "sub/victim"
    when_opened(monkeypatch, victim, lambda: CHANGES[change](victim))
    packs_the_rest(changing, out)


@pytest.mark.parametrize("change", AFTER_READING)
def test_a_file_that_changes_while_it_is_read_is_an_error_that_names_it(
    change: str, changing: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = changing / "sub/victim"
    when_read(monkeypatch, victim, lambda: CHANGES[change](victim))
    refuses_to_pack(changing, out)


@pytest.mark.parametrize("change", AFTER_READING)
def test_a_file_that_changes_while_it_is_read_can_be_ignored(
    change: str, changing: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = changing / "sub/victim"
    when_read(monkeypatch, victim, lambda: CHANGES[change](victim))
    packs_the_rest(changing, out)


@pytest.fixture
def four_pieces(tmp_path: Path, _small_pieces: None) -> Path:
    """With one job the fourth is not begun before the first has been told of."""
    files = {"before": b"before", "sub/victim": trees.content(3 * PIECE + 9), "then": b"after"}
    return trees.plain_tree(tmp_path / "home" / "changing", files)


class Once:
    """Progress that makes a change as soon as a part of the large file has been read."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._waiting = [change]

    def __call__(self, now: PackProgress) -> None:
        if self._waiting and now.bytes >= PIECE:
            self._waiting.pop()()


@pytest.mark.parametrize("change", CHANGES)
def test_a_large_file_that_changes_halfway_is_an_error_that_names_it(
    change: str, four_pieces: Path, out: Path
) -> None:
    once = Once(lambda: CHANGES[change](four_pieces / "sub/victim"))
    refuses_to_pack(four_pieces, out, jobs=1, progress=once)


@pytest.mark.parametrize("change", CHANGES)
def test_a_large_file_that_changes_halfway_can_be_ignored(
    change: str, four_pieces: Path, out: Path
) -> None:
    once = Once(lambda: CHANGES[change](four_pieces / "sub/victim"))
    packs_the_rest(four_pieces, out, jobs=1, progress=once)


def test_what_a_file_lost_is_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tar does it: every other byte is where it was planned to be."""
    data = trees.content(trees.BLOCK + 500)
    tree = trees.plain_tree(tmp_path / "t", {"victim": data})
    victim = tree / "victim"
    when_opened(monkeypatch, victim, lambda: os.truncate(victim, 1000))
    with pytest.warns(ChangedWarning):
        pack_folder(tree, tmp_path / "a.ffr", ignore_changed=True)
    assert contents(tmp_path / "a.ffr") == {"victim": data[:1000] + bytes(len(data) - 1000)}


@pytest.mark.usefixtures("_small_pieces")
def test_the_record_of_what_went_away_holds_nothing_of_other_files(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is used again, so what was read into it before must not get into the archive."""
    files = dict.fromkeys(("a", "b", "c", "victim"), b"secret" * (PIECE // 6))
    tree = trees.plain_tree(tmp_path / "t", files)
    when_opened(monkeypatch, tree / "victim", (tree / "victim").unlink)
    with pytest.warns(ChangedWarning):
        pack_folder(tree, out, ignore_changed=True, jobs=1)
    with PackedFolder(out) as folder:
        taken = {folder.record(name) for name in folder}
        (left,) = set(range(folder.reader.n - 1)) - taken
        assert not folder.reader.read_one(left).any()


def test_what_went_away_is_not_reported_as_packed(
    small: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_opened(monkeypatch, small / "a.txt", (small / "a.txt").unlink)
    with pytest.warns(ChangedWarning):
        report = pack_folder(small, out, ignore_changed=True)
    packed = contents(out)
    assert "a.txt" not in packed
    assert report.files == len(packed)
    assert report.bytes == sum(map(len, packed.values()))


def when_xattrs_are_listed(
    monkeypatch: pytest.MonkeyPatch, victim: Path, change: Callable[[], object]
) -> None:
    """Do something when the names of a file's extended attributes are known, the first time."""
    plain, waiting = os.listxattr, [change]

    def listing(file: Any) -> list[str]:
        found = plain(file)
        place = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fsdecode(file)
        if waiting and place == str(victim):
            waiting.pop()()
        return found

    monkeypatch.setattr(os, "listxattr", listing)


def lose_attribute(victim: Path) -> None:
    before = victim.stat()
    os.removexattr(victim, "user.b")
    while victim.stat().st_ctime_ns == before.st_ctime_ns:  # as in `other_bytes`
        victim.chmod(before.st_mode)


@pytest.fixture
def attributed(tmp_path: Path) -> Path:
    """A folder whose `sub` and `sub/victim` have three attributes each."""
    tree = trees.plain_tree(tmp_path / "home" / "t", {"before": b"before", "sub/victim": b"x"})
    if not trees.has_xattrs(tree):
        pytest.skip("no extended attributes here")
    for place in (tree / "sub", tree / "sub/victim"):
        for name in ("a", "b", "c"):
            os.setxattr(place, f"user.{name}", name.encode())
    return tree


def test_a_file_that_loses_an_attribute_meanwhile_is_an_error_that_names_it(
    attributed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = attributed / "sub/victim"
    when_xattrs_are_listed(monkeypatch, victim, lambda: lose_attribute(victim))
    refuses_to_pack(attributed, out)


@pytest.mark.parametrize("name", ["sub", "sub/victim"])
def test_an_attribute_that_goes_away_does_not_take_the_others_along(
    name: str, attributed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = attributed / name
    when_xattrs_are_listed(monkeypatch, victim, lambda: lose_attribute(victim))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ChangedWarning)
        pack_folder(attributed, out, ignore_changed=True)
    with PackedFolder(out) as folder:
        assert folder.xattrs(name) == {"user.a": b"a", "user.c": b"c"}


def test_several_files_that_change_are_all_named(
    small: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_all() -> None:
        grow(small / "a.txt")
        (small / "logs/2.log").unlink()
        (small / "sub/a.txt").unlink()

    when_opened(monkeypatch, small / "a.txt", change_all)
    with pytest.warns(ChangedWarning) as caught:
        report = pack_folder(small, out, ignore_changed=True, shard_size=None)
    due = [str(small / name) for name in ("a.txt", "logs/2.log", "sub/a.txt")]
    assert sorted(report.changed) == due
    assert len(caught) == 3
    assert names(out) == ALL - {"logs/2.log", "sub/a.txt"}
    require_valid(out)


def test_a_hard_link_that_is_still_there_is_packed_or_named(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"first": b"shared"})
    os.link(tree / "first", tree / "second")
    when_opened(monkeypatch, tree / "first", (tree / "first").unlink)
    with pytest.warns(ChangedWarning):
        report = pack_folder(tree, out, ignore_changed=True)
    assert "second" in names(out) or str(tree / "second") in report.changed


def test_a_symlink_to_a_file_that_went_away_dangles(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"file": b"x", "other": b"y"})
    (tree / "link").symlink_to("file")
    when_opened(monkeypatch, tree / "file", (tree / "file").unlink)
    with pytest.warns(ChangedWarning):
        pack_folder(tree, out, ignore_changed=True)
    require_valid(out)
    with PackedFolder(out) as folder:
        assert folder.is_symlink("link")
        assert not folder.exists("link")


def test_shards_are_valid_although_a_file_went_away(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_opened(monkeypatch, small / "logs/1.log", (small / "logs/1.log").unlink)
    with pytest.warns(ChangedWarning):
        pack_folder(small, tmp_path / "shards", shard_size=1, ignore_changed=True)
    require_valid(tmp_path / "shards")
    assert names(tmp_path / "shards") == ALL - {"logs/1.log"}


# ---- what changes while the folder is listed -----------------------------------------------


def when_listed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, change: Callable[[], object]
) -> None:
    """Do something when a folder's names are known and nothing else of them."""
    plain, waiting = os.listdir, [change]

    def listing(path: Any) -> Any:
        found = plain(path)
        if waiting and isinstance(path, bytes) and os.path.realpath(path) == os.fsencode(folder):
            waiting.pop()()
        return found

    monkeypatch.setattr(os, "listdir", listing)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    tree = trees.plain_tree(
        tmp_path / "home" / "listed", {"a/1": b"1", "victim/inside": b"2", "file": b"3"}
    )
    (tree / "link").symlink_to("file")
    return tree


VANISHING = {
    # What goes away, and the folder that is being listed at that moment.
    "file": "",
    "link": "",
    "victim": "",  # before it is known to be a folder
    "victim ": "a",  # after that, before it is listed itself
}


@pytest.mark.parametrize("name", VANISHING)
def test_what_goes_away_while_its_folder_is_listed_is_an_error_that_names_it(
    name: str, listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = listed / name.strip()
    away = listed.parent / "moved away"
    when_listed(monkeypatch, listed / VANISHING[name], lambda: victim.rename(away))
    refuses_to_pack(listed, out, name.strip())


@pytest.mark.parametrize("name", VANISHING)
def test_what_goes_away_while_its_folder_is_listed_can_be_ignored(
    name: str, listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = listed / name.strip()
    away = listed.parent / "moved away"
    when_listed(monkeypatch, listed / VANISHING[name], lambda: victim.rename(away))
    with pytest.warns(ChangedWarning, match=re.escape(str(victim))):
        pack_folder(listed, out, ignore_changed=True)
    require_valid(out)
    assert "a/1" in names(out)
    assert "victim/inside" not in names(out) or name.strip() != "victim"


def test_what_goes_away_while_its_folder_is_listed_is_in_the_report(
    listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_listed(monkeypatch, listed, (listed / "file").unlink)
    with pytest.warns(ChangedWarning):
        report = pack_folder(listed, out, ignore_changed=True)
    assert report.changed == [str(listed / "file")]


def test_a_symlink_that_goes_away_before_it_is_read_is_an_error_that_names_it(
    listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.readlink

    def reading(path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == b"link":
            os.unlink(listed / "link")
        return plain(path, *args, **kwargs)

    monkeypatch.setattr(os, "readlink", reading)
    refuses_to_pack(listed, out, "link")


@pytest.mark.parametrize("replacement", ["a symlink", "a file"])
def test_a_folder_that_becomes_something_else_is_an_error_that_names_it(
    replacement: str, listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above all nothing from outside of the folder gets into the archive."""
    secret = trees.plain_tree(listed.parent / "outside", {"secret": b"not to be packed"})

    def change() -> None:
        (listed / "victim").rename(listed.parent / "moved away")
        if replacement == "a symlink":
            (listed / "victim").symlink_to(secret)
        else:
            (listed / "victim").write_bytes(b"")

    when_listed(monkeypatch, listed / "a", change)
    refuses_to_pack(listed, out, "victim")


def test_a_folder_that_is_replaced_while_its_names_are_looked_at_leads_nowhere_else(
    listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was compared by then: its names must not be looked up in what takes its place."""
    outside = trees.plain_tree(listed.parent / "outside", {"inside": b"not to be packed"})
    victim, plain = listed / "victim", os.stat

    def looking(path: Any, **kwargs: Any) -> os.stat_result:
        if path == b"inside" and not victim.is_symlink():
            victim.rename(listed.parent / "moved away")
            victim.symlink_to(outside)
        return plain(path, **kwargs)

    monkeypatch.setattr(os, "stat", looking)
    refuses_to_pack(listed, out, "victim/inside")


# ---- it does not end well ------------------------------------------------------------------


def test_what_may_not_be_read_is_a_permission_error_that_names_it(tmp_path: Path) -> None:
    place = tmp_path / "ordinary"
    trees.plain_tree(place / "file", {"a": b"a", "sub/secret": b"s", "z": b"z"})
    trees.plain_tree(place / "folder", {"a": b"a", "secret/b": b"b", "z": b"z"})
    (place / "file/sub/secret").chmod(0)
    (place / "folder/secret").chmod(0)
    script = """
place = sys.argv[1]
for name in ("file", "folder"):
    for options in ({}, {"ignore_changed": True}, {"shard_size": 1}):
        try:
            pack_folder(f"{place}/{name}", f"{place}/out/archive", **options)
        except PermissionError as error:
            print(error.filename)
    code = ffrecord.cli.main(["pack", f"{place}/{name}", f"{place}/out/archive"])
    print(code, file=sys.stderr)
print(os.listdir(f"{place}/out"))
"""
    (place / "out").mkdir()
    if os.geteuid() == 0:
        os.chown(place / "out", users.NOBODY, users.NOBODY)
    with users.reachable(place):
        out = users.run(script, place)
    (place / "folder/secret").chmod(0o700)
    assert out.splitlines() == [
        *[f"{place}/file/sub/secret"] * 3,
        *[f"{place}/folder/secret"] * 3,
        "[]",
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError, MemoryError])
@pytest.mark.parametrize("options", [{}, {"shard_size": 300_000}], ids=["file", "shards"])
@pytest.mark.parametrize("calls", [1, 4])
def test_an_interrupted_pack_leaves_nothing(
    calls: int, options: dict[str, Any], error: type[BaseException], rich: Path, out: Path
) -> None:
    told: list[int] = []

    def interrupt(now: PackProgress) -> None:
        told.append(now.files)
        if len(told) == calls:
            raise error

    descriptors = handmade.open_descriptors()
    with pytest.raises(error):
        pack(rich, out, progress=interrupt, **options)
    assert len(told) == calls
    assert os.listdir(out.parent) == []
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("ffrecord-pack")]
    assert handmade.open_descriptors() == descriptors


def test_an_interrupted_pack_leaves_the_old_archive_as_it_was(rich: Path, out: Path) -> None:
    def interrupt(now: PackProgress) -> None:
        raise KeyboardInterrupt

    out.write_bytes(OLD)
    with pytest.raises(KeyboardInterrupt):
        pack(rich, out, progress=interrupt)
    assert out.read_bytes() == OLD
    assert os.listdir(out.parent) == [out.name]


KILLED = """
import sys
from ffrecord import pack_folder
source, out, shard_size, when = sys.argv[1:]
calls = []
def stop(now):
    calls.append(now)
    if len(calls) == int(when):
        print("here", flush=True)
        sys.stdin.read()
pack_folder(source, out, progress=stop, shard_size=shard_size or None)
"""


def kill_while_packing(source: Path, out: Path, shard_size: str, when: int) -> None:
    process = handmade.python(KILLED, str(source), str(out), shard_size, str(when))
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    _out, err = process.communicate(timeout=600)
    assert line == "here\n", err


@pytest.mark.parametrize("when", [1, 3])
def test_a_killed_pack_leaves_the_old_archive_as_it_was(when: int, small: Path, out: Path) -> None:
    (small / "large").write_bytes(trees.content(3 * trees.BATCH))
    for before in (None, OLD):
        if before is not None:
            out.write_bytes(before)
        kill_while_packing(small, out, "", when)
        assert os.listdir(out.parent) == ([] if before is None else [out.name])
        assert before is None or out.read_bytes() == before


def test_shards_of_a_killed_pack_never_have_the_targets_name(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "shards"
    kill_while_packing(small, target, "1", 3)
    assert sorted(os.listdir(tmp_path)) == [".shards.packing", "small"]
    pack_folder(small, target, shard_size=1)
    assert sorted(os.listdir(tmp_path)) == ["shards", "small"]
    require_valid(target)


NO_ROOM = """
import os, resource, sys, warnings
from ffrecord import NoRoomError, pack_folder
source, out, shard_size, limit = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    pack_folder(source, out, shard_size=shard_size or None)
except NoRoomError as error:
    print("no room:", error.filename)
print(sorted(os.listdir(os.path.dirname(out))))
"""


@pytest.mark.parametrize("limit", [1_000, 600_000, 1_000_100])
@pytest.mark.parametrize("shard_size", ["", "900kB"])
def test_a_full_disk_leaves_nothing(shard_size: str, limit: int, tmp_path: Path, out: Path) -> None:
    """The last limit has room for the files, but not for the index."""
    files = {f"{k}": trees.content(100_000, k) for k in range(10)}
    if shard_size and limit > 900_000:
        files = {f"{k:0250d}": b"" for k in range(5_000)}  # an index larger than its shards
    tree = trees.plain_tree(tmp_path / "t", files)
    process = handmade.python(NO_ROOM, str(tree), str(out), shard_size, str(limit))
    printed, err = process.communicate(timeout=600)
    first, second = printed.splitlines()
    assert first.startswith("no room: "), err
    assert second == "[]"


def test_a_full_disk_is_noticed_at_every_write(
    rich: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes fail one after the other, each time a later one, until none does."""
    plain = os.pwrite
    left = 0

    def writing(*args: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(*args)

    out.write_bytes(OLD)
    failures = 0
    for allowed in range(100):
        left = allowed
        with monkeypatch.context() as disk:
            disk.setattr(os, "pwrite", writing)
            try:
                pack(rich, out)
                break
            except NoRoomError:
                failures += 1
        assert out.read_bytes() == OLD
        assert os.listdir(out.parent) == [out.name]
    assert failures > 5
    require_valid(out)


def test_large_files_are_packed_past_the_page_cache_with_the_same_bytes(
    rich: Path, packed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_file, "SMALL_BUFFER", 64 << 10)
    monkeypatch.setattr(atomic_file, "DIRECT_BUFFER", 256 << 10)
    monkeypatch.setattr(atomic_file, "DIRECT_FROM", 512 << 10)
    pack(rich, out)
    assert digests(out) == digests(packed)


def test_a_symlink_with_two_names_is_for_the_original_what_each_name_leads_to(
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

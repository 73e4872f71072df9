"""`pack_folder`: targets of all kinds, and the state of the target after a failure."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from ffrecord import BusyError, NoRoomError, pack_folder
from ffrecord.archive.pack import PackProgress
from tests.support import handmade, trees, users
from tests.support.archives import pack
from tests.support.handmade import OLD
from tests.support.packing import ALL, contents, names, require_valid

# ---- the target ----------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
def test_an_archive_inside_its_folder_is_not_packed_into_itself(there: bool, small: Path) -> None:
    if there:
        (small / "sub/archive.ffr").write_bytes(OLD)
    for _ in range(2):  # the second time, the archive exists
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
    """The hard link keeps the old archive. Only the replaced name is left out."""
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


@pytest.mark.parametrize("there", ["nothing", "an empty folder", "leftovers of a killed process"])
def test_shards_inside_their_folder_are_not_packed_into_themselves(there: str, small: Path) -> None:
    if there == "an empty folder":
        (small / "shards").mkdir()
    elif there == "leftovers of a killed process":
        trees.plain_tree(small / ".shards.packing", {"PART_00000.ffr": OLD})
    pack_folder(small, small / "shards", shard_size=10)
    assert names(small / "shards") == ALL
    assert set(os.listdir(small)) == {name for name in ALL if "/" not in name} | {"shards"}


def test_an_archive_may_have_the_longest_possible_name(small: Path, out: Path) -> None:
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


def test_a_missing_folder_is_a_file_not_found_error(small: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        pack_folder(small, tmp_path / "missing" / "a.ffr")
    with pytest.raises(FileNotFoundError, match="missing"):
        pack_folder(small, tmp_path / "missing" / "shards", shard_size=1)
    with pytest.raises(FileNotFoundError, match="nothing here"):
        pack_folder(tmp_path / "nothing here", tmp_path / "a.ffr")


@pytest.mark.parametrize("options", [{}, {"shard_size": 1}], ids=["file", "shards"])
@pytest.mark.parametrize("where", ["missing/x", "file/x", "link"])
def test_an_impossible_target_is_refused_before_the_folder_is_walked(
    where: str, options: dict[str, Any], small: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("missing/x")

    def walk(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("the folder was walked")

    monkeypatch.setattr("ffrecord.archive.pack.Scan", walk)
    with pytest.raises(OSError, match=where.split("/")[0] + "|missing"):
        pack_folder(small, tmp_path / where, **options)


def test_a_file_is_not_packed_as_a_folder(small: Path, out: Path) -> None:
    with pytest.raises(NotADirectoryError, match=r"a\.txt"):
        pack_folder(small / "a.txt", out)
    assert not out.exists()


@pytest.mark.parametrize("there", ["a file in it", "a file", "a symlink to a folder", "dangling"])
def test_shards_need_a_new_folder(there: str, small: Path, tmp_path: Path) -> None:
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
    assert opened == [], "files were read before the target was checked"
    assert trees.snapshot(tmp_path) == before


def test_shards_may_use_an_empty_folder(small: Path, tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    pack_folder(small, tmp_path / "shards", shard_size=10)
    require_valid(tmp_path / "shards")
    assert sorted(os.listdir(tmp_path)) == ["shards", "small"]


def test_leftovers_of_a_killed_process_are_removed(small: Path, tmp_path: Path) -> None:
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
def test_shards_that_other_processes_finish_at_this_moment_are_left_alone(
    next_one: bool, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of a folder does not protect another folder that gets its name meanwhile."""
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


# ---- failures ------------------------------------------------------------------------------


def test_an_unreadable_file_is_a_permission_error_that_names_it(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("calls", "options", "error"),
    [
        (1, {}, KeyboardInterrupt), (4, {"shard_size": 300_000}, KeyboardInterrupt),
        (4, {}, MemoryError), (1, {"shard_size": 300_000}, ZeroDivisionError),
    ],
)  # fmt: skip
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


def test_an_interrupted_pack_leaves_the_old_archive_unchanged(rich: Path, out: Path) -> None:
    def interrupt(now: PackProgress) -> None:
        raise KeyboardInterrupt

    out.write_bytes(OLD)
    with pytest.raises(KeyboardInterrupt):
        pack(rich, out, progress=interrupt)
    assert out.read_bytes() == OLD
    assert os.listdir(out.parent) == [out.name]


NO_ROOM = """
import os, resource, sys, warnings
from ffrecord import NoRoomError, pack_folder
source, out, shard_size, limit = sys.argv[1:]
sys.dont_write_bytecode = True  # the limit would cut off .pyc files, which later tests read
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    pack_folder(source, out, shard_size=shard_size or None)
except NoRoomError as error:
    print("no room:", error.filename)
print(sorted(os.listdir(os.path.dirname(out))))
"""


@pytest.mark.parametrize(("shard_size", "limit"), [("", 600_000), ("900kB", 1_000_100)])
def test_a_full_disk_leaves_nothing(shard_size: str, limit: int, tmp_path: Path, out: Path) -> None:
    """The last limit is enough for the files, but not for the index."""
    files = {f"{k}": trees.content(100_000, k) for k in range(10)}
    if shard_size and limit > 900_000:
        files = {f"{k:0250d}": b"" for k in range(5_000)}  # an index larger than its shards
    tree = trees.plain_tree(tmp_path / "t", files)
    process = handmade.python(NO_ROOM, str(tree), str(out), shard_size, str(limit))
    printed, err = process.communicate(timeout=600)
    first, second = printed.splitlines()
    # A file in the hidden folder of the shards would tell the user nothing.
    assert first == f"no room: {out}", err
    assert second == "[]"


def test_a_full_disk_is_noticed_at_every_write(
    rich: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run allows one write more than the run before, until no write fails."""
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

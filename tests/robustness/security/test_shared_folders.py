"""In a folder that everyone may write to, another user who plants files gains nothing.

The other user is `nobody`. The folder is like /tmp: everyone can create names in it, but not remove
the names of others. Some kernels refuse such files themselves (fs.protected_regular and similar
settings). The library refuses them on every kernel. Like the kernel, it accepts files of the
folder's owner.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import FileReader, FileWriter, cli, pack_folder
from ffrecord.archive import placing
from ffrecord.archive.archive import Archive
from ffrecord.archive.extract import extract
from ffrecord.atomic import locks, tempnames
from ffrecord.convert import convert
from ffrecord.dataset import DatasetWriter
from ffrecord.errors import FFRecordError
from ffrecord.format.cachemap import MapHeader
from ffrecord.format.journal import journal_path, partial_path
from ffrecord.remote.cache.folder import CacheFolder
from ffrecord_fuse.serve.report import Log
from tests.fuse.mounted.mounting import time_limit
from tests.support import archives, handmade, trees, users
from tests.support.patience import PATIENCE

Act: TypeAlias = "Callable[[Path], Any]"

SECONDS = PATIENCE
SECRET = b"what root has written"
PRECIOUS = b"a file of root's " * 1000

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make files of several users"
)


@pytest.fixture(autouse=True)
def _time_limit(tmp_path: Path) -> Iterator[None]:
    """Limit the time of a test: opening a planted fifo would wait for ever.

    `tmp_path` is requested first, because pytest then removes the folders of earlier runs, and
    that time must not count.
    """
    with time_limit(SECONDS):
        yield


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_bytes(PRECIOUS)
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    tree = trees.plain_tree(tmp_path / "tree", {"file": b"content", "folder/file": b"other"})
    archives.pack(tree, tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


def plant(kind: str, path: Path, precious: Path) -> None:
    """Plant something as `nobody`. A hard link belongs to root, like the file that it names."""
    if kind == "hard link":
        os.link(precious, path)
        return
    if kind == "file":
        path.touch()
        path.chmod(0o666)
    elif kind == "symlink":
        path.symlink_to(precious)
    elif kind == "fifo":
        os.mkfifo(path, 0o666)
    else:
        path.mkdir()
        path.chmod(0o777)
    os.chown(path, users.NOBODY, users.NOBODY, follow_symlinks=False)


def refused(act: Act, path: Path, names: Path) -> None:
    """Check that the action raises an error that names the planted path."""
    with pytest.raises((OSError, FFRecordError)) as caught:
        act(path)
    assert str(names) in str(caught.value)


def write_resumable(path: Path) -> None:
    with FileWriter(path, resumable=True) as writer:
        writer.write_one(SECRET)
        writer.flush()


@pytest.mark.parametrize("kind", ["file", "symlink", "fifo", "hard link", "folder"])
@pytest.mark.parametrize("which", ["records", "journal"])
def test_a_resumable_writer_refuses_files_of_another_user(
    which: str, kind: str, shared: Path, precious: Path
) -> None:
    path = shared / "long.ffr"
    partial = partial_path(str(path))
    trap = Path(partial if which == "records" else journal_path(partial))
    plant(kind, trap, precious)
    refused(write_resumable, path, trap)
    assert precious.read_bytes() == PRECIOUS
    assert not path.exists()
    if kind == "file":
        assert trap.read_bytes() == b""


@pytest.mark.parametrize("which", ["records", "journal"])
def test_a_fifo_with_the_name_of_an_unfinished_file_is_an_error(which: str, tmp_path: Path) -> None:
    partial = partial_path(str(tmp_path / "long.ffr"))
    trap = partial if which == "records" else journal_path(partial)
    os.mkfifo(trap)
    with pytest.raises(OSError, match="not a regular file") as caught:
        write_resumable(tmp_path / "long.ffr")
    assert caught.value.filename == trap


def pack_shards(path: Path) -> None:
    pack_folder(path.parent.parent / "tree", path, shard_size=1000)


def write_dataset(path: Path) -> None:
    with DatasetWriter(path, {"text": "utf8"}) as writer:
        writer.append({"text": "secret"})


def convert_archive(path: Path) -> None:
    convert(path.parent.parent / "tree.ffr", path, target_format="folder")


FOLDERS: dict[str, Act] = {
    "packing": pack_shards, "writing": write_dataset, "converting": convert_archive,
}  # fmt: skip


@pytest.mark.parametrize("doing", FOLDERS)
def test_a_folder_made_by_another_user_is_not_filled(
    doing: str, archive: Path, shared: Path
) -> None:
    trap = shared / f".out.{doing}"
    plant("folder", trap, archive)
    refused(FOLDERS[doing], shared / "out", trap)
    assert os.listdir(trap) == []
    assert os.listdir(shared) == [trap.name]


@pytest.mark.parametrize("doing", FOLDERS)
def test_a_planted_symlink_to_our_folder_is_neither_filled_nor_emptied(
    doing: str, archive: Path, shared: Path, tmp_path: Path
) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "precious").write_bytes(PRECIOUS)
    trap = shared / f".out.{doing}"
    plant("symlink", trap, ours)
    refused(FOLDERS[doing], shared / "out", trap)
    assert os.listdir(ours) == ["precious"]


def test_our_own_remains_of_a_killed_writer_are_accepted_in_a_shared_folder(
    archive: Path, shared: Path
) -> None:
    """Control: only files of other users are refused."""
    for doing, act in FOLDERS.items():
        left = shared / f".out.{doing}"
        left.mkdir()
        (left / "litter").touch()
        act(shared / "out")
        assert os.listdir(shared) == ["out"]
        (shared / "out").rename(shared.parent / doing)
    path = shared / "long.ffr"
    writer = FileWriter(path, resumable=True)
    writer.write_one(b"first")
    writer.suspend()
    with FileWriter(path, resumable=True) as writer:
        assert writer.count == 1
        writer.write_one(b"second")
    with FileReader(path) as reader:
        assert handmade.as_bytes(reader) == [b"first", b"second"]


def test_users_of_a_group_folder_can_continue_each_others_files(tmp_path: Path) -> None:
    """The folder is not sticky: everyone with write access can do anything there anyway."""
    place = tmp_path / "group's"
    place.mkdir()
    place.chmod(0o2777)
    path = place / "long.ffr"
    writer = FileWriter(path, resumable=True)
    writer.write_one(b"first")
    writer.suspend()
    for name in os.listdir(place):
        os.chown(place / name, users.NOBODY, users.NOBODY)
    with FileWriter(path, resumable=True) as writer:
        assert writer.count == 1


@pytest.mark.parametrize("kind", ["file", "symlink", "fifo", "hard link"])
@pytest.mark.parametrize("ending", [".map", ".copy"])
def test_a_cache_neither_uses_nor_changes_files_of_another_user(
    ending: str, kind: str, shared: Path, precious: Path
) -> None:
    """The other user can guess the names of cached files, and their content."""
    cache = CacheFolder(str(shared), 1 << 20)
    name = f"{0:032}-{0:016}"
    header = MapHeader(len(PRECIOUS), '"tag"', None, "http://h/a", 1)
    for fd in cache.open_files(name, header)[1:]:
        os.close(fd)
    trap = shared / f"{name}{ending}"
    genuine = trap.read_bytes()
    trap.unlink()
    plant(kind, trap, precious)
    if kind == "file":
        trap.write_bytes(genuine)
    with pytest.raises(OSError, match="shared"):
        cache.open_files(name, header)
    with cache.locked():
        cache.reserve(1 << 20)  # drops what nobody uses
    assert precious.read_bytes() == PRECIOUS


# ---- temporary names, even if guessed ----------------------------------------------------------


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every random name predictable, as if the other user had guessed it."""
    monkeypatch.setattr(os, "urandom", bytes)


@pytest.mark.parametrize("kind", ["file", "symlink", "fifo", "hard link", "folder"])
@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed files", "no unnamed files"])
def test_a_writer_leaves_taken_temporary_names_alone_and_finds_another(
    unnamed: bool, kind: str, shared: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        # O_DIRECTORY gives EISDIR, as O_TMPFILE does on file systems without unnamed files.
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    path = shared / "data.ffr"
    handmade.write_records(path, [b"old"])  # replacing a file needs a temporary name
    traps = [Path(name) for name in tempnames.names(str(path))]
    for trap in traps:
        plant(kind, trap, precious)
    before = [trap.lstat() for trap in traps]
    with FileWriter(path) as writer:
        writer.write_one(SECRET)
    with FileReader(path) as reader:
        assert handmade.as_bytes(reader.read([0])) == [SECRET]
    assert sorted(shared.iterdir()) == sorted([path, *traps])
    assert [trap.lstat() for trap in traps] == before
    assert precious.read_bytes() == PRECIOUS


@pytest.mark.parametrize("kind", ["file", "symlink", "fifo", "hard link", "folder"])
@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed files", "no unnamed files"])
def test_extracting_does_not_write_through_a_taken_temporary_name(
    unnamed: bool, kind: str, archive: Path, shared: Path, precious: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The first temporary name is predictable. A file with that name is removed, like the remains
    of a killed extraction; a folder stays."""
    if not unnamed:
        # O_DIRECTORY gives EISDIR, as O_TMPFILE does on file systems without unnamed files.
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    (shared / "file").write_bytes(b"old")
    trap = shared / os.fsdecode(placing.PASSING)
    plant(kind, trap, precious)
    with Archive.open(archive) as opened:
        extract(opened, shared, ["file"], overwrite=True)
    assert precious.read_bytes() == PRECIOUS
    assert (shared / "file").read_bytes() == b"content"
    assert (shared / "file").stat().st_nlink == 1
    assert trap.exists() == (kind == "folder")


REPLACE = """
path, dest = sys.argv[1:]
with PackedFolder(path) as folder:
    folder.extract(dest, ["file"], overwrite=True)
print(sorted(os.listdir(dest)))
"""


def test_an_ordinary_user_takes_another_name_if_the_temporary_one_is_not_theirs(
    archive: Path, shared: Path
) -> None:
    (shared / "file").write_bytes(b"old")
    os.chown(shared / "file", users.NOBODY, users.NOBODY)
    (shared / os.fsdecode(placing.PASSING)).write_bytes(PRECIOUS)  # belongs to root
    archive.chmod(0o644)
    with users.reachable(archive.parent):
        out = users.run(REPLACE, archive, shared)
    assert out == f"{[os.fsdecode(placing.PASSING), 'file']}\n"
    assert (shared / "file").read_bytes() == b"content"
    assert (shared / os.fsdecode(placing.PASSING)).read_bytes() == PRECIOUS


@pytest.mark.usefixtures("guessed")
@pytest.mark.parametrize("kind", ["file", "symlink", "fifo", "hard link"])
def test_extracting_does_not_write_through_a_taken_random_name(
    kind: str, archive: Path, shared: Path, precious: Path
) -> None:
    (shared / "file").write_bytes(b"old")
    (shared / os.fsdecode(placing.PASSING)).mkdir()  # so that a random name is used
    trap = shared / ".ffrecord-0000000000000000"
    plant(kind, trap, precious)
    before = trap.lstat()
    with Archive.open(archive) as opened, pytest.raises(FileExistsError):
        extract(opened, shared, ["file"], overwrite=True)
    assert trap.lstat() == before  # compare before reading, which may change the access time
    assert precious.read_bytes() == PRECIOUS
    assert (shared / "file").read_bytes() == b"old"


# ---- the log of a mount ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "symlink", "fifo", "hard link"])
def test_a_log_planted_by_another_user_is_refused(
    kind: str, archive: Path, shared: Path, precious: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    trap = shared / "log"
    plant(kind, trap, precious)
    point = tmp_path / "mnt"
    point.mkdir()
    assert cli.main(["mount", str(archive), str(point), "--log", str(trap)]) == 13
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert str(trap) in lines[0]
    assert precious.read_bytes() == PRECIOUS
    assert not os.path.ismount(point)


def test_a_fifo_without_a_reader_does_not_block_a_mount(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OSError, match="No such device or address"):
        Log(str(tmp_path / "log"))


def test_a_log_may_be_a_symlink_of_the_same_user(shared: Path, tmp_path: Path) -> None:
    (shared / "log").symlink_to(tmp_path / "real")
    Log(str(shared / "log")).line("a line")
    assert (tmp_path / "real").read_text().endswith(" a line\n")
    assert (tmp_path / "real").stat().st_mode & 0o777 & ~0o640 == 0


def test_a_symlink_planted_between_check_and_open_is_not_followed(
    shared: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = locks.refuse_planted_symlink

    def then_planted(path: str) -> None:
        plain(path)
        plant("symlink", Path(path), precious)

    monkeypatch.setattr(locks, "refuse_planted_symlink", then_planted)
    with pytest.raises(OSError, match=r"symbolic links|Permission denied"):
        Log(str(shared / "log"))
    assert precious.read_bytes() == PRECIOUS

"""Permissions of files while they are written, and under any umask.

"At every moment" means after every system call that creates, fills or renames a file, or changes
its mode or owner.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import FileReader, FileWriter, pack_folder, salvage_file
from ffrecord.archive.archive import Archive
from ffrecord.archive.extract import extract
from ffrecord.convert import convert
from ffrecord.dataset import DatasetWriter
from tests.support import archives, handmade, trees

Look: TypeAlias = "Callable[[], None]"

SECRET = b"for the owner's eyes"
CALLS = (
    "open", "mkdir", "write", "pwrite", "fsync", "close", "chmod", "fchmod", "fchown", "symlink",
    "link", "rename", "replace", "ftruncate", "sendfile", "copy_file_range",
)  # fmt: skip
UMASKS = (0o000, 0o002, 0o022, 0o027, 0o077)


@pytest.fixture(autouse=True)
def _any_umask() -> Iterator[None]:
    """Set the most permissive umask during the test."""
    before = os.umask(0)
    yield
    os.umask(before)


@contextlib.contextmanager
def at_every_moment(look: Look, calls: Sequence[str] = CALLS) -> Iterator[None]:
    """Call `look` after every system call, except after those that `look` itself makes."""
    looking = False

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def then_look(*arguments: Any, **options: Any) -> Any:
            nonlocal looking
            result = call(*arguments, **options)
            if not looking:
                looking = True
                try:
                    look()
                finally:
                    looking = False
            return result

        return then_look

    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            patch.setattr(os, name, watched(getattr(os, name)))
        yield


def open_to_others(top: Path) -> set[str]:
    """Return the files and folders below `top`, itself included, that others can list or read.

    A file or folder counts only if every folder above it lets others through.
    """
    found = set()
    waiting = [top]
    while waiting:
        path = waiting.pop()
        bits = _bits(path)
        if bits & 0o4:
            found.add(str(path.relative_to(top)))
        if path.is_dir() and not path.is_symlink() and bits & 0o1:
            waiting += path.iterdir()
    return found


def _bits(path: Path) -> int:
    """Return the union of the permissions of others and of the group."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        return 0 if stat.S_ISLNK(mode) else mode & 0o7 | mode >> 3 & 0o7
    return 0


# ---- extracting --------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Pack files in private folders, private files, and a private top folder."""
    modes = {
        "secret": 0o600, "public": 0o644, "hidden/public": 0o644, "hidden/deep/public": 0o666,
        "open/secret": 0o600, "open/public": 0o644, "unlisted/public": 0o644, "large": 0o600,
    }  # fmt: skip
    files = {name: name.encode() for name in modes}
    tree = trees.plain_tree(tmp_path / "tree", {**files, "large": SECRET * 700_000})
    os.link(tree / "secret", tree / "secret too")
    for name, mode in modes.items():
        (tree / name).chmod(mode)
    for name, mode in {"hidden": 0o700, "hidden/deep": 0o777, "open": 0o755}.items():
        (tree / name).chmod(mode)
    (tree / "unlisted").chmod(0o711)
    archives.pack(tree, tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


@pytest.mark.parametrize("top", [0o700, 0o755])
@pytest.mark.parametrize("before", ["nothing", "an empty folder", "all of it"])
def test_extracting_never_exposes_files_that_are_private_in_the_end(
    before: str, top: int, archive: Path, tmp_path: Path
) -> None:
    (tmp_path / "tree").chmod(top)
    archives.pack(tmp_path / "tree", archive)
    dest = tmp_path / "dest"
    if before == "an empty folder":
        dest.mkdir()
    elif before == "all of it":
        shutil.copytree(tmp_path / "tree", dest)
    in_the_end = readable(tmp_path / "tree")
    assert (b"open/public" in in_the_end, b"public" in in_the_end) == ((top == 0o755,) * 2)
    seen: set[bytes] = set()
    moments = 0

    def look() -> None:
        nonlocal moments
        moments += 1
        seen.update(readable(dest))

    with Archive.open(archive) as opened, at_every_moment(look):
        extract(opened, dest, overwrite=before == "all of it")
    assert seen <= in_the_end
    assert readable(dest) == in_the_end
    assert moments > 50


def readable(top: Path) -> set[bytes]:
    """Return the contents of the files that others can read, under any name."""
    files = [top / name for name in open_to_others(top)]
    return {path.read_bytes() for path in files if path.is_file()}


# ---- replaced files, and folders being filled --------------------------------------------------


def write_plain(path: Path) -> None:
    with FileWriter(path) as writer:
        writer.write_one(SECRET)


def write_resumable(path: Path) -> None:
    with FileWriter(path, resumable=True) as writer:
        writer.write_one(SECRET)
        writer.flush()


def write_more(path: Path) -> None:
    with FileWriter(path, append=True) as writer:
        writer.write_one(SECRET)


def pack_again(path: Path) -> None:
    pack_folder(path.with_name("source"), path, legacy_index=False)


def salvage_again(path: Path) -> None:
    salvage_file(path.with_name("private") / "source.ffr", path, overwrite=True)


def convert_again(path: Path) -> None:
    convert(path.with_name("source"), path, target_format="tar", force=True)


REPLACING = {
    "FileWriter": write_plain, "resumable": write_resumable, "append": write_more,
    "pack": pack_again, "salvage": salvage_again, "convert": convert_again,
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Make a public folder in which only the sources are private."""
    place = tmp_path / "place"
    place.mkdir()
    trees.plain_tree(place / "source", {"secret": SECRET})
    (place / "source").chmod(0o700)
    (place / "private").mkdir(0o700)
    handmade.write_records(place / "private" / "source.ffr", [SECRET])
    handmade.write_records(place / "data.ffr", [b"old"])
    (place / "data.ffr").chmod(0o600)
    return place


def leaks(top: Path) -> set[str]:
    """Return the files below a folder that contain the secret and that others can read."""
    files = [top / name for name in open_to_others(top) if (top / name).is_file()]
    return {path.name for path in files if SECRET in path.read_bytes()}


@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed files", "no unnamed files"])
@pytest.mark.parametrize("how", REPLACING)
def test_replacing_a_private_file_exposes_no_temporary_file(
    how: str, unnamed: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        # O_DIRECTORY gives EISDIR, as O_TMPFILE does on file systems without unnamed files.
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    found: set[str] = set()
    with at_every_moment(lambda: found.update(leaks(place))):
        REPLACING[how](place / "data.ffr")
    assert found == set()
    assert stat.S_IMODE((place / "data.ffr").stat().st_mode) == 0o600
    assert SECRET in (place / "data.ffr").read_bytes()
    (place / "data.ffr").chmod(0o644)
    assert leaks(place) == {"data.ffr"}  # control: the check finds a public file


def test_a_private_file_stays_private_where_unnamed_files_cannot_be_linked(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    found: set[str] = set()
    with at_every_moment(lambda: found.update(leaks(place))):
        write_plain(place / "data.ffr")
    assert found == set()
    assert stat.S_IMODE((place / "data.ffr").stat().st_mode) == 0o600


def pack_shards(path: Path) -> None:
    pack_folder(path.with_name("source"), path, shard_size=1000)


def write_dataset(path: Path) -> None:
    with DatasetWriter(path, {"text": "utf8"}) as writer:
        writer.append({"text": SECRET.decode()})


@pytest.mark.parametrize("make", [pack_shards, write_dataset])
def test_a_folder_is_private_while_it_is_being_filled(
    make: Callable[[Path], None], place: Path
) -> None:
    """The folder becomes public when it is complete, before it gets its name."""
    found: set[str] = set()

    def look() -> None:
        if not (place / "out").exists():
            found.update(leaks(place))

    with at_every_moment(look, ("mkdir", "write", "pwrite", "link", "rename")):
        make(place / "out")
    assert found == set()
    assert leaks(place)  # in the end it is public, as the umask allows


def test_a_private_file_in_a_tar_stays_private_while_it_is_converted(
    place: Path, tmp_path: Path
) -> None:
    """The conversion writes a temporary archive beside the folder, with all contents in it."""
    (place / "source" / "secret").chmod(0o600)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(place / "source" / "secret", "secret")
    found: set[str] = set()
    with at_every_moment(lambda: found.update(leaks(place))):
        convert(tmp_path / "a.tar", place / "out", target_format="folder")
    assert found == set()
    assert (place / "out" / "secret").read_bytes() == SECRET


# ---- the umask ---------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_new_files_and_folders_obey_the_umask(umask: int, place: Path) -> None:
    (place / "data.ffr").unlink()
    os.umask(umask)
    for number, (how, make) in enumerate(REPLACING.items()):
        make(place / f"{number}.ffr")
        assert stat.S_IMODE((place / f"{number}.ffr").stat().st_mode) == 0o666 & ~umask, how
    for make in (pack_shards, write_dataset):
        out = place / make.__name__
        make(out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o777 & ~umask
        modes = {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
        assert modes == {0o666 & ~umask}


def test_the_files_of_an_unfinished_writer_obey_the_umask(place: Path) -> None:
    os.umask(0o027)
    writer = FileWriter(place / "new.ffr", resumable=True)
    writer.write_one(SECRET)
    writer.suspend()
    left = [path for path in place.iterdir() if ".partial" in path.name]
    assert {stat.S_IMODE(path.stat().st_mode) for path in left} == {0o640}
    assert len(left) == 2


def test_an_unfinished_replacement_of_a_private_file_is_private(
    place: Path,
) -> None:
    """The journal must be private too: a record of four bytes can be computed from its checksum."""
    writer = FileWriter(place / "data.ffr", resumable=True)
    writer.write_one(SECRET)
    writer.suspend()
    left = [path for path in place.iterdir() if ".partial" in path.name]
    assert {stat.S_IMODE(path.stat().st_mode) for path in left} == {0o600}
    with FileReader(place / "data.ffr") as reader:
        assert handmade.as_bytes(reader) == [b"old"]


@pytest.mark.parametrize("umask", UMASKS, ids=oct)
def test_extracting_restores_modes_under_any_umask(
    umask: int, archive: Path, tmp_path: Path
) -> None:
    """Extraction ignores the umask, like `tar -p`, or tar run by root."""
    os.umask(umask)
    with Archive.open(archive) as opened:
        extract(opened, tmp_path / "dest")
    for path in (tmp_path / "tree").rglob("*"):
        copy = tmp_path / "dest" / path.relative_to(tmp_path / "tree")
        assert copy.lstat().st_mode == path.lstat().st_mode, path

"""Trees with paths longer than a system call accepts (PATH_MAX): pack, read, extract, convert.

The tests also use few descriptors, and trees with more levels than Python can recurse. They open
the bottom of such a tree folder by folder, because no system call accepts its path.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord import ChangedError, PackedFolder, pack_folder
from ffrecord.convert import convert
from ffrecord.disk.longpaths import LONGEST, open_path
from tests.support import handmade

FEW_DESCRIPTORS = 40
FOLDER = os.O_RDONLY | os.O_DIRECTORY

CHAINS = {
    "many short names": ["abcd"] * 1_100,  # also more levels than Python can recurse
    "long names": ["n" * 250] * 20,
    "one byte too long": ["n" * 255] * 15 + ["m" * 254, "x"],
}

pytestmark = pytest.mark.in_memory


def bottom(top: Path, names: list[str], *, make: bool = False) -> int:
    """Open the last folder of a chain; return its descriptor."""
    fd = os.open(top, FOLDER)
    for name in names:
        if make:
            os.mkdir(name, dir_fd=fd)
        above, fd = fd, os.open(name, FOLDER, dir_fd=fd)
        os.close(above)
    return fd


def write_at(folder: int, name: str, content: bytes) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    with open(fd, "wb") as file:
        file.write(content)


def read_at(folder: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as file:
        return file.read()


def make_chain(top: Path, names: list[str]) -> None:
    """Make nested folders; the last has two files, a symlink, a hard link and an empty folder."""
    top.mkdir()
    fd = bottom(top, names, make=True)
    write_at(fd, "file", b"at the bottom")
    write_at(fd, "other", bytes(300_000))
    os.symlink(f"../{names[-1]}/file", "link", dir_fd=fd)
    os.link("file", "second", src_dir_fd=fd, dst_dir_fd=fd)
    os.mkdir("empty", dir_fd=fd)
    os.close(fd)
    (top / "short").write_bytes(b"at the top")


def require_chain(top: Path, names: list[str]) -> None:
    """Check the whole chain, and that its last folder contains nothing else."""
    fd = bottom(top, names)
    try:
        assert sorted(os.listdir(fd)) == ["empty", "file", "link", "other", "second"]
        assert read_at(fd, "file") == read_at(fd, "link") == b"at the bottom"
        assert read_at(fd, "other") == bytes(300_000)
        assert os.readlink("link", dir_fd=fd) == f"../{names[-1]}/file"
        inodes = {os.stat(name, dir_fd=fd).st_ino for name in ("file", "second")}
        assert len(inodes) == 1
    finally:
        os.close(fd)
    assert (top / "short").read_bytes() == b"at the top"


@pytest.fixture(params=CHAINS)
def names(request: pytest.FixtureRequest) -> list[str]:
    return CHAINS[request.param]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that `rm` removes, because no tree is too deep for it."""
    yield tmp_path
    subprocess.run(["rm", "-rf", *map(str, tmp_path.iterdir())], check=True)


@pytest.fixture
def chain(names: list[str], place: Path) -> Path:
    make_chain(place / "chain", names)
    return place / "chain"


def run(script: str, *arguments: str | Path) -> str:
    """Run a script that may open only a few files, and return its output."""
    limit = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW_DESCRIPTORS}, {FEW_DESCRIPTORS}))
"""
    process = handmade.python(limit + script, *map(str, arguments))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-2000:]
    return out


def test_a_tree_of_long_paths_is_packed_and_extracted(names: list[str], chain: Path) -> None:
    script = """
from ffrecord import PackedFolder, pack_folder
chain, archive, shards, copy = sys.argv[1:]
print(pack_folder(chain, archive).files, pack_folder(chain, shards, shard_size=1).files)
with PackedFolder(archive) as folder:
    print(folder.extract(copy).files)
"""
    archive, shards = chain.parent / "a.ffr", chain.parent / "shards"
    assert run(script, chain, archive, shards, chain.parent / "copy").split() == ["3"] * 3
    require_chain(chain.parent / "copy", names)
    for packed in (archive, shards):
        with PackedFolder(packed) as folder:
            second = "/".join([*names, "second"])
            assert bytes(folder.read_one(second)) == b"at the bottom"
    # Times, modes and owners agree too: packing the extracted tree gives the same bytes.
    pack_folder(chain.parent / "copy", chain.parent / "again.ffr")
    assert (chain.parent / "again.ffr").read_bytes() == archive.read_bytes()


def test_a_file_at_a_long_path_is_read_by_name(names: list[str], chain: Path) -> None:
    archive = chain.parent / "a.ffr"
    pack_folder(chain, archive)
    path = "/".join(names)
    assert len(path) > LONGEST
    with PackedFolder(archive) as folder:
        assert bytes(folder.read_one(f"{path}/file")) == b"at the bottom"
        some = folder.read([f"{path}/link", "short", f"{path}/second", f"{path}/other"])
        assert list(map(bytes, some)) == [
            b"at the bottom", b"at the top", b"at the bottom", bytes(300_000),
        ]  # fmt: skip
        assert folder.list(path) == ["empty", "file", "link", "other", "second"]
        assert folder.stat(f"{path}/second").st_nlink == 2
        with folder.open(f"{path}/file") as file:
            assert file.read() == b"at the bottom"
        assert sorted(file for file in folder if file.endswith("/file")) == [f"{path}/file"]


def test_a_symlink_at_the_deepest_level_is_followed(place: Path) -> None:
    levels = ["d"] * 4_095  # and one more folder below
    make_chain(place / "chain", levels)
    pack_folder(place / "chain", place / "a.ffr")
    with PackedFolder(place / "a.ffr") as folder:
        assert bytes(folder.read_one("/".join([*levels, "link"]))) == b"at the bottom"


def test_one_level_too_many_is_an_error_that_says_so(place: Path) -> None:
    (place / "chain").mkdir()
    os.close(bottom(place / "chain", ["d"] * 4_097, make=True))
    with pytest.raises(OSError, match="more than 4096 levels deep"):
        pack_folder(place / "chain", place / "a.ffr")


def test_a_folder_at_a_long_path_can_be_packed_itself(names: list[str], chain: Path) -> None:
    """The path is relative: the system refuses the absolute one."""
    archive = chain.parent / "a.ffr"
    script = f"""
import os
os.chdir(sys.argv[1])
for name in {names!r}:
    os.chdir(name)
from ffrecord import pack_folder
print(pack_folder(".", sys.argv[2]).files)
"""
    assert run(script, chain, archive) == "2\n"
    with PackedFolder(archive) as folder:
        assert sorted(folder.list("")) == ["empty", "file", "link", "other", "second"]
        assert bytes(folder.read_one("second")) == b"at the bottom"


def test_symlinks_at_long_paths_are_dereferenced(names: list[str], chain: Path) -> None:
    pack_folder(chain, chain.parent / "a.ffr", dereference=True)
    with PackedFolder(chain.parent / "a.ffr") as folder:
        link = "/".join([*names, "link"])
        assert not folder.is_symlink(link)
        assert bytes(folder.read_one(link)) == b"at the bottom"


def test_a_vanished_file_at_a_long_path_is_named(
    names: list[str], chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.listdir
    fd = bottom(chain, names)

    def listing(path: bytes) -> list[bytes]:
        found = plain(path)
        if b"other" in found:
            os.unlink("other", dir_fd=fd)
        return found

    monkeypatch.setattr(os, "listdir", listing)
    with pytest.raises(ChangedError, match="/other: disappeared") as caught:
        pack_folder(chain, chain.parent / "a.ffr")
    assert str(caught.value).startswith(str(chain / "/".join(names)))
    os.close(fd)


def test_a_tree_of_long_paths_is_converted(names: list[str], chain: Path) -> None:
    convert(chain, chain.parent / "t.tar")
    convert(chain.parent / "t.tar", chain.parent / "a.ffr")
    convert(chain.parent / "a.ffr", chain.parent / "copy")
    require_chain(chain.parent / "copy", names)


@pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST + 1])
def test_any_path_is_opened_and_an_error_names_all_of_it(length: int, place: Path) -> None:
    """Lengths around the limit of the system, with more slashes than needed."""
    (place / "file").write_bytes(b"found")
    folder = os.fsencode(place)
    path = folder + b"/." * ((length - len(folder) - 5) // 2)
    path += b"/" * (length - len(path) - 4) + b"file"
    assert len(path) == length
    fd = open_path(path, os.O_RDONLY)
    assert os.pread(fd, 9, 0) == b"found"
    os.close(fd)
    before = handmade.open_descriptors()
    missing = path[:-4] + b"none"
    with pytest.raises(FileNotFoundError) as caught:
        open_path(missing, os.O_RDONLY)
    assert caught.value.filename == missing
    assert handmade.open_descriptors() == before


def test_the_system_refuses_a_name_that_is_too_long() -> None:
    with pytest.raises(OSError, match="File name too long"):
        open_path("x" * 5_000, os.O_RDONLY)

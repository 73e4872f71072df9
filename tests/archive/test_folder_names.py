"""`PackedFolder` has the same names, attributes and errors as the folder that was packed."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffrecord import PackedFolder
from tests.support import archives, handmade, trees


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the type and number of its error."""
    try:
        return call()
    except OSError as error:
        return type(error), error.errno


# ---- names ---------------------------------------------------------------------------------


def listed(
    top: Path, list_file: bool = True, list_dir: bool = True, recursive: bool = False
) -> list[Any]:
    """List a folder on disk like the original FFRecord, but without following symlinks."""
    result: list[Any] = []
    for name in sorted(os.listdir(os.fsencode(top))):
        path = top / os.fsdecode(name)
        kind = stat.S_IFMT(path.lstat().st_mode)
        if kind in (stat.S_IFIFO, stat.S_IFSOCK):
            continue
        is_folder = os.path.isdir(path)
        if list_dir if is_folder else list_file:
            result.append(os.fsdecode(name))
        if recursive and is_folder and kind != stat.S_IFLNK:
            inner = listed(path, list_file, list_dir, recursive)
            result += [Path(os.fsdecode(name)) / each for each in inner]
    return result


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("list_dir", [False, True])
@pytest.mark.parametrize("list_file", [False, True])
def test_list_returns_the_types_and_order_of_the_original(
    list_file: bool, list_dir: bool, recursive: bool, folder: PackedFolder, rich: Path
) -> None:
    for path in (None, "", "sizes", "links", "nested/a", "empty", "names", Path("modes")):
        got = folder.list(path, list_file, list_dir, recursive)
        due = listed(rich / (path or ""), list_file, list_dir, recursive)
        assert got == due
        assert list(map(type, got)) == list(map(type, due))


def test_a_symlinked_folder_is_listed_like_the_folder(folder: PackedFolder, rich: Path) -> None:
    assert folder.list("links/to folder", recursive=True) == listed(
        rich / "nested/a", recursive=True
    )
    assert folder.list("links/up") == folder.list() == listed(rich)


def test_listing_a_file_or_a_missing_folder_is_an_error(folder: PackedFolder) -> None:
    with pytest.raises(NotADirectoryError, match="sizes/one"):
        folder.list("sizes/one")
    with pytest.raises(FileNotFoundError, match="nothing"):
        folder.list("nothing")


def test_exists_is_file_and_is_dir_agree_with_os_path(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    names = [*found, "nothing", "sizes/nothing", "sizes/one/x", "links/up/sizes/one"]
    names += ["sizes/one/", "sizes/one/.", "sizes/", "links/relative/", "nothing/", "/"]
    for name in names:
        # As in the original, paths are normalised by pathlib: no slash at the end.
        real = rich / name.lstrip("/")
        assert folder.exists(name) == os.path.exists(real), name
        assert folder.is_file(name) == os.path.isfile(real), name
        assert folder.is_dir(name) == os.path.isdir(real), name
        assert folder.is_symlink(name) == os.path.islink(f"{rich}/{name}"), name
        assert (name in folder) == os.path.exists(real), name
        assert folder.exists(Path(name)) == os.path.exists(rich / name), name


@pytest.mark.parametrize(
    ("way", "name", "error"),
    [
        (PackedFolder.read, "nope", FileNotFoundError),
        (PackedFolder.list, "nope/x", FileNotFoundError),
        (PackedFolder.list, "sizes/blocks", NotADirectoryError),
        (PackedFolder.open, "sizes", IsADirectoryError),
        (PackedFolder.readlink, "sizes", OSError),
    ],
)
def test_errors_name_the_archive(
    way: Callable[[PackedFolder, str], object], name: str, error: type[OSError],
    single: PackedFolder,
) -> None:  # fmt: skip
    with pytest.raises(error, match=f" in {re.escape(single.archive.path)}: ") as caught:
        way(single, name)
    assert caught.value.filename == name


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "sizes/\0", "x" * 5000, "x/" * 3000])
def test_an_impossible_name_does_not_exist(name: str, single: PackedFolder) -> None:
    assert not single.exists(name)
    assert not single.is_file(name)
    assert not single.is_dir(name)
    assert name not in single
    with pytest.raises((OSError, ValueError)):
        single.read(name)


def test_length_and_iteration_cover_all_files(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    paths = list(folder)
    assert len(folder) == folder.num_files() == len(paths) == len(files)
    assert set(paths) == set(files)
    # The files of a folder are together, and before the files of its subfolders.
    parents = [os.path.dirname(path) for path in paths]
    runs = [parent for k, parent in enumerate(parents) if k == 0 or parents[k - 1] != parent]
    assert len(runs) == len(set(runs))
    assert [run.count("/") for run in runs if run] == sorted(run.count("/") for run in runs if run)


def test_a_value_that_is_not_a_name_is_not_in_a_folder(folder: PackedFolder) -> None:
    things: list[Any] = [None, 5, 2.5, ["sizes"], object()]
    for thing in things:
        assert thing not in folder


def test_stat_agrees_with_os_stat(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    for name in found:
        for follow in (True, False):
            real = outcome(lambda: os.stat(rich / name, follow_symlinks=follow))  # noqa: B023
            packed = outcome(lambda: folder.stat(name, follow_symlinks=follow))  # noqa: B023
            if isinstance(real, tuple) and not isinstance(real, os.stat_result):
                if name not in ("links/absolute", "links/leaving"):
                    assert packed == real, name
                continue
            for field in ("st_mode", "st_uid", "st_gid", "st_mtime_ns"):
                assert getattr(packed, field) == getattr(real, field), (name, field)
            assert packed.st_mtime == pytest.approx(real.st_mtime, abs=1e-6)
            if not stat.S_ISDIR(real.st_mode):
                assert packed.st_size == real.st_size
                assert packed.st_nlink == real.st_nlink
            else:
                folders = sum(
                    each.is_dir(follow_symlinks=False) for each in os.scandir(rich / name)
                )
                assert packed.st_nlink == 2 + folders


def test_hard_links_have_the_same_inode(
    folder: PackedFolder, found: dict[str, trees.Found]
) -> None:
    inodes = {name: folder.stat(name, follow_symlinks=False).st_ino for name in found}
    for name, each in found.items():
        same = {other for other in inodes if inodes[other] == inodes[name]}
        assert same == set(map(os.fsdecode, each.same_file))
    assert 0 not in inodes.values()  # readdir takes 0 for a deleted entry


def test_readlink_agrees_with_os_readlink(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    for name in found:
        real = outcome(lambda: os.readlink(rich / name))  # noqa: B023
        assert outcome(lambda: folder.readlink(name)) == real, name  # noqa: B023
    with pytest.raises(FileNotFoundError):
        folder.readlink("nothing")


def test_xattrs_agree_with_os(
    folder: PackedFolder, found: dict[str, trees.Found], rich: Path
) -> None:
    if not trees.has_xattrs(rich):
        pytest.skip("this file system has no extended attributes")
    for name, each in found.items():
        assert tuple(sorted(folder.xattrs(name, follow_symlinks=False).items())) == each.xattrs
    assert folder.xattrs("xattrs/file") == trees.XATTRS


def test_walk_agrees_with_os_walk(folder: PackedFolder, rich: Path) -> None:
    for top in ("", "nested", "links", "empty", "nested/a/b"):
        real = {}
        for path, inner, names in os.walk(rich / top):
            kept = [n for n in names if n not in ("fifo", "socket")]
            real[os.path.relpath(path, rich)] = (sorted(inner), sorted(kept))
        packed = list(folder.walk(top))
        shown = {path or ".": (sorted(inner), sorted(names)) for path, inner, names in packed}
        assert shown == real
        assert len(packed) == len(real)
        assert packed[0][0] == top
        seen: set[str] = set()
        for path, _, _ in packed:
            assert not path or path == top or os.path.dirname(path) in seen, "top down"
            seen.add(path)


def test_a_walk_can_follow_symlinks_without_running_in_circles(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "deep").mkdir(parents=True)
    (tree / "b").mkdir()
    (tree / "a" / "deep" / "file").write_bytes(b"1")
    (tree / "b" / "linked").symlink_to("../a/deep")
    (tree / "b" / "file").symlink_to("../a/deep/file")
    (tree / "b" / "nowhere").symlink_to("nothing")
    archives.pack(tree, tmp_path / "tree.ffr")
    model = [
        ("" if path == str(tree) else os.path.relpath(path, tree), sorted(inner), sorted(names))
        for path, inner, names in os.walk(tree, followlinks=True)
    ]
    with PackedFolder(tmp_path / "tree.ffr") as folder:
        assert sorted(folder.walk(followlinks=True)) == sorted(model)

    (tree / "a" / "deep" / "up").symlink_to("../..")  # os.walk would run in circles until ELOOP
    archives.pack(tree, tmp_path / "round.ffr")
    with PackedFolder(tmp_path / "round.ffr") as folder:
        paths = [path for path, _, _ in folder.walk(followlinks=True)]
    assert paths == ["", "a", "a/deep", "b", "b/linked"]


def test_folders_can_be_removed_from_a_walk(folder: PackedFolder, rich: Path) -> None:
    visited = []
    for path, inner, _names in folder.walk():
        visited.append(path)
        inner[:] = [name for name in inner if name in ("nested", "a")]
    assert visited == ["", "nested", "nested/a"]


def test_a_walk_of_a_file_or_a_missing_folder_is_an_error(folder: PackedFolder) -> None:
    with pytest.raises(NotADirectoryError):
        list(folder.walk("sizes/one"))
    with pytest.raises(FileNotFoundError):
        list(folder.walk("nothing"))


@pytest.mark.parametrize(
    "pattern",
    [
        "*", "*/*", "*/*/*/*", "**/*", "sizes/*", "sizes/one", "sizes/nothing", "nothing/*",
        "**/inside", "**/[a-c]*", "names/?", "names/.*", "names/*\n*", "names/[*]*", "names/*\\*",
        "many/00?", "many/[!0-4]99", "links/to folder/*", "links/*/b/*", "links/up/sizes/*",
        "nested/**/deep", "nested/**/*", "**/empty", "**/b/**/empty", "folders/*/inside",
        "./sizes/*", "sizes//b*", "SIZES/*", "**/folder*/inside", "**/a/**/c/*",
    ],
)  # fmt: skip
def test_glob_finds_the_same_paths_as_pathlib(
    pattern: str, folder: PackedFolder, rich: Path
) -> None:
    got = folder.glob(pattern)
    kept = [path for path in rich.glob(pattern) if not (path.is_fifo() or path.is_socket())]
    assert set(got) == {str(path.relative_to(rich)) for path in kept}
    assert len(got) == len(set(got))


def test_a_pattern_that_ends_in_a_slash_finds_folders(single: PackedFolder, rich: Path) -> None:
    """`glob` does the same, and pathlib since Python 3.11."""
    for pattern in ("*", "nested/a/*", "links/*"):
        due = {path for path in single.glob(pattern) if (rich / path).is_dir()}
        assert {path.rstrip("/") for path in single.glob(f"{pattern}/")} == due


def test_glob_of_every_level_finds_everything(
    folder: PackedFolder, found: dict[str, trees.Found]
) -> None:
    assert set(folder.glob("**")) - {""} == set(found) - {"."}


def test_many_levels_of_folders_are_listed_walked_and_found(tmp_path: Path) -> None:
    levels = 300
    tree = trees.chain(tmp_path / "t", levels)
    archives.pack(tree, tmp_path / "a.ffr")
    deep = "d/" * levels + "file"
    limit = sys.getrecursionlimit()
    with PackedFolder(tmp_path / "a.ffr") as folder:
        sys.setrecursionlimit(200 + len(list(_frames())))
        try:
            assert folder.read(deep).tobytes() == b"%d" % (levels - 1)
            assert Path(deep) in folder.list(recursive=True)
            assert len(list(folder.walk())) == levels + 1
            assert deep in folder.glob("**/file")
            assert list(folder)[-1] == deep
            assert folder.stat("../" * 1000 + deep).st_size == 3
        finally:
            sys.setrecursionlimit(limit)


def _frames() -> Iterator[Any]:
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def test_all_of_many_names_are_found_and_no_others(tmp_path: Path) -> None:
    count = 3000
    contents = {f"{number:05d}": b"%d" % number for number in range(count)}
    trees.plain_tree(tmp_path / "t", contents)
    archives.pack(tmp_path / "t", tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        assert handmade.as_bytes(folder.read(list(contents))) == list(contents.values())
        for number in (0, 1, count // 2, count - 2, count - 1):
            assert folder.read(f"./{number:05d}").tobytes() == b"%d" % number
        for name in ("", "0", "000000", "03000", "99999", "a"):
            assert not folder.is_file(name)


# ---- spellings of paths --------------------------------------------------------------------

SPELLINGS = [
    "sizes/one", "./sizes/one", "sizes//one", "sizes/./one", "sizes/../sizes/one", "sizes/one/",
    "sizes/one/.", "sizes/one/..", "sizes/one/x", "sizes", "sizes/", "sizes/.", "nothing",
    "nothing/", "nothing/x", "nothing/..", "nested/a/../../sizes/one", "empty", "empty/x",
    "links/relative", "links/relative/", "links/sibling", "links/to folder", "links/to folder/",
    "links/to folder/shallow", "links/to folder/../a/shallow", "links/through", "links/slash",
    "links/slash/a/shallow", "links/file with slash", "links/up/sizes/one", "links/up",
    "links/up/links/up/sizes/one", "links/dangling", "links/dangling/x", "links/loop",
    "links/loop/x", "links/ping", "links/pong/..", "links/long", "links/not utf-8",
    "names/.hidden", "names/...", "names/..two dots", "names/-rf", "names/ ", "names/new\nline",
    "names/*star?[x]", "folders/--/inside", "hard/second", "special/fifo/x",
]  # fmt: skip


@pytest.mark.parametrize("path", SPELLINGS)
def test_a_path_reads_or_fails_like_open(path: str, folder: PackedFolder, rich: Path) -> None:
    def read_real() -> bytes:
        with open(f"{rich}/{path}", "rb") as file:
            return file.read()

    due = outcome(read_real)
    if path.startswith("special/"):  # fifos and sockets are not packed
        due = (FileNotFoundError, errno.ENOENT)
    calls: list[Callable[[], Any]] = [
        lambda: folder.open(path).read(),
        lambda: folder.read_range(path, 0, 1 << 40).tobytes(),
        lambda: b"".join(piece.tobytes() for piece in folder.stream(path)),
    ]
    for call in calls:
        assert outcome(call) == due
    if path.endswith(("/", "/.")) and os.path.isfile(rich / path):
        due = (rich / path).read_bytes()  # methods of the original normalise paths like pathlib
    of_the_original: list[Callable[[], Any]] = [
        lambda: folder.read(path).tobytes(),
        lambda: folder.read_one(path).tobytes(),
        lambda: handmade.as_bytes(folder.read([path, path, path]))[2],
        lambda: handmade.as_bytes(folder.reader.read([folder.record(path)]))[0],
    ]
    for call in of_the_original:
        assert outcome(call) == due


def test_files_are_read_by_any_iterable_of_names(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    names = sorted(files)[:40]
    for some in (iter(names), (name for name in names), dict.fromkeys(names), map(Path, names)):
        assert handmade.as_bytes(folder.read(some)) == [files[name] for name in names]
    assert folder.read({"sizes/one"})[0].tobytes() == files["sizes/one"]


def test_arguments_have_the_originals_names_and_accept_our_former_names(
    folder: PackedFolder, files: dict[str, bytes]
) -> None:
    due = files["sizes/one"]
    assert folder.read_one(fname="sizes/one").tobytes() == due
    assert folder.read(fnames=["sizes/one"])[0].tobytes() == due
    assert folder.read_one(name="sizes/one").tobytes() == due  # type: ignore[call-arg]
    assert folder.read(names=["sizes/one"])[0].tobytes() == due  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="name"):
        folder.read_one("sizes/one", name="sizes/one")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="fname"):
        folder.read_one()  # type: ignore[call-arg]


def test_a_folder_without_files_is_true(tmp_path: Path) -> None:
    archives.pack(trees.plain_tree(tmp_path / "tree", {}), tmp_path / "none.ffr")
    with PackedFolder(tmp_path / "none.ffr") as folder:
        assert bool(folder) is True
        assert len(folder) == 0


@pytest.mark.parametrize("path", ["nothing", "sizes", "sizes/one/x", "links/loop", "links/leaving"])
def test_an_error_has_the_name_that_was_requested(path: str, folder: PackedFolder) -> None:
    for call in (folder.read, folder.read_one, folder.open):
        with pytest.raises(OSError, match=re.escape(path)) as caught:
            call(path)
        assert caught.value.filename == path


@pytest.mark.parametrize("path", ["/sizes/one", "//sizes/one", "../sizes/one", "/../../sizes/one"])
def test_nothing_is_above_the_top(path: str, folder: PackedFolder, files: dict[str, bytes]) -> None:
    assert folder.read(path).tobytes() == files["sizes/one"]
    assert folder.list("..") == folder.list("/") == folder.list("") == folder.list()


@pytest.mark.parametrize("path", ["links/absolute", "links/leaving", "links/leaving/x"])
def test_a_symlink_that_leaves_the_archive_is_an_error(path: str, folder: PackedFolder) -> None:
    for call in (folder.read, folder.open, folder.stat, folder.list):
        with pytest.raises(OSError, match="out of the archive") as caught:
            call(path)
        assert caught.value.errno == errno.EXDEV
    assert not folder.exists(path)


def test_a_symlink_that_leaves_and_comes_back_is_an_error(tmp_path: Path) -> None:
    """The archive does not contain the name of the packed folder."""
    tree = trees.plain_tree(tmp_path / "t", {"file": b"x", "d/e": b"y"})
    targets = {
        "back": "../t/file",
        "d/back": "../../t/file",
        "root": f"{tree}/file",
        "d/in": "../file",
    }
    for name, target in targets.items():
        (tree / name).symlink_to(target)
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        for name in ("back", "d/back", "root"):
            assert outcome(lambda name=name: folder.read(name)) == (OSError, errno.EXDEV)  # type: ignore[misc]
        assert folder.read("d/in").tobytes() == b"x"


def test_as_many_symlinks_are_followed_as_in_the_kernel(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"file": b"the end", "d/in": b"y"})
    for kind, end in (("f", "file"), ("d", "d")):
        for number in range(45):
            target = end if number == 0 else f"{kind}{number - 1}"
            (tree / f"{kind}{number}").symlink_to(target)
    archives.pack(tree, tmp_path / "a.ffr")
    with PackedFolder(tmp_path / "a.ffr") as folder:
        reached = set()
        for number in range(45):
            for path in (f"f{number}", f"d{number}/in", f"d{number}/../f1"):
                real = outcome(lambda path=path: (tree / path).read_bytes())  # type: ignore[misc]
                assert outcome(lambda path=path: folder.read(path).tobytes()) == real  # type: ignore[misc]
                reached.add(isinstance(real, bytes))
    assert reached == {True, False}


class OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


OPENAT2 = 437
RESOLVE_IN_ROOT = 0x10


def openat2(root: int, path: str) -> int:
    """Open a path with the folder `root` as root directory, and return the kernel's answer.

    EAGAIN means that a file was renamed meanwhile, anywhere on the machine: try again.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    how = OpenHow(os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT)
    while True:
        fd = libc.syscall(OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EAGAIN:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, PackedFolder]]:
    """Make some folders and symlinks inside them; yield a descriptor and the packed folder."""
    top = trees.plain_tree(
        tmp_path_factory.mktemp("maze") / "t", {"a/f": b"1", "a/b/f": b"22", "f": b"333", "c/": b""}
    )
    symlinks = {
        "l": "a", "a/l": "b", "a/up": "..", "a/b/l": "../../f", "c/l": "../a/b/../l/f",
        "loop": "loop", "a/o": "../c/l", "c/d": "nowhere", "c/s": "../a/", "a/b/s": "../../f/",
        "c/up": "../l/..",
    }  # fmt: skip
    for name, target in symlinks.items():
        (top / name).symlink_to(target)
    archives.pack(top, top.with_name("a.ffr"))
    root = os.open(top, os.O_RDONLY)
    try:
        os.close(openat2(root, "a"))
    except OSError:
        os.close(root)
        pytest.skip("this kernel has no openat2")
    with PackedFolder(top.with_name("a.ffr")) as folder:
        yield root, folder
    os.close(root)


PARTS = ["a", "b", "c", "d", "f", "l", "o", "s", "up", "loop", ".", "..", "", "x"]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=9).map("/".join).filter(bool))
def test_any_path_leads_to_the_same_file_as_in_the_kernel(
    maze: tuple[int, PackedFolder], path: str
) -> None:
    root, folder = maze

    def real() -> tuple[int, int]:
        fd = openat2(root, path)
        try:
            now = os.fstat(fd)
            return stat.S_IFMT(now.st_mode), now.st_mtime_ns
        finally:
            os.close(fd)

    def packed() -> tuple[int, int]:
        now = folder.stat(path)
        return stat.S_IFMT(now.st_mode), now.st_mtime_ns

    assert outcome(packed) == outcome(real)


def test_symlinks_that_make_a_path_ever_longer_are_a_loop(tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "t", {"a/f": b"f"})
    (top / "once").symlink_to("a/../" * 500 + "a/f")
    (top / "again").symlink_to("a/../" * 800 + "again2")
    (top / "again2").symlink_to("a/../" * 800 + "again3")
    (top / "again3").symlink_to("a/../" * 800 + "a/f")
    archives.pack(top, tmp_path / "t.ffr")
    with PackedFolder(tmp_path / "t.ffr") as folder:
        assert folder.read_one("once").tobytes() == b"f"
        with pytest.raises(OSError, match="symbolic links") as caught:
            folder.read_one("again")
    assert caught.value.errno == errno.ELOOP

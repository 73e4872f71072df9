"""Packing a folder that changes meanwhile: an error that names the file, or a warning."""

from __future__ import annotations

import errno
import os
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import ChangedError, ChangedWarning, PackedFolder, pack_folder
from ffrecord.archive import source_files
from ffrecord.archive.pack import PackProgress
from tests.support import trees
from tests.support.handmade import OLD
from tests.support.packing import ALL, contents, names, require_valid

# ---- files that change while they are packed -----------------------------------------------


def when_opened(
    monkeypatch: pytest.MonkeyPatch, victim: Path, change: Callable[[], object]
) -> None:
    """Make a change just before a file is opened for the first time."""
    plain, waiting = os.open, [change]

    def opening(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if waiting and path == os.fsencode(victim):
            waiting.pop()()
        return plain(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", opening)


def when_read(monkeypatch: pytest.MonkeyPatch, victim: Path, change: Callable[[], object]) -> None:
    """Make a change after a part of a file has been read."""
    plain, waiting = os.preadv, [change]

    def reading(fd: int, *args: Any) -> int:
        count = plain(fd, *args)
        if waiting and os.readlink(f"/proc/self/fd/{fd}") == str(victim):
            waiting.pop()()
        return count

    monkeypatch.setattr(os, "preadv", reading)


def other_bytes(victim: Path) -> None:
    """Write other bytes of the same length, so that only the times show the change.

    Kernels before 6.13 count times in ticks of some milliseconds: repeat until the time changes.
    """
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
    "disappears": move_away,
    "becomes a symlink": replace_by(lambda victim: victim.symlink_to("../../moved away")),
    "becomes a symlink to nothing": replace_by(lambda victim: victim.symlink_to("nothing")),
    "becomes a fifo": replace_by(os.mkfifo),
    "becomes a socket": replace_by(lambda victim: os.mknod(victim, stat.S_IFSOCK | 0o600)),
    "becomes a folder": replace_by(os.mkdir),
    "disappears with its folder": lambda victim: move_away(victim.parent),
    "is in a folder that becomes a symlink": replace_its_folder,
}
AFTER_READING = ["gets other bytes", "grows", "shrinks", "is emptied"]


PIECE = 2 * trees.BLOCK


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files in smaller pieces than usual, so that these tests need smaller files."""
    monkeypatch.setattr(source_files, "BATCH_BYTES", PIECE)


@pytest.fixture(params=["small", "large"])
def changing(request: pytest.FixtureRequest, tmp_path: Path, _small_pieces: None) -> Path:
    """Make a folder with a file `sub/victim` of one piece or three pieces."""
    size = 100 if request.param == "small" else 2 * PIECE + 5
    files = {"before": b"before", "sub/victim": trees.content(size), "then": b"after"}
    return trees.plain_tree(tmp_path / "home" / "changing", files)


def refuses_to_pack(tree: Path, out: Path, name: str = "sub/victim", **options: Any) -> None:
    """Check that packing raises ChangedError, and leaves the old archive unchanged."""
    out.write_bytes(OLD)
    with pytest.raises(ChangedError, match=re.escape(str(tree / name))):
        pack_folder(tree, out, **options)
    assert out.read_bytes() == OLD
    assert os.listdir(out.parent) == [out.name]


def packs_the_rest(tree: Path, out: Path, name: str = "sub/victim", **options: Any) -> None:
    """Check that packing warns, and that the archive is valid and has all other files."""
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


either = pytest.mark.parametrize("packs", [refuses_to_pack, packs_the_rest])


@either
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_before_it_is_read_is_an_error_or_a_warning_that_names_it(
    change: str, packs: Callable[..., None], changing: Path, out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    victim = changing / "sub/victim"
    when_opened(monkeypatch, victim, lambda: CHANGES[change](victim))
    packs(changing, out)


@either
@pytest.mark.parametrize("change", AFTER_READING)
def test_a_file_that_changes_while_it_is_read_is_an_error_or_a_warning_that_names_it(
    change: str, packs: Callable[..., None], changing: Path, out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    victim = changing / "sub/victim"
    when_read(monkeypatch, victim, lambda: CHANGES[change](victim))
    packs(changing, out)


@pytest.fixture
def four_pieces(tmp_path: Path, _small_pieces: None) -> Path:
    """Make a folder with a file of four pieces.

    With one job, the fourth piece is not read before the first is reported as progress.
    """
    files = {"before": b"before", "sub/victim": trees.content(3 * PIECE + 9), "then": b"after"}
    return trees.plain_tree(tmp_path / "home" / "changing", files)


class Once:
    """Progress function that makes a change once a part of the large file has been read."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._waiting = [change]

    def __call__(self, now: PackProgress) -> None:
        if self._waiting and now.bytes >= PIECE:
            self._waiting.pop()()


@either
@pytest.mark.parametrize("change", CHANGES)
def test_a_large_file_that_changes_halfway_is_an_error_or_a_warning_that_names_it(
    change: str, packs: Callable[..., None], four_pieces: Path, out: Path
) -> None:
    once = Once(lambda: CHANGES[change](four_pieces / "sub/victim"))
    packs(four_pieces, out, jobs=1, progress=once)


def test_lost_bytes_of_a_file_become_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in tar, every other byte stays at its planned place."""
    data = trees.content(trees.BLOCK + 500)
    tree = trees.plain_tree(tmp_path / "t", {"victim": data})
    victim = tree / "victim"
    when_opened(monkeypatch, victim, lambda: os.truncate(victim, 1000))
    with pytest.warns(ChangedWarning):
        pack_folder(tree, tmp_path / "a.ffr", ignore_changed=True)
    assert contents(tmp_path / "a.ffr") == {"victim": data[:1000] + bytes(len(data) - 1000)}


@pytest.mark.usefixtures("_small_pieces")
def test_the_record_of_a_missing_file_has_no_bytes_of_other_files(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is reused: bytes of an earlier batch must not get into the archive."""
    files = dict.fromkeys(("a", "b", "c", "victim"), b"secret" * (PIECE // 6))
    tree = trees.plain_tree(tmp_path / "t", files)
    when_opened(monkeypatch, tree / "victim", (tree / "victim").unlink)
    with pytest.warns(ChangedWarning):
        pack_folder(tree, out, ignore_changed=True, jobs=1)
    with PackedFolder(out) as folder:
        taken = {folder.record(name) for name in folder}
        (left,) = set(range(folder.reader.n - 1)) - taken
        assert not folder.reader.read_one(left).any()


def test_a_missing_file_is_not_reported_as_packed(
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
    """Make a change after the extended attributes of a file were listed for the first time."""
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
    """Make a folder in which `sub` and `sub/victim` have three extended attributes each."""
    tree = trees.plain_tree(tmp_path / "home" / "t", {"before": b"before", "sub/victim": b"x"})
    if not trees.has_xattrs(tree):
        pytest.skip("this file system has no extended attributes")
    for place in (tree / "sub", tree / "sub/victim"):
        for name in ("a", "b", "c"):
            os.setxattr(place, f"user.{name}", name.encode())
    return tree


def test_a_file_that_loses_an_attribute_is_an_error_that_names_it(
    attributed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = attributed / "sub/victim"
    when_xattrs_are_listed(monkeypatch, victim, lambda: lose_attribute(victim))
    refuses_to_pack(attributed, out)


@pytest.mark.parametrize("name", ["sub", "sub/victim"])
def test_a_removed_attribute_does_not_affect_the_others(
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


def test_a_remaining_hard_link_is_packed_or_named(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = trees.plain_tree(tmp_path / "t", {"first": b"shared"})
    os.link(tree / "first", tree / "second")
    when_opened(monkeypatch, tree / "first", (tree / "first").unlink)
    with pytest.warns(ChangedWarning):
        report = pack_folder(tree, out, ignore_changed=True)
    assert "second" in names(out) or str(tree / "second") in report.changed


def test_a_symlink_to_a_removed_file_dangles(
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


def test_shards_are_valid_although_a_file_disappeared(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_opened(monkeypatch, small / "logs/1.log", (small / "logs/1.log").unlink)
    with pytest.warns(ChangedWarning):
        pack_folder(small, tmp_path / "shards", shard_size=1, ignore_changed=True)
    require_valid(tmp_path / "shards")
    assert names(tmp_path / "shards") == ALL - {"logs/1.log"}


# ---- changes while a folder is listed ------------------------------------------------------


def when_listed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, change: Callable[[], object]
) -> None:
    """Make a change after a folder was listed, before its files are examined."""
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
    # The name that disappears, and the folder that is being listed at that moment.
    "file": "",
    "link": "",
    "victim": "",  # before it is known to be a folder
    "victim ": "a",  # when it is known to be a folder, but not listed yet
}


@pytest.mark.parametrize("name", VANISHING)
def test_a_file_that_disappears_from_a_listed_folder_is_an_error_that_names_it(
    name: str, listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = listed / name.strip()
    away = listed.parent / "moved away"
    when_listed(monkeypatch, listed / VANISHING[name], lambda: victim.rename(away))
    refuses_to_pack(listed, out, name.strip())


@pytest.mark.parametrize("name", VANISHING)
def test_a_file_that_disappears_from_a_listed_folder_can_be_ignored(
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


def test_a_file_that_disappears_from_a_listed_folder_is_in_the_report(
    listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_listed(monkeypatch, listed, (listed / "file").unlink)
    with pytest.warns(ChangedWarning):
        report = pack_folder(listed, out, ignore_changed=True)
    assert report.changed == [str(listed / "file")]


def test_a_symlink_that_disappears_before_it_is_read_is_an_error_that_names_it(
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
def test_a_replaced_folder_is_an_error_that_names_it(
    replacement: str, listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing from outside the folder may get into the archive."""
    secret = trees.plain_tree(listed.parent / "outside", {"secret": b"not to be packed"})

    def change() -> None:
        (listed / "victim").rename(listed.parent / "moved away")
        if replacement == "a symlink":
            (listed / "victim").symlink_to(secret)
        else:
            (listed / "victim").write_bytes(b"")

    when_listed(monkeypatch, listed / "a", change)
    refuses_to_pack(listed, out, "victim")


def test_a_folder_that_is_replaced_while_it_is_listed_leads_nowhere_else(
    listed: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the old folder must not be looked up in its replacement."""
    outside = trees.plain_tree(listed.parent / "outside", {"inside": b"not to be packed"})
    victim, plain = listed / "victim", os.stat

    def looking(path: Any, **kwargs: Any) -> os.stat_result:
        if path == b"inside" and not victim.is_symlink():
            victim.rename(listed.parent / "moved away")
            victim.symlink_to(outside)
        return plain(path, **kwargs)

    monkeypatch.setattr(os, "stat", looking)
    refuses_to_pack(listed, out, "victim/inside")


# ---- archives that appear while they are packed ----------------------------------------------


@pytest.mark.parametrize("unnamed", [True, False])
def test_an_archive_that_appears_meanwhile_is_not_replaced_without_overwrite(
    unnamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unnamed:
        plain = os.open

        def opening(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            return plain(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", opening)
    tree, out = tmp_path / "tree", tmp_path / "out" / "a.ffr"
    for folder in (tree, out.parent):
        folder.mkdir()
    (tree / "file").write_bytes(b"content")

    def progress(_: PackProgress) -> None:
        out.write_bytes(b"precious")

    with pytest.raises(FileExistsError, match="another program created it meanwhile"):
        pack_folder(tree, out, overwrite=False, progress=progress)
    assert {path.name: path.read_bytes() for path in out.parent.iterdir()} == {"a.ffr": b"precious"}
    with pytest.raises(FileExistsError, match="pass overwrite=True to replace it"):
        pack_folder(tree, out, overwrite=False)
    out.unlink()
    pack_folder(tree, out, overwrite=False)
    assert names(out) == {"file"}

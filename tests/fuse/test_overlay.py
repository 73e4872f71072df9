"""Parts of overlays that need no mount: their labels, their lines, and files without hard links."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ffrecord.archive.archive import Archive
from ffrecord.cli import umount
from ffrecord_fuse.filesystem import MISSING, Filesystem, Ownership, Separated, Subfolder
from ffrecord_fuse.mounting import changes, mounttable
from ffrecord_fuse.mounting.mounttable import MountEntry, overlay_label
from ffrecord_fuse.mounting.overlay import Overlay
from tests.support import archives, handmade, trees

names = st.binary(min_size=1, max_size=40).map(lambda name: name.replace(b"\0", b"/"))


def entry_of(source: str, type_: str = "overlay") -> MountEntry:
    return MountEntry("/mnt/a b", type_, source, 0, 50, ("rw",), ("rw",))


@given(names, names)
@example(b"a:b%3A", b"c\r\n\xff,\\:%")
def test_a_label_tells_the_folder_of_changes(archive: bytes, changes: bytes) -> None:
    paths = os.fsdecode(b"/" + archive), os.fsdecode(b"/" + changes)
    label = overlay_label(*paths)
    assert label.isprintable()
    for type_ in mounttable.OVERLAY_TYPES:
        found = entry_of(label, type_)
        assert found.changes == paths[1]
        assert found.archive == mounttable.shown(paths[0])


def test_a_label_is_never_longer_than_mount_accepts() -> None:
    for unit in ("x", "ü", ":"):
        label = overlay_label(f"/{unit * 4000}/end.ffr", f"/{'c' * 3000}")
        assert len(label.encode()) <= 4095
        found = entry_of(label)
        assert found.changes == f"/{'c' * 3000}"
        assert (found.archive or "").endswith("end.ffr")


@pytest.mark.parametrize(
    ("source", "type_"),
    [
        ("overlay", "overlay"),
        ("ffrecord+overlay:/a", "overlay"),
        ("ffrecord+overlay:/a:/b", "ext4"),
    ],
)
def test_other_file_systems_have_no_changes(source: str, type_: str) -> None:
    found = entry_of(source, type_)
    assert (found.changes, found.archive, found.is_ours) == (None, None, False)


def test_a_list_for_people_names_the_folder_of_changes() -> None:
    found = entry_of(overlay_label("/photos.ffr", "/my changes"))
    assert umount._line(found, raw=False) == "'/mnt/a b'  (changes in '/my changes')"
    assert umount._line(found, raw=True) == "/mnt/a b"
    for before, how in (("", "not verified"), ("+verified", "verified before mounting")):
        below = entry_of(f"ffrecord{before}:/photos.ffr", "erofs")
        found = entry_of(overlay_label("/photos.ffr", "/changes", below))
        due = f"'/mnt/a b'  (changes in /changes, the kernel serves it, {how})"
        assert umount._line(found, raw=False) == due


def test_a_symlink_in_the_place_of_the_changes_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, moved, victim = tmp_path / "changes", tmp_path / "moved", tmp_path / "victim"
    victim.mkdir(0o700)

    class Swapping(dict[bytes, bytes]):
        def items(self) -> Any:  # asked for while `upper` gets its attributes
            folder.rename(moved)
            folder.mkdir()
            (folder / "upper.new").symlink_to(victim)
            return ()

    monkeypatch.setattr(changes, "unsuitable", lambda fd: None)
    monkeypatch.setattr(changes.Changes, "_require_xattrs", lambda self: None)
    top = changes.Top(0o40777, os.getuid(), os.getgid(), 0, Swapping())
    origin = changes.Origin("/a.ffr", "1234")
    found = changes.Changes(str(folder), str(tmp_path / "m"), origin, top, changes.BY_HELPER)
    found.close()
    assert stat.S_IMODE(victim.stat().st_mode) == 0o700
    assert stat.S_IMODE((moved / "upper").stat().st_mode) == 0o777


def test_a_process_with_many_open_files_covers_a_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive of many shards takes many descriptors."""
    monkeypatch.setattr(Overlay, "_cover", lambda self: None)
    with handmade.many_descriptors():
        Overlay.__new__(Overlay).cover()


# ---- without hard links ------------------------------------------------------------------------

LINKS = {"a": ["a", "b/first", "b/second", "c"], "symlink": ["b/l", "l"], "alone": ["d"]}


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    top = tmp_path_factory.mktemp("links") / "tree"
    trees.plain_tree(top, {"a": b"content", "d": b"other", "b/": b"", "e/f": b"more"})
    for name in LINKS["a"][1:]:
        os.link(top / "a", top / name)
    (top / "b/l").symlink_to("../a")
    os.link(top / "b/l", top / "l", follow_symlinks=False)
    archives.pack(top, top.with_suffix(".ffr"))
    return Archive.open(top.with_suffix(".ffr"))


def walk(filesystem: Filesystem, folder: int = 0, path: str = "") -> dict[str, int]:
    """Return the number of each path, which is the same in listings of every length."""
    found: dict[str, int] = {}
    whole = filesystem.listing(folder, 0, 1000)
    assert whole is not None
    at = 0
    for row, length in enumerate(whole.lengths.tolist()):
        name = whole.names[at : at + length].tobytes()
        at += length
        one = filesystem.listing(folder, row, 1)
        assert one is not None
        assert one.inodes.tolist() == [whole.inodes[row]]
        if name in (b".", b".."):
            continue
        number = filesystem.lookup(folder, name)
        assert number == whole.inodes[row]
        status = filesystem.attributes(number)
        columns = (whole.inodes, whole.modes, whole.links, whole.uids, whole.gids, whole.sizes)
        assert status[:6] == tuple(int(column[row]) for column in columns)
        assert filesystem.lookup(number, b".") == number
        found[path + name.decode()] = number
        if status.is_folder:
            found |= walk(filesystem, number, f"{path}{name.decode()}/")
    return found


def test_each_name_of_a_hard_link_is_a_file_of_its_own(linked: Archive) -> None:
    before, separated = Filesystem(linked), Separated(Filesystem(linked))
    numbers, with_links = walk(separated), walk(before)
    assert numbers.keys() == with_links.keys()
    assert len({*numbers.values()}) == len(numbers)
    assert len({*with_links.values()}) < len(numbers)
    for path, number in numbers.items():
        inode = with_links[path]
        assert separated.file(number) == inode
        assert separated.mode(number) == before.mode(inode)
        assert separated.xattr_names(number) == before.xattr_names(inode)
        found, due = separated.attributes(number), before.attributes(inode)
        links = due.links if due.is_folder else 1
        assert found == due._replace(inode=number, links=links)
        if stat.S_ISLNK(found.mode):
            assert separated.readlink(number) == b"../a"
        elif stat.S_ISREG(found.mode):
            record = b"%d" % linked.index.record(inode)
            assert separated.xattr(number, b"user.ffrecord.record") == record


def test_numbers_of_no_file_are_stale(linked: Archive) -> None:
    separated = Separated(Filesystem(linked))
    last = len(linked.index) + len(linked.index.tables.entries)
    for number in (-1, last, last + 1):
        for ask in (separated.file, separated.attributes, separated.mode):
            with pytest.raises(OSError, match="no such inode"):
                ask(number)
    assert separated.lookup(0, b"missing") == MISSING


def test_a_subfolder_can_be_without_hard_links_too(linked: Archive, tmp_path: Path) -> None:
    folder = linked.index.child(0, b"b")
    inner = Subfolder(Separated(Filesystem(linked, Ownership(root=folder))), folder)
    numbers = walk(inner)
    assert numbers.keys() == {"first", "second", "l"}
    assert len({*numbers.values()}) == 3
    inode = linked.index.child(folder, b"first")
    assert {inner.file(numbers[name]) for name in ("first", "second")} == {inode}

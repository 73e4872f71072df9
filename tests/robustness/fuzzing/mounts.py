"""Targets: the mount table, the folder with the changes to an archive, and paths in fsspec."""

from __future__ import annotations

import json
import os
import re
from typing import Any
from unittest import mock

from fsspec import AbstractFileSystem

from ffrecord import pack_folder
from ffrecord.cli import umount
from ffrecord.fsspec import PackedFolderFileSystem
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting import mounttable
from ffrecord_fuse.mounting.changes import BY_HELPER, Changes, Origin
from ffrecord_fuse.mounting.mounttable import MountEntry
from tests.robustness.fuzzing.scratch import Scratch, folder
from tests.robustness.fuzzing.target import Target
from tests.support import trees

# ---- the mount table -------------------------------------------------------------------------

TYPES = (b"fuse.ffrecord", b"erofs", b"overlay", b"fuse.ffrecord-overlay", b"fuse", b"ext4")
SOURCES = (
    b"/data/a.ffr", b"ffrecord:/data/a.ffr", b"ffrecord+verified:s3://b/a.ffr",
    b"ffrecord+overlay:/data/a%3a.ffr:/home/user/changes %25", b"ffrecord+verity:/a\xff", b"none",
)  # fmt: skip
USER = 1000


def tables() -> Target:
    """Fuzz names in the mount table. The kernel writes it, but users choose the names."""
    scratch = Scratch(folder() / "mountinfo")

    def run(data: bytes) -> str:
        number, (place, source, more) = data[:1], (*data[1:].split(b"\0"), b"", b"")[:3]
        kind = TYPES[number[0] % len(TYPES)] if number else TYPES[0]
        lines = [_line(b"/other", b"tmpfs", b"a\\ b", b""), _line(b"/" + place, kind, source, more)]
        other, entry = _entries(scratch, lines)
        assert (other.mountpoint, other.source) == ("/other", "a\\ b")
        names = entry.mountpoint, entry.type, entry.source
        assert names == tuple(map(os.fsdecode, (b"/" + place, kind, source)))
        assert (entry.user, entry.major, entry.minor) == (USER, 0, 52)
        _require_round_trip(scratch, "/" + os.fsdecode(source), "/" + os.fsdecode(place))
        umount._line(entry, raw=False)
        assert (entry.changes, entry.archive) == _labelled(os.fsdecode(kind), entry.source)
        return "another" if entry.archive is None else "an archive"

    seeds = tuple(
        bytes([number]) + b"mnt/a b\0" + source + b"\0x,y" for number, source in enumerate(SOURCES)
    )
    tokens = (b"ffrecord:", b"+overlay", b"+verity", b"%3A", b"%", b":", b"\\040", b" - ", b"\r")
    return Target("mounttable", run, seeds, tokens=(*tokens, b"\n", b"\xe2\x80\xa8", b"s3://"))


def _line(place: bytes, kind: bytes, source: bytes, more: bytes) -> bytes:
    """Return a line as the kernel writes it."""
    options = b"rw,user_id=%d,lowerdir=%b" % (USER, _escaped(more, b", \t\n\\="))
    names = _escaped(kind, b" \t\n\\#"), _escaped(source, b" \t\n\\#"), options
    where = _escaped(place, b" \t\n\\")
    return b"36 35 0:52 / %b ro,nosuid shared:1 master:2 - %b %b %b\n" % (where, *names)


def _escaped(text: bytes, letters: bytes) -> bytes:
    return b"".join(b"\\%03o" % each if each in letters else bytes([each]) for each in text)


def _entries(scratch: Scratch, lines: list[bytes]) -> list[MountEntry]:
    with mock.patch.object(mounttable, "MOUNTINFO", scratch.fill(b"".join(lines))):
        return list(mounttable.entries())


def _require_round_trip(scratch: Scratch, archive: str, changes: str) -> None:
    """Mount an archive, with changes and by the kernel, and find both in the table."""
    overlay = mounttable.overlay_label(archive, changes)
    label = mounttable.label(archive, "verified")
    lines = [_line(b"/1", b"overlay", os.fsencode(overlay), b""),
             _line(b"/2", b"erofs", os.fsencode(label), b"")]  # fmt: skip
    first, second = _entries(scratch, lines)
    assert (first.changes, first.archive) == (changes, mounttable.shown(archive))
    assert (second.is_kernel, second.verified) == (True, "verified")
    assert second.archive is not None
    assert second.archive[2:] in mounttable.shown(archive)


def _labelled(kind: str, source: str) -> tuple[str | None, str | None]:
    """Return the changes and the archive of a source."""
    first, *both = source.split(":")
    served = first.removeprefix("ffrecord+overlay")
    is_overlay = kind.endswith("overlay") and first != served
    known = served in ("", "+kernel", "+verified", "+verity")
    if is_overlay and known and len(both) == 2 and both[1]:
        archive, changes = map(_unquoted, both)
        return changes, mounttable.shown(archive)
    if kind.startswith("fuse.ffrecord"):
        return None, source
    before, colon, place = source.partition(":")
    is_label = colon and before in ("ffrecord", "ffrecord+verified", "ffrecord+verity")
    is_place = place.startswith("/") or re.match(r"\w[\w+.-]+://", place)
    return None, place if kind == "erofs" and is_label and is_place else None


def _unquoted(text: str) -> str:
    raw, found = os.fsencode(text), b""
    while raw:
        digits = raw[1:3]
        is_code = (
            raw[:1] == b"%" and len(digits) == 2 and not digits.strip(b"0123456789abcdefABCDEF")
        )
        found += bytes([int(digits, 16)]) if is_code else raw[:1]
        raw = raw[3 if is_code else 1 :]
    return os.fsdecode(found)


# ---- the folder with changes -----------------------------------------------------------------

ORIGIN = Origin("/data/a.ffr", "0123abcd", "sub")
ABOUT = {
    "version": 1, "archive": "/data/a.ffr", "fingerprint": "0123abcd", "subdir": "sub",
    "keeper": BY_HELPER,
}  # fmt: skip
JSON = (
    b"null", b"true", b"1e999", b"-1", b"NaN", b"[", b"{", b"}", b'"', b'"a":', b"\\ud800", b"1.0",
    b"[" * 2000, b'{"a":' * 400, b"9" * 5000, b"\\u0000", b"[]", b"{}", b'""', b"0", b"1",
)  # fmt: skip


def folders_of_changes() -> Target:
    top = folder()
    scratch = Scratch(top / "about.json")

    def run(data: bytes) -> str:
        scratch.fill(data)
        changes = object.__new__(Changes)
        changes.path, changes.keeper = str(top), BY_HELPER
        found = changes._about()
        assert found is not None
        changes._compare(found, ORIGIN)
        content = json.loads(data.decode())
        assert all(content[name] == due for name, due in ABOUT.items() if name != "archive")
        return "the same archive"

    seeds = tuple(
        json.dumps(ABOUT | change).encode()
        for change in ({}, {"version": 2}, {"fingerprint": "x"}, {"keeper": "overlayfs"})
    )
    return Target("changes", run, seeds, tokens=JSON, errors=(MountError,))


# ---- paths in fsspec -------------------------------------------------------------------------

PATHS = {
    "a": b"a", "a b.txt": b"b", "[x]": b"brackets", "sub/deep/er": b"deep", "sub/a*": b"star",
    "é": b"e", "x-1": b"1", "x-2": b"2", "sub/.hidden": b".",
}  # fmt: skip
PATTERNS = (
    b"ffr://a", b"/sub//deep/./er", b"*", b"**", b"sub/*", b"s?b/**", b"x-[12]", b"[[]x[]]",
    b"sub/a[*]", b"**/er", b"x-[!1]", b"../a", b"sub/deep/", b"{a,\xc3\xa9}", b"sub/**/er", b"li?k",
)  # fmt: skip


def names() -> Target:
    """Fuzz paths and patterns: compare with the packed folder on disk, and with fsspec's search."""
    top = folder()
    trees.plain_tree(top / "tree", PATHS)
    (top / "tree/link").symlink_to("a")
    (top / "tree/broken").symlink_to("nowhere")
    pack_folder(top / "tree", top / "tree.ffr")
    fs: Any = PackedFolderFileSystem(str(top / "tree.ffr"))

    def run(data: bytes) -> str:
        text = os.fsdecode(data)
        plain = fs._strip_protocol(text)
        place = top / "tree" / plain
        due = AbstractFileSystem.glob(fs, text)  # a ValueError for `a**`
        found = fs.glob(text)
        if "\0" not in text and ".." not in plain.split("/"):  # ours also leads up again
            assert fs.lexists(text) == os.path.lexists(place)
            assert (fs.isfile(text), fs.isdir(text)) == (place.is_file(), place.is_dir())
            assert found == due
        content = fs.cat_file(text)
        assert content == place.read_bytes()
        return "a file"

    tokens = (
        b"/",
        b"*",
        b"**",
        b"?",
        b"[",
        b"]",
        b"!",
        b".",
        b"..",
        b"ffr://",
        b"sub",
        b"link",
        b"\\",
    )
    return Target("fsspec", run, PATTERNS, tokens=tokens, errors=(OSError, ValueError))

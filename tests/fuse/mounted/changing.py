"""Changes to a folder, made in the same way in an overlay and in a plain folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.support import trees

WHEN = 1_700_000_000_123_456_789
BLOCK = trees.BLOCK
FILES = {
    "appended": b"first\n",
    "cut": trees.content(3 * BLOCK, 1),
    "overwritten": trees.content(2 * BLOCK + 77, 2),
    "replaced": b"old",
    "removed": b"gone",
    "renamed": b"moves",
    "mode": b"x",
    "marked": b"has an attribute",
    "untouched": trees.content(BLOCK + 1, 3),
    "kept/file": b"stays",
    "emptied/one": b"1",
    "emptied/two": b"2",
    "remade/old": b"must not come back",
    "remade/inner/old": b"nor must this",
    "deleted/deep/er/file": b"gone",
    "moved/a/file": b"in a moved folder",
    "moved/b": trees.content(BLOCK, 4),
    "file to folder": b"becomes a folder",
    "folder to file/inside": b"becomes a file",
    "deep/er/still/appended": b"far down\n",
}


def make(top: Path) -> Path:
    """Make the folder to pack. Its names are above; links and an attribute are added."""
    trees.plain_tree(top, FILES)
    os.link(top / "untouched", top / "untouched too")
    (top / "link").symlink_to("kept/file")
    if trees.has_xattrs(top):
        os.setxattr(top / "marked", "user.colour", b"green")
        os.setxattr(top / "kept", "user.colour", b"blue")
        os.setxattr(top, "user.top", b"root")
    for path in [*top.rglob("*"), top]:
        os.utime(path, ns=(WHEN, WHEN), follow_symlinks=False)
    top.chmod(0o750)
    return top


def separate(top: Path) -> None:
    """Make a file of its own of each hard link."""
    (top / "untouched too").unlink()
    shutil.copy2(top / "untouched", top / "untouched too")
    os.utime(top, ns=(WHEN, WHEN))


def change(top: Path) -> None:
    """Change files in every way that programs do. Afterwards all times are the same."""
    with open(top / "appended", "ab") as file:
        file.write(b"second\n")
    os.link(top / "appended", top / "appended too")
    with open(top / "deep/er/still/appended", "ab") as file:
        file.write(b"more\n")
    (top / "deep/er/still/appended").rename(top / "deep/renamed after a change")
    (top / "deep/er/still/appended").write_bytes(b"another file")
    os.truncate(top / "cut", BLOCK + 5)
    with open(top / "overwritten", "r+b") as file:
        file.seek(BLOCK - 3)
        file.write(b"in the middle")
    (top / "new content").write_bytes(b"new")
    os.replace(top / "new content", top / "replaced")
    (top / "removed").unlink()
    (top / "renamed").rename(top / "kept/renamed")
    (top / "mode").chmod(0o711)
    if trees.has_xattrs(top):
        os.setxattr(top / "marked", "user.colour", b"red")
        os.removexattr(top / "kept", "user.colour")
    for path in (top / "emptied").iterdir():
        path.unlink()
    shutil.rmtree(top / "remade")
    trees.plain_tree(top / "remade", {"new": b"only this", "inner/new": b"and this"})
    shutil.rmtree(top / "deleted")
    shutil.move(top / "moved", top / "kept/moved here")
    (top / "file to folder").unlink()
    trees.plain_tree(top / "file to folder", {"inside": b"new"})
    shutil.rmtree(top / "folder to file")
    (top / "folder to file").write_bytes(b"a file now")
    (top / "link").unlink()
    (top / "link").symlink_to("nowhere")
    (top / "fresh").write_bytes(trees.content(5000, 5))
    os.link(top / "fresh", top / "kept/fresh too")
    for path in [*top.rglob("*"), top]:
        if os.lstat(path).st_mtime_ns != WHEN:
            os.utime(path, ns=(WHEN, WHEN), follow_symlinks=False)

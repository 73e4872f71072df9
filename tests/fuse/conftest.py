"""Fixtures: a tree of files, its archive, and sessions that serve it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord_fuse.serve.reading import Reading
from tests.support import archives, trees
from tests.support.kernel import Kernel
from tests.support.session import BLOCK, POISON, WHEN, ColdReading, content, talk


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("session") / "tree"
    files = {
        "a.txt": b"hello, kernel\n",
        "big": content(3 * BLOCK + 77, 1),
        "empty": b"",
        "poison": bytes([POISON]) * 140_000,
        "sub/deep": content(5000, 2),
        "sub/inner/": b"",
    }
    trees.plain_tree(top, files)
    os.link(top / "a.txt", top / "hard")
    (top / "link").symlink_to("sub/deep")
    if trees.has_xattrs(top):
        os.setxattr(top / "a.txt", "user.colour", b"green")
        os.setxattr(top / "a.txt", "user.none", b"")
    for path in [*top.rglob("*"), top]:
        os.utime(path, ns=(WHEN, WHEN), follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return top


@pytest.fixture(scope="session")
def packed(tree: Path) -> Path:
    path = tree.parent / "tree.ffr"
    archives.pack(tree, path)
    return path


# Many tests share one session: no request of one test may harm the next test.


@pytest.fixture(scope="module", params=[Reading, ColdReading], ids=["warm", "cold"])
def talking(packed: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Yield a session whose reads all come from the page cache, or all from the disk."""
    with talk(packed, reading=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def warm(packed: Path) -> Iterator[Kernel]:
    with talk(packed) as found:
        yield found

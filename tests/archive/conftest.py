"""Folders and archives that the tests of this room share.

No test changes a fixture of the whole session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffrecord import PackedFolder
from tests.support import archives, trees
from tests.support.extraction import FILES

FORMS: dict[str, dict[str, Any]] = {
    "one file": {},
    "without the original's index": {"legacy_index": False},
    "shards": {"shard_size": 200_000},
    "aligned": {"align": 512},
    "aligned shards": {"shard_size": 200_000, "align": 512},
}


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.rich_tree(tmp_path_factory.mktemp("rich") / "tree")


@pytest.fixture(scope="session")
def forms(rich: Path) -> dict[str, Path]:
    """Pack the rich tree in each form; return the archives by form."""
    made = {form: rich.with_name(f"{form}.ffr") for form in FORMS}
    for form, path in made.items():
        archives.pack(rich, path, **FORMS[form])
    return made


@pytest.fixture(scope="module", params=FORMS)
def archive(request: pytest.FixtureRequest, forms: dict[str, Path]) -> Path:
    return forms[request.param]


@pytest.fixture(scope="module")
def folder(archive: Path) -> Iterator[PackedFolder]:
    with PackedFolder(archive) as folder:
        yield folder


@pytest.fixture(scope="session")
def one_file(rich: Path) -> Path:
    archives.pack(rich, rich.with_name("only one.ffr"))
    return rich.with_name("only one.ffr")


@pytest.fixture(scope="module")
def single(one_file: Path) -> Iterator[PackedFolder]:
    """Open an archive of one file."""
    with PackedFolder(one_file) as folder:
        yield folder


@pytest.fixture(scope="session")
def found(rich: Path) -> dict[str, trees.Found]:
    """Return everything that was packed, by name."""
    everything = trees.snapshot(rich)
    return {os.fsdecode(p): each for p, each in everything.items() if each.kind in trees.KEPT}


@pytest.fixture(scope="session")
def files(found: dict[str, trees.Found]) -> dict[str, bytes]:
    return {name: each.content for name, each in found.items() if each.kind == "file"}


# ---- for the tests of packing --------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Make a folder of a few files."""
    files = {
        "a.txt": b"first",
        "b.tmp": b"temporary",
        "logs/1.log": b"one",
        "logs/2.log": b"two two",
        "logs/deep/3.log": b"three",
        "sub/a.txt": b"another a",
        "sub/logs": b"a file called logs",
        "empty/": b"",
    }
    return trees.plain_tree(tmp_path / "small", files)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the path for a new archive, in an empty folder."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "archive.ffr"


# ---- for the tests of extraction -----------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = trees.plain_tree(tmp_path / "tree", FILES)
    (top / "link").symlink_to("d")
    (top / "d/up").symlink_to("../a")
    os.link(top / "d/b", top / "f/same as b")
    (top / "d").chmod(0o750)
    top.chmod(0o751)
    return top


@pytest.fixture
def path(tree: Path, tmp_path: Path) -> Path:
    archives.pack(tree, tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


@pytest.fixture
def opened(path: Path) -> Iterator[PackedFolder]:
    with PackedFolder(path) as folder:
        yield folder


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Make a folder outside the target that no test may change, and check that at the end.

    It has files that could be replaced, and a folder that could be filled.
    """
    top = trees.plain_tree(tmp_path / "outside", {"file": b"precious", "folder/b": b"precious too"})
    top.chmod(0o711)
    (top / "folder").chmod(0o711)
    before = trees.snapshot(top)
    yield top
    assert trees.snapshot(top) == before, "something was written outside the target"


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"

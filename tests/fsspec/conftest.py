"""A tree with everything a folder can have, and archives of it in every form."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffrecord.fsspec import PackedFolderFileSystem
from tests.archive.conftest import FORMS
from tests.support import archives, handmade, trees

ORIGINAL = "the original's"


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.rich_tree(tmp_path_factory.mktemp("fsspec") / "tree")


@pytest.fixture(scope="session")
def contents(tree: Path) -> dict[str, bytes]:
    """Return the content of every regular file by path."""
    found = trees.snapshot(tree).items()
    return {os.fsdecode(path): each.content for path, each in found if each.kind == "file"}


@pytest.fixture(scope="session")
def forms(tree: Path, contents: dict[str, bytes]) -> dict[str, Path]:
    """Pack the tree in each form; return the archives by form."""
    made = {form: tree.with_name(f"{form}.ffr") for form in (*FORMS, ORIGINAL)}
    for form, options in FORMS.items():
        archives.pack(tree, made[form], **options)
    write_original(made[ORIGINAL], contents)
    return made


@pytest.fixture(scope="module", params=[*FORMS, ORIGINAL])
def any_fs(request: pytest.FixtureRequest, forms: dict[str, Path]) -> PackedFolderFileSystem:
    """Return the file system of each form of archive."""
    return PackedFolderFileSystem(forms[request.param])


@pytest.fixture(scope="module")
def fs(forms: dict[str, Path]) -> PackedFolderFileSystem:
    return PackedFolderFileSystem(forms["one file"])


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Let no test use an archive that another test opened."""
    yield
    PackedFolderFileSystem.clear_instance_cache()


def write_original(path: Path, contents: dict[str, bytes]) -> None:
    """Write an archive as the original FFRecord does: a pickle is its index."""
    structure: OrderedDict[str, Any] = OrderedDict()
    for number, name in enumerate(contents):
        *folders, last = name.split("/")
        inside = structure
        for folder in folders:
            inside = inside.setdefault(folder, OrderedDict())
        inside[last] = number
    # The original decodes names in the way of Python's `os`.
    index = b"piouhjgbr" + pickle.dumps(structure)
    handmade.write_records(path, [*contents.values(), index])

"""Fixtures for the tests of commands: folders, their archives, and the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ffrecord import cli
from tests.support import archives, trees
from tests.support.commands import FILES, Command, Result


@pytest.fixture
def ffrecord(capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Return a function that runs a command line in this process."""

    def run(*arguments: str | Path) -> Result:
        try:
            code: Any = cli.main(list(map(str, arguments)))
        except SystemExit as end:  # argparse exits if the command line is wrong
            code = end.code
        out, err = capsysbinary.readouterr()
        return Result(code, out, err)

    return run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = trees.plain_tree(tmp_path / "tree", FILES)
    (top / "link").symlink_to("d")
    os.link(top / "a.txt", top / "d/same")
    return top


@pytest.fixture
def archive(tree: Path, tmp_path: Path) -> Path:
    archives.pack(tree, tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


@pytest.fixture(scope="session")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.rich_tree(tmp_path_factory.mktemp("rich") / "tree")


@pytest.fixture(scope="session")
def rich_archive(rich: Path) -> Path:
    archives.pack(rich, rich.with_name("rich.ffr"))
    return rich.with_name("rich.ffr")

"""fsspec's own tests of copies out of a file system, on trees that were packed.

The tests of `put`, `cp`, `mv`, `pipe` and of exclusive opening write, so they do not suit archives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests

from ffrecord import pack_folder
from ffrecord.fsspec import PackedFolderFileSystem


class _Prepared(PackedFolderFileSystem):
    """A file system for tests that first make a folder and a file, which are packed already."""

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:  # type: ignore[override]
        assert self.isdir(path)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:  # type: ignore[override]
        assert self.isfile(path)


class TestGet(AbstractGetTests, AbstractFixtures):  # type: ignore[misc]
    """Each scenario of fsspec is made on disk and packed with the others."""

    @pytest.fixture
    def fs(self, tmp_path: Path) -> PackedFolderFileSystem:
        local, join = LocalFileSystem(auto_mkdir=True), lambda *parts: "/".join(map(str, parts))
        top = tmp_path / "scenarios"
        make: dict[str, Callable[..., object]] = {
            "bulk": self._bulk_operations_scenario_0,
            "glob": self._glob_edge_cases_files,
            "prefix": self._dir_and_file_with_same_name_prefix,
            "hashed": self._10_files_with_hashed_names,
        }
        for name, scenario in make.items():
            scenario(local, join, top / name)
        local.touch(top / "made" / "src" / "file")
        pack_folder(top, tmp_path / "scenarios.ffr")
        return _Prepared(tmp_path / "scenarios.ffr")

    @pytest.fixture
    def fs_bulk_operations_scenario_0(self) -> str:
        return "bulk/source"

    @pytest.fixture
    def fs_glob_edge_cases_files(self) -> str:
        return "glob/source"

    @pytest.fixture
    def fs_dir_and_file_with_same_name_prefix(self) -> str:
        return "prefix/source"

    @pytest.fixture
    def fs_10_files_with_hashed_names(self) -> str:
        return "hashed/source"

    @pytest.fixture
    def fs_path(self) -> str:
        return "made"  # not the root: fsspec copies a folder without a parent in another way

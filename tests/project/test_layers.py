"""The rule of layers: a module imports only from its own room and from layers below.

`LAYERS` is the whole rule; docs/architecture.md describes each room. Imports inside functions
count too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the bottom up. Rooms on one line are on the same layer and do not import each other.
LAYERS = """
ffrecord.machine
ffrecord.aliases ffrecord.errors ffrecord.progress ffrecord.terminal ffrecord.text ffrecord.version
ffrecord.command
ffrecord.format
ffrecord.disk
ffrecord.atomic
ffrecord.remote
ffrecord.plan
ffrecord.records
ffrecord.archive ffrecord.dataset
ffrecord.torch ffrecord.convert ffrecord.fsspec ffrecord.view ffrecord.cluster
ffrecord_fuse.errors
ffrecord_fuse.mounting
ffrecord_fuse.filesystem
ffrecord_fuse.wire ffrecord_fuse.kernel
ffrecord_fuse.serve
ffrecord_fuse.libfuse
ffrecord_fuse.process
ffrecord_fuse.cli
ffrecord_fuse
ffrecord.cli
ffrecord.fileio ffrecord.package ffrecord.utils
ffrecord
"""
HEIGHT = {
    room: height for height, line in enumerate(LAYERS.strip().splitlines()) for room in line.split()
}
ROOM_OF_PACKAGE = {
    "torch": "ffrecord.torch",
    **dict.fromkeys(("dask", "distributed", "pyarrow", "pyspark", "ray"), "ffrecord.cluster"),
}
"""Packages that only one room imports."""


def modules() -> dict[str, Path]:
    found = {}
    for package in ("ffrecord", "ffrecord_fuse"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    """Return the room of a module: `ffrecord.disk`, a flat module, or a package's top."""
    room = ".".join(module.split(".")[:2])
    if room in HEIGHT:
        return room
    top = module.partition(".")[0]
    assert module in (top, f"{top}.__main__"), f"{module} is in no room; add it to LAYERS"
    return top


def imports_of(source: str) -> Iterator[str]:
    """Yield the names of all modules that a source imports, at any place in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import: write the whole name"
            assert node.module is not None
            for alias in node.names:  # a module of the package, or a name in the module
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def breaches(importer: str, source: str) -> list[str]:
    room, wrong = room_of(importer), []
    for name in imports_of(source):
        top = name.partition(".")[0]
        if room != ROOM_OF_PACKAGE.get(top, room):
            wrong.append(name)
        if top in ("ffrecord", "ffrecord_fuse"):
            other = room_of(name)
            if other != room and HEIGHT[other] >= HEIGHT[room]:
                wrong.append(name)
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_below(module: str) -> None:
    assert breaches(module, MODULES[module].read_text()) == []


def test_every_room_of_the_rule_exists() -> None:
    assert {room_of(module) for module in MODULES} == set(HEIGHT)


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("ffrecord.format.records", "import torch"),
        ("ffrecord.format.records", "from torch.utils import data"),
        ("ffrecord.dataset.reader", "import pyarrow as pa"),
        ("ffrecord.torch.dataset", "import ray.data"),
        ("ffrecord.cluster.ray", "from ffrecord.convert import shapes"),
        ("ffrecord.format.records", "from ffrecord import disk"),
        ("ffrecord.format.records", "from ffrecord.disk.aio import Context"),
        ("ffrecord.format.records", "def f():\n    import ffrecord.records.reader"),
        ("ffrecord.archive.pack", "from ffrecord.dataset import codecs"),
        ("ffrecord.archive.pack", "import ffrecord"),
        ("ffrecord.errors", "from ffrecord_fuse.errors import MountError"),
        ("ffrecord_fuse.mounting.mount", "from ffrecord_fuse.wire import abi"),
        ("ffrecord_fuse.serve.session", "from ffrecord_fuse import cli"),
        ("ffrecord_fuse.serve.session", "from ffrecord.cli import common"),
    ],
)
def test_a_forbidden_import_is_found(importer: str, line: str) -> None:
    assert breaches(importer, line)


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("ffrecord_fuse.mounting.mount", "from ffrecord_fuse.errors import MountError"),
        ("ffrecord_fuse.mounting.mount", "from ffrecord.errors import FFRecordError"),
        ("ffrecord.disk.fetch", "from ffrecord.disk import aio"),
        ("ffrecord.disk.fetch", "import numpy"),
        ("ffrecord.cli.mount", "from ffrecord_fuse.cli import run"),
        ("ffrecord.torch.dataset", "import torch"),
    ],
)
def test_an_allowed_import_is_not_reported(importer: str, line: str) -> None:
    assert breaches(importer, line) == []

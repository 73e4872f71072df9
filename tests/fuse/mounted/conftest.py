"""The mounts that most tests share. Each is made once and compared with its packed folder.

forms of archives × back ends ──▶ mounted          tests for every form
one file × back ends          ──▶ mounted (WHOLE)  tests where the form makes no difference
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fuse.mounted import mounting
from tests.fuse.mounted.mounting import BACKENDS, FORMS, Mounted, require
from tests.support import archives, handmade, trees
from tests.support.trees import BLOCK

MAGIC = b"piouhjgbr"
"""The first bytes of the original FFRecord's index."""

LONG_SECONDS = 3600.0
EDGES = {
    f"{blocks} blocks {more:+d}": blocks * BLOCK + more
    for blocks in (1, 2, 3, 8, 9)
    for more in (-4096, -512, -1, 0, 1, 511, 4097)
}


class Packed(NamedTuple):
    archive: Path
    source: Path


@pytest.fixture(scope="session", autouse=True)
def _fuse_is_available() -> None:
    why = mounting.why_not()
    if why is not None:
        pytest.skip(why)


@pytest.fixture(autouse=True)
def _time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    is_long = request.node.get_closest_marker("long") is not None
    with mounting.time_limit(LONG_SECONDS if is_long else mounting.PATIENCE):
        yield


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Return the back end, for tests that mount by themselves."""
    name: str = request.param
    require(name)
    return name


# ---- folders and their archives ----------------------------------------------------------------


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with everything that an archive stores."""
    top = trees.rich_tree(tmp_path_factory.mktemp("source") / "tree")
    for kind in ("fifo", "socket"):
        (top / "special" / kind).unlink()
    for number, (name, size) in enumerate(EDGES.items()):
        trees.a_file(top / "edges" / name, size, number)
    return top


@pytest.fixture(scope="session")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    out = tmp_path_factory.mktemp("archive") / "tree.ffr"
    archives.pack(source, out)
    return Packed(out, source)


@pytest.fixture(scope="session")
def shards(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    out = tmp_path_factory.mktemp("shards") / "tree"
    archives.pack(source, out, shard_size=1 << 20)
    return Packed(out, source)


@pytest.fixture(scope="session")
def aligned(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Pack so that the kernel can serve files in place. To a daemon, alignment does not matter."""
    out = tmp_path_factory.mktemp("aligned") / "tree.ffr"
    archives.pack(source, out, align=512)
    return Packed(out, source)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Pack as the original FFRecord does: names and contents, but no attributes.

    The folder to compare with has the default attributes of such files.
    """
    place = tmp_path_factory.mktemp("original")
    top, archive = place / "tree", place / "original.ffr"
    sizes = {f"sizes/{name}": size for name, size in {**trees.SIZES, **EDGES}.items()}
    for number, (name, size) in enumerate({**sizes, "deep/er/tiny": 17}.items()):
        trees.a_file(top / name, size, number)
    (top / "empty").mkdir()
    records: list[bytes] = []
    index = MAGIC + pickle.dumps(structure(top, records))
    handmade.write_records(archive, [*records, index])
    os.utime(archive, ns=(0, trees.NANOSECONDS))
    for path in [*top.rglob("*"), top]:
        path.chmod(0o555 if path.is_dir() else 0o444)
        os.utime(path, ns=(0, trees.NANOSECONDS))
    return Packed(archive, top)


def structure(folder: Path, records: list[bytes]) -> OrderedDict[str, Any]:
    """Return the original's index: a mapping from names to folders or record numbers."""
    found: OrderedDict[str, Any] = OrderedDict()
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            found[path.name] = structure(path, records)
        else:
            found[path.name] = len(records)
            records.append(path.read_bytes())
    return found


# ---- mounts ------------------------------------------------------------------------------------


@pytest.fixture(
    scope="session",
    params=[*((form, backend) for backend in BACKENDS for form in FORMS), ("aligned", "kernel")],
    ids="-".join,
)
def mounted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mounted]:
    form, backend = request.param
    require(backend)
    packed: Packed = request.getfixturevalue({"file": "whole"}.get(form, form))
    place = tmp_path_factory.mktemp(f"{form}-{backend}")
    path, log = place / "mnt", place / "log"
    # One form is served by several workers: clients must not see a difference.
    options = "workers=3" if form == "shards" else ""
    with mounting.mounted(packed.archive, path, options, backend=backend, log=log):
        yield Mounted(path, packed.archive, packed.source, form, backend, log)


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty folder, and unmount it after the test."""
    path = tmp_path / "mnt"
    path.mkdir()
    with mounting.released(path):
        yield path

"""The import table of the design, as data: who may import whom. Breaking it is a failing test.

Beyond the design's table: `slabs`, `pagecache`, `engine` and `batch` are what it calls `aio` and
`reader`, `iteration`, `opening`, `partition`, `recheck`, `table` and `unfinished` are parts of
`reader`, `newfile`, `beginning`, `append`, `partial`, `finished`, `journal`, `sharing`, `locks`,
`planted` and `tempnames` of `writer`, `claims` of `salvage`, `scan` and `readahead` of `pack`,
`archive`, `packedfile` and `walking` of `folder`, `openfolders` and `placing` of `extract`,
`contents` of `pack` and `extract`, split into one job each; `fileio`, `package` and `utils` have
the names of the original's modules.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

READ_SIDE = {"errors", "layout", "checksum", "extents", "aio", "slabs", "pagecache", "engine"}

FUSE_INSIDE = {"content", "counters", "filesystem"}

# module -> (modules of ours, packages from outside) that it may import
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "ffrecord.errors": (set(), set()),
    "ffrecord.version": (set(), set()),
    "ffrecord.wording": (set(), set()),
    "ffrecord.terminal": (set(), set()),
    "ffrecord.running": ({"errors", "terminal"}, set()),
    "ffrecord.planted": (set(), set()),
    "ffrecord.sizes": (set(), set()),
    "ffrecord.fileio": ({"reader", "writer"}, set()),
    "ffrecord.names": (set(), set()),
    "ffrecord.layout": ({"errors", "wording"}, {"numpy"}),
    "ffrecord.checksum": ({"errors"}, {"numpy", "isal"}),
    "ffrecord.extents": (set(), {"numpy"}),
    "ffrecord.indices": ({"wording"}, {"numpy"}),
    "ffrecord.slabs": (set(), {"numpy"}),
    "ffrecord.pagecache": (set(), {"numpy"}),
    "ffrecord.aio": ({"errors"}, {"numpy", "libaio"}),
    "ffrecord.engine": ({"errors", "extents", "aio", "pagecache"}, {"numpy"}),
    "ffrecord.machine": ({"aio", "engine", "pagecache", "version"}, set()),
    "ffrecord.batch": (READ_SIDE, {"numpy"}),
    "ffrecord.opening": (
        {"checksum", "engine", "errors", "journal", "layout", "recheck", "wording"},
        {"numpy"},
    ),
    "ffrecord.partition": (set(), {"numpy"}),
    "ffrecord.table": (
        {"batch", "engine", "errors", "indices", "layout", "opening", "partition", "wording"},
        {"numpy"},
    ),
    "ffrecord.iteration": ({"batch", "errors"}, {"numpy"}),
    "ffrecord.reader": (
        READ_SIDE
        | {"batch", "indices", "iteration", "opening", "partition", "table", "unchanged"}
        | {"unfinished", "wording"},
        {"numpy"},
    ),
    "ffrecord.unfinished": (
        {"checksum", "engine", "errors", "journal", "layout", "opening", "table", "wording"},
        {"numpy"},
    ),
    "ffrecord.unchanged": ({"errors"}, set()),
    "ffrecord.recheck": ({"checksum", "engine"}, {"numpy"}),
    "ffrecord.locks": ({"errors", "planted"}, set()),
    "ffrecord.tempnames": ({"locks"}, set()),
    "ffrecord.newfile": ({"errors", "locks", "slabs", "tempnames"}, {"numpy"}),
    "ffrecord.holes": ({"newfile"}, {"numpy"}),
    "ffrecord.sharing": ({"engine", "newfile"}, {"numpy"}),
    "ffrecord.beginning": ({"layout", "newfile"}, set()),
    "ffrecord.append": (
        {"beginning", "engine", "errors", "index", "layout", "locks", "newfile", "reader"}
        | {"sharing"},
        set(),
    ),
    "ffrecord.journal": ({"checksum", "engine", "errors", "newfile"}, set()),
    "ffrecord.finished": (
        {"beginning", "engine", "errors", "layout", "newfile", "opening", "planted", "recheck"},
        set(),
    ),
    "ffrecord.partial": (
        {"beginning", "engine", "errors", "finished", "journal", "layout", "locks", "newfile"}
        | {"opening", "recheck", "sharing"},
        set(),
    ),
    "ffrecord.writer": (
        {"append", "beginning", "checksum", "errors", "layout", "newfile", "partial"},
        {"numpy"},
    ),
    "ffrecord.claims": ({"checksum", "engine", "errors", "journal", "layout"}, {"numpy"}),
    "ffrecord.salvage": (
        {"checksum", "claims", "engine", "errors", "index", "journal", "layout", "opening"}
        | {"recheck", "wording", "writer"},
        {"numpy"},
    ),
    "ffrecord.newfolder": ({"errors", "locks", "newfile", "planted"}, set()),
    "ffrecord.growfolder": ({"append", "errors", "locks", "newfile", "newfolder"}, set()),
    "ffrecord.index": ({"errors", "checksum", "index"}, {"numpy"}),
    "ffrecord.contents": ({"index"}, {"numpy"}),
    "ffrecord.imagecopy": ({"checksum", "engine", "index"}, {"numpy"}),
    "ffrecord.archive": (
        {"errors", "checksum", "imagecopy", "index", "opening", "reader", "recheck", "wording"},
        {"numpy"},
    ),
    "ffrecord.audit": ({"archive", "checksum", "errors", "index"}, {"numpy"}),
    "ffrecord.packedfile": ({"archive", "index"}, set()),
    "ffrecord.walking": ({"index", "names"}, {"numpy"}),
    "ffrecord.folder": (
        {"archive", "extract", "index", "names", "packedfile", "reader", "unchanged", "walking"},
        {"numpy"},
    ),
    "ffrecord.bars": (set(), {"tqdm"}),
    "ffrecord.longpaths": (set(), set()),
    "ffrecord.scan": ({"errors", "index", "longpaths"}, {"numpy"}),
    "ffrecord.readahead": ({"checksum", "index", "pagecache", "scan", "slabs"}, {"numpy"}),
    "ffrecord.pack": (
        {"bars", "contents", "errors", "checksum", "engine", "index", "layout", "longpaths"}
        | {"names", "newfile", "newfolder", "readahead", "scan", "sizes", "tempnames", "terminal"}
        | {"wording", "writer"},
        {"numpy"},
    ),
    "ffrecord.placing": ({"locks", "tempnames", "wording"}, set()),
    "ffrecord.openfolders": ({"index"}, set()),
    "ffrecord.extract": (
        {"archive", "contents", "errors", "holes", "index", "names", "newfile", "openfolders"}
        | {"placing", "wording"},
        {"numpy"},
    ),
    # msgpack, Pillow, zstandard and lz4 are imported by name, when they are asked for.
    "ffrecord.dataset": (
        {"append", "bars", "batch", "beginning", "checksum", "dataset", "engine", "errors"}
        | {"fingerprints", "growfolder", "indices", "layout", "locks", "newfile"}
        | {"newfolder", "opening", "reader", "recheck", "unchanged", "writer"},
        {"isal", "numpy"},
    ),
    "ffrecord.package": ({"folder", "index", "pack", "reader", "writer"}, set()),
    "ffrecord.permutation": (set(), {"numpy"}),
    "ffrecord.fingerprints": (set(), {"numpy"}),
    # The only place that imports torch.
    "ffrecord.torch": (
        {
            "errors",
            "fingerprints",
            "folder",
            "indices",
            "opening",
            "permutation",
            "reader",
            "torch",
        },
        {"numpy", "PIL", "torch"},
    ),
    # Optional packages are imported by name, through dataset.packages, when they are needed.
    "ffrecord.convert": (
        {
            "archive",
            "bars",
            "checksum",
            "contents",
            "convert",
            "dataset",
            "errors",
            "extract",
            "index",
            "indices",
        }
        | {"longpaths", "names", "newfile", "newfolder", "opening", "pack", "placing", "reader"}
        | {"scan", "sizes", "wording", "writer"},
        {"numpy"},
    ),
    "ffrecord.dumping": (
        {"bars", "errors", "locks", "newfile", "newfolder", "writer"},
        set(),
    ),
    "ffrecord.utils": ({"dumping", "writer"}, set()),
    "ffrecord.cli": (
        READ_SIDE
        | {
            "archive",
            "audit",
            "cli",
            "contents",
            "convert",
            "dataset",
            "extract",
            "folder",
            "index",
            "machine",
            "names",
            "bars",
            "pack",
            "mounting",
            "reader",
            "running",
            "salvage",
            "sizes",
            "terminal",
            "mounttable",
            "options",
            "version",
            "wording",
            "writer",
        },
        {"numpy"},
    ),
    "ffrecord.cli.shells": ({"cli"}, set()),
    "ffrecord.__main__": ({"cli"}, set()),
    "ffrecord.__init__": (
        {"dataset", "errors", "fileio", "folder", "pack", "package", "reader", "salvage", "torch"}
        | {"utils", "version", "writer"},
        set(),
    ),
    "ffrecord_fuse.__init__": ({"errors", "lifeline", "mounting", "mounttable", "options"}, set()),
    "ffrecord_fuse.__main__": ({"cli"}, set()),
    "ffrecord_fuse.errors": ({"errors"}, set()),
    "ffrecord_fuse.options": ({"errors"}, set()),
    "ffrecord_fuse.mounttable": ({"errors", "names"}, set()),
    "ffrecord_fuse.mounting": ({"errors", "mounttable", "options"}, set()),
    "ffrecord_fuse.lifeline": ({"errors", "mounting", "mounttable"}, set()),
    "ffrecord_fuse.events": (set(), set()),
    "ffrecord_fuse.counters": (set(), set()),
    "ffrecord_fuse.background": (set(), set()),
    "ffrecord_fuse.log": ({"planted", "terminal"}, set()),
    "ffrecord_fuse.abi": (set(), {"numpy"}),
    "ffrecord_fuse.request": ({"abi"}, set()),
    "ffrecord_fuse.reply": ({"abi", "filesystem", "index"}, {"numpy"}),
    "ffrecord_fuse.handshake": ({"abi", "errors", "mounttable", "reply", "request"}, set()),
    "ffrecord_fuse.filesystem": ({"archive", "counters", "index"}, {"numpy"}),
    "ffrecord_fuse.content": ({"archive", "checksum", "index", "options"}, {"numpy"}),
    "ffrecord_fuse.damage": ({"content", "filesystem"}, set()),
    "ffrecord_fuse.coldreads": ({"aio", "engine", "errors", "slabs"}, {"numpy"}),
    "ffrecord_fuse.idling": (set(), set()),
    "ffrecord_fuse.inbox": ({"coldreads", "idling"}, set()),
    "ffrecord_fuse.streams": ({"content"}, set()),
    "ffrecord_fuse.reading": (
        FUSE_INSIDE
        | {"abi", "background", "coldreads", "damage", "errors", "pagecache", "reply", "request"}
        | {"slabs", "streams"},
        set(),
    ),
    "ffrecord_fuse.session": (
        FUSE_INSIDE | {"abi", "idling", "inbox", "reading", "reply", "request"},
        set(),
    ),
    "ffrecord_fuse.supervisor": (
        FUSE_INSIDE
        | {"abi", "errors", "events", "handshake", "idling", "inbox", "lifeline", "mounting"}
        | {"mounttable", "reply", "session"},
        set(),
    ),
    # mfusepy and fusepy are imported by name, when they are asked for.
    "ffrecord_fuse.libfuse": ({"errors", "mounting", "options"}, set()),
    "ffrecord_fuse.fusepy_adapter": (
        FUSE_INSIDE
        | {"damage", "errors", "index", "libfuse", "lifeline", "mounting", "mounttable", "options"},
        set(),
    ),
    "ffrecord_fuse.daemon": (
        FUSE_INSIDE
        | {
            "archive",
            "errors",
            "fusepy_adapter",
            "handshake",
            "lifeline",
            "log",
            "mounting",
            "mounttable",
            "names",
        }
        | {"options", "supervisor", "wording"},
        set(),
    ),
    "ffrecord_fuse.cli": (
        {"daemon", "errors", "lifeline", "options", "running", "terminal", "version"},
        set(),
    ),
}


def modules() -> list[Path]:
    return sorted(
        path for package in ("ffrecord", "ffrecord_fuse") for path in (ROOT / package).rglob("*.py")
    )


def imports_of(source: str) -> Iterator[str]:
    """Full names of everything a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide who imports whom"
            assert node.module is not None
            # `from ffrecord import aio` imports the module ffrecord.aio.
            if node.module in ("ffrecord", "ffrecord_fuse"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def rule_for(path: Path) -> tuple[set[str], set[str]]:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for known in (name, name.rsplit(".", 1)[0]):  # a package's rule covers its modules
        if known in ALLOWED:
            return ALLOWED[known]
    raise AssertionError(f"{name} is not in the import table: decide what it may import")


def breaches(source: str, rule: tuple[set[str], set[str]]) -> list[str]:
    ours, outside = rule
    wrong = []
    for name in imports_of(source):
        top, *rest = name.split(".")
        if top in ("ffrecord", "ffrecord_fuse"):
            allowed = bool(rest) and rest[0] in ours
        else:
            allowed = top in sys.stdlib_module_names or top in outside
        if not allowed:
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_what_the_design_allows(path: Path) -> None:
    assert breaches(path.read_text(), rule_for(path)) == []


def test_only_the_command_line_of_the_first_package_knows_the_second() -> None:
    knowing = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ffrecord").rglob("*.py")
        if any(name.split(".")[0] == "ffrecord_fuse" for name in imports_of(path.read_text()))
    }
    due = ("arguments", "completion", "mount", "umount")
    assert knowing == {f"ffrecord/cli/{name}.py" for name in due}


def test_the_table_names_no_module_that_is_gone() -> None:
    for name in ALLOWED:
        stem = ROOT / name.replace(".", "/")
        assert stem.with_suffix(".py").exists() or (stem / "__init__.py").exists(), name


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "from torch.utils import data",
        "from ffrecord import reader",
        "from ffrecord.reader import FileReader",
        "def f():\n    import ffrecord.reader",
    ],
)
def test_a_breach_is_found(line: str) -> None:
    assert breaches(line, ALLOWED["ffrecord.layout"])

"""docs/architecture.md lists every module; it and docs/decisions.md mention only what exists.

Its tree is the fenced block whose first line begins with `ffrecord/`. A package begins at the left
margin. A room of the package is indented, and named by its path in the package. The modules follow,
without `.py`; a comment may follow after a dash. A line that does not begin with a path continues
the modules of the room above:

    ffrecord/         errors text version          — used by every room
      disk/           aio extents fetch libc       — local bytes, fast
                      longpaths machine
      archive/index/  build check                  — the index of a packed folder
    ffrecord_fuse/    cli errors filesystem
      wire/           abi reply request            — the kernel's protocol
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT, blocks, code_spans, table_rows

PAGE = "docs/architecture.md"
SPANS = {*code_spans(PAGE), *code_spans("docs/decisions.md")}
PACKAGES = ("ffrecord", "ffrecord_fuse")
WITHOUT_A_PLACE = {"__init__", "__main__"}
PLACES = ("", *PACKAGES, "scripts/benchmarks")
"""Folders to which a file name of the page may be relative."""


def modules() -> list[str]:
    """Return the paths of all modules."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [str(path.relative_to(ROOT)) for path in paths if path.stem not in WITHOUT_A_PLACE]


def in_tree(text: str) -> Iterator[str]:
    """Yield the path of each module that a tree names."""
    package = room = ""
    for line in text.splitlines():
        words = line.partition("—")[0].split()
        if words and words[0].endswith("/"):
            if not line.startswith(" "):
                package = words[0]
            room = package if not line.startswith(" ") else package + words[0]
            words = words[1:]
        yield from (f"{room}{word}.py" for word in words)


def tree() -> str:
    (found,) = [block.text for block in blocks(PAGE) if block.text.startswith("ffrecord/")]
    return found


def test_every_module_is_in_the_tree_once_and_nothing_else_is() -> None:
    named = Counter(in_tree(tree()))
    assert sorted(set(modules()) - named.keys()) == [], "not in the tree"
    assert sorted(named.keys() - set(modules())) == [], "no such module"
    assert [path for path, times in named.items() if times > 1] == []


def test_the_tree_in_this_docstring_is_read_as_described() -> None:
    assert __doc__ is not None
    example = "\n".join(line[4:] for line in __doc__.splitlines() if line.startswith("    "))
    assert [*in_tree(example)] == [
        "ffrecord/errors.py", "ffrecord/text.py", "ffrecord/version.py", "ffrecord/disk/aio.py",
        "ffrecord/disk/extents.py", "ffrecord/disk/fetch.py", "ffrecord/disk/libc.py",
        "ffrecord/disk/longpaths.py", "ffrecord/disk/machine.py",
        "ffrecord/archive/index/build.py", "ffrecord/archive/index/check.py",
        "ffrecord_fuse/cli.py", "ffrecord_fuse/errors.py", "ffrecord_fuse/filesystem.py",
        "ffrecord_fuse/wire/abi.py", "ffrecord_fuse/wire/reply.py", "ffrecord_fuse/wire/request.py",
    ]  # fmt: skip


def pointers() -> list[str]:
    text = " ".join(cell for row in table_rows(PAGE, "Where do I change") for cell in row)
    text += " ".join(cell for row in table_rows(PAGE, "Who may touch what") for cell in row)
    return sorted(set(re.findall(r"\b(?:docs|tests|scripts)/[\w/.]*\w", text)))


@pytest.mark.parametrize("pointer", pointers())
def test_the_files_that_the_page_mentions_exist(pointer: str) -> None:
    assert (ROOT / pointer).exists()


@pytest.mark.parametrize("span", sorted(s for s in SPANS if s.endswith((".py", "/"))))
def test_the_modules_that_the_page_mentions_exist(span: str) -> None:
    assert any((ROOT / place / span).exists() for place in PLACES)


@pytest.mark.parametrize(
    "span", sorted(s for s in SPANS if re.fullmatch(r"([a-z_]+\.)+[A-Z]\w+", s))
)
def test_the_names_that_the_page_mentions_exist(span: str) -> None:
    module, _, name = span.rpartition(".")
    dotted = [path.removesuffix(".py").replace("/", ".") for path in modules()]
    dotted += [f"{package}.{room}" for package in PACKAGES for room in rooms(package)]
    found = [each for each in dotted if each == module or each.endswith(f".{module}")]
    assert any(hasattr(importlib.import_module(each), name) for each in found), found


def rooms(package: str) -> list[str]:
    return [path.parent.name for path in (ROOT / package).glob("*/__init__.py")]

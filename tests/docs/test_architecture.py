"""docs/architecture.md knows every module, and points at nothing that is gone."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.pages import ROOT, code_spans, table_rows

PAGE = "docs/architecture.md"
WITHOUT_A_ROOM = {"__init__", "__main__", "version"}
PLACES = ("", "ffrecord", "ffrecord_fuse", "scripts/benchmarks")
"""Where a file's name may begin."""


def modules() -> set[str]:
    paths = [*ROOT.glob("ffrecord/*"), *ROOT.glob("ffrecord_fuse/*")]
    paths += [*ROOT.glob("ffrecord/torch/*"), *ROOT.glob("ffrecord/convert/*")]
    files = {path.stem for path in paths if path.suffix == ".py"}
    folders = {path.name for path in paths if (path / "__init__.py").exists()}
    return (files | folders) - WITHOUT_A_ROOM


def rooms() -> set[str]:
    """The names in the first column of the tables of modules."""
    first = " ".join(row[0] for row in table_rows(PAGE, "Every room"))
    return {name.rstrip("/") for name in re.findall(r"`([\w/]+)`", first)}


def test_every_module_has_a_room_and_every_room_a_module() -> None:
    with_pages_of_their_own = {"torch", "convert"}  # tables below the first
    assert rooms() | with_pages_of_their_own == modules()


@pytest.mark.parametrize("package", ["index", "dataset"])
def test_the_rooms_of_a_package_are_named_with_it(package: str) -> None:
    (row,) = [row for row in table_rows(PAGE, "Every room") if row[0] == f"`{package}/`"]
    named = set(re.findall(r"`(\w+)`", row[1])) - {"Index", "Tree"}
    assert named == {path.stem for path in ROOT.glob(f"ffrecord/{package}/*.py")} - WITHOUT_A_ROOM


def pointers() -> list[str]:
    text = " ".join(cell for row in table_rows(PAGE, "Where do I change") for cell in row)
    text += " ".join(cell for row in table_rows(PAGE, "Who may touch what") for cell in row)
    return sorted(set(re.findall(r"\b(?:docs|tests|scripts)/[\w/.]*\w", text)))


@pytest.mark.parametrize("pointer", pointers())
def test_the_files_that_it_points_at_are_there(pointer: str) -> None:
    assert (ROOT / pointer).exists()


@pytest.mark.parametrize("span", sorted({s for s in code_spans(PAGE) if s.endswith((".py", "/"))}))
def test_the_modules_that_it_points_at_are_there(span: str) -> None:
    assert any((ROOT / place / span).exists() for place in PLACES)


@pytest.mark.parametrize(
    "span", sorted({s for s in code_spans(PAGE) if re.fullmatch(r"[a-z_]+\.[A-Z][A-Za-z_]+", s)})
)
def test_the_names_that_it_points_at_are_there(span: str) -> None:
    module, name = span.split(".")
    for package in ("ffrecord", "ffrecord_fuse", "ffrecord.dataset", "ffrecord.convert"):
        try:
            found = importlib.import_module(f"{package}.{module}")
        except ImportError:
            continue
        if hasattr(found, name):
            return
    raise AssertionError(f"there is no {span}")

"""The site of `scripts/docs` builds without a warning, and has every page and every public name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ffrecord
import ffrecord_fuse
from tests.docs.pages import PAGES, ROOT
from tests.support.patience import PATIENCE

CONFIG = ROOT / "scripts" / "site" / "mkdocs.yml"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `scripts/docs` does; a warning is a failure."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable, "-m", "mkdocs", "build", "--strict",
        "--config-file", str(CONFIG), "--site-dir", str(folder),
    ]  # fmt: skip
    run = subprocess.run(
        command, cwd=ROOT, timeout=PATIENCE, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def test_every_page_is_on_the_site(site: Path) -> None:
    moved = {"README.md": "index.html", "CHANGELOG.md": "changelog.html"}
    expected = {
        moved.get(page, page.removeprefix("docs/").replace(".md", ".html")) for page in PAGES
    }
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert sorted(expected - built) == []


@pytest.mark.parametrize("module", [ffrecord, ffrecord_fuse], ids=lambda module: module.__name__)
def test_every_public_function_and_class_is_in_the_reference(module: object, site: Path) -> None:
    pages = "".join(path.read_text("utf-8") for path in (site / "reference").glob("*.html"))
    public = [name for name in vars(module)["__all__"] if callable(getattr(module, name))]
    missing = [name for name in public if not re.search(rf'id="[\w.]+\.{name}"', pages)]
    assert missing == []


def test_search_finds_text_of_a_docstring(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"index.html", "reference/ffrecord.html", "mount.html"} <= places


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text("utf-8")
        )
        assert loaded == [], page.name

"""Pages of the site that docs/ does not have, and links that lead out of docs/.

README.md becomes the home page and CHANGELOG.md another page, so that neither is written twice. The
API reference has one page for each public module: mkdocstrings fills it from the docstrings.
Links to source files become plain text, because the site does not have those files.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ERRORS = ("ffrecord.errors", "ffrecord_fuse.errors")
MODULES = (
    "ffrecord", "ffrecord.torch", "ffrecord.convert", "ffrecord.fsspec", "ffrecord.view",
    "ffrecord_fuse",
)  # fmt: skip

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
PAGE_OF = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages that the site has under another name."""

STYLE = ".md-grid { max-width: 80rem; }\n"
"""Wide enough for code of 100 columns and for the tables."""


def on_files(files: Files, config: Any) -> Files:
    """Add the home page, the changelog, the API reference and the style sheet."""
    files.append(File.generated(config, "site.css", content=STYLE))
    for source, page in PAGE_OF.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    for module in MODULES:
        content = _reference(module)
        files.append(File.generated(config, f"reference/{module}.md", content=content))
    content = "# Errors and warnings\n\n" + "".join(
        f"::: {name}\n" for module in ERRORS for name in _errors(module)
    )
    files.append(File.generated(config, "reference/errors.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Point links at pages of the site; keep only the text of links to other files."""
    folder = Path(page.file.src_uri).parent

    def on_site(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        inside = _normal(folder / target)
        if files.get_file_from_path(inside) is not None:
            return match[0]
        page_of = PAGE_OF.get(inside.removeprefix("../"))
        if page_of is not None:
            return f"[{text}]({'../' * len(folder.parts)}{page_of}{anchor})"
        if (ROOT / "docs" / inside).exists() or (ROOT / inside).exists():
            return text
        return match[0]  # the strict build reports this broken link

    return LINK.sub(on_site, markdown)


def _normal(path: Path) -> str:
    """Return a path relative to docs/ without `..` in the middle."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _reference(module: str) -> str:
    """Return the page of a module's public names, without errors, which have a separate page."""
    found = importlib.import_module(module)
    names = [
        name for name in sorted(found.__all__, key=str.lower)
        if callable(getattr(found, name)) and not _is_error(getattr(found, name))
    ]  # fmt: skip
    summary = (inspect.getdoc(found) or "").partition("\n\n")[0]
    return f"# {module}\n\n{summary}\n\n" + "".join(
        f"::: {getattr(found, name).__module__}.{name}\n"
        "    options:\n"
        f"      heading: {name}\n"
        f"      toc_label: {name}\n"
        for name in names
    )


def _errors(module: str) -> list[str]:
    """Return the dotted names of a module's own public error classes, in its order."""
    found = importlib.import_module(module)
    return [
        f"{module}.{name}"
        for name, value in vars(found).items()
        if _is_error(value) and value.__module__ == module and not name.startswith("_")
    ]


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)

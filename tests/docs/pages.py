"""Pages of the documentation: their text, fenced blocks, code spans and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    str(path.relative_to(ROOT)) for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
]

RUN = ("python", "bash")
"""Languages of blocks that are run as printed. Blocks of other languages have other checks."""


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int  # number of its first line
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line} ({self.language or 'no language'})"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """Return all fenced blocks of a page, in order. A fence that is never closed is an error."""
    found: list[Block] = []
    inside: list[str] | None = None
    language, begin = "", 0
    for number, line in enumerate(text_of(page).splitlines(), 1):
        fence = re.match(r"\s*(?:```+|~~~+)(.*)", line)
        if fence is None:
            if inside is not None:
                inside.append(line)
        elif inside is None:
            inside, language, begin = [], fence[1].strip(), number + 1
        else:
            found.append(Block(page, begin, language, "\n".join(inside) + "\n"))
            inside = None
    if inside is not None:
        raise ValueError(f"{page}:{begin - 1}: this block is never closed")
    return found


def without_blocks(page: str) -> str:
    """Return the text of a page without its fenced blocks."""
    text = text_of(page)
    return re.sub(r"^\s*```.*?^\s*```$", "", text, flags=re.DOTALL | re.MULTILINE)


def code_spans(page: str) -> list[str]:
    """Return the texts between single backticks."""
    return re.findall(r"`([^`\n]+)`", without_blocks(page))


def table_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of all tables below a heading, without the header rows."""
    section = re.split(rf"^#+ {re.escape(heading)}$", text_of(page), flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, flags=re.MULTILINE)[0]
    rows: list[list[str]] = []
    for line in section.splitlines():
        if not line.startswith("|"):
            continue
        cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
        if set(line) <= set("|- :"):
            rows.pop()  # the row above is the header
        else:
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
    return rows

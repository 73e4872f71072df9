"""Previews of text: lines, JSON as a tree, JSON lines, and tables of CSV."""

from __future__ import annotations

import csv
import itertools
import json
import re
from typing import Any

from ffrecord.view.kinds import extension

TEXT_BYTES = 256 << 10  # of a text at a time; the page asks for more
MOST_LINES = 5000  # of a text at a time: each is an element of the page
JSON_BYTES = 8 << 20  # a longer JSON is shown as text
TABLE_BYTES = 1 << 20
MOST_ROWS = 1000  # of a table, or of JSON lines
MOST_COLUMNS = 200
MOST_CELLS = 20_000  # of a table: many columns leave room for fewer rows
UTF16 = (b"\xff\xfe", b"\xfe\xff")  # how such a text begins
EXACT = 1 << 53  # JavaScript rounds larger integers


def decoded(data: bytes) -> str:
    """Return text for the page. Bytes that are not text become question marks."""
    if data.startswith(UTF16):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def text(data: bytes, whole: bool) -> dict[str, Any]:
    """Return a part of a text. If more follows, the part ends with a whole line if it can."""
    if not whole and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    if not data.startswith(UTF16):  # there, a newline is not one byte
        ends = itertools.islice(re.finditer(b"\n", data), MOST_LINES - 1, MOST_LINES)
        data = data[: next((found.end() for found in ends), len(data))]
    return {"text": decoded(data), "bytes": len(data)}


def json_tree(data: bytes) -> dict[str, Any]:
    """Return a JSON document as values for the page, or its error."""
    try:
        return {"tree": _parsed(decoded(data))}
    except (ValueError, RecursionError) as error:
        return {"error": _reason(error)}


def json_lines(data: bytes, whole: bool) -> dict[str, Any]:
    """Return the first lines of JSON lines, each as a value or as text with an error."""
    rows = decoded(data).split("\n")
    if not whole and len(rows) > 1:
        rows.pop()
    rows = [row for row in rows if row.strip()]
    found: list[dict[str, Any]] = []
    for row in rows[:MOST_ROWS]:
        try:
            found.append({"tree": _parsed(row)})
        except (ValueError, RecursionError) as error:
            found.append({"text": row[:1000], "error": _reason(error)})
    return {"lines": found, "more": not whole or len(rows) > MOST_ROWS}


def table(name: str, data: bytes, whole: bool) -> dict[str, Any]:
    """Return the first rows of a CSV or TSV file."""
    lines = decoded(data).splitlines()
    if not whole and len(lines) > 1:
        lines.pop()
    head = lines[0] if lines else ""
    delimiter = "\t" if extension(name) == "tsv" else max(",;\t|", key=head.count)
    rows: list[list[str]] = []
    cut, cells = False, 0
    try:
        for row in csv.reader(lines, delimiter=delimiter):
            cut = len(rows) > MOST_ROWS or cells >= MOST_CELLS
            if cut:
                break
            rows.append(row[:MOST_COLUMNS])
            cells += len(rows[-1])
    except csv.Error as error:
        return {"error": str(error)}
    return {"header": rows[:1], "rows": rows[1:], "more": not whole or cut}


def _parsed(source: str) -> Any:
    def integer(digits: str) -> Any:
        # Before int(): Python refuses to parse thousands of digits.
        exact = len(digits) < 17 and abs(int(digits)) < EXACT
        return int(digits) if exact else {"$number": digits}

    parsed = json.loads(
        source, parse_int=integer, parse_constant=lambda word: {"$number": word},
        parse_float=_fraction,
    )  # fmt: skip
    json.dumps(parsed)  # the answer must be able to hold it: the encoder has a lower limit of depth
    return parsed


def _fraction(digits: str) -> Any:
    """Return a number if JavaScript writes it with the same digits; else the digits.

    JavaScript drops ".0", and has exponents at other sizes than Python.
    """
    value = float(digits)
    exact = repr(value) == digits and "e" not in digits and not digits.endswith(".0")
    return value if exact else {"$number": digits}


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)

"""`Request`: the arguments of a request, checked; and `Range`, the part of a file it asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

LARGEST = 1 << 62


class BadRequest(ValueError):  # noqa: N818 - named like the answer, 400 Bad Request
    """The arguments of a request are wrong. The page never sends such a request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request behind the token. `go_on` returns False when nobody waits for the answer."""

    method: str
    path: str
    arguments: dict[str, list[str]]
    range: str | None
    go_on: Callable[[], bool]

    def text(self, name: str, default: str | None = None) -> str:
        found = self.arguments.get(name, [default])[-1]
        if found is None:
            raise BadRequest(f"the argument {name} is missing")
        return found

    def texts(self, name: str) -> list[str]:
        return self.arguments.get(name, [])

    def has(self, name: str) -> bool:
        return name in self.arguments

    def number(self, name: str, default: int | None = None, most: int = LARGEST) -> int:
        text = self.text(name, None if default is None else str(default))
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or int(text) > LARGEST:
            raise BadRequest(f"the argument {name} must be a whole number, not {text!r}")
        return min(int(text), most)


def parse_target(target: str) -> tuple[str, dict[str, list[str]]]:
    """Return the path and the arguments of a request's target."""
    path, _, query = target.partition("?")
    if not path.startswith("/"):  # a whole URL, as proxies send it
        path = urlsplit(path).path
    try:
        return path, parse_qs(query, keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise BadRequest(str(error)) from None


def asked_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the begin and the end of a range of bytes; None for the whole file.

    A header with several ranges, or in another unit, is ignored, as HTTP allows. Raise
    `LookupError` for a range behind the end.
    """
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", header.strip()) if header else None
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        begin, end = max(0, size - int(found[2])), size
    else:
        begin, end = int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)
    if begin >= end:
        raise LookupError(f"the file has {size} bytes")
    return begin, end

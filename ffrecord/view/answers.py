"""`Answer`: the status, the headers and the body of an answer, before it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json; charset=utf-8"
BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `length` is the size of the body, or None if it is known only at the end.

    `contents` is True for bytes of the user's files, which are confined.
    """

    status: int
    media_type: str
    body: bytes | Iterable[Any]
    length: int | None = None
    contents: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def pieces(self) -> Iterator[Any]:
        if isinstance(self.body, bytes):
            yield self.body
        else:
            yield from self.body


def of_json(facts: Any, status: int = 200) -> Answer:
    """Return JSON. ASCII only: a name may have letters that UTF-8 cannot express."""
    return of_bytes(JSON, json.dumps(facts, allow_nan=False).encode("ascii"), status)


def of_bytes(media_type: str, body: bytes, status: int = 200, *, contents: bool = False) -> Answer:
    return Answer(status, media_type, body, len(body), contents)


def of_error(status: int, what: str, kind: str = "") -> Answer:
    """Return an error for the page. `kind` is "damaged" if bytes of the archive are damaged."""
    return of_json({"error": what, "kind": kind}, status)

"""What is fuzzed: a parser, the bytes to begin with, and what must hold of every answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ffrecord.errors import FFRecordError

MEMORY = 16 << 20
"""Beyond what there was, and the input: more than this is an escape."""


@dataclass(frozen=True)
class Target:
    """`run` says in a word what came of some bytes, or raises one of `errors`: they are refused.
    Anything else that it raises is an escape, an AssertionError a wrong answer."""

    name: str
    run: Callable[[bytes], str]
    seeds: tuple[bytes, ...]
    seal: Callable[[bytes], bytes] = bytes
    """The same with checksums that hold, wherever one can be told to be."""

    tokens: tuple[bytes, ...] = ()
    errors: tuple[type[Exception], ...] = (FFRecordError,)
    memory: int = MEMORY
    in_place: bool = False
    """Whether everything has its place, so that moving bytes mostly spoils all of them."""


class EscapeError(Exception):
    """Neither a right answer nor an error of ours."""

    def __init__(self, target: str, data: bytes, what: BaseException) -> None:
        super().__init__(f"{target}: {what!r} for {len(data)} bytes: {data[:4096].hex()}")
        self.data = data
        self.executions = 0  # up to and including it


@dataclass(frozen=True)
class Outcome:
    """What came of an input: `word` is the target's, or an error's class, `place` the lines that
    raised it: there may be many reasons for one class."""

    word: str
    place: tuple[int, ...] = ()


def try_one(target: Target, data: bytes) -> Outcome:
    try:
        return Outcome(target.run(data))
    except target.errors as error:
        return Outcome(type(error).__name__, _place(error))
    except Exception as error:
        raise EscapeError(target.name, data, error) from error


def _place(error: Exception) -> tuple[int, ...]:
    """The last lines on the way to it."""
    lines = []
    at = error.__traceback__
    while at is not None:
        lines.append(at.tb_lineno)
        at = at.tb_next
    return tuple(lines[-3:])

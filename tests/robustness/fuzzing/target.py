"""A fuzzing target: a parser, its seeds, and the errors that it may raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ffrecord.errors import FFRecordError

MEMORY = 16 << 20
"""Bytes that a parser may use besides the input. More is an escape."""


@dataclass(frozen=True)
class Target:
    """A parser under test.

    `run` returns a word for the outcome of some bytes, or raises one of `errors` to refuse them.
    Any other exception is an escape. AssertionError means a wrong answer.
    """

    name: str
    run: Callable[[bytes], str]
    seeds: tuple[bytes, ...]
    seal: Callable[[bytes], bytes] = bytes
    """Function that corrects the checksums in an input as far as possible."""

    tokens: tuple[bytes, ...] = ()
    errors: tuple[type[Exception], ...] = (FFRecordError,)
    memory: int = MEMORY
    in_place: bool = False
    """True for formats with fixed positions, where moving bytes breaks nearly everything."""

    is_seed: bool = False
    """True if an input only seeds random numbers. Mutated seeds would often repeat."""


class EscapeError(Exception):
    """An input led neither to a right answer nor to an allowed error."""

    def __init__(self, target: str, data: bytes, what: BaseException) -> None:
        super().__init__(f"{target}: {what!r} for {len(data)} bytes: {data[:4096].hex()}")
        self.data = data
        self.executions = 0  # including the failed one


@dataclass(frozen=True)
class Outcome:
    """Outcome of an input.

    `word` is the target's word or the class of the error. `place` has the lines that raised it,
    because a class can have many causes.
    """

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
    """Return the last lines of the traceback."""
    lines = []
    at = error.__traceback__
    while at is not None:
        lines.append(at.tb_lineno)
        at = at.tb_next
    return tuple(lines[-3:])

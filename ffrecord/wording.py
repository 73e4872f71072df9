"""Advice in the words of whoever reads it: an argument's name in Python, an option in a shell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_in_a_shell = ContextVar("in_a_shell", default=False)


def said(python: str, shell: str) -> str:
    """The one of both that the reader of an error knows."""
    return shell if _in_a_shell.get() else python


@contextlib.contextmanager
def for_a_shell() -> Iterator[None]:
    """What goes wrong meanwhile is told to somebody who typed a command."""
    before = _in_a_shell.set(True)
    try:
        yield
    finally:
        _in_a_shell.reset(before)

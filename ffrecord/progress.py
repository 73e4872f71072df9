"""Progress bars: tqdm's, where one is drawn, and nothing at all where none is.

A tqdm that is disabled takes tqdm's lock all the same, a semaphore that forked processes share: if
one is killed while it has it, all the others wait for ever. And the import takes 25 ms, which is
much for a command that has little to do.
"""

from __future__ import annotations

import sys
from typing import Any


def bar(*, shown: bool | None, **options: Any) -> Any:
    """A `tqdm` with these options, or what takes its calls and does nothing.

    `shown` is None for "if standard error is a terminal".
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        return _Nothing()
    from tqdm import tqdm

    return tqdm(**options)


class _Nothing:
    """As much of a tqdm as is used here."""

    n = 0
    total = 0

    def update(self, count: int = 1) -> None: ...
    def set_description(self, text: str, *, refresh: bool) -> None: ...
    def set_postfix_str(self, text: str, *, refresh: bool) -> None: ...
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *exc: object) -> None: ...

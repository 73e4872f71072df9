"""Progress bars: a tqdm bar if one is shown, otherwise an object that does nothing.

A disabled tqdm is not used instead, for two reasons. It still takes tqdm's lock, a semaphore that
forked processes share: if one of them is killed while it holds the lock, the others wait for ever.
And importing tqdm takes 25 ms, which is much for a short command.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


def bar(*, shown: bool | None, **options: Any) -> Any:
    """Return a `tqdm` bar with these options, or an object with its methods that does nothing.

    `shown` None means: show the bar if standard error is a terminal.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        return _Nothing()
    from tqdm import tqdm

    return tqdm(**options)


@contextlib.contextmanager
def sending_bar(*, shown: bool | None) -> Iterator[Callable[[int, int], None]]:
    """Draw the progress of an upload. Yield the function for the bytes sent, and all of them."""
    drawn: Any = None
    with contextlib.ExitStack() as stack:

        def tell(sent: int, total: int) -> None:
            nonlocal drawn
            if drawn is None:
                made = bar(shown=shown, total=total, unit="B", unit_scale=True, desc="uploading")
                drawn = stack.enter_context(made)
            drawn.update(sent - drawn.n)

        yield tell


class _Nothing:
    """Stand-in for a tqdm bar: the methods that this project calls, without effect."""

    n = 0
    total = 0

    def update(self, count: int = 1) -> None: ...
    def set_description(self, text: str, *, refresh: bool) -> None: ...
    def set_postfix_str(self, text: str, *, refresh: bool) -> None: ...
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *exc: object) -> None: ...

"""Run a generator of texts in a forked child, which may hang or crash."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import IO

BAD = "BAD"
"""The beginning of a text that reports a failure."""


def texts(work: Callable[[], Iterator[str]], seconds: float) -> Generator[str, None, None]:
    """Yield the texts that `work` yields in a child. Closing this generator kills the child.

    The last text begins with `BAD` if an exception ends `work`, if one text takes longer than
    `seconds`, or if the child crashes.
    """
    told, tell = os.pipe()
    with tempfile.TemporaryFile("w+") as stacks, open(told) as pipe:
        pid = os.fork()
        if not pid:
            _be_child(work, seconds, tell, stacks)
        os.close(tell)
        try:
            yield from map(json.loads, pipe)
        finally:
            os.kill(pid, signal.SIGKILL)  # the pid stays ours until waitpid
            _, status = os.waitpid(pid, 0)
        stacks.seek(0)
        if found := stacks.read():
            yield f"{BAD}: the child hung or crashed, wait status {status:#x}:\n{found}"


def _be_child(
    work: Callable[[], Iterator[str]], seconds: float, tell: int, stacks: IO[str]
) -> None:
    """Run `work`, write its texts to the pipe, and exit. This never returns."""
    try:
        faulthandler.enable(stacks)
        faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
        with open(tell, "w") as pipe:
            try:
                for text in work():
                    print(json.dumps(text), file=pipe, flush=True)
                    faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
            except BaseException:
                print(json.dumps(f"{BAD}: {traceback.format_exc()}"), file=pipe, flush=True)
    finally:
        os._exit(0)

"""Work in a forked child that says one thing after the other, and may hang or crash."""

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
"""What a word begins with that says what went wrong."""


def words(work: Callable[[], Iterator[str]], seconds: float) -> Generator[str, None, None]:
    """What `work` yields in a child. If an exception ends it, or it takes longer than so many
    seconds for one word, or crashes, the last word says so. Closing this ends the child."""
    told, tell = os.pipe()
    with tempfile.TemporaryFile("w+") as stacks, open(told) as pipe:
        pid = os.fork()
        if not pid:
            _be_child(work, seconds, tell, stacks)
        os.close(tell)
        try:
            yield from map(json.loads, pipe)
        finally:
            os.kill(pid, signal.SIGKILL)  # it is ours until it is waited for
            _, status = os.waitpid(pid, 0)
        stacks.seek(0)
        if found := stacks.read():
            yield f"{BAD}: it hangs or crashed, wait status {status:#x}:\n{found}"


def _be_child(
    work: Callable[[], Iterator[str]], seconds: float, tell: int, stacks: IO[str]
) -> None:
    """Never returns."""
    try:
        faulthandler.enable(stacks)
        faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
        with open(tell, "w") as pipe:
            try:
                for word in work():
                    print(json.dumps(word), file=pipe, flush=True)
                    faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)
            except BaseException:
                print(json.dumps(f"{BAD}: {traceback.format_exc()}"), file=pipe, flush=True)
    finally:
        os._exit(0)

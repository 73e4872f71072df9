"""What all commands share: exit codes, text that is safe to print, and what only a terminal gets.

Colours and progress bars are for people: in a pipe, a file or a CI's log there are none.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from typing import NoReturn, TextIO

from ffrecord.errors import ChangedWarning, LegacyFileWarning, SkippedWarning

EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_SYSTEM = 13
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a tool that dies of SIGPIPE

RED, YELLOW = "31", "33"
PROGRAM = "ffrecord"


def complain(what: object, *, warning: bool = False, program: str = PROGRAM) -> None:
    """One line on standard error, after the program's name."""
    name = f"{program}: warning:" if warning else f"{program}:"
    if has_colours(sys.stderr):
        name = coloured(name, YELLOW if warning else RED)
    print(f"{name} {printable(what)}", file=sys.stderr)


def has_colours(stream: TextIO, when: str = "auto") -> bool:
    """Whether to colour what is written there; `when` may also be `always` or `never`."""
    if when != "auto":
        return when == "always"
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def coloured(text: str, colour: str) -> str:
    return f"\033[{colour}m{text}\033[0m"


def shows_progress(unwanted: bool) -> bool:
    """Whether to draw a progress bar, which is on standard error."""
    return not unwanted and sys.stderr.isatty()


def printable(shown: object) -> str:
    """File names may hold anything; a terminal should see one line and no control characters."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(shown)
    )


class Parser(argparse.ArgumentParser):
    """What it complains of are names too, if a shell's `*` has put them there."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def prepare_output(program: str = PROGRAM) -> None:
    """Whatever standard output and error are, printing to them is no error of ours; and a warning
    is one line, under the program's name."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`, `2>&-`
            nowhere = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")
    for kind in (LegacyFileWarning, ChangedWarning, SkippedWarning):
        warnings.simplefilter("always", kind)

    def one_line(message: Warning | str, *_: object, **__: object) -> None:
        complain(message, warning=True, program=program)

    warnings.showwarning = one_line


def counted(count: int, what: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"

"""What all commands share: exit codes, and text that is safe to print."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from typing import NoReturn

from ffrecord.errors import ChangedWarning, LegacyFileWarning, SkippedWarning

EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_SYSTEM = 13
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a tool that dies of SIGPIPE


def printable(shown: object) -> str:
    """File names may hold anything; a terminal should see one line and no control characters."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(shown)
    )


class Parser(argparse.ArgumentParser):
    """What it complains of are names too, if a shell's `*` has put them there."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def prepare_output(program: str) -> None:
    """Whatever standard output and error are, printing to them is no error of ours; and a warning
    is one line, under the program's name."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`, `2>&-`
            nowhere = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    for kind in (LegacyFileWarning, ChangedWarning, SkippedWarning):
        warnings.simplefilter("always", kind)

    def one_line(message: Warning | str, *_: object, **__: object) -> None:
        print(f"{program}: warning: {printable(message)}", file=sys.stderr)

    warnings.showwarning = one_line


def counted(count: int, what: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def human(size: int) -> str:
    """1234567 as `1.2 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")

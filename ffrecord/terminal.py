"""Exit codes, complaints, and a parser whose errors are one line, for both command lines.

Colours are for people: in a pipe, a file or a CI's log there are none.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NoReturn, TextIO

EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_SYSTEM = 13
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a tool that dies of SIGPIPE

RED, YELLOW = "31", "33"
PROGRAM = "ffrecord"
_ALIKE = 0.75  # of two words: a letter or two left out, added or changed


def complain(what: object, *, warning: bool = False, program: str = PROGRAM) -> None:
    """Print one line on standard error, after the program's name."""
    name = f"{program}: warning:" if warning else f"{program}:"
    if has_colours(sys.stderr):
        name = coloured(name, YELLOW if warning else RED)
    print(f"{name} {printable(what)}", file=sys.stderr)


def has_colours(stream: TextIO, when: str = "auto") -> bool:
    """Return whether to colour what is written there; `when` may also be `always` or `never`."""
    if when != "auto":
        return when == "always"
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def coloured(text: str, colour: str) -> str:
    return f"\033[{colour}m{text}\033[0m"


def printable(shown: object) -> str:
    """File names may hold anything; a terminal should see one line and no control characters."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(shown)
    )


class Parser(argparse.ArgumentParser):
    """A wrong command line is one line, like any other error. What it complains of are names too,
    if a shell's `*` has put them there."""

    _given: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)  # a misspelled option is none

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        program = self.prog.partition(" ")[0]
        complain(f"{message}{self._hint()}; see `{self.prog} --help`", program=program)
        self.exit(EXIT_USAGE)

    def _hint(self) -> str:
        """Return what to do about a word that looks like an option, or stands where a command
        does, and is none."""
        if hint := self._command_hint():
            return hint
        word = next(self._unknown_options(), None)
        if word is None:
            return ""
        if word.startswith("--") and (meant := _nearest(word, self._option_string_actions)):
            return f"; is {meant} meant?"
        return "; a name that begins with - goes behind --"

    def _command_hint(self) -> str:
        commands = next(
            (each.choices for each in self._actions if each.nargs == argparse.PARSER), None
        )
        word = next((each for each in self._given if not each.startswith("-")), None)
        if commands is None or word is None or word in commands:
            return ""
        meant = _nearest(word, commands)
        # Who asks to unpack does not want to pack.
        return f"; is {meant} meant?" if meant and word != f"un{meant}" else ""

    def _unknown_options(self) -> Iterator[str]:
        known = self._option_string_actions
        for word in takewhile(lambda word: word != "--", self._given):
            name = word.partition("=")[0]
            is_known = name in known or (not name.startswith("--") and name[:2] in known)
            if re.match(r"-[^\d]", word) and not is_known:
                yield name


def _nearest(word: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches  # only now: commands start fast

    return next(iter(get_close_matches(word, known, 1, _ALIKE)), None)

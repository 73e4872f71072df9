"""Exit codes, one-line error messages and an argument parser, for `ffrecord` and `ffrecord-fuse`.

Colours are used only on a terminal, not in a pipe, a file or a CI log.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NoReturn, TextIO

EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_SYSTEM = 13
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # the code of a tool that SIGPIPE kills

RED, YELLOW = "31", "33"
PROGRAM = "ffrecord"
_ALIKE = 0.75  # words this similar differ by a letter or two


def complain(what: object, *, warning: bool = False, program: str = PROGRAM) -> None:
    """Print one line on standard error, with the program's name in front."""
    name = f"{program}: warning:" if warning else f"{program}:"
    if has_colours(sys.stderr):
        name = coloured(name, YELLOW if warning else RED)
    print(f"{name} {printable(what)}", file=sys.stderr)


def note(what: object, *, program: str = PROGRAM) -> None:
    """Print one line on standard error that is neither an error nor a warning."""
    print(f"{program}: {printable(what)}", file=sys.stderr)


def has_colours(stream: TextIO, when: str = "auto") -> bool:
    """Return True if text for `stream` gets colours; `when` is auto, always or never."""
    if when != "auto":
        return when == "always"
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def coloured(text: str, colour: str) -> str:
    return f"\033[{colour}m{text}\033[0m"


def printable(shown: object) -> str:
    """Return text as one line without control characters, which file names may contain."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(shown)
    )


class Parser(argparse.ArgumentParser):
    """Argument parser that reports a wrong command line in one line, with a hint.

    A shell's `*` may expand to file names that look like options, so the hint covers those too.
    """

    other_names: Mapping[str, str] = {}
    """Commands and options of other programs -> their names here, for hints."""

    _given: Sequence[str] = ()

    def __init__(self, **options: Any) -> None:
        # No abbreviations: a misspelled option is an error, not another option.
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        self._given = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        program = self.prog.partition(" ")[0]
        # "-lt" is -l and -t to argparse, which calls t an argument of -l.
        unknown = re.fullmatch(r"argument -\w(?:/\S+)?: ignored explicit argument '(.).*'", message)
        message = message if unknown is None else f"unknown option -{unknown[1]}"
        hint = self._value_hint() if message.endswith("expected one argument") else ""
        complain(f"{message}{hint or self._hint()}; see `{self.prog} --help`", program=program)
        self.exit(EXIT_USAGE)

    def _hint(self) -> str:
        """Return advice on an unknown command or an unknown option; "" if neither was given."""
        if list(self._given) == ["-h"]:  # not the help, which would have been shown
            name = self._option_string_actions["-h"].option_strings[-1]
            return f"; -h is {name} here, --help shows the help"
        if hint := self._command_hint():
            return hint
        word = next(self._unknown_options(), None)
        if word is None:
            return ""
        meant = self.other_names.get(word)
        if meant is None and word.startswith("--"):
            meant = nearest(word, self._option_string_actions)
        if meant is not None:
            return f"; did you mean {meant}?"
        return "; put names that begin with - after --"

    def _command_hint(self) -> str:
        commands = next(
            (each.choices for each in self._actions if each.nargs == argparse.PARSER), None
        )
        word = next((each for each in self._given if not each.startswith("-")), None)
        if commands is None or word is None or word in commands:
            return ""
        meant = self.other_names.get(word) or nearest(word, commands)
        return f"; did you mean {meant}?" if meant else ""

    def _value_hint(self) -> str:
        """Return advice on a value that begins with -, which argparse takes for an option."""
        for name, value in pairwise(self._given):
            action = self._option_string_actions.get(name)
            if action is None or action.nargs == 0 or not name.startswith("--"):
                continue
            if value.startswith("-") and value not in self._option_string_actions:
                return f"; write {name}={value} if this is its value"
        return ""

    def _unknown_options(self) -> Iterator[str]:
        known = self._option_string_actions
        for word in takewhile(lambda word: word != "--", self._given):
            name = word.partition("=")[0]
            is_known = name in known or (not name.startswith("--") and name[:2] in known)
            if re.match(r"-[^\d]", word) and not is_known:
                yield name


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that differs from `word` by a letter or two, or None."""
    from difflib import get_close_matches  # imported here, so that commands start fast

    return next(iter(get_close_matches(word, known, 1, _ALIKE)), None)

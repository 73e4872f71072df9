"""The `ffrecord` command. `arguments` defines its command line; each command has its own module.

Errors are one line on standard error, never a traceback. Exit codes:

- 0: success.
- 1: `verify` found damage, or `salvage` lost records.
- 2: the command line is wrong, or names a record that does not exist.
- 3 to 12, 14 to 29, 35 to 38, 40, 41: one of our errors; docs/errors.md lists them.
- 13: the operating system refused (no such file, no permission).
- 129, 130, 143: ended by SIGHUP, interrupted, ended by SIGTERM.
- 141: the program that reads our output has ended.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import NoReturn

from ffrecord.cli.arguments import COMMANDS, make_parser
from ffrecord.command import clean_up_when_ended, end_at_once_when_ended, run_command
from ffrecord.terminal import PROGRAM

SHOWN = 3
"""Number of unknown words that an error shows."""

ENDED_BY_SIGNALS = ("mount", "view")
"""Commands that a signal may end at once, because they leave nothing or wait for signals."""


def command() -> int:
    """Run `main` as the whole process, and ignore Ctrl-C once `main` has returned.

    Python restores the default action of SIGINT while it shuts down. A Ctrl-C at that time would
    make finished work look interrupted.
    """
    sys.unraisablehook = _interrupt_again
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_at_once_when_ended()
    signal.setitimer(signal.ITIMER_REAL, 0)
    _end_threads_of_obstore(code)
    return code


def _end_threads_of_obstore(code: int) -> None:
    """End the process at once if it has made requests.

    While Python shuts down, a late answer would abort the process: 1 of 100 commands on a busy
    machine.
    """
    remote = sys.modules.get("ffrecord.remote.loop")
    if remote is not None and remote.is_used():
        atexit.unregister(remote.stop)  # it would only wait
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Raise a lost KeyboardInterrupt again, a moment later.

    Python drops a Ctrl-C that arrives while an object's destructor runs.
    """
    interrupt = lost.exc_value
    if not isinstance(interrupt, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return

    def again(*_: object) -> NoReturn:
        raise interrupt

    signal.signal(signal.SIGALRM, again)
    signal.setitimer(signal.ITIMER_REAL, 0.001)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command(lambda: _run(arguments), PROGRAM)


def _run(arguments: Sequence[str] | None) -> int:
    options = _parse(arguments)
    run: Callable[[argparse.Namespace], int]
    run = import_module(f"ffrecord.cli.{options.command}").run
    if options.command not in ENDED_BY_SIGNALS:
        clean_up_when_ended()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by __main__
    with _explained(options.command):
        if getattr(options, "cache", None) is None and getattr(options, "cache_size", None) is None:
            return run(options)
        from ffrecord.cli.common import caching  # needed by few command lines

        with caching(options):
            return run(options)


@contextlib.contextmanager
def _explained(command: str) -> Iterator[None]:
    """Add advice to the error for a path that goes on behind the name of an archive."""
    try:
        yield
    except NotADirectoryError as error:
        if COMMANDS[command].more_paths != "path":  # the command takes no names in archives
            raise
        from ffrecord.cli.missing import inside_an_archive  # needed only here

        raise inside_an_archive(error, command) from None


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line that may have paths both before and after the options.

    argparse takes a list of paths on one side of the options only. The paths on the other side
    are added to the argument that `more_paths` of the command names.
    """
    words = sys.argv[1:] if arguments is None else arguments
    options, more = make_parser(words).parse_known_args(words)
    plain = more[1:] if more[:1] == ["--"] else more
    name = COMMANDS[options.command].more_paths
    before = None if name is None else getattr(options, name)
    has_options = plain is more and any(each.startswith("-") for each in more)
    # An argument of one path has room for a second one only if it is missing so far.
    has_room = isinstance(before, list) or (name is not None and before is None and len(plain) == 1)
    if plain and (has_options or not has_room):
        takes = "" if has_options else f"; {options.command} takes {_takes(options.parser)}"
        options.parser.error(f"unrecognized arguments: {_shown(plain)}{takes}")
    if plain and name is not None:
        setattr(options, name, [*before, *plain] if isinstance(before, list) else plain[0])
    return options


def _shown(words: Sequence[str]) -> str:
    """Return the first words, and the number of the others: a shell's `*` may give thousands."""
    more = len(words) - SHOWN
    return " ".join(words[:SHOWN]) + (f" … and {more:,} more" if more > 0 else "")


def _takes(parser: argparse.ArgumentParser) -> str:
    """Return the positional arguments of a command: `one FOLDER and one OUT`."""
    names = [each.metavar for each in parser._actions if not each.option_strings]
    return " and ".join(f"one {name}" for name in names)

"""The `ffrecord` command: `arguments` has its command line, one module each what a command does.

Exit codes: 0 done; 1 `verify` found damage, or `salvage` lost records; 2 the command line is wrong,
or names a record that is not there; 3 to 12 and 14 to 36 one of our errors (`ffrecord.errors` has
the numbers, docs/commands.md the list); 13 the operating system said no (no such file, no
permission); 130 interrupted; 141 the reader of our output has gone. An error is one line on stderr,
never a traceback.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from ffrecord.cli.arguments import COMMANDS, make_parser
from ffrecord.command import run_command
from ffrecord.terminal import PROGRAM


def command() -> int:
    """Run the `ffrecord` process: `main`, after which there is nothing left to interrupt.

    Python gives SIGINT its default action back while it shuts down: a Ctrl-C that came so late
    would look like one that had stopped the work.
    """
    sys.unraisablehook = _interrupt_again
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return code


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Python drops a Ctrl-C that comes while it takes an object apart: it counts a moment later."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command(lambda: _run(arguments), PROGRAM)


def _run(arguments: Sequence[str] | None) -> int:
    options = _parse(arguments)
    run: Callable[[argparse.Namespace], int]
    run = import_module(f"ffrecord.cli.{options.command}").run
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see ffrecord.__main__
    return run(options)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes a list of paths only before or only after the options; users write both.

    `more_paths` of a command is the argument that takes what is left over then.
    """
    words = sys.argv[1:] if arguments is None else arguments
    options, more = make_parser(words).parse_known_args(words)
    plain = more[1:] if more[:1] == ["--"] else more
    paths = COMMANDS[options.command].more_paths
    refused = paths is None or getattr(options, "record", None) is not None
    if plain and (refused or (plain is more and any(each.startswith("-") for each in more))):
        options.parser.error(f"unrecognized arguments: {' '.join(more)}")
    if plain and paths is not None:
        setattr(options, paths, [*getattr(options, paths), *plain])
    return options

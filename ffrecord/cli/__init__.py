"""The `ffrecord` command: one module per subcommand, and here what they share.

Exit codes: 0 done; 1 `verify` found damage, or `salvage` lost records; 2 the command line is wrong,
or names a record that is not there; 3 to 12 and 14 to 36 one of our errors (`ffrecord.errors` has
the numbers, README.md the list); 13 the operating system said no (no such file, no permission); 130
interrupted; 141 the reader of our output has gone. An error is one line on stderr, never a
traceback.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from ffrecord.errors import FFRecordError
from ffrecord.terminal import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_SYSTEM,
    EXIT_USAGE,
    Parser,
    prepare_output,
    printable,
)
from ffrecord.version import __version__

COMMANDS = (
    "pack", "ls", "cat", "extract", "convert", "info", "verify", "salvage", "mount", "umount"
)  # fmt: skip


def command() -> int:
    """What the `ffrecord` process does: `main`, after which there is nothing left to interrupt.

    Python gives SIGINT its default action back while it shuts down: a Ctrl-C that came so late
    would look like one that had stopped the work.
    """
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)


def _run(arguments: Sequence[str] | None) -> int:
    prepare_output("ffrecord")
    options = _parse(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does. Nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except FFRecordError as error:
        return _fail(error, error.exit_code)
    except IndexError as error:
        return _fail(error, EXIT_USAGE)
    except MemoryError as error:
        return _fail(f"not enough memory: {error}", EXIT_SYSTEM)
    except OSError as error:
        what = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        return _fail(what or error, EXIT_SYSTEM)
    return code


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes a list of paths only before or only after the options; users write both.

    `more_paths` of a command is the argument that takes what is left over then.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    parser = _parser(arguments)
    options, more = parser.parse_known_args(arguments)
    plain = more[1:] if more[:1] == ["--"] else more
    refused = not hasattr(options, "more_paths") or getattr(options, "record", None) is not None
    if plain and (refused or (plain is more and any(each.startswith("-") for each in more))):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if plain:
        setattr(options, options.more_paths, [*getattr(options, options.more_paths), *plain])
    return options


def _fail(what: object, code: int) -> int:
    print(f"ffrecord: {printable(what)}", file=sys.stderr)
    return code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """With the command that is asked for, whose module alone is loaded; else with all of them."""
    asked = next((each for each in arguments if not each.startswith("-")), None)
    parser = Parser(
        prog="ffrecord", description="Pack folders; look into, check and take apart FFRecord files."
    )
    parser.add_argument("--version", action="version", version=f"ffrecord {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        import_module(f"ffrecord.cli.{name}").add_command(commands)
    return parser

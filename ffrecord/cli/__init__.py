"""The `ffrecord` command: one module per subcommand, and here what they share.

Exit codes: 0 done; 1 `verify` found damage; 2 the command line is wrong, or names a record that is
not there; 3 to 12 one of our errors (`ffrecord.errors` has the numbers, README.md the list); 13
the operating system said no (no such file, no permission); 130 interrupted. An error is one line
on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from ffrecord.cli import cat, info, verify
from ffrecord.cli.verify import EXIT_SYSTEM
from ffrecord.errors import FFRecordError
from ffrecord.version import __version__

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    warnings.showwarning = _one_line_warning
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does. Nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("ffrecord: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except FFRecordError as error:
        print(f"ffrecord: {_printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except IndexError as error:
        print(f"ffrecord: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        what = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        print(f"ffrecord: {_printable(str(what or error))}", file=sys.stderr)
        return EXIT_SYSTEM
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ffrecord", description="Look into, check and take apart FFRecord files."
    )
    parser.add_argument("--version", action="version", version=f"ffrecord {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (info, verify, cat):
        module.add_command(commands)
    return parser


def _printable(text: str) -> str:
    """File names may hold anything; a terminal should see one line and no control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _one_line_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"ffrecord: warning: {_printable(str(message))}", file=sys.stderr)

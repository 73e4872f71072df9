"""Run a command: make the standard streams safe to use, report errors, return an exit code.

Every error becomes one line on standard error and an exit code that docs/commands.md lists. This
includes output that cannot be written: a failed write to standard output raises one of our errors.
Later output is then dropped, so that Python's flush at exit does not fail again. A failed write to
standard error is ignored, because no place is left to report it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from ffrecord.errors import (
    CacheWarning,
    ChangedWarning,
    FFRecordError,
    LegacyFileWarning,
    NoRoomError,
    SkippedWarning,
    UnclosedWarning,
    WriteFailedError,
)
from ffrecord.terminal import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_SYSTEM, EXIT_USAGE, complain
from ffrecord.text import for_shell

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end, from `kill`, a scheduler, or a terminal that is closed."""


class Ended(KeyboardInterrupt):
    """Raised by a signal of `ENDING`. The command then cleans up as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def clean_up_when_ended() -> None:
    """Let signals of `ENDING` raise `Ended`, unless they are ignored (nohup) or handled."""
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise Ended(number)


def end_at_once_when_ended() -> None:
    """Undo `clean_up_when_ended`."""
    for number in ENDING:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


def run_command(
    work: Callable[[], int], program: str, told: Callable[[object], str] = for_shell
) -> int:
    """Call `work`, and return the command's exit code. `told` turns an error into text."""
    try:
        prepare_output(program)
        try:
            return _outcome(work, program, told)
        finally:
            with contextlib.suppress(OSError):  # an earlier error was reported already
                sys.stdout.flush()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python's own locks, interrupted half-way, raise RuntimeError instead of the interrupt.
        interrupt = error if isinstance(error, KeyboardInterrupt) else error.__context__
        if not isinstance(interrupt, KeyboardInterrupt):
            raise
        if isinstance(interrupt, Ended):
            complain(f"ended by {signal.Signals(interrupt.number).name}", program=program)
            return 128 + interrupt.number  # the exit code that shells give to a killed program
        complain("interrupted", program=program)
        return EXIT_INTERRUPTED


def _outcome(work: Callable[[], int], program: str, told: Callable[[object], str]) -> int:
    try:
        with _delivered():
            return work()
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE  # the reader of our output has ended, as `head` does
    except FFRecordError as error:
        what, code = told(error), error.exit_code
        what += f"; {error.advice}" if error.advice else ""
    except IndexError as error:
        what, code = str(error), EXIT_USAGE
    except MemoryError as error:
        what, code = f"not enough memory: {error}", EXIT_SYSTEM
    except OSError as error:
        named = "" if error.filename is None or not error.strerror else f"{error.filename}: "
        what, code = f"{named}{told(error.strerror or error)}", EXIT_SYSTEM
    complain(what, program=program)
    return code


@contextlib.contextmanager
def _delivered() -> Iterator[None]:
    """Raise an error if some output could not be written.

    Output before a SystemExit is checked too: argparse prints its help, ignores failed writes and
    exits.
    """
    try:
        yield
    except SystemExit:
        _deliver()
        raise
    _deliver()


def _deliver() -> None:
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output) and raw.failure is not None:
        raise raw.failure


def prepare_output(program: str) -> None:
    """Make the standard streams writable in any shell, and print each warning as one line."""
    _open_closed()
    for name, number, kind in (("stdout", 1, _Output), ("stderr", 2, _Errors)):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper and _number(stream) == number:
            stream.flush()
            # With PYTHONUNBUFFERED, a stream is not line-buffered. A warning must not wait for the
            # end of the command.
            encoding, lines = stream.encoding, stream.line_buffering or number == 2
            setattr(sys, name, _text(kind(number, "wb", closefd=False), encoding, lines))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")
    for warning in (LegacyFileWarning, ChangedWarning, SkippedWarning, CacheWarning):
        warnings.simplefilter("always", warning)
    # An interrupted command may drop a writer. Its user can do nothing about that.
    warnings.simplefilter("ignore", UnclosedWarning)

    def one_line(message: Warning | str, *_: object, **__: object) -> None:
        complain(message, warning=True, program=program)

    warnings.showwarning = one_line


def _number(stream: io.TextIOWrapper) -> int | None:
    """Return the descriptor of a stream, or None for a stream in memory (`io.StringIO`)."""
    with contextlib.suppress(io.UnsupportedOperation):
        return stream.fileno()
    return None


def _open_closed() -> None:
    """Open /dev/null for each standard stream that the shell has closed (`>&-`).

    Otherwise the next opened file would get the stream's number, and output would go into that
    file. /dev/null is opened read-only for standard output, so that writing to it still fails.
    """
    with contextlib.suppress(OSError):
        if sys.stdin is None:
            sys.stdin = open(_null(os.O_RDONLY))  # noqa: SIM115 - for as long as the process lives
        if sys.stdout is None:
            sys.stdout = _text(_Output(_null(os.O_RDONLY), "wb"), None, False)
        if sys.stderr is None:
            sys.stderr = _text(_Errors(_null(os.O_WRONLY), "wb"), None, True)


def _null(flags: int) -> int:
    """Open /dev/null. It gets the lowest free number, which is the closed stream's number."""
    fd = os.open(os.devnull, flags)
    os.set_inheritable(fd, True)
    return fd


def _text(raw: io.FileIO, encoding: str | None, line_buffering: bool) -> io.TextIOWrapper:
    """Return a buffered text stream over `raw`, even under `python -u`.

    Only a buffered stream writes the rest after the operating system took a part of the data.
    """
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=line_buffering
    )


class _Output(io.FileIO):
    """Standard output. Keeps the error of the first failed write, and drops all later data."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.failure is not None:
            return memoryview(data).nbytes
        try:
            written: int | None = super().write(data)
            if written is None:  # a non-blocking stream that is full
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        except OSError as error:
            self.failure = _named(error)
            raise self.failure from error
        return written


def _named(error: OSError) -> OSError:
    """Return our error for a failed write, or the same error for a broken pipe."""
    if isinstance(error, BrokenPipeError):
        return error
    kind = NoRoomError if error.errno in NoRoomError.ERRNOS else WriteFailedError
    return kind("standard output", error.errno or errno.EIO)


class _Errors(io.FileIO):
    """Standard error. Ignores failed writes."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            if written := super().write(data):
                return written
        return memoryview(data).nbytes

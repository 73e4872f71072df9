"""How a command runs: standard streams that are safe to use, and an exit code in the end.

Whatever goes wrong is one line on standard error and the exit code of docs/commands.md. That holds
for output that cannot be written, too: a write to standard output that fails raises one of our
errors, and everything after it is dropped, so that Python's flush at exit has nothing to add. A
write to standard error that fails is passed over: nobody is left to tell.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from ffrecord.errors import (
    ChangedWarning,
    FFRecordError,
    LegacyFileWarning,
    NoRoomError,
    SkippedWarning,
    WriteFailedError,
)
from ffrecord.terminal import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_SYSTEM, EXIT_USAGE, complain
from ffrecord.text import for_shell


def run_command(
    work: Callable[[], int], program: str, told: Callable[[object], str] = for_shell
) -> int:
    """Do the work of a command, and return its exit code. `told` makes the text of an error."""
    try:
        prepare_output(program)
        try:
            return _outcome(work, program, told)
        finally:
            with contextlib.suppress(OSError):  # after another error, which is the one to tell
                sys.stdout.flush()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Interrupted half-way, Python's own locks raise RuntimeError in the interrupt's place.
        if KeyboardInterrupt not in (type(error), type(error.__context__)):
            raise
        complain("interrupted", program=program)
        return EXIT_INTERRUPTED


def _outcome(work: Callable[[], int], program: str, told: Callable[[object], str]) -> int:
    try:
        with _delivered():
            return work()
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE  # the reader of our output has gone, as `head` does
    except FFRecordError as error:
        what, code = told(error), error.exit_code
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
    """Raise if not all that was printed could be written. argparse leaves with SystemExit after
    its help, and passes over writes that fail."""
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
    """Have standard streams that can be written to, whatever the shell has made of them; and a
    warning is one line, under the program's name."""
    _open_closed()
    for name, number, kind in (("stdout", 1, _Output), ("stderr", 2, _Errors)):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper and _number(stream) == number:
            stream.flush()
            encoding, lines = stream.encoding, stream.line_buffering
            setattr(sys, name, _text(kind(number, "wb", closefd=False), encoding, lines))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="backslashreplace")
    for warning in (LegacyFileWarning, ChangedWarning, SkippedWarning):
        warnings.simplefilter("always", warning)

    def one_line(message: Warning | str, *_: object, **__: object) -> None:
        complain(message, warning=True, program=program)

    warnings.showwarning = one_line


def _number(stream: io.TextIOWrapper) -> int | None:
    """The descriptor of a stream; None for one in memory, which a program may have put there."""
    with contextlib.suppress(io.UnsupportedOperation):
        return stream.fileno()
    return None


def _open_closed() -> None:
    """Open what the shell has closed (`>&-`): its number would go to the next file that is opened,
    and what is printed into that file. Writing to standard output fails then, as it should."""
    with contextlib.suppress(OSError):
        if sys.stdin is None:
            sys.stdin = open(_null(os.O_RDONLY))  # noqa: SIM115 - for as long as the process lives
        if sys.stdout is None:
            sys.stdout = _text(_Output(_null(os.O_RDONLY), "wb"), None, False)
        if sys.stderr is None:
            sys.stderr = _text(_Errors(_null(os.O_WRONLY), "wb"), None, True)


def _null(flags: int) -> int:
    """Open /dev/null with the lowest number that is free: the one of the stream that is closed."""
    fd = os.open(os.devnull, flags)
    os.set_inheritable(fd, True)
    return fd


def _text(raw: io.FileIO, encoding: str | None, line_buffering: bool) -> io.TextIOWrapper:
    """A text stream. It has a buffer even if Python was told to have none: only that one writes
    the rest of what the operating system takes a part of."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=line_buffering
    )


class _Output(io.FileIO):
    """Standard output. It keeps the error of the first write that fails, and takes none after."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.failure is not None:
            return memoryview(data).nbytes
        try:
            written: int | None = super().write(data)
            if written is None:  # it must not wait, and would have to
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        except OSError as error:
            self.failure = _named(error)
            raise self.failure from error
        return written


def _named(error: OSError) -> OSError:
    """A broken pipe stays one: it has an exit code of its own."""
    if isinstance(error, BrokenPipeError):
        return error
    kind = NoRoomError if error.errno in NoRoomError.ERRNOS else WriteFailedError
    return kind("standard output", error.errno or errno.EIO)


class _Errors(io.FileIO):
    """Standard error."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            if written := super().write(data):
                return written
        return memoryview(data).nbytes

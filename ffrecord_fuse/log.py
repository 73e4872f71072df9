"""The log of a mount: a line for each thing worth knowing, to one place for all its processes."""

from __future__ import annotations

import os
import sys
import syslog
import time

from ffrecord import planted
from ffrecord.terminal import printable

NAME = "ffrecord-fuse"
# Not blocking: a pipe that nobody reads is an error here, and loses lines later.
_APPEND = (
    os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
)  # fmt: skip


class Log:
    """Appends lines to a file, or hands them to syslog where there is none.

    File names come from archives and may hold anything: whatever is not printable is escaped, so
    that no name can look like a line of its own. Each line is one write(2) to a descriptor opened
    for appending, so lines of several workers do not mix.
    """

    def __init__(self, path: str | None = None, *, foreground: bool = False) -> None:
        self._fd = -1
        if path is not None:
            self._fd = _open(path)
        elif foreground and sys.stderr is not None:
            self._fd = os.dup(sys.stderr.fileno())

    def line(self, text: str) -> None:
        text = printable(text)
        if self._fd < 0:
            syslog.openlog(NAME, syslog.LOG_PID, syslog.LOG_DAEMON)
            syslog.syslog(syslog.LOG_NOTICE, text)
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        try:
            os.write(self._fd, f"{now} {NAME}[{os.getpid()}] {text}\n".encode(errors="replace"))
        except OSError:  # a full disk must not end the mount
            return


def _open(path: str) -> int:
    """A symlink may lead to the log, but not one that another user has put into a shared folder."""
    follow = 0 if os.path.islink(path) else os.O_NOFOLLOW  # none that comes between
    planted.refuse_symlink(path)
    fd = os.open(path, _APPEND | follow, 0o640)
    try:
        planted.refuse(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd

"""The counters of a mount, its damaged files, and its log.

All processes of a mount log to the same place, `Log.place`: the file that the user names, standard
error in the foreground, or syslog. Containers often have no syslog. Then the default is a file of
limited size. Each event is one line.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import socket
import sys
import syslog
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from ffrecord.atomic import locks
from ffrecord.terminal import printable
from ffrecord_fuse.filesystem import Filesystem

NAMES = (
    "lookups", "attributes", "listings", "reads", "bytes_read", "cached_reads", "disk_reads",
    "read_ahead", "verified_blocks", "damaged_reads", "errors", "restarts",
)  # fmt: skip
(
    LOOKUPS, ATTRIBUTES, LISTINGS, READS, BYTES_READ, CACHED_READS, DISK_READS, READ_AHEAD,
    VERIFIED_BLOCKS, DAMAGED_READS, ERRORS, RESTARTS,
) = range(len(NAMES))  # fmt: skip
"""The positions of the counters in a worker's row, in the order of NAMES."""

NETWORK = ("requests", "repeated", "bytes")
REQUESTS, REPEATED, RECEIVED = range(len(NAMES), len(NAMES) + len(NETWORK))
"""The positions of the counters that only mounts of URLs have, in the order of NETWORK."""
_COLUMNS = len(NAMES) + len(NETWORK)

DISK_BYTES = 1024
"""Shared memory for what is known about the disk, as JSON."""

LOGGED_DAMAGES = 10_000
"""The most damaged files that one worker logs. An archive may be damaged everywhere."""

NAME = "ffrecord-fuse"
SYSLOG = "syslog"
NOWHERE = "nowhere"
MOST_BYTES = 1 << 20
"""The size at which the default log file is renamed to `….log.1`, which replaces an older one."""

_SYSLOG_SOCKET = "/dev/log"
# O_NONBLOCK, because a log may be a pipe. If no process reads the pipe, opening it fails instead of
# waiting. If the pipe is full, lines are lost instead of blocking the mount.
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Counters:
    """Counters in shared memory, with one row for each worker. Create them before the workers.

    Only the worker writes its row. The supervisor counts restarts there while the worker is dead.
    All workers share the place for what is known about the disk or the network, and the latest one
    counts.
    """

    def __init__(self, workers: int = 1, *, is_remote: bool = False) -> None:
        self._rows = workers
        self._is_remote = is_remote
        self._disk = mmap.mmap(-1, DISK_BYTES)
        self._all = memoryview(mmap.mmap(-1, 8 * workers * _COLUMNS)).cast("q")

    def row(self, worker: int) -> memoryview:
        """Return a worker's row. LOOKUPS, READS and so on are its indices."""
        return self._all[worker * _COLUMNS : (worker + 1) * _COLUMNS]

    def totals(self) -> dict[str, int]:
        """Return the sums over all workers, including workers that have ended."""
        return self._sums(NAMES, 0)

    def _sums(self, names: tuple[str, ...], first: int) -> dict[str, int]:
        return {
            name: sum(self._all[row * _COLUMNS + column] for row in range(self._rows))
            for column, name in enumerate(names, first)
        }

    def tell_disk(self, facts: dict[str, Any]) -> None:
        """Keep what a worker has found out about the disk or the network, and decided."""
        text = json.dumps(facts).encode()
        if len(text) <= DISK_BYTES:
            self._disk[:] = text.ljust(DISK_BYTES)

    def json(self) -> bytes:
        """Return the totals and the facts about the disk or network, for `user.ffrecord.stats`."""
        found: dict[str, Any] = self.totals()
        facts: dict[str, Any] = {}
        # While a worker writes, the text may be a mixture of two texts, and is left out.
        with contextlib.suppress(ValueError):
            facts = json.loads(self._disk[:].strip(b" \0"))
        if self._is_remote:
            found["network"] = self._sums(NETWORK, REQUESTS) | facts
        elif facts:
            found["disk"] = facts
        return json.dumps(found).encode()


class DamageLog:
    """Counts one worker's damaged reads, and logs each damaged file once."""

    def __init__(
        self, filesystem: Filesystem, counts: memoryview, log: Callable[[str], None]
    ) -> None:
        self._filesystem = filesystem
        self._counts = counts
        self._log = log
        self._damaged: set[int] = set()

    def tell(self, inode: int, what: str) -> None:
        """Count a read that found damage, and log the file if it was not logged before."""
        self._counts[DAMAGED_READS] += 1
        if inode not in self._damaged and len(self._damaged) < LOGGED_DAMAGES:
            self._damaged.add(inode)
            self._log(f"damaged: {self._filesystem.place(inode)}: {what}")


class Log:
    """Writes lines to a file, to standard error or to syslog.

    Names from archives may contain any character. Unprintable characters are escaped, so that no
    name can fake a line of the log. Each line is one write(2) to a file opened for appending, so
    the lines of several workers do not mix.
    """

    def __init__(self, path: str | None = None, *, foreground: bool = False) -> None:
        self.place = SYSLOG
        """The path of the log file, `syslog`, `standard error` or `nowhere`."""
        self.is_our_choice = False
        """True if the user named no log and syslog is missing. The place is then the default file,
        or `nowhere`."""
        self._fd = -1
        if path is not None:
            self._fd, self.place = _open(path), path
        elif foreground and sys.stderr is not None:
            self._fd, self.place = os.dup(sys.stderr.fileno()), "standard error"
        elif not _has_syslog():
            self.is_our_choice = True
            self._fd, self.place = _open_our_own()

    def line(self, text: str) -> None:
        """Log a line. If the line cannot be written, it is lost, and the mount continues."""
        text = printable(text)
        if self.place == SYSLOG:
            syslog.openlog(NAME, syslog.LOG_PID, syslog.LOG_DAEMON)
            syslog.syslog(syslog.LOG_NOTICE, text)
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with contextlib.suppress(OSError):
            os.write(self._fd, f"{now} {NAME}[{os.getpid()}] {text}\n".encode(errors="replace"))
            if self.is_our_choice and os.fstat(self._fd).st_size >= MOST_BYTES:
                self._begin_anew()

    def _begin_anew(self) -> None:
        """Rename the full file and start a new one.

        Workers and other mounts share the file. A lock makes sure that only one of them renames it.
        """
        lock = os.open(self.place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            is_the_same = os.path.samestat(os.fstat(lock), os.stat(self.place))
            if is_the_same and os.fstat(lock).st_size >= MOST_BYTES:
                os.rename(self.place, f"{self.place}.1")
            fresh = _open(self.place)
        finally:
            os.close(lock)
        os.dup2(fresh, self._fd, inheritable=False)
        os.close(fresh)


def tell_place(log: Log, note: Callable[[str], None]) -> None:
    """Tell the user where the log is, if it is where nobody expects it."""
    if log.is_our_choice:
        place = "none; choose a file with --log FILE" if log.place == NOWHERE else log.place
        note(f"log: {place} (no syslog here)")


def _has_syslog() -> bool:
    """Return True if a process listens on the socket of syslog(3)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(_SYSLOG_SOCKET)
        except OSError as error:
            return error.errno == errno.EPROTOTYPE  # a stream socket, which syslog(3) tries next
    return True


def _open_our_own() -> tuple[int, str]:
    """Open the default log file of this user; return -1 and NOWHERE if that fails."""
    for path in _our_own_paths():
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            return _open(path), path
    return -1, NOWHERE


def _our_own_paths() -> Iterator[str]:
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        yield f"{state}/ffrecord/{NAME}.log"
    elif os.geteuid() == 0:
        yield f"/var/log/{NAME}.log"
    else:
        yield os.path.expanduser(f"~/.local/state/ffrecord/{NAME}.log")
    yield f"{tempfile.gettempdir()}/{NAME}-{os.geteuid()}.log"


def _open(path: str) -> int:
    """Open a log file. Follow a symlink, unless another user put it into a shared folder."""
    follow = 0 if os.path.islink(path) else os.O_NOFOLLOW  # refuse a symlink that appears later
    locks.refuse_planted_symlink(path)
    fd = os.open(path, _APPEND | follow, 0o640)
    try:
        locks.refuse_planted(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd

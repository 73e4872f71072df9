"""Run the event loop of one worker: take all waiting requests, and answer them.

    kernel ──▶ drain ──▶ handlers ──▶ reply      names, attributes, listings
                            │
                            └─ READ ─▶ reading ──▶ reply      at once, or when the disk has read

One read(2) of /dev/fuse returns one whole request, and one writev(2) takes one whole reply. A reply
goes to the descriptor that delivered the request. Handlers do not wait for a disk (`reading` names
two exceptions). A failing handler never ends the loop: its request gets the errno, or EIO and a
line in the log if there is no errno.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from ffrecord_fuse.filesystem import MISSING, Filesystem
from ffrecord_fuse.serve import report
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.inbox import DEFAULT_SPIN, Idling, Inbox
from ffrecord_fuse.serve.piecereads import Facts
from ffrecord_fuse.serve.reading import Reading
from ffrecord_fuse.wire import abi, reply
from ffrecord_fuse.wire.abi import Opcode
from ffrecord_fuse.wire.reply import Rendered
from ffrecord_fuse.wire.request import MOST_BYTES, MalformedError, Request, parse

Handler: TypeAlias = "Callable[[Request], bytes | None]"

AT_ONCE = 64
"""The most requests to take before cold reads are submitted and completed reads are answered."""

LISTED = 1024
"""Entries of a folder that are rendered together."""

RENDERED_BYTES = 16 << 20
"""The size of the cache of rendered entries."""

READ_ONLY = frozenset({
    Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR,
    Opcode.RENAME, Opcode.RENAME2, Opcode.LINK, Opcode.WRITE, Opcode.SETXATTR, Opcode.REMOVEXATTR,
    Opcode.CREATE, Opcode.FALLOCATE, Opcode.COPY_FILE_RANGE, Opcode.TMPFILE,
})  # fmt: skip


class Session:
    """Serves one descriptor until the file system is unmounted.

    Args:
        fd: a non-blocking descriptor of /dev/fuse, after INIT.
        filesystem: names and attributes.
        content: contents of files.
        spin: microseconds to look for requests before sleeping; 0 sleeps at once.
        idling: keeps idle cores awake while requests keep coming; None lets them halt.
        counts: this worker's row of the counters.
        log: called with each line for the log.
        tell_disk: called with what was found out about the disk, and decided.
    """

    def __init__(
        self,
        fd: int,
        filesystem: Filesystem,
        content: CheckedContent,
        *,
        spin: int = DEFAULT_SPIN,
        idling: Idling | None = None,
        counts: memoryview | None = None,
        log: Callable[[str], None] = print,
        tell_disk: Callable[[Facts], None] = lambda facts: None,
    ) -> None:
        self._fd = fd
        self._filesystem = filesystem
        self._counts = report.Counters().row(0) if counts is None else counts
        self._log = log
        self._over = False
        self._request = memoryview(bytearray(MOST_BYTES))
        kind = Reading if filesystem.archive.is_local else _remote_reading()
        self._reading = kind(self, filesystem, content, self._counts, log, tell_disk)
        self._listings: OrderedDict[tuple[int, int, bool], Rendered] = OrderedDict()
        self._listed_bytes = 0
        self._inbox = Inbox(fd, self._reading.cold.eventfd, spin / 1e6, idling or Idling("halt"))
        self._handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READ: self._reading.read,
            Opcode.READDIRPLUS: self._readdir,
            Opcode.READDIR: self._readdir,
            Opcode.READLINK: self._readlink,
            Opcode.STATFS: self._statfs,
            Opcode.GETXATTR: self._getxattr,
            Opcode.LISTXATTR: self._listxattr,
            Opcode.FORGET: _no_reply,
            Opcode.BATCH_FORGET: _no_reply,
            Opcode.NOTIFY_REPLY: _no_reply,
            Opcode.RELEASE: _done,
            Opcode.RELEASEDIR: _done,
            Opcode.DESTROY: _done,
        }

    def run(self) -> None:
        """Serve until the file system is unmounted or its connection is aborted."""
        while not self._over:
            if self._reading.is_under_way:
                self._turn()
            else:
                self._take(self._inbox.wait)
        self._reading.finish()

    def close(self) -> None:
        """Wait for the reads in flight, and free the session's resources.

        A worker that ends does not call this, because a disk that never answers would keep the
        worker alive.
        """
        self._inbox.close()
        self._reading.close()

    def _turn(self) -> None:
        """Take up to AT_ONCE requests and answer completed reads; wait if there are neither."""
        busy = False
        for _ in range(AT_ONCE):
            if not self._take(self._inbox.look):
                break
            busy = True
        busy = self._reading.go_on() or busy
        if not busy and not self._over:
            self._reading.waited(self._inbox.wait_for_anything(self._reading.cold))

    # ---- requests ------------------------------------------------------------------------

    def _take(self, receive: Callable[[memoryview], int | None]) -> bool:
        """Take a request and process it; return False if there was none."""
        try:
            count = receive(self._request)
        except OSError as error:
            # ENOENT: the request was interrupted before it could be read.
            if error.errno == errno.ENODEV:
                self._over = True
            elif error.errno not in (errno.ENOENT, errno.EINTR):
                raise  # ends this worker; its successor may succeed
            return False
        if count is None:
            return False
        if count == 0:
            self._over = True  # in tests: a socket whose other end is closed
            return False
        self._serve(self._request[:count])
        return True

    def _serve(self, raw: memoryview) -> None:
        try:
            request = parse(raw)
        except MalformedError as error:
            self._log(f"malformed request: {error}")
            if error.unique:
                self.send(reply.failure(error.unique, errno.EINVAL))
            return
        self.answer(request)

    def answer(self, request: Request) -> None:
        """Answer a request now, or start the read that will answer it."""
        try:
            answer = self._handlers.get(request.opcode, _refuse)(request)
        except OSError as error:
            answer = reply.failure(request.unique, error.errno or errno.EIO)
        except Exception as error:  # a defect or a hostile index: only this request fails
            self._counts[report.ERRORS] += 1
            self._log(f"opcode {request.opcode} on node {request.node} failed: {error!r}")
            answer = reply.failure(request.unique, errno.EIO)
        if answer is not None:
            self.send(answer)

    def send(self, answer: bytes | memoryview, content: memoryview | None = None) -> None:
        """Send a reply. If the kernel refuses it, send EIO instead; if that fails too, raise."""
        try:
            self._write(answer, content)
        except OSError as error:
            self._log(f"the kernel refused a reply ({error.strerror}); sending EIO instead")
            self._write(reply.failure(reply.unique_of(answer), errno.EIO))

    def _write(self, answer: bytes | memoryview, content: memoryview | None = None) -> None:
        try:
            if content is None:
                os.write(self._fd, answer)
            else:
                os.writev(self._fd, [answer, content])
        except OSError as error:
            if error.errno == errno.ENODEV:
                self._over = True
            elif error.errno not in (errno.ENOENT, errno.EPIPE):  # ENOENT: request interrupted
                raise

    def _lookup(self, request: Request) -> bytes:
        self._counts[report.LOOKUPS] += 1
        found = self._filesystem.lookup(request.node - abi.ROOT_ID, request.argument)
        if found == MISSING:
            return reply.no_entry(request.unique)
        return reply.entry(request.unique, self._filesystem.attributes(found))

    def _getattr(self, request: Request) -> bytes:
        self._counts[report.ATTRIBUTES] += 1
        found = self._filesystem.attributes(request.node - abi.ROOT_ID)
        return reply.attributes(request.unique, found)

    def _readlink(self, request: Request) -> bytes:
        return reply.success(request.unique, self._filesystem.readlink(request.node - abi.ROOT_ID))

    def _statfs(self, request: Request) -> bytes:
        return reply.space(request.unique, self._filesystem.space())

    def _getxattr(self, request: Request) -> bytes:
        size, name = request.argument
        value = self._filesystem.xattr(request.node - abi.ROOT_ID, name)
        return _sized(request.unique, size, value)

    def _listxattr(self, request: Request) -> bytes:
        names = self._filesystem.xattr_names(request.node - abi.ROOT_ID)
        listed = b"".join(name + b"\0" for name in names)
        return _sized(request.unique, request.argument.size, listed)

    def _readdir(self, request: Request) -> bytes:
        self._counts[report.LISTINGS] += 1
        position, size = request.argument
        plus = request.opcode == Opcode.READDIRPLUS
        key = (request.node - abi.ROOT_ID, position // LISTED, plus)
        rendered = self._listings.get(key)
        if rendered is None:
            rendered = self._render(*key)
            if rendered is None:
                return reply.success(request.unique)
        self._listings.move_to_end(key)
        if position - rendered.first >= len(rendered):
            return reply.success(request.unique)
        part = rendered.part(position, size)
        if not part:  # the first entry does not fit
            return reply.failure(request.unique, errno.EINVAL)
        return reply.success(request.unique, part)

    def _render(self, folder: int, number: int, plus: bool) -> Rendered | None:
        """Render LISTED entries of a folder and cache them; return None after the last entry."""
        listing = self._filesystem.listing(folder, number * LISTED, LISTED)
        if listing is None:
            return None
        rendered = self._listings[folder, number, plus] = Rendered(listing, plus=plus)
        self._listed_bytes += rendered.size
        while self._listed_bytes > RENDERED_BYTES and len(self._listings) > 1:
            self._listed_bytes -= self._listings.popitem(last=False)[1].size
        return rendered


def _remote_reading() -> type[Reading]:
    """Return the reader of URLs. Mounts of local archives do not load what it needs."""
    from ffrecord_fuse.serve.remotereading import RemoteReading

    return RemoteReading


def _no_reply(request: Request) -> None:
    """Ignore FORGET: inode numbers come from the index, so there is no table to clean up."""


def _done(request: Request) -> bytes:
    return reply.success(request.unique)


def _refuse(request: Request) -> bytes:
    """Refuse a request.

    After ENOSYS to OPEN and OPENDIR, the kernel opens files without asking and keeps its cache. For
    other opcodes, ENOSYS tells the kernel to do without them.
    """
    if request.opcode in READ_ONLY:
        return reply.failure(request.unique, errno.EROFS)
    if request.opcode == Opcode.IOCTL:
        return reply.failure(request.unique, errno.ENOTTY)
    return reply.failure(request.unique, errno.ENOSYS)


def _sized(unique: int, size: int, value: bytes) -> bytes:
    """Return the reply with a value for a buffer of `size` bytes; 0 asks for the value's length."""
    if size == 0:
        return reply.xattr_size(unique, len(value))
    if size < len(value):
        return reply.failure(unique, errno.ERANGE)
    return reply.success(unique, value)

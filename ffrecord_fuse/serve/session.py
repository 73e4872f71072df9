"""The event loop of one worker: take every waiting request, answer what is at hand, read the rest.

    kernel ──▶ drain ──▶ handlers ──▶ reply      names, attributes, listings
                            │
                            └─ READ ─▶ reading ──▶ reply      at once, or when it has come

A descriptor of /dev/fuse gives one whole request per read(2) and takes one whole reply per
writev(2). A request is answered on the descriptor that delivered it. Handlers do not wait for a
disk (`reading` has the two exceptions); what goes wrong in one is that request's error (EIO if
nothing better is known) and a line in the log, never the end of the loop.
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
from ffrecord_fuse.serve.reading import Reading
from ffrecord_fuse.wire import abi, reply
from ffrecord_fuse.wire.abi import Opcode
from ffrecord_fuse.wire.reply import Rendered
from ffrecord_fuse.wire.request import MOST_BYTES, MalformedError, Request, parse

Handler: TypeAlias = "Callable[[Request], bytes | None]"

AT_ONCE = 64
"""Requests taken before cold reads are put on their way, and answers given."""

LISTED = 1024
"""Entries of a folder that are rendered at once."""

RENDERED_BYTES = 16 << 20

READ_ONLY = frozenset({
    Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR,
    Opcode.RENAME, Opcode.RENAME2, Opcode.LINK, Opcode.WRITE, Opcode.SETXATTR, Opcode.REMOVEXATTR,
    Opcode.CREATE, Opcode.FALLOCATE, Opcode.COPY_FILE_RANGE, Opcode.TMPFILE,
})  # fmt: skip


class Session:
    """Serves one descriptor until the file system is unmounted.

    Args:
        fd: of /dev/fuse, non-blocking, after INIT.
        filesystem: names and attributes.
        content: what files are made of.
        spin: microseconds to go on looking for requests before sleeping; 0 sleeps at once.
        idling: asked to keep cores awake while requests keep coming; None leaves them alone.
        counts: this worker's row of the counters.
        log: takes a line.
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
    ) -> None:
        self._fd = fd
        self._filesystem = filesystem
        self._counts = report.Counters().row(0) if counts is None else counts
        self._log = log
        self._over = False
        self._request = memoryview(bytearray(MOST_BYTES))
        self._reading = Reading(self, filesystem, content, self._counts, log)
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
        """Serve until the file system is unmounted, or its connection aborted."""
        while not self._over:
            if self._reading.is_under_way:
                self._turn()
            else:
                self._take(self._inbox.wait)

    def close(self) -> None:
        """Wait for the reads under way, and free what the session holds. A process that ends has
        no need to, and a disk that never answers would keep it."""
        self._inbox.close()
        self._reading.close()

    def _turn(self) -> None:
        """Some requests, and what has come from the disk, with reads under way."""
        busy = False
        for _ in range(AT_ONCE):
            if not self._take(self._inbox.look):
                break
            busy = True
        busy = self._reading.go_on() or busy
        if not busy and not self._over:
            self._inbox.wait_for_anything(self._reading.cold)

    # ---- requests ------------------------------------------------------------------------

    def _take(self, receive: Callable[[memoryview], int | None]) -> bool:
        """Take a request and answer it, if that can be at once; whether there was one."""
        try:
            count = receive(self._request)
        except OSError as error:
            # ENOENT: the request was interrupted before it could be read.
            if error.errno == errno.ENODEV:
                self._over = True
            elif error.errno not in (errno.ENOENT, errno.EINTR):
                raise  # another worker may have more luck
            return False
        if count is None:
            return False
        if count == 0:
            self._over = True  # a socket in a test, whose other end is closed
            return False
        self._serve(self._request[:count])
        return True

    def _serve(self, raw: memoryview) -> None:
        try:
            request = parse(raw)
        except MalformedError as error:
            self._log(f"a malformed request: {error}")
            if error.unique:
                self.send(reply.failure(error.unique, errno.EINVAL))
            return
        self.answer(request)

    def answer(self, request: Request) -> None:
        """Answer a request, or have it answered when what it asks for has come."""
        try:
            answer = self._handlers.get(request.opcode, _refuse)(request)
        except OSError as error:
            answer = reply.failure(request.unique, error.errno or errno.EIO)
        except Exception as error:  # a defect, or a hostile index: that request's, not the mount's
            self._counts[report.ERRORS] += 1
            self._log(f"opcode {request.opcode} on node {request.node} failed: {error!r}")
            answer = reply.failure(request.unique, errno.EIO)
        if answer is not None:
            self.send(answer)

    def send(self, answer: bytes | memoryview, content: memoryview | None = None) -> None:
        """Give an answer. If it is not taken, whoever waits for it gets an error; if that is not
        taken either, this worker is of no use."""
        try:
            self._write(answer, content)
        except OSError as error:
            self._log(f"a reply was not taken: {error.strerror}")
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
            elif error.errno not in (errno.ENOENT, errno.EPIPE):  # ENOENT: it was interrupted
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
        if not part:  # not even one fits
            return reply.failure(request.unique, errno.EINVAL)
        return reply.success(request.unique, part)

    def _render(self, folder: int, number: int, plus: bool) -> Rendered | None:
        """Some of a folder's entries, kept for the next who asks."""
        listing = self._filesystem.listing(folder, number * LISTED, LISTED)
        if listing is None:
            return None
        rendered = self._listings[folder, number, plus] = Rendered(listing, plus=plus)
        self._listed_bytes += rendered.size
        while self._listed_bytes > RENDERED_BYTES and len(self._listings) > 1:
            self._listed_bytes -= self._listings.popitem(last=False)[1].size
        return rendered


def _no_reply(request: Request) -> None:
    """Inodes are those of the index and need no table: there is nothing to forget."""


def _done(request: Request) -> bytes:
    return reply.success(request.unique)


def _refuse(request: Request) -> bytes:
    """ENOSYS to OPEN and OPENDIR makes the kernel open without asking, and keep what it has
    cached; to the others, that it does without."""
    if request.opcode in READ_ONLY:
        return reply.failure(request.unique, errno.EROFS)
    if request.opcode == Opcode.IOCTL:
        return reply.failure(request.unique, errno.ENOTTY)
    return reply.failure(request.unique, errno.ENOSYS)


def _sized(unique: int, size: int, value: bytes) -> bytes:
    """An attribute's value for a caller who has room for `size` bytes; 0 asks how many."""
    if size == 0:
        return reply.xattr_size(unique, len(value))
    if size < len(value):
        return reply.failure(unique, errno.ERANGE)
    return reply.success(unique, value)

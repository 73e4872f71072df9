"""The event loop of one worker: take every waiting request, answer what is at hand, read the rest.

    kernel ──▶ drain ──▶ handlers ──▶ reply                      names, attributes, listings
                            │
                            └─ READ ─▶ in the page cache ───────────▶ check ─▶ reply
                                    └─ one io_submit for all ─▶ landed ─▶ check ─▶ reply

A descriptor of /dev/fuse gives one whole request per read(2) and takes one whole reply per
writev(2). A request is answered on the descriptor that delivered it. Handlers do not wait for a
disk; what goes wrong in one is that request's error (EIO if nothing better is known) and a line in
the log, never the end of the loop.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from ffrecord import pagecache
from ffrecord.errors import FFRecordError
from ffrecord.slabs import SlabPool
from ffrecord_fuse import abi, counters, reply
from ffrecord_fuse.abi import Opcode
from ffrecord_fuse.background import Background
from ffrecord_fuse.coldreads import ColdReads
from ffrecord_fuse.content import Content, DamageError, Piece
from ffrecord_fuse.damage import DamageLog
from ffrecord_fuse.filesystem import MISSING, Filesystem
from ffrecord_fuse.idling import Idling
from ffrecord_fuse.inbox import DEFAULT_SPIN, Inbox
from ffrecord_fuse.reply import Rendered
from ffrecord_fuse.request import MOST_BYTES, MalformedError, Request, parse

Handler: TypeAlias = "Callable[[Request], bytes | None]"

AT_ONCE = 64
"""Requests taken before cold reads are put on their way, and answers given."""

LISTED = 1024
"""Entries of a folder that are rendered at once."""

RENDERED_BYTES = 16 << 20
READ_BYTES = 3 << 19
"""A read of 1 MiB and what is missing of the blocks at both its ends."""

HITS_TO_BE_WARM = 8
_slabs = SlabPool()

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
        content: Content,
        *,
        spin: int = DEFAULT_SPIN,
        idling: Idling | None = None,
        counts: memoryview | None = None,
        log: Callable[[str], None] = print,
    ) -> None:
        self._fd = fd
        self._filesystem = filesystem
        self._content = content
        self._counts = counters.Counters().row(0) if counts is None else counts
        self._log = log
        self._over = False
        self._request = memoryview(bytearray(MOST_BYTES))
        self._frame = _slabs.take(reply.FRONT + READ_BYTES).data
        self._memory = self._frame[reply.FRONT :]
        sources = filesystem.archive.reader.sources
        self._fds: list[int] = sources.fds.tolist()
        self._may_ask = sources.use_cachestat
        self._warm_hits = HITS_TO_BE_WARM
        self._cold = ColdReads(sources)
        self._background = Background(self._cold.eventfd)
        self._unlearned: dict[int, list[Request]] = {}  # reads that wait for their file's checksums
        self._listings: OrderedDict[tuple[int, int, bool], Rendered] = OrderedDict()
        self._listed_bytes = 0
        self._damages = DamageLog(filesystem, content, log)
        self._inbox = Inbox(fd, self._cold.eventfd, spin / 1e6, idling or Idling("halt"))
        self._handlers: dict[int, Handler] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.READ: self._read,
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
        """Until the file system is unmounted, or its connection aborted."""
        try:
            while not self._over:
                if self._cold.busy or self._unlearned:
                    self._turn()
                else:
                    self._take(self._inbox.wait)
        finally:
            self._background.close()
            self._inbox.close()
            self._cold.close()

    def _turn(self) -> None:
        """Some requests, and what has come from the disk, with reads under way."""
        busy = False
        for _ in range(AT_ONCE):
            if not self._take(self._inbox.look):
                break
            busy = True
        self._cold.submit()
        busy = self._answer_landed() or busy
        if self._unlearned:
            busy = self._answer_learned() or busy
        if not busy and not self._over:
            self._inbox.wait_for_anything(self._cold)

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
                self._send(reply.failure(error.unique, errno.EINVAL))
            return
        self._answer(request)

    def _answer(self, request: Request) -> None:
        try:
            answer = self._handlers.get(request.opcode, _refuse)(request)
        except OSError as error:
            answer = reply.failure(request.unique, error.errno or errno.EIO)
        except Exception as error:  # a defect, or a hostile index: that request's, not the mount's
            self._counts[counters.ERRORS] += 1
            self._log(f"opcode {request.opcode} on node {request.node} failed: {error!r}")
            answer = reply.failure(request.unique, errno.EIO)
        if answer is not None:
            self._send(answer)

    def _send(self, answer: bytes | memoryview, content: memoryview | None = None) -> None:
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
        self._counts[counters.LOOKUPS] += 1
        found = self._filesystem.lookup(request.node - abi.ROOT_ID, request.argument)
        if found == MISSING:
            return reply.no_entry(request.unique)
        return reply.entry(request.unique, self._filesystem.attributes(found))

    def _getattr(self, request: Request) -> bytes:
        self._counts[counters.ATTRIBUTES] += 1
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
        self._counts[counters.LISTINGS] += 1
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

    # ---- contents ------------------------------------------------------------------------

    def _read(self, request: Request) -> None:
        """Answered here if the page cache has it, else when it has come from the disk."""
        self._counts[counters.READS] += 1
        offset, size = request.argument
        inode = request.node - abi.ROOT_ID
        if not 0 <= inode < len(self._filesystem):
            raise OSError(errno.ESTALE, "no such inode")
        if self._content.must_learn(inode):
            if inode not in self._unlearned:
                self._unlearned[inode] = []
                self._background.run(inode, partial(self._content.learn, inode))
            self._unlearned[inode].append(request)
            return
        piece = self._content.piece(inode, offset, size)
        if piece is None:
            self._send(reply.success(request.unique))
            return
        memory = self._cached(piece)
        if memory is not None:
            self._counts[counters.CACHED_READS] += 1
            if self._is_right(request.unique, piece, memory):
                self._send(reply.framed(self._frame, request.unique, piece.skip, piece.asked))
        else:
            self._counts[counters.DISK_READS] += 1
            token = (request.unique, piece)
            self._cold.add(token, piece.file, piece.begin, piece.length)

    def _cached(self, piece: Piece) -> memoryview | None:
        """A piece out of the page cache; None if that has not all of it.

        A read with RWF_NOWAIT that misses begins to read into the page cache, so that the same
        bytes would come from the disk twice. While reads hit, that is worth it; after a miss
        the kernel is asked first (cachestat) until some in a row have hit again.
        """
        fd = self._fds[piece.file]
        if piece.length > READ_BYTES:
            return None
        if self._warm_hits < HITS_TO_BE_WARM:
            if self._may_ask and not pagecache.is_resident(fd, piece.begin, piece.length):
                self._warm_hits = 0
                return None
            if not self._may_ask:  # every so often a read is tried
                self._warm_hits += 1
                return None
        memory = self._memory[: piece.length]
        try:
            count = os.preadv(fd, [memory], piece.begin, os.RWF_NOWAIT)
        except OSError:  # EAGAIN: not there; EOPNOTSUPP: a file system that cannot tell; EIO
            count = 0
        if count < piece.length:
            self._warm_hits = 0
            return None
        self._warm_hits = min(self._warm_hits + 1, HITS_TO_BE_WARM)
        return memory

    def _answer_learned(self) -> bool:
        """Go on with reads of files whose checksums are known now; whether there were any."""
        ended = self._background.ended()
        for inode, problem in ended:
            for request in self._unlearned.pop(inode):
                if problem is None:
                    self._answer(request)
                else:
                    self._damage(inode, str(problem))
                    self._send(reply.failure(request.unique, errno.EIO))
        return bool(ended)

    def _answer_landed(self) -> bool:
        """Answer what has come from the disk; whether there was anything."""
        any_landed = False
        for (unique, piece), result in self._cold.landed():
            any_landed = True
            try:
                if isinstance(result, FFRecordError):
                    self._damage(piece.inode, str(result))
                    self._send(reply.failure(unique, errno.EIO))
                elif self._is_right(unique, piece, result):
                    self._send(*reply.data(unique, result[piece.skip : piece.skip + piece.asked]))
            except Exception as error:  # as in _answer: this read's, not the mount's
                self._counts[counters.ERRORS] += 1
                self._log(f"a read of node {piece.inode + abi.ROOT_ID} failed: {error!r}")
                self._send(reply.failure(unique, errno.EIO))
        return any_landed

    def _is_right(self, unique: int, piece: Piece, memory: memoryview) -> bool:
        """Whether what was read may be served; if not, the request has been answered."""
        try:
            self._counts[counters.VERIFIED_BLOCKS] += self._content.check(piece, memory)
        except DamageError as error:
            self._damage(piece.inode, str(error))
            self._send(reply.failure(unique, errno.EIO))
            return False
        self._counts[counters.BYTES_READ] += piece.asked
        return True

    def _damage(self, inode: int, what: str) -> None:
        self._counts[counters.DAMAGED_READS] += 1
        self._damages.tell(inode, what)


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

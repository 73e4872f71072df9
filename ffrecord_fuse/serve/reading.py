"""Answer READ requests with verified bytes from the fastest available place.

    READ ─▶ a window that was read ahead ───────────▶ check ─▶ reply
         ├─ the page cache of the archive ──────────▶ check ─▶ reply
         └─ one io_submit for all, or a thread ─────▶ check ─▶ reply

No function waits for a disk. If the bytes must come from the disk, AIO or a thread reads them (see
`coldreads`), and `go_on` answers the request afterwards. There are two exceptions. If no thread can
be started, the loop itself reads. And after io_getevents has failed, the loop waits once for the
reads in flight.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ffrecord.archive.blocks import FilePiece
from ffrecord.disk.slabs import SlabPool
from ffrecord.errors import FFRecordError
from ffrecord.records.reader import table_of
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.serve import report
from ffrecord_fuse.serve.background import Background
from ffrecord_fuse.serve.blocks import CheckedContent, DamageError
from ffrecord_fuse.serve.coldreads import ColdReads
from ffrecord_fuse.serve.piecereads import Facts
from ffrecord_fuse.serve.readahead import ReadAhead, Window
from ffrecord_fuse.serve.report import DamageLog
from ffrecord_fuse.wire import abi, reply
from ffrecord_fuse.wire.request import Request

READ_BYTES = 3 << 19
"""The longest read from the page cache. 1 MiB fits, extended to whole blocks at both ends."""

_slabs = SlabPool()


class Kernel(Protocol):
    """The part of `Session` that this module uses."""

    def answer(self, request: Request) -> None:
        """Process a request from the start. A failure becomes the error of that request."""

    def send(self, answer: bytes | memoryview, content: memoryview | None = None) -> None: ...


class Reading:
    """The READ requests of one worker.

    Args:
        kernel: receives the replies.
        filesystem: names for messages.
        content: contents of files.
        counts: this worker's row of the counters.
        log: called with each line for the log.
        tell_disk: called with what was found out about the disk, and decided.
    """

    def __init__(
        self,
        kernel: Kernel,
        filesystem: Filesystem,
        content: CheckedContent,
        counts: memoryview,
        log: Callable[[str], None],
        tell_disk: Callable[[Facts], None],
    ) -> None:
        self._kernel = kernel
        self._send = kernel.send
        self._inodes = len(filesystem)
        self._file = filesystem.file
        self._content = content
        self._counts = counts
        self._log = log
        self._damages = DamageLog(filesystem, counts, log)
        self._frame = _slabs.take(reply.FRONT + READ_BYTES).data
        self._memory = self._frame[reply.FRONT :]
        sources = table_of(filesystem.archive.reader).require_open()
        self._fds: list[int] = sources.fds.tolist()
        self._cache = sources.cache
        self.cold = ColdReads(sources, tell_disk)
        self._pieces = self.cold.pieces
        self._ahead = ReadAhead(self.cold, filesystem.archive.blocks.last_start)
        self._background = Background(self.cold.eventfd, 1)
        self._unlearned: dict[int, list[Request]] = {}  # inode -> reads that wait for checksums

    @property
    def is_under_way(self) -> bool:
        """True while requests wait for `go_on`."""
        return self.cold.busy or bool(self._unlearned)

    def go_on(self) -> bool:
        """Submit cold reads and answer completed ones; return True if any were completed."""
        self.cold.submit()
        any_landed = self._answer_landed()
        return (bool(self._unlearned) and self._answer_learned()) or any_landed

    def waited(self, seconds: float) -> None:
        """Count a wait in which there was nothing to do but wait for requests and reads."""
        if self.cold.busy:
            self._pieces.waited(seconds)

    def close(self) -> None:
        self._background.close()
        self.cold.close()

    def read(self, request: Request) -> None:
        """Answer a READ now if its bytes are in memory, otherwise start a read from the disk."""
        self._counts[report.READS] += 1
        offset, size = request.argument
        inode = request.node - abi.ROOT_ID
        if not 0 <= inode < self._inodes:
            inode = self._file(inode)
        if self._content.must_learn(inode):
            if inode not in self._unlearned:
                # Start the thread first: if that fails, no request may be left waiting for it.
                self._background.run(inode, partial(self._content.learn, inode))
                self._unlearned[inode] = []
            self._unlearned[inode].append(request)
            return
        piece = self._content.piece(inode, offset, size)
        if piece is None:
            self._send(reply.success(request.unique))
            return
        unique = request.unique
        if not self._from_window(request, piece) and not self._from_cache(unique, piece):
            self._from_disk(unique, piece)

    def _from_window(self, request: Request, piece: FilePiece) -> bool:
        """Answer from a window, now or later; return False if no window has the piece."""
        window = self._ahead.find(piece)
        if window is None:
            return False
        if piece.checksums is None:  # the block may have been verified after the window was read
            piece = self._content.piece(piece.inode, *request.argument, anew=True) or piece
            if not window.has(piece):
                return False
        self._counts[report.READ_AHEAD] += 1
        self._take_from(window, request.unique, piece)
        return True

    def _from_cache(self, unique: int, piece: FilePiece) -> bool:
        """Answer from the page cache; return False if the piece is not cached."""
        memory = self._cached(piece)
        if memory is None:
            return False
        self._counts[report.CACHED_READS] += 1
        if self._pieces.is_slow:
            self._pieces.hit()
        if self._is_right(unique, piece, memory):
            self._send(reply.framed(self._frame, unique, piece.skip, piece.asked))
        return True

    def _from_disk(self, unique: int, piece: FilePiece) -> None:
        self._counts[report.DISK_READS] += 1
        window = self._ahead.follow(piece)
        if window is not None:
            self._take_from(window, unique, piece)
        else:
            self._read_alone(unique, piece)

    def _take_from(self, window: Window, unique: int, piece: FilePiece) -> None:
        """Answer from a window: now if it has been read, otherwise when it is."""
        if window.memory is None:
            window.waiting.append((unique, piece))
        else:
            self._serve_from(window, unique, piece)

    def _serve_from(self, window: Window, unique: int, piece: FilePiece) -> None:
        """Answer from a window. If its bytes are wrong, read them again from the disk.

        The archive may have been repaired since the window was read.
        """
        memory = window.part(piece)
        try:
            self._check(piece, memory)
        except DamageError:
            self._read_alone(unique, piece)
        else:
            self._send(*reply.data(unique, memory[piece.skip : piece.skip + piece.asked]))

    def _read_alone(self, unique: int, piece: FilePiece) -> None:
        self.cold.add((unique, piece), piece.file, piece.begin, piece.length)

    def _cached(self, piece: FilePiece) -> memoryview | None:
        """Return a piece from the page cache; None if any part is not cached."""
        if piece.length > READ_BYTES:
            return None
        memory = self._memory[: piece.length]
        return memory if self._cache.read(self._fds[piece.file], memory, piece.begin) else None

    def _answer_learned(self) -> bool:
        """Answer reads that waited for their file's checksums; return True if there were any."""
        ended = self._background.ended()
        for inode, problem in ended:
            for request in self._unlearned.pop(inode):
                if problem is None:
                    self._kernel.answer(request)
                else:
                    self._damages.tell(inode, str(problem))
                    self._send(reply.failure(request.unique, errno.EIO))
        return bool(ended)

    def _answer_landed(self) -> bool:
        """Answer the reads that the disk has completed; return True if there were any."""
        any_landed = False
        for token, result in self.cold.landed():
            any_landed = True
            if isinstance(token, Window):
                self._answer_from(token, result)
            else:
                self._attempt(partial(self._answer_piece, result), *token)
        return any_landed

    def _answer_from(self, window: Window, result: memoryview | Exception) -> None:
        """Answer the requests that wait for a window.

        If the window cannot be read as a whole, its files may still be readable one by one.
        """
        waiting, window.waiting = window.waiting, []
        if isinstance(result, Exception):
            self._ahead.forget(window)
            answer = self._read_alone
        else:
            window.memory = result
            answer = partial(self._serve_from, window)
        for unique, piece in waiting:
            self._attempt(answer, unique, piece)

    def _answer_piece(self, result: memoryview | Exception, unique: int, piece: FilePiece) -> None:
        if isinstance(result, FFRecordError):
            self._damages.tell(piece.inode, str(result))
            self._send(reply.failure(unique, errno.EIO))
        elif isinstance(result, Exception):
            raise result
        elif self._is_right(unique, piece, result):
            self._send(*reply.data(unique, result[piece.skip : piece.skip + piece.asked]))

    def _attempt(
        self, answer: Callable[[int, FilePiece], None], unique: int, piece: FilePiece
    ) -> None:
        try:
            answer(unique, piece)
        except Exception as error:  # as in Session.answer: only this read fails, not the mount
            self._counts[report.ERRORS] += 1
            self._log(f"reading node {piece.inode + abi.ROOT_ID} failed: {error!r}")
            self._send(reply.failure(unique, errno.EIO))

    def _is_right(self, unique: int, piece: FilePiece, memory: memoryview) -> bool:
        """Return True if the bytes are verified; otherwise answer EIO and return False."""
        try:
            self._check(piece, memory)
        except DamageError as error:
            self._damages.tell(piece.inode, str(error))
            self._send(reply.failure(unique, errno.EIO))
            return False
        return True

    def _check(self, piece: FilePiece, memory: memoryview) -> None:
        self._counts[report.VERIFIED_BLOCKS] += self._content.check(piece, memory)
        self._counts[report.BYTES_READ] += piece.asked

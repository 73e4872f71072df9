"""READ requests: what files hold, verified, from wherever it can be had soonest.

    READ ─▶ read ahead with others (`readahead`) ───▶ check ─▶ reply
         ├─ in the page cache of the archive ───────▶ check ─▶ reply
         └─ one io_submit for all, or a thread ─────▶ check ─▶ reply

Nothing here waits for a disk: a read that is not at hand is answered by `go_on` when its bytes have
come, by AIO or from a thread (see `coldreads`). There are two exceptions. A machine that starts no
thread has only the loop to read in. And after an io_getevents that failed, the reads in flight are
waited for, once.
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
from ffrecord_fuse.serve.readahead import ReadAhead, Window
from ffrecord_fuse.serve.report import DamageLog
from ffrecord_fuse.wire import abi, reply
from ffrecord_fuse.wire.request import Request

READ_BYTES = 3 << 19
"""A read of 1 MiB and what is missing of the blocks at both its ends."""

_slabs = SlabPool()


class Kernel(Protocol):
    """The session, as seen from here."""

    def answer(self, request: Request) -> None:
        """Begin anew with a request; what goes wrong is that request's error."""

    def send(self, answer: bytes | memoryview, content: memoryview | None = None) -> None: ...


class Reading:
    """The READ requests of one worker.

    Args:
        kernel: takes answers.
        filesystem: names, for messages.
        content: what files are made of.
        counts: this worker's row of the counters.
        log: takes a line.
    """

    def __init__(
        self,
        kernel: Kernel,
        filesystem: Filesystem,
        content: CheckedContent,
        counts: memoryview,
        log: Callable[[str], None],
    ) -> None:
        self._kernel = kernel
        self._send = kernel.send
        self._inodes = len(filesystem)
        self._content = content
        self._counts = counts
        self._log = log
        self._damages = DamageLog(filesystem, counts, log)
        self._frame = _slabs.take(reply.FRONT + READ_BYTES).data
        self._memory = self._frame[reply.FRONT :]
        sources = table_of(filesystem.archive.reader).require_open()
        self._fds: list[int] = sources.fds.tolist()
        self._cache = sources.cache
        self.cold = ColdReads(sources)
        self._ahead = ReadAhead(self.cold, filesystem.archive.blocks.last_start)
        self._background = Background(self.cold.eventfd, 1)
        self._unlearned: dict[int, list[Request]] = {}  # reads that wait for their file's checksums

    @property
    def is_under_way(self) -> bool:
        """Whether `go_on` has, or will have, something to do."""
        return self.cold.busy or bool(self._unlearned)

    def go_on(self) -> bool:
        """Put cold reads on their way, and answer what has come; whether there was anything."""
        self.cold.submit()
        any_landed = self._answer_landed()
        return (bool(self._unlearned) and self._answer_learned()) or any_landed

    def close(self) -> None:
        self._background.close()
        self.cold.close()

    def read(self, request: Request) -> None:
        """Answered here if it is at hand, else when it has come from the disk."""
        self._counts[report.READS] += 1
        offset, size = request.argument
        inode = request.node - abi.ROOT_ID
        if not 0 <= inode < self._inodes:
            raise OSError(errno.ESTALE, "no such inode")
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
        """Answer with what was read ahead, now or when it has come; False if that has it not."""
        window = self._ahead.find(piece)
        if window is None:
            return False
        if piece.checksums is None:  # the window may be older than what is known to be right
            piece = self._content.piece(piece.inode, *request.argument, anew=True) or piece
            if not window.has(piece):
                return False
        self._counts[report.READ_AHEAD] += 1
        self._take_from(window, request.unique, piece)
        return True

    def _from_cache(self, unique: int, piece: FilePiece) -> bool:
        """Answer with what the page cache has; False if that has it not."""
        memory = self._cached(piece)
        if memory is None:
            return False
        self._counts[report.CACHED_READS] += 1
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
        """Answered here if the window has been read, else when it has."""
        if window.memory is None:
            window.waiting.append((unique, piece))
        else:
            self._serve_from(window, unique, piece)

    def _serve_from(self, window: Window, unique: int, piece: FilePiece) -> None:
        """Answer from a window. If its bytes are wrong, read them anew: they may be right now."""
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
        """A piece out of the page cache; None if that has not all of it."""
        if piece.length > READ_BYTES:
            return None
        memory = self._memory[: piece.length]
        return memory if self._cache.read(self._fds[piece.file], memory, piece.begin) else None

    def _answer_learned(self) -> bool:
        """Go on with reads of files whose checksums are known now; whether there were any."""
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
        """Answer what has come from the disk; whether there was anything."""
        any_landed = False
        for token, result in self.cold.landed():
            any_landed = True
            if isinstance(token, Window):
                self._answer_from(token, result)
            else:
                self._attempt(partial(self._answer_piece, result), *token)
        return any_landed

    def _answer_from(self, window: Window, result: memoryview | Exception) -> None:
        """Answer the requests that wait for a window. If it cannot be read as a whole, its files
        may still be readable one by one."""
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
        except Exception as error:  # as in Session.answer: this read's, not the mount's
            self._counts[report.ERRORS] += 1
            self._log(f"a read of node {piece.inode + abi.ROOT_ID} failed: {error!r}")
            self._send(reply.failure(unique, errno.EIO))

    def _is_right(self, unique: int, piece: FilePiece, memory: memoryview) -> bool:
        """Whether what was read may be served; if not, the request has been answered."""
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

"""Answer READ requests with verified bytes from the fastest available place.

    READ ─▶ a window that was read ahead ───────────▶ check ─▶ reply
         ├─ the page cache of the archive ──────────▶ check ─▶ reply
         └─ one io_submit for all, or a thread ─────▶ check ─▶ reply

No function waits for a disk. If the bytes must come from the disk, AIO or a thread reads them (see
`coldreads`), and `go_on` answers the request afterwards. There are two exceptions. If no thread can
be started, the loop itself reads. And after io_getevents has failed, the loop waits once for the
reads in flight.

`remotereading` does the same for archives that are read over the network.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from ffrecord.archive.archive import Archive
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
from ffrecord_fuse.serve.readahead import ReadAhead, Window, bytes_of
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


class Reads(Protocol):
    """Reads in flight: `ColdReads`, or `RemoteReads`."""

    eventfd: int

    @property
    def busy(self) -> bool: ...

    @property
    def has_room(self) -> bool: ...

    def add(
        self, token: object, file: int, begin: int, length: int, *, kept: bool = False
    ) -> None: ...

    def submit(self) -> None: ...

    def landed(self) -> Iterator[tuple[Any, memoryview | Exception]]: ...

    def has_landed(self) -> bool: ...

    def clear_event(self) -> None: ...

    def close(self) -> None: ...


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
        self._tell_disk = tell_disk
        self._ahead = self._opened(filesystem.archive)
        self._background = Background(self.cold.eventfd, 1)
        self._unlearned: dict[int, list[Request]] = {}  # inode -> reads that wait for checksums

    def _opened(self, archive: Archive) -> ReadAhead:
        """Open the places that bytes come from, and return the reader ahead."""
        sources = table_of(archive.reader).require_files()
        self._fds: list[int] = sources.fds.tolist()
        self._cache = sources.cache
        disk = ColdReads(sources, self._tell_disk)
        self._pieces = disk.pieces
        self.cold: Reads = disk
        return ReadAhead(disk, archive.blocks.last_start)

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

    def finish(self) -> None:
        """Called when the file system was unmounted. Local archives need nothing."""

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
        windows = self._ahead.find(piece)
        if not windows:
            return False
        if piece.checksums is None:  # the block may have been verified after the window was read
            piece = self._content.piece(piece.inode, *request.argument, anew=True) or piece
            if not (
                windows[0].begin <= piece.begin and piece.begin + piece.length <= windows[-1].end
            ):
                return False
        self._counts[report.READ_AHEAD] += 1
        self._take_from(windows, request.unique, piece)
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
        windows = self._ahead.follow(piece)
        if windows:
            self._take_from(windows, unique, piece)
        else:
            self._read_alone(unique, piece)

    def _take_from(self, windows: Sequence[Window], unique: int, piece: FilePiece) -> None:
        """Answer from windows: now if they have been read, otherwise when they are."""
        for window in windows:
            if window.error is not None:  # before the request waited for it
                self._answer_without(window.error, unique, piece)
                return
            if window.memory is None:
                window.waiting.append((unique, piece, windows))
                return
        memory = bytes_of(piece, windows)
        try:
            self._check(piece, memory)
        except DamageError:
            self._read_again(unique, piece)
        else:
            self._send(*reply.data(unique, memory[piece.skip : piece.skip + piece.asked]))

    def _read_again(self, unique: int, piece: FilePiece) -> None:
        """Read bytes that are wrong in a window once more.

        The archive may have been repaired since the window was read.
        """
        self._read_alone(unique, piece)

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
                    self._fail(request.unique, inode, problem)
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
            window.error = result
            self._ahead.forget(window)
            for unique, piece, _ in waiting:
                self._attempt(partial(self._answer_without, result), unique, piece)
            return
        window.memory = result
        for unique, piece, windows in waiting:
            self._attempt(partial(self._take_from, windows), unique, piece)

    def _answer_without(self, error: Exception, unique: int, piece: FilePiece) -> None:
        """Answer a request whose window could not be read."""
        self._read_alone(unique, piece)

    def _answer_piece(self, result: memoryview | Exception, unique: int, piece: FilePiece) -> None:
        if isinstance(result, FFRecordError):
            self._fail(unique, piece.inode, result)
        elif isinstance(result, Exception):
            raise result
        elif self._is_right(unique, piece, result):
            self._send(*reply.data(unique, result[piece.skip : piece.skip + piece.asked]))

    def _fail(self, unique: int, inode: int, error: Exception) -> None:
        """Answer a request with an error, because its bytes are damaged or cannot be read."""
        self._damages.tell(inode, str(error))
        self._send(reply.failure(unique, errno.EIO))

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
            self._fail(unique, piece.inode, error)
            return False
        return True

    def _check(self, piece: FilePiece, memory: memoryview) -> None:
        self._counts[report.VERIFIED_BLOCKS] += self._content.check(piece, memory)
        self._counts[report.BYTES_READ] += piece.asked

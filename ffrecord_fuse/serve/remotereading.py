"""Answer READ requests with verified bytes from the network, or from the cache of a URL.

    READ ─▶ windows that were read ahead ───────────▶ check ─▶ reply
         ├─ the cache, in the page cache ───────────▶ check ─▶ reply
         ├─ the cache, on the local disk ───────────▶ check ─▶ reply
         └─ requests, several reads in one ─────────▶ check ─▶ reply

Bytes that are wrong are fetched once more. If they are wrong again, the file is damaged: EIO. A
failed request is EIO, and the log says when the failures began and ended. If the object was
replaced or deleted, the error is ESTALE.
"""

from __future__ import annotations

from ffrecord.archive.archive import Archive
from ffrecord.archive.blocks import FilePiece
from ffrecord.records.reader import table_of
from ffrecord.remote.source import RemoteSources
from ffrecord_fuse.serve.blocks import DamageError
from ffrecord_fuse.serve.cachedreads import CachedReads
from ffrecord_fuse.serve.farahead import FarAhead
from ffrecord_fuse.serve.network import Outage, Traffic, errno_of
from ffrecord_fuse.serve.readahead import ReadAhead
from ffrecord_fuse.serve.reading import Reading
from ffrecord_fuse.serve.remotereads import RemoteReads
from ffrecord_fuse.wire import reply


class RemoteReading(Reading):
    """The READ requests of one worker, for an archive with a URL."""

    def _opened(self, archive: Archive) -> ReadAhead:
        reader = archive.reader
        sources = table_of(reader).require_open()
        assert isinstance(sources, RemoteSources)
        self._outage = Outage(archive.path, self._counts, self._log)
        self._traffic = Traffic(archive, self._counts, self._tell_disk)
        self._anew: set[int] = set()  # requests whose bytes are fetched for the second time
        ends = [int(reader.get_offsets(file)[-1]) for file in range(len(reader.fnames))]
        ends[-1] = int(reader.get_offsets(len(ends) - 1)[-2])  # the index is in memory already
        starts = archive.blocks.last_start
        self._cached_reads: CachedReads | None = None
        if not sources.copies.are_used:
            self.cold = self._reads = RemoteReads(sources)
            return FarAhead(self._reads, starts, ends)
        cached = CachedReads(sources, is_checked=self._content.is_checking)
        self.cold = self._reads = self._cached_reads = cached
        self._pieces, self._cache = cached.disk.pieces, cached.local.cache
        fds = cached.local.fds.tolist()
        self._fds = [fds[place] for place in cached.places]
        return FarAhead(cached, starts, ends, cached.cut)

    _reads: RemoteReads | CachedReads

    def go_on(self) -> bool:
        any_landed = super().go_on()
        if any_landed:
            self._traffic.note()
        return any_landed

    def waited(self, seconds: float) -> None:
        if self._cached_reads is not None and self._cached_reads.disk.busy:
            self._pieces.waited(seconds)

    def finish(self) -> None:
        if self._cached_reads is not None:
            self._cached_reads.finish()

    def _from_cache(self, unique: int, piece: FilePiece) -> bool:
        cached = self._cached_reads
        is_there = cached is not None and cached.has(piece.file, piece.begin, piece.length)
        return is_there and super()._from_cache(unique, piece)

    def _read_again(self, unique: int, piece: FilePiece) -> None:
        self._anew.add(unique)
        self._reads.add((unique, piece), piece.file, piece.begin, piece.length, again=True)

    def _answer_without(self, error: Exception, unique: int, piece: FilePiece) -> None:
        # A part of the range would fail as well, after another deadline.
        self._fail(unique, piece.inode, error)

    def _answer_piece(self, result: memoryview | Exception, unique: int, piece: FilePiece) -> None:
        if isinstance(result, Exception):
            self._anew.discard(unique)
            self._fail(unique, piece.inode, result)
            return
        self._outage.ends()
        if self._is_right(unique, piece, result):
            self._send(*reply.data(unique, result[piece.skip : piece.skip + piece.asked]))

    def _is_right(self, unique: int, piece: FilePiece, memory: memoryview) -> bool:
        """Return True if the bytes are verified; otherwise fetch them again, or answer EIO."""
        is_last = unique in self._anew
        self._anew.discard(unique)
        try:
            self._check(piece, memory)
        except DamageError as error:
            if is_last:
                self._fail(unique, piece.inode, error)
            else:
                self._read_again(unique, piece)
            return False
        return True

    def _fail(self, unique: int, inode: int, error: Exception) -> None:
        code = errno_of(error)
        if code is None:
            super()._fail(unique, inode, error)
        else:
            self._outage.tell(error)
            self._send(reply.failure(unique, code))

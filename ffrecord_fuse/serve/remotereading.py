"""Answer READ requests with verified bytes from the network.

    READ ─▶ windows that were read ahead ───────────▶ check ─▶ reply
         └─ requests, several reads in one ─────────▶ check ─▶ reply

Bytes that arrive wrong are fetched once more. If they are wrong again, the file is damaged: EIO. A
failed request is EIO, and the log says when the failures began and ended. If the object was
replaced or deleted, the error is ESTALE.
"""

from __future__ import annotations

from ffrecord.archive.archive import Archive
from ffrecord.archive.blocks import FilePiece
from ffrecord.records.reader import table_of
from ffrecord.remote.source import RemoteSources
from ffrecord_fuse.serve.blocks import DamageError
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
        self.cold = self._network = RemoteReads(sources)
        self._outage = Outage(archive.path, self._counts, self._log)
        self._anew: set[int] = set()  # requests whose bytes are fetched for the second time
        self._traffic = Traffic(archive, self._counts, self._tell_disk)
        ends = [int(reader.get_offsets(file)[-1]) for file in range(len(reader.fnames))]
        ends[-1] = int(reader.get_offsets(len(ends) - 1)[-2])  # the index is in memory already
        return FarAhead(self._network, archive.blocks.last_start, ends)

    def go_on(self) -> bool:
        any_landed = super().go_on()
        if any_landed:
            self._traffic.note()
        return any_landed

    def waited(self, seconds: float) -> None:
        """Do nothing: there is no disk to measure."""

    def _from_cache(self, unique: int, piece: FilePiece) -> bool:
        return False

    def _read_again(self, unique: int, piece: FilePiece) -> None:
        self._anew.add(unique)
        self._network.add((unique, piece), piece.file, piece.begin, piece.length, again=True)

    def _answer_without(self, error: Exception, unique: int, piece: FilePiece) -> None:
        # A part of the range would fail as well, after another deadline.
        self._fail(unique, piece.inode, error)

    def _answer_piece(self, result: memoryview | Exception, unique: int, piece: FilePiece) -> None:
        is_last = unique in self._anew
        self._anew.discard(unique)
        if isinstance(result, Exception):
            self._fail(unique, piece.inode, result)
            return
        self._outage.ends()
        try:
            self._check(piece, result)
        except DamageError as error:
            if is_last:
                self._fail(unique, piece.inode, error)
            else:
                self._read_again(unique, piece)
            return
        self._send(*reply.data(unique, result[piece.skip : piece.skip + piece.asked]))

    def _fail(self, unique: int, inode: int, error: Exception) -> None:
        code = errno_of(error)
        if code is None:
            super()._fail(unique, inode, error)
        else:
            self._outage.tell(error)
            self._send(reply.failure(unique, code))

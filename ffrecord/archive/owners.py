"""The files that own a record: their paths, for messages about a damaged record."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit, shown_path
from ffrecord.archive.detect import open_if_packed
from ffrecord.archive.names import to_text
from ffrecord.errors import FFRecordError, SampleChecksumError
from ffrecord.records.reader import FileReader

UNUSED = " (padding, or left over: no file uses this record)"
SHOWN_PATHS = 3  # paths printed for one damaged record, which thousands of files can share


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of the files whose content is one record: the first few, and the number of others.

    `is_unused` is True for padding, and for any other record that is the content of no file.
    """

    shown: tuple[str, ...] = ()
    more: int = 0
    is_unused: bool = False

    def __str__(self) -> str:
        """Return ` (its/path)`, to append to a message."""
        if not self.shown:
            return UNUSED if self.is_unused else ""
        return f" ({', '.join(self.shown)}{f' and {self.more:,} more' if self.more else ''})"


NO_PATHS = Paths()


class RecordNames:
    """Index of a packed folder: the paths of a record's files, and the checks of the index.

    Plain records have no paths. `advice` is for them, see `open_if_packed`.
    """

    def __init__(self, reader: FileReader, advice: str) -> None:
        self.problem: FFRecordError | None = None
        self.count: int | None = None
        self._archive: Archive | None = None
        try:
            self._archive = archive = open_if_packed(reader, advice)
            if archive is not None:
                self.count = len(archive.index.tables.entries)
                audit(archive)
        except FFRecordError as error:
            self.problem = error

    def of(self, record: int) -> Paths:
        """Return the paths of the files whose content is this record."""
        if self._archive is None:
            return NO_PATHS
        index, inodes = self._archive.index, self._inodes(record)
        shown = [
            to_text(shown_path(index, index.parent(inode), index.last_name(inode)))
            for inode in inodes[:SHOWN_PATHS].tolist()
        ]
        is_index = record == self._archive.reader.n - 1
        return Paths(tuple(shown), len(inodes) - len(shown), not shown and not is_index)

    def narrowed(self, record: int, error: FFRecordError) -> FFRecordError:
        """Return the error of the first damaged block, if the record is a large file.

        Readers of the file get that error too. For other records, return `error` itself.
        """
        archive = self._archive
        if archive is None or self.problem is not None:
            return error
        inodes = self._inodes(record)[:1].tolist()
        has_blocks = any(archive.index.block_checksums(inode) is not None for inode in inodes)
        if not has_blocks or not isinstance(error, SampleChecksumError):
            return error
        try:
            deque(archive.stream(inodes[0]), maxlen=0)
        except SampleChecksumError as narrower:
            return narrower
        except FFRecordError:  # the file has become unreadable in the meantime
            return error
        return error

    def _inodes(self, record: int) -> Ints:
        """Return the inodes whose content is this record."""
        inodes, records = self._by_record
        first, last = records.searchsorted([record, record + 1]).tolist()
        return inodes[first:last]

    @cached_property
    def _by_record(self) -> tuple[Ints, Ints]:
        """All inodes sorted by their records, and these records."""
        assert self._archive is not None
        index = self._archive.index
        records = index.records(np.arange(len(index)))
        inodes = np.argsort(records, kind="stable")
        return inodes, records[inodes]

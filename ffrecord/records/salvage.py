"""Copy every whole record of a damaged, truncated or unfinished file to a new file.

A record is copied only if its checksum is right. `ffrecord.records.broken_header` tells where the
records are. If an offset in a damaged header is wrong, the neighbouring offsets and the checksums
are used to find the record. The damaged file is only read. The new file appears when it is whole.

An aligned archive stays aligned if its names are kept. Damaged padding is not lost: it is zeros.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints, Mask
from ffrecord.disk.source import CHUNK, Recheck, Source, whole_file
from ffrecord.errors import FFRecordError, SampleChecksumError, UrlError
from ffrecord.format import records as record_layout
from ffrecord.format.checksum import crc32
from ffrecord.format.index import is_index
from ffrecord.format.journal import journal_path
from ffrecord.format.padding import ALIGNMENT, UNALIGNED, ZEROS, crc_of, rounded_up
from ffrecord.records import broken_header
from ffrecord.records.broken_header import NOWHERE, Claims
from ffrecord.records.opening import refuse_other_kinds
from ffrecord.records.writer import ArchiveWriter, FileWriter
from ffrecord.remote.urls import is_url, not_local, shown
from ffrecord.text import path_text, there_already

Progress: TypeAlias = Callable[[str, int, int], None]

SEARCHED = 32 << 20
"""Most bytes between two known offsets that are searched for the offsets in between. Searching so
many takes some seconds in Python."""

TOLD_EVERY = 64
"""Records between two calls of the progress function."""

UNKNOWN = "its position is unknown, because the header or journal is damaged"


@dataclass(frozen=True, slots=True)
class Lost:
    """A record that was not copied, by its number in the damaged file."""

    record: int
    reason: str


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """Result of a salvage. `kept` of `records` records were copied: `bytes` bytes in all."""

    records: int
    kept: int
    bytes: int
    lost: list[Lost] = field(default_factory=list)
    header_whole: bool = True
    in_place: bool = False
    """True if the new file also has the lost records, still damaged, so that all records keep their
    numbers. That is done for a packed folder, because its names refer to record numbers."""
    names_kept: bool | None = None
    """For a packed folder: True if the new file is a packed folder too. False if its files are now
    records without names, because the index is lost or the position of a lost record is unknown.
    None for other files."""
    padding: int = 0
    """Number of padding records that were left out: without names, they have no use."""


def salvage_file(
    broken: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = True,
    progress: Progress | None = None,
) -> SalvageReport:
    """Write every record of `broken` whose checksum is right to `out`, a new record file.

    Args:
        broken: a record file, or the `.NAME.partial` of a resumable writer, beside its journal.
        out: the file to write.
        overwrite: replace `out` if it exists; with False raise FileExistsError, also if it appears
            meanwhile.
        progress: called now and then with the current step (`"checking"`, then `"writing"`), the
            number of records done, and the number of all records.
    """
    path = path_text(broken)
    if is_url(path):
        raise not_local(path)
    if is_url(out):
        raise UrlError(f"{shown(out)}: salvage writes a local file; name one, then upload it")
    if path.endswith(journal_path(".partial")):
        path = path[: -len(journal_path(""))]
    refuse_other_kinds(path)
    if os.path.exists(out) and os.path.samefile(path, out):
        raise ValueError(f"{path}: cannot salvage a file into itself; choose another output file")
    if os.path.exists(out) and not overwrite:  # `out` may be the last good copy
        raise there_already(os.fspath(out))
    source = Source(path, direct=False)
    claimed = _claims(source)
    tell = progress or (lambda doing, done, total: None)
    found = _Findings(source, claimed)
    found.check(tell)
    return _write(source, found, out, tell, overwrite=overwrite)


def _claims(source: Source) -> Claims:
    beside = journal_path(source.path)
    if source.path.endswith(".partial") and os.path.exists(beside):
        refuse_other_kinds(beside, "a journal")
        return broken_header.of_partial(source.path, whole_file(beside))
    return broken_header.of_file(source)


class _Findings:
    """Results of checking the claims. `lost` maps the number of each lost record to the reason."""

    def __init__(self, source: Source, claimed: Claims) -> None:
        self._source = source
        self._recheck = Recheck(source)
        self.size = os.fstat(source.fd).st_size
        self.claims = claimed
        self.begin, self.end = claimed.begin.copy(), claimed.end.copy()
        self.checksums = claimed.checksums.copy()
        self.lost: dict[int, str] = {}
        self.restored: set[int] = set()  # damaged padding, whose bytes are known
        self._computed: dict[int, int] = {}

    def check(self, tell: Progress) -> None:
        self._find(tell)
        if self.lost:
            self.restored = {*self.padding().nonzero()[0].tolist()} & {*self.lost}
            for record in self.restored:
                del self.lost[record]

    def _find(self, tell: Progress) -> None:
        if self.claims.whole:
            self._check_all(_told(len(self.checksums), "checking", tell))
            return
        self._search(self._runs_of(self.begin[1:] == NOWHERE))
        self._check_all(_told(len(self.checksums), "checking", tell))
        self._search(self._suspicious())
        if 0 in self.lost and self.claims.lowest:
            self._begin_behind_the_header()
        self._believe_the_records()

    def _begin_behind_the_header(self) -> None:
        """Try the end of the header as the start of the first record, as in most files.

        In an aligned archive, the first record begins at the next multiple of 512.
        """
        claimed = int(self.begin[0])
        lowest = self.claims.lowest
        for start in (lowest, rounded_up(lowest)):
            self.begin[0] = start
            self._check(0)
            self._search(self._suspicious())
            if 0 not in self.lost:
                return
        self.begin[0] = claimed
        self._check(0)

    def _check_all(self, records: Iterable[int]) -> None:
        for record in records:
            self._check(record)

    def _check(self, record: int) -> None:
        begin, end = int(self.begin[record]), int(self.end[record])
        stored = int(self.checksums[record])
        self.lost.pop(record, None)
        self._computed.pop(record, None)
        if NOWHERE in (begin, end) or end < begin:
            self.lost[record] = UNKNOWN
        elif begin > self.size and stored:
            self.lost[record] = f"it begins at byte {begin}, but the file ends at byte {self.size}"
        elif end > self.size and end > begin:
            self.lost[record] = f"it ends at byte {end}, but the file ends at byte {self.size}"
        else:
            try:
                computed = self._recheck.checksum(begin, end)
            except FFRecordError as error:
                self.lost[record] = str(error)
                return
            if computed != stored:
                self._computed[record] = computed
                self.lost[record] = (
                    f"its checksum is {computed:#010x}, but should be {stored:#010x}"
                )

    def _runs_of(self, unknown: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """Yield the first and last record of each run of records whose common borders are unknown.

        `unknown[i]` is True if the border between records i and i + 1 is unknown.
        """
        edges = np.flatnonzero(np.diff(np.concatenate([[0], unknown.astype(np.int8), [0]])))
        return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)

    def _suspicious(self) -> Iterator[tuple[int, int]]:
        """Yield runs of neighbouring lost records: the offsets between them may be wrong."""
        lost = np.zeros(len(self.checksums), bool)
        lost[list(self.lost)] = True
        return self._runs_of(lost[:-1] & lost[1:])

    def _search(self, runs: Iterable[tuple[int, int]]) -> None:
        """Find the offsets in each run of records (first, last) by the checksums of the records."""
        for first, last in runs:
            begin, end = int(self.begin[first]), int(self.end[last])
            if begin == NOWHERE or not begin <= end <= begin + SEARCHED:
                continue
            try:
                between = self._source.read_bytes(begin, end - begin)
            except FFRecordError:
                continue
            places = broken_header.split(between, self.checksums[first : last + 1].tolist())
            if places is not None:
                self.begin[first : last + 1] = begin + np.array(places)
                self.end[first:last] = self.begin[first + 1 : last + 1]
                self._check_all(range(first, last + 1))

    def _believe_the_records(self) -> None:
        """Keep all records if the damage was in the checksums that the header stores for them.

        That is so if the header's own checksum is right with the computed checksums of the records.
        """
        if not self.claims.crc or set(self.lost) != set(self._computed):
            return
        checksums = self.checksums.copy()
        for record, computed in self._computed.items():
            checksums[record] = computed
        if crc32(record_layout.body(checksums, self.begin)) == self.claims.crc:
            self.checksums = checksums
            self.lost.clear()

    def padding(self) -> Mask:
        """Return which records are padding: by their place, and by a stored checksum of zeros."""
        length = self.end - self.begin
        fits: Mask = (self.begin != NOWHERE) & (self.end % ALIGNMENT == 0)
        fits &= (length > 0) & (length < ALIGNMENT)
        for record in fits.nonzero()[0].tolist():
            fits[record] = self.checksums[record] == crc_of(int(length[record]))
        return fits

    @property
    def begins_aligned(self) -> bool:
        """True if the first record begins where it begins in an aligned archive."""
        count = len(self.checksums)
        return count > 0 and self.begin[0] == rounded_up(record_layout.header_size(count))

    def useless_padding(self) -> Ints:
        """Return the numbers of the padding records, if the file is a part of an aligned archive.

        The first record of such a file is not padding. The last one need not be aligned: it may be
        what is left of the index.
        """
        padding = self.padding()
        aligned = padding | (self.begin == NOWHERE) | (self.begin % ALIGNMENT == 0)
        is_archive = aligned[:-1].all() and not padding[:1].any()
        return padding.nonzero()[0] if is_archive else np.empty(0, np.int64)

    def has_index(self) -> bool:
        """Return True if the last record is the index of a packed folder, whole or damaged."""
        last = len(self.checksums) - 1
        begin, end = (int(self.begin[last]), int(self.end[last])) if last >= 0 else (NOWHERE, 0)
        if not NOWHERE < begin <= end <= self.size:
            return False
        read = self._source.read_bytes
        try:
            return is_index(end - begin, lambda at, count: read(begin + at, count))
        except FFRecordError:
            return False


def _told(count: int, doing: str, tell: Progress) -> Iterator[int]:
    """Yield the numbers of all records, and report progress."""
    for record in range(count):
        if record % TOLD_EVERY == 0:
            tell(doing, record, count)
        yield record


def _write(
    source: Source, found: _Findings, out: str | os.PathLike[str], tell: Progress, *,
    overwrite: bool,
) -> SalvageReport:  # fmt: skip
    lost, count = found.lost, len(found.checksums)
    in_place = False
    has_index = found.has_index()
    if lost and has_index and count - 1 not in lost:
        borders = zip(found.begin[list(lost)], found.end[list(lost)], strict=True)
        in_place = all(NOWHERE < begin <= end <= found.size for begin, end in borders)
        if not in_place:
            lost[count - 1] = (
                "it is the index of a packed folder, and the numbers of its files have changed"
            )
    size = 0
    are_all_there = in_place or not lost
    useless = set() if are_all_there else {*found.useless_padding().tolist()} - {*lost}
    kept = count - len(lost) - len(useless)
    align = ALIGNMENT if are_all_there and found.begins_aligned else UNALIGNED
    n = count if in_place else kept
    with ArchiveWriter(out, n, align=align, replaces=overwrite) as writer:
        for record in _told(count, "writing", tell):
            begin, end = int(found.begin[record]), int(found.end[record])
            if record in useless:
                continue
            if record in found.restored:
                writer.write_one(ZEROS[: end - begin])
                size += end - begin
            elif record not in lost:
                _copy(source, writer, record, begin, end, int(found.checksums[record]))
                size += end - begin
            elif in_place:
                _copy_damaged(source, writer, begin, end, int(found.checksums[record]))
    reasons = [Lost(record, lost[record]) for record in sorted(lost)]
    whole = found.claims.whole
    names_kept = count - 1 not in lost if has_index else None
    return SalvageReport(count, kept, size, reasons, whole, in_place, names_kept, len(useless))


def _copy(source: Source, writer: FileWriter, record: int, begin: int, end: int, crc: int) -> None:
    computed = 0
    for piece in _pieces(source, begin, end):
        computed = crc32(piece, computed)
        writer.append(piece.data)
    if computed != crc:  # the record has changed since it was checked
        raise SampleChecksumError(source.path, record, crc, computed)
    writer.seal([end - begin], [crc])


def _copy_damaged(source: Source, writer: FileWriter, begin: int, end: int, crc: int) -> None:
    """Copy a damaged record with a wrong checksum, so that no reader takes it for whole."""
    computed = 0
    for at in range(begin, end, CHUNK):
        piece = np.zeros(min(CHUNK, end - at), np.uint8)
        try:
            source.read_into(piece, at)
        except FFRecordError:  # the disk cannot read this piece
            piece[:] = 0
        computed = crc32(piece, computed)
        writer.append(piece.data)
    writer.seal([end - begin], [crc if computed != crc else ~crc & 0xFFFFFFFF])


def _pieces(source: Source, begin: int, end: int) -> Iterator[npt.NDArray[np.uint8]]:
    for at in range(begin, end, CHUNK):
        piece = np.empty(min(CHUNK, end - at), np.uint8)
        source.read_into(piece, at)
        yield piece

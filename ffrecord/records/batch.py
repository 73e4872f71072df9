"""Read the records of one call and check their checksums.

`FileReader.read_async` returns a `PendingRead`: its reads are in flight, and `result()` collects
them. `FileReader.read` calls `result()` at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints
from ffrecord.disk import extents
from ffrecord.disk.fetch import Fetch
from ffrecord.disk.slabs import SlabPool
from ffrecord.disk.source import SourceSet
from ffrecord.errors import ReadFailedError, SampleChecksumError, TruncatedError
from ffrecord.format import checksum

if TYPE_CHECKING:  # loaded with the first URL
    from ffrecord.remote.fetch import RemoteFetch
    from ffrecord.remote.source import RemoteSources

Sources: TypeAlias = "SourceSet | RemoteSources"

EMPTY_CRC = 0  # the CRC-32 of no bytes

_slabs = SlabPool()


@dataclass(frozen=True, slots=True)
class Batch:
    """Requested records, one row each: file, number in that file, byte range, checksum."""

    sources: Sources
    file: Ints | None  # None: all records are in one file
    record: Ints
    begin: Ints
    end: Ints
    stored: npt.NDArray[np.uint32] | None  # None: do not check
    mode: str
    part_of: Ints | None = None  # if set, each row is a part of a record that begins at this byte

    def views(self) -> list[Bytes]:
        """Return each record as a view of its mapped file."""
        maps = self.sources.maps
        if self.file is None:
            whole = maps[0]
            spans = zip(self.begin.tolist(), self.end.tolist(), strict=True)
            results = [whole[begin:end] for begin, end in spans]
        else:
            rows = zip(self.file.tolist(), self.begin.tolist(), self.end.tolist(), strict=True)
            results = [maps[file][begin:end] for file, begin, end in rows]
        if self.stored is not None:
            computed = checksum.crc32_many_shared(results)
            self.compare(range(len(results)), self.stored.tolist(), computed)
        return results

    def begin_read(self, *, everything: bool) -> PendingRead:
        """Start reading: `everything`, or only as much as a plain `read` keeps in flight.

        With `everything` the result is needed later. So records whose bytes are on their way for
        another batch are left to its requests, and read when the result is asked for.
        """
        if self.mode == "mmap":
            return PendingRead(self)
        file, begin, end, rows = self.file, self.begin, self.end, None
        full = end > begin
        if not full.all():
            rows = full.nonzero()[0]
            file, begin, end = None if file is None else file[rows], begin[rows], end[rows]
        if not begin.size:
            return PendingRead(self, results=self.empty())
        sources = self.sources
        if isinstance(sources, SourceSet):
            fetch = Fetch(sources, file, begin, end, self.mode, _slabs)
            fetch.start(everything=everything)
            return PendingRead(self, arrivals=[_Arrival(fetch, rows)])
        checked = self.stored is not None
        arrivals, later = [], None
        parts = sources.fetch(file, begin, end, _slabs, checked=checked, shares=everything)
        for part, some in parts:
            of = some if rows is None else rows if some is None else rows[some]
            if part is None:
                later = of
            else:
                part.start(everything=everything)
                arrivals.append(_Arrival(part, of))
        return PendingRead(self, arrivals=arrivals, later=later)

    def some(self, rows: Ints) -> Batch:
        """Return a batch of some rows of this one."""
        return replace(
            self,
            file=None if self.file is None else self.file[rows],
            record=self.record[rows],
            begin=self.begin[rows],
            end=self.end[rows],
            stored=None if self.stored is None else self.stored[rows],
            part_of=None if self.part_of is None else self.part_of[rows],
        )

    def empty(self) -> list[Bytes]:
        """Return an empty array for every row, after checking the checksums of empty records."""
        rows = (self.end == self.begin).nonzero()[0]
        if self.stored is not None:
            self.compare(rows.tolist(), self.stored[rows].tolist(), [EMPTY_CRC] * len(rows))
        return [np.empty(0, np.uint8) for _ in self.record]

    def crcs(self, rows: Sequence[int], records: Sequence[Bytes], stored: list[int]) -> list[int]:
        """Return the CRC-32 of records that have arrived.

        A record with a wrong one is fetched once more over the network, which may have changed it.
        """
        computed = checksum.crc32_many(records)
        sources = self.sources
        if computed != stored and not isinstance(sources, SourceSet):
            for k, row in enumerate(rows):
                if computed[k] != stored[k]:
                    file = 0 if self.file is None else int(self.file[row])
                    sources[file].read_again(records[k], int(self.begin[row]))
                    computed[k] = checksum.crc32(records[k])
        return computed

    def compare(self, rows: Sequence[int], stored: list[int], computed: list[int]) -> None:
        """Raise SampleChecksumError for the first row whose checksum is not the stored one."""
        if computed == stored:
            return
        bad = next(k for k, crc in enumerate(computed) if crc != stored[k])
        row = rows[bad]
        path = self.sources[0 if self.file is None else int(self.file[row])].path
        part = None
        if self.part_of is not None:
            start = int(self.part_of[row])
            part = (int(self.begin[row]) - start, int(self.end[row]) - start)
        number = int(self.record[row])
        raise SampleChecksumError(path, number, stored[bad], computed[bad], part=part)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Reads in flight; `full` are the batch's rows that are not empty (None: all rows)."""

    fetch: Fetch | RemoteFetch
    full: Ints | None

    @property
    def rows(self) -> list[int]:
        """The batch's rows in the plan's order."""
        order = self.fetch.plan.order
        if self.full is not None:
            order = self.full if order is None else self.full[order]
        return list(range(len(self.fetch.plan.start))) if order is None else order.tolist()

    def whole(self, batch: Batch) -> list[Bytes]:
        """Return the records of a complete batch. Faster than `_collect` does it in waves."""
        plan, memory = self.fetch.plan, self.fetch.memory
        start, stop = plan.start, plan.stop
        if plan.order is not None:
            start, stop = np.empty_like(start), np.empty_like(stop)
            start[plan.order], stop[plan.order] = plan.start, plan.stop
        records = [memory[a:b] for a, b in zip(start.tolist(), stop.tolist(), strict=True)]
        if batch.stored is not None:
            rows, stored = range(len(records)), batch.stored.tolist()
            batch.compare(rows, stored, batch.crcs(rows, records, stored))
        return records


class PendingRead:
    """A batch that is being read. Use it in one thread at a time."""

    def __init__(
        self, batch: Batch, *, arrivals: Sequence[_Arrival] = (),
        results: list[Bytes] | None = None, later: Ints | None = None,
    ) -> None:  # fmt: skip
        self._batch = batch
        self._arrivals = arrivals
        self._later = later  # rows that are read when all others are there
        self._results = results

    def result(self) -> list[Bytes]:
        """Wait for the reads and return the records in the requested order."""
        if self._results is None and self._batch.mode == "mmap":
            self._results = self._batch.views()
        elif self._results is None:
            arrivals, self._arrivals = self._arrivals, ()
            if not arrivals or not all(arrival.fetch.mine for arrival in arrivals):
                # A retry after an error, or all rows are read now, or a forked child, where no read
                # ever completes.
                again = self._batch.begin_read(everything=False)
                self._results = again.result()
            else:
                self._results = self._collect(arrivals)
        return self._results

    def _collect(self, arrivals: Sequence[_Arrival]) -> list[Bytes]:
        batch, (first, *_) = self._batch, arrivals
        try:
            if len(arrivals) == 1 and first.fetch.is_complete and first.full is None:
                return first.whole(batch)
            results = [first.fetch.memory] * len(batch.record)
            if first.full is not None:
                results = batch.empty()
            for arrival in reversed(arrivals):  # the first one may be the network
                self._collect_part(arrival, results)
            if self._later is not None:
                rest = batch.some(self._later).begin_read(everything=False).result()
                for row, record in zip(self._later.tolist(), rest, strict=True):
                    results[row] = record
        except (ReadFailedError, TruncatedError) as error:
            sources = batch.sources
            if isinstance(sources, SourceSet) or not sources.give_up_copies(error):
                raise
            return batch.begin_read(everything=False).result()
        finally:
            for arrival in arrivals:
                arrival.fetch.close()
        return results

    def _collect_part(self, arrival: _Arrival, results: list[Bytes]) -> None:
        batch, plan, memory = self._batch, arrival.fetch.plan, arrival.fetch.memory
        # Lists, not arrays: a wave has few records, and plain Python is faster for those.
        start, stop, rows = plan.start.tolist(), plan.stop.tolist(), arrival.rows
        stored = None if batch.stored is None else batch.stored.tolist()
        completion: _Completion | None = None
        for reads in arrival.fetch.waves():
            which: Sequence[int] = reads
            if plan.first is not None:
                completion = completion or _Completion(plan)
                which = completion.after(reads)
            records = [memory[start[k] : stop[k]] for k in which]
            places = [rows[k] for k in which]
            if stored is not None:
                due = [stored[row] for row in places]
                batch.compare(places, due, batch.crcs(places, records, due))
            for row, record in zip(places, records, strict=True):
                results[row] = record


class _Completion:
    """Count of the reads that each record still waits for.

    Reads and records are both in file order, so all records that need one read are neighbours.
    """

    def __init__(self, plan: extents.Plan) -> None:
        assert plan.first is not None
        assert plan.last is not None
        reads = np.arange(len(plan.offset))
        self._from = plan.last.searchsorted(reads, side="left").tolist()
        self._to = plan.first.searchsorted(reads, side="right").tolist()
        self._missing = (plan.last - plan.first + 1).tolist()

    def after(self, reads: Sequence[int]) -> list[int]:
        """Return the records that are complete now that these reads have arrived."""
        complete = []
        missing = self._missing
        for read in reads:
            for record in range(self._from[read], self._to[read]):
                missing[record] -= 1
                if not missing[record]:
                    complete.append(record)
        return complete

"""The records of one call: where they are, the ways to get them, and their checksums.

`PendingRead` is what `FileReader.read_async` returns: the reads are on their way, and `result()`
collects them. `FileReader.read` is the same without the time in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord import checksum, extents
from ffrecord.engine import Fetch, SourceSet
from ffrecord.errors import SampleChecksumError
from ffrecord.slabs import SlabPool

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
CrcMany: TypeAlias = Callable[[Sequence[Bytes]], list[int]]

_slabs = SlabPool()


@dataclass(frozen=True, slots=True)
class Batch:
    """One row per record asked for: its file, its number there, its bytes and its checksum."""

    sources: SourceSet
    file: Ints | None  # None: all of one file
    record: Ints
    begin: Ints
    end: Ints
    stored: npt.NDArray[np.uint32] | None  # None: do not check
    mode: str

    def mapped(self, maps: list[Bytes]) -> list[Bytes]:
        """Each record as a view of its mapped file."""
        if self.file is None:
            whole = maps[0]
            spans = zip(self.begin.tolist(), self.end.tolist(), strict=True)
            results = [whole[begin:end] for begin, end in spans]
        else:
            rows = zip(self.file.tolist(), self.begin.tolist(), self.end.tolist(), strict=True)
            results = [maps[file][begin:end] for file, begin, end in rows]
        self.verify(np.arange(len(results)), results, checksum.crc32_many_shared)
        return results

    def begin_read(self, *, everything: bool) -> PendingRead:
        """Put the reads on their way: all of them, or as many as a plain read keeps in flight."""
        full = (self.end > self.begin).nonzero()[0]
        if not full.size:
            empty = [np.empty(0, np.uint8) for _ in self.record]
            self.verify(np.arange(len(empty)), empty)
            return PendingRead(self, results=empty)
        if len(full) == len(self.record):
            plan = extents.plan(self.file, self.begin, self.end, self.sources.align)
            rows = plan.order
        else:
            file = None if self.file is None else self.file[full]
            plan = extents.plan(file, self.begin[full], self.end[full], self.sources.align)
            rows = full[plan.order]
        memory = _slabs.take(plan.size)
        fetch = Fetch(self.sources, plan, memory, self.mode)
        fetch.start(everything=everything)
        return PendingRead(self, arrival=_Arrival(fetch, plan, memory, rows))

    def verify(
        self, rows: Ints, records: list[Bytes], crc32_many: CrcMany = checksum.crc32_many
    ) -> None:
        """Raise for the first of these records whose checksum is not the stored one."""
        if self.stored is None:
            return
        stored = self.stored[rows].tolist()
        computed = crc32_many(records)
        if computed == stored:
            return
        bad = next(k for k, (a, b) in enumerate(zip(stored, computed, strict=True)) if a != b)
        row = int(rows[bad])
        path = self.sources[0 if self.file is None else int(self.file[row])].path
        raise SampleChecksumError(path, int(self.record[row]), stored[bad], computed[bad])


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Reads on their way into `memory`; `rows` are the batch's rows in the plan's order."""

    fetch: Fetch
    plan: extents.Plan
    memory: Bytes
    rows: Ints


class PendingRead:
    """A batch that is being read. Belongs to one thread at a time."""

    def __init__(
        self, batch: Batch, *, arrival: _Arrival | None = None, results: list[Bytes] | None = None
    ) -> None:
        self._batch = batch
        self._arrival = arrival
        self._results = results

    def result(self) -> list[Bytes]:
        """The records, in the order asked for. Waits for those that are not there yet."""
        if self._results is None:
            arrival, self._arrival = self._arrival, None
            if arrival is None or not arrival.fetch.mine:
                # A second try after an error, or a forked child, where nothing ever arrives.
                return self._batch.begin_read(everything=False).result()
            self._results = self._collect(arrival)
        return self._results

    def _collect(self, arrival: _Arrival) -> list[Bytes]:
        batch, plan, memory = self._batch, arrival.plan, arrival.memory
        results = [memory[:0]] * len(batch.record)
        empty = np.flatnonzero(batch.end == batch.begin)
        batch.verify(empty, [memory[:0]] * len(empty))
        ready = _Readiness(plan)
        try:
            for reads in arrival.fetch.waves():
                which = ready.after(reads)
                spans = zip(plan.start[which].tolist(), plan.stop[which].tolist(), strict=True)
                records = [memory[start:stop] for start, stop in spans]
                rows = arrival.rows[which]
                batch.verify(rows, records)
                for row, record in zip(rows.tolist(), records, strict=True):
                    results[row] = record
        finally:
            arrival.fetch.close()
        return results


class _Readiness:
    """Which records are whole, given the reads that have arrived so far."""

    def __init__(self, plan: extents.Plan) -> None:
        self._plan = plan
        self._one_to_one = plan.one_to_one
        self._arrived = np.zeros(len(plan.offset) + 1, np.int64)
        self._waiting = np.ones(len(plan.order), bool)

    def after(self, reads: Ints) -> Ints:
        """The records that these reads completed."""
        if self._one_to_one:
            return reads
        self._arrived[reads + 1] = 1
        so_far = np.cumsum(self._arrived)
        first, last = self._plan.first, self._plan.last
        whole = so_far[last + 1] - so_far[first] == last - first + 1
        which = np.flatnonzero(whole & self._waiting)
        self._waiting[which] = False
        return which

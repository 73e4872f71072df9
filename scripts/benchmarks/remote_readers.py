"""The contestants of `remote` that read random batches of records by their numbers."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ffrecord.disk import extents
from ffrecord.disk.extents import Plan
from ffrecord.records.reader import table_of
from ffrecord.remote.source import LONGEST

from . import remote_archives
from .batches import one_ahead
from .datasets import RecordSet
from .peers import Batch, Stream
from .remote_loaders import Site, ZipRecords

IN_FLIGHT = 64
"""Requests at the same time, of our reader and of raw obstore."""

SETTLING = 3
"""Batches after which our reader has measured the network."""


class Reader(ABC):
    """A way to read batches of records over the network."""

    layout = remote_archives.OURS
    most = 1 << 20
    """Most records of a batch: fewer for a contestant that reads one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def open(self, site: Site, records: RecordSet, batches: list[list[int]]) -> Stream:
        """Open the object. `batches` are all that will be read."""


class Ours(Reader):
    """`FileReader.read`, or with `ahead` its `read_async`, one batch ahead of the one in use."""

    def __init__(self, name: str, *, ahead: bool = False, requests: int = IN_FLIGHT) -> None:
        super().__init__(name)
        self.ahead, self.requests = ahead, requests

    def open(self, site: Site, records: RecordSet, batches: list[list[int]]) -> Stream:
        from ffrecord import FileReader

        reader = FileReader(_url(self.layout, records), requests=self.requests)
        return partial(one_ahead, reader.read_async) if self.ahead else partial(map, reader.read)


class Raw(Reader):
    """obstore by itself, with the ranges that our reader asks for. It verifies nothing."""

    def __init__(self, name: str, in_flight: int = IN_FLIGHT) -> None:
        super().__init__(name)
        self.in_flight = in_flight

    def open(self, site: Site, records: RecordSet, batches: list[list[int]]) -> Stream:
        plans = _plans(records, batches)
        key, store, loop = _key(self.layout, records), _store(), asyncio.new_event_loop()

        def read(batch: list[int]) -> Batch:
            plan = plans[batch[0]]
            bodies = loop.run_until_complete(_get(store, key, plan, self.in_flight))
            return _records(bodies, plan)

        return partial(map, read)


class Zip(Reader):
    """A zip file that s3fs opens, one record after the other."""

    layout = remote_archives.ZIP
    most = 32

    def open(self, site: Site, records: RecordSet, batches: list[list[int]]) -> Stream:
        archive = ZipRecords(_url(self.layout, records), records, site.url)
        return partial(map, lambda batch: [archive.read(index) for index in batch])


def hammer(records: RecordSet, requests: int) -> float:
    """Return how many requests of the mean size a server answers in a second to obstore."""
    store, key = _store(), _key(remote_archives.OURS, records)
    last = records.mean * (records.count - 1)
    begin = np.random.default_rng(0).integers(0, last, requests)
    ranges = [(at, at + records.mean) for at in begin.tolist()]
    began = time.perf_counter()
    asyncio.run(_get_ranges(store, key, ranges, IN_FLIGHT))
    return requests / (time.perf_counter() - began)


def _plans(records: RecordSet, batches: list[list[int]]) -> dict[int, Plan]:
    """Return our plan of each batch, by its first record. No record is in two batches.

    The gap is the one that our reader has found after a few batches.
    """
    from ffrecord import FileReader

    with FileReader(_url(remote_archives.OURS, records)) as reader:
        for batch in batches[:SETTLING]:
            reader.read(batch)
        gap: int = reader.stats()["gap"]
        offsets = table_of(reader).offsets_of(0)
    return {
        batch[0]: extents.plan(None, offsets[batch], offsets[1:][batch], 1, gap, LONGEST)
        for batch in batches
    }


async def _get(store: Any, key: str, plan: Plan, in_flight: int) -> list[Any]:
    ranges = zip(plan.offset.tolist(), (plan.offset + plan.need).tolist(), strict=True)
    return await _get_ranges(store, key, list(ranges), in_flight)


async def _get_ranges(
    store: Any, key: str, ranges: Sequence[tuple[int, int]], in_flight: int
) -> list[Any]:
    import obstore

    slots = asyncio.Semaphore(in_flight)

    async def get(begin: int, end: int) -> Any:
        async with slots:
            return await obstore.get_range_async(store, key, start=begin, end=end)

    return await asyncio.gather(*(get(*each) for each in ranges))


def _records(bodies: list[Any], plan: Plan) -> Batch:
    """Return the records in the order of the batch. No record is cut, as no range is so long."""
    assert plan.order is not None
    numbers = plan.place.searchsorted(plan.start, side="right") - 1
    begins = plan.start - plan.place[numbers]
    found: list[Any] = [None] * len(numbers)
    rows = zip(
        plan.order.tolist(), numbers.tolist(), begins.tolist(), (plan.stop - plan.start).tolist(),
        strict=True,
    )  # fmt: skip
    for index, number, begin, length in rows:
        found[index] = memoryview(bodies[number])[begin : begin + length]
    return found


def _store() -> Any:
    from obstore.store import S3Store

    return S3Store(remote_archives.BUCKET)  # the environment has the rest


def _key(layout: str, records: RecordSet) -> str:
    return remote_archives.key(layout, records)


def _url(layout: str, records: RecordSet) -> str:
    return f"s3://{remote_archives.BUCKET}/{_key(layout, records)}"


OURS = Ours("ours")
OURS_AHEAD = Ours("ours, one batch ahead", ahead=True)
OURS_MANY = Ours("ours, 256 requests in flight", requests=256)
RAW = Raw("raw obstore, same ranges")
RAW_MANY = Raw("raw obstore, 256 requests in flight", in_flight=256)
ZIP = Zip("s3fs + zip")

READERS: dict[str, Reader] = {
    reader.name: reader for reader in (OURS, OURS_AHEAD, OURS_MANY, RAW, RAW_MANY, ZIP)
}

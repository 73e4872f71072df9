"""One measurement of batched reading, inside its fresh process.

Cold: the code first reads a small file of the same format; otherwise the first batch would have to
load libraries. Then the file is opened, caches are dropped, and the clock starts. No record is read
twice.

Warm: the file is read once, a few batches are not counted, then the clock starts.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import batches, harness, peers, processes
from .datasets import RecordSet, stored

UNTIMED_BATCHES = 3
REHEARSAL_BATCHES = 2


class WrongRecordsError(Exception):
    """Raised when a contestant returns other records than were written."""


def measure(
    *,
    peer: str,
    root: str,
    name: str,
    mean: int,
    count: int,
    batch: int,
    cold: bool,
    seed: int,
    budget: float,
    most_batches: int,
) -> dict[str, float]:
    """Return the records and payload bytes per second of one contestant.

    Cold, also return the bytes that were read from the disk for each byte of the records.
    """
    contestant = peers.PEERS[peer]
    whole = RecordSet(name, mean, count)
    records = stored(contestant, whole)
    order = order_of(contestant, records.count, batch, seed)
    each = order.tolist()
    if cold:
        rehearse(contestant, rehearsal(whole, batch), batch, Path(root))
        stream = contestant.stream(file_of(contestant, records, Path(root)))
        harness.drop_caches()
        timed = iter(each)
    else:
        harness.read_through(records.folder(Path(root), contestant.layout))
        stream = contestant.stream(file_of(contestant, records, Path(root)))
        batches.exhaust(stream(each[:UNTIMED_BATCHES]))
        # A sequential contestant makes one pass: a second one would begin in the middle of a batch.
        timed = iter(each) if contestant.sequential else itertools.cycle(each)
    before = processes.read_bytes()
    done, seconds, last = batches.clock(stream(itertools.islice(timed, most_batches)), budget)
    read = processes.read_bytes() - before
    check(last, each[(done - 1) % len(each)], records)
    values = rates(np.resize(order, (done, batch)), seconds, records)
    return {**values, **read_per_byte(values, read)} if cold else values


def rehearsal(records: RecordSet, batch: int) -> RecordSet:
    """Return the small set on which a contestant's code is warmed before a cold measurement."""
    return records.first(REHEARSAL_BATCHES * batch)


def order_of(contestant: peers.Peer, count: int, batch: int, seed: int) -> npt.NDArray[np.int64]:
    """Return whole batches, one per row, with every record at most once."""
    if contestant.sequential:
        return batches.whole_batches(np.arange(count), batch)
    return batches.shuffled(count, batch, seed)


def rehearse(contestant: peers.Peer, records: RecordSet, batch: int, root: Path) -> None:
    """Read a small set once, so that libraries are loaded before the clock starts."""
    order = order_of(contestant, records.count, batch, seed=0)
    batches.exhaust(contestant.stream(file_of(contestant, records, root))(order.tolist()))


def file_of(contestant: peers.Peer, records: RecordSet, root: Path) -> Path:
    """Return the path that a contestant opens."""
    return records.folder(root, contestant.layout) / contestant.file


def check(batch: peers.Batch, indices: list[int], records: RecordSet) -> None:
    """Compare every size of a batch, and the bytes of its first record, with the written data."""
    sizes = records.lengths()[indices].tolist()
    if [len(record) for record in batch] != sizes or bytes(batch[0]) != records.record(indices[0]):
        raise WrongRecordsError(f"records {indices[:3]}… differ from the written ones")


def rates(read: npt.NDArray[np.int64], seconds: float, records: RecordSet) -> dict[str, float]:
    """Return the figures of reading these records."""
    return {
        "records": read.size,
        "seconds": seconds,
        "records_per_s": read.size / seconds,
        "bytes_per_s": float(records.lengths()[read].sum()) / seconds,
    }


def read_per_byte(values: dict[str, float], read: int) -> dict[str, float]:
    """Return the bytes read from the disk for each byte of the records, as one more figure."""
    return {"read_per_byte": read / (values["bytes_per_s"] * values["seconds"])}

"""One measurement from a slow disk, inside its fresh process.

1. The code reads a small file that is in the page cache. It loads libraries, and does not learn how
   fast the disk is.
2. The file leaves the page cache.
3. This process joins the cgroups of the slow disk.
4. The clock starts. The file is opened, and each record is read once, in random order.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import batches, fio, harness, mount_client, peers, processes, throttle
from .datasets import RecordSet, stored
from .mount_worker import WrongFilesError
from .mounters import MOUNTERS
from .read_worker import (
    WrongRecordsError,
    check,
    file_of,
    order_of,
    rates,
    read_per_byte,
    rehearsal,
    rehearse,
)

Values = dict[str, float]

CLIENT_GRACE = 60.0
"""Seconds beyond its patience after which a client of a mount counts as hanging."""


def read_records(
    *,
    peer: str,
    root: str,
    name: str,
    mean: int,
    count: int,
    batch: int,
    groups: Sequence[str],
    patience: float,
    seed: int,
) -> Values:
    """Read an epoch with a contestant of `read`."""
    contestant, data = peers.PEERS[peer], Path(root)
    whole = RecordSet(name, mean, count)
    records = stored(contestant, whole)
    small = rehearsal(whole, batch)
    harness.read_through(small.folder(data, contestant.layout))
    rehearse(contestant, small, batch, data)
    order = order_of(contestant, records.count, batch, seed)
    each = order.tolist()
    file = file_of(contestant, records, data)
    _forget(file)
    throttle.enter(groups)
    before, began = processes.read_bytes(), time.perf_counter()
    stream = contestant.stream(file)
    batches.clock(stream(each[:1]), 0)
    first = time.perf_counter() - began
    done, _, last = batches.clock(stream(each[1:]), patience - first)
    seconds, read = time.perf_counter() - began, processes.read_bytes() - before
    check(last, each[done], records)
    values = rates(order[: done + 1], seconds, records)
    share = values["records"] / records.count
    return {**values, **read_per_byte(values, read), "first_s": first, "share": share}


def load_records(
    *,
    workers: int,
    root: str,
    name: str,
    mean: int,
    count: int,
    batch: int,
    groups: Sequence[str],
    patience: float,
    seed: int,
) -> Values:
    """Load an epoch with our DataLoader; a sample is the number and the size of a record."""
    records, data = RecordSet(name, mean, count), Path(root)
    small = rehearsal(records, batch)
    harness.read_through(small.folder(data, peers.OURS.layout))
    for _ in _loader(file_of(peers.OURS, small, data), batch, workers, seed):
        pass
    file = file_of(peers.OURS, records, data)
    _forget(file)
    throttle.enter(groups)
    before, began = processes.read_bytes(), time.perf_counter()
    first, numbers, sizes = 0.0, [], []
    loader = _loader(file, batch, workers, seed)
    for some, their_sizes in loader:
        numbers.append(some.numpy())
        sizes.append(their_sizes.numpy())
        seconds = time.perf_counter() - began
        first = first or seconds
        if seconds > patience:
            break
    pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    read = processes.read_bytes(["self", *pids]) - before
    seen = np.concatenate(numbers)
    lengths = records.lengths()
    if len(np.unique(seen)) != len(seen) or (lengths[seen] != np.concatenate(sizes)).any():
        raise WrongRecordsError("a sample came twice, or with another size than was written")
    values = rates(seen, seconds, records)
    share = values["records"] / records.count
    return {**values, **read_per_byte(values, read), "first_s": first, "share": share}


def read_files(
    *,
    mounter: str,
    archive: str,
    point: str,
    names: Sequence[str],
    sizes: Sequence[int],
    clients: int,
    groups: Sequence[str],
    patience: float,
) -> Values:
    """Let several clients read files through a mount."""
    with MOUNTERS[mounter].mounted(Path(archive), Path(point), names[0]) as mount:
        took: dict[str, Any] = harness.call_fresh(
            mount_client.read_together,
            patience + CLIENT_GRACE,
            top=str(mount.top),
            names=names,
            clients=clients,
            daemon=processes.marked(mount.mark),
            groups=groups,
            patience=patience,
            most=max(sizes),
        )
    counts = took["counts"]
    wanted = sum(sum(sizes[client::clients][:count]) for client, count in enumerate(counts))
    if took["size"] != wanted:
        raise WrongFilesError(f"bytes: {took['size']} instead of {wanted}")
    values = {
        "records": float(sum(counts)),
        "seconds": took["seconds"],
        "records_per_s": sum(counts) / took["seconds"],
        "bytes_per_s": wanted / took["seconds"],
    }
    share = values["records"] / len(names)
    return {**values, **read_per_byte(values, took["read_bytes"]), "share": share}


def read_in_order(*, file: str, count: int, groups: Sequence[str], patience: float) -> Values:
    """Let fio read a file of `count` records once: the limit for an epoch from the same disk."""
    fio.version()  # load fio before it is slow
    throttle.enter(groups)
    speed = fio.read_in_order(Path(file), patience)["bytes_per_s"]
    seconds = os.path.getsize(file) / speed
    return {
        "records": count,
        "seconds": seconds,
        "records_per_s": count / seconds,
        "bytes_per_s": speed,
        "share": 1.0,
    }


def _forget(path: Path) -> None:
    """Take a file out of the page cache; for a folder, drop all caches."""
    if path.is_dir():
        harness.drop_caches()
        return
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)  # pages that are not yet written would stay
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def _loader(file: Path, batch: int, workers: int, seed: int) -> Iterable[Any]:
    from ffrecord.torch import DataLoader, ShuffleSampler

    from .disks_dataset import Sizes

    dataset = Sizes(file)
    sampler = ShuffleSampler(dataset, seed=seed)
    return DataLoader(
        dataset,
        batch_size=batch,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,  # they must live until their reads are counted
    )

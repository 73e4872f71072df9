"""`dump`: any indexable dataset of buffers into one record file or a folder of shards."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from ffrecord.newfile import sync_folder
from ffrecord.writer import FileWriter

MOST_WORKERS = 16


class Indexable(Protocol):
    """What `dump` reads from: a list, a mapping from 0 … n-1, a dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def dump(
    dataset: Indexable,
    fname: str | os.PathLike[str],
    nfiles: int,
    verbose: bool = False,
    *,
    max_workers: int | None = None,
    executor: Executor | None = None,
) -> None:
    """Write `dataset[0]`, `dataset[1]`, … to record files.

    Args:
        dataset: has `len()` and `[]`; its items are anything that `FileWriter.write_one` takes.
        fname: the file to write (nfiles = 1), or the folder for PART_00000.ffr … (nfiles > 1).
        nfiles: how many files to write.
        verbose: show progress.
        max_workers: how many processes write at once, at most 16 by default.
        executor: where to run instead. If its workers are processes, `dataset` must pickle.

    The shards get their names when all of them are whole, so a failure leaves the folder as it
    was; the first error of a worker is raised here.
    """
    if nfiles < 1:
        raise ValueError(f"nfiles must be at least 1, not {nfiles}")
    n = len(dataset)
    if nfiles == 1:
        _write(dataset, _Shard(0, n, os.fspath(fname)), verbose)
        return
    folder = Path(fname)
    folder.mkdir(parents=True, exist_ok=True)
    shards = _shards(n, nfiles, folder)
    if len(shards) != nfiles:
        warnings.warn(f"{n} records make {len(shards)} files rather than {nfiles}", stacklevel=2)
    _refuse_strangers(folder, shards)
    parts = [_Shard(s.start, s.stop, s.path + ".part") for s in shards]
    try:
        _write_all(dataset, parts, verbose, max_workers, executor)
        for part, shard in zip(parts, shards, strict=True):
            os.rename(part.path, shard.path)
        sync_folder(str(folder))
    finally:
        for part in parts:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part.path)


@dataclass(frozen=True, slots=True)
class _Shard:
    start: int
    stop: int
    path: str


def _shards(n: int, nfiles: int, folder: Path) -> list[_Shard]:
    each = max(1, -(-n // nfiles))
    starts = range(0, max(n, 1), each)  # no records at all make one empty shard
    return [
        _Shard(start, min(start + each, n), str(folder / f"PART_{k:05d}.ffr"))
        for k, start in enumerate(starts)
    ]


def _refuse_strangers(folder: Path, shards: list[_Shard]) -> None:
    """A reader of the folder would take any other *.ffr there for a part of this dataset."""
    ours = {os.path.basename(shard.path) for shard in shards}
    strangers = sorted(path.name for path in folder.glob("*.ffr") if path.name not in ours)
    if strangers:
        raise FileExistsError(
            f"{folder}: already holds {strangers[0]}, which would become part of this dataset; "
            "remove it or choose another folder"
        )


def _write_all(
    dataset: Indexable,
    parts: list[_Shard],
    verbose: bool,
    max_workers: int | None,
    executor: Executor | None,
) -> None:
    if executor is not None:
        futures = [executor.submit(_write, dataset, part, verbose) for part in parts]
        _wait(futures)
        return
    workers = min(max_workers or MOST_WORKERS, len(parts))
    # As an initializer's argument the dataset is inherited by forked workers, not pickled.
    with ProcessPoolExecutor(workers, initializer=_adopt, initargs=(dataset,)) as pool:
        _wait([pool.submit(_write_adopted, part, verbose) for part in parts])


def _wait(futures: list[Future[None]]) -> None:
    """Wait for all; on the first error cancel what has not begun, wait for the rest, raise."""
    try:
        for future in as_completed(futures):
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
        raise


_dataset: Indexable | None = None


def _adopt(dataset: Indexable) -> None:
    global _dataset
    _dataset = dataset


def _write_adopted(shard: _Shard, verbose: bool) -> None:
    assert _dataset is not None
    _write(_dataset, shard, verbose)


def _write(dataset: Indexable, shard: _Shard, verbose: bool) -> None:
    with FileWriter(shard.path, shard.stop - shard.start) as writer:
        for index in _progress(shard, verbose):
            writer.write_one(dataset[index])


def _progress(shard: _Shard, verbose: bool) -> Iterator[int]:
    name = os.path.basename(shard.path)
    yield from tqdm(range(shard.start, shard.stop), desc=name, unit=" records", disable=not verbose)

"""`dump`: write any indexable dataset of buffers to one record file or a folder of shards."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ffrecord.atomic import locks
from ffrecord.atomic.file import keep_access, sync_folder
from ffrecord.atomic.folder import NewFolder, check_new_folder
from ffrecord.disk.libc import die_with_parent
from ffrecord.errors import FFRecordError
from ffrecord.format.records import part_name
from ffrecord.plan.executors import submitted, wait
from ffrecord.progress import bar, sending_bar
from ffrecord.records.opening import refuse_remote_options
from ffrecord.records.writer import FileWriter
from ffrecord.remote.urls import is_remote
from ffrecord.text import counted, integer, path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

MOST_WORKERS = 16  # processes by default
_GUARD = 'call dump below `if __name__ == "__main__":`'


class Indexable(Protocol):
    """A source of samples for `dump`: a list, a mapping with keys 0 … n-1, a dataset."""

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
    **remote: Unpack[RemoteOptions],
) -> None:
    """Write `dataset[0]`, `dataset[1]`, … to record files.

    Args:
        dataset: an object with `len()` and `[]`; `FileWriter.write_one` must accept its items.
        fname: the file to write (`nfiles` = 1), or the folder for `PART_00000.ffr` …
            (`nfiles` > 1).
        nfiles: number of files to write.
        verbose: show progress.
        max_workers: number of processes that write at the same time, at most 16 by default.
        executor: runs the work instead of these processes. If its workers are processes, `dataset`
            must be picklable.
        remote: options for URLs, as for `FileReader`.

    A new folder appears when all shards are complete. In an existing folder the shards get their
    names when all of them are complete, so a failure leaves the folder unchanged. The shards are
    renamed one after the other: a kill or power cut at that moment leaves a mix of old and new
    shards. Run `dump` again to repair that. `dump` raises the first error of a worker.

    For a URL, the files are made in a temporary folder (`TMPDIR`) and uploaded when all of them are
    complete. The folder must be empty. Its shards appear one after the other.

    Worker processes that are not forked import the program again. Therefore call `dump` below
    `if __name__ == "__main__":`.
    """
    nfiles = integer(nfiles, "nfiles")
    if nfiles < 1:
        raise ValueError(f"nfiles must be at least 1, not {nfiles}")
    n = len(dataset)
    if is_remote(fname, remote):
        from ffrecord.remote.target import Target  # needed for URLs only

        with Target(fname, remote, is_folder=nfiles > 1) as upload:
            dump(dataset, upload.path, nfiles, verbose, max_workers=max_workers, executor=executor)
            with sending_bar(shown=verbose) as tell:
                upload.upload(tell=tell)
        return
    refuse_remote_options(remote)
    if nfiles == 1:
        _write(dataset, _Shard(0, n, os.fspath(fname)), verbose)
        return
    if executor is None:
        _refuse_in_a_worker(fname)
    ranges = _ranges(n, nfiles)
    if len(ranges) != nfiles:
        warnings.warn(
            f"{os.fspath(fname)}: writing {counted(len(ranges), 'file')} instead of "
            f"nfiles={nfiles}, because {counted(n, 'record')} at {max(1, len(ranges[0]))} per file "
            "fill no more",
            stacklevel=2,
        )
    target = Path(os.path.realpath(path_text(fname)))
    target.parent.mkdir(parents=True, exist_ok=True)

    def write_all(shards: list[_Shard]) -> None:
        try:
            _write_all(dataset, shards, verbose, max_workers, executor, os.fspath(target))
        except BrokenProcessPool as error:
            raise FFRecordError(
                f"{os.fspath(fname)}: a worker process of dump ended early; if it was killed, run "
                f"dump again; if it failed to start (its error is above), {_GUARD}"
            ) from error

    # Never replace an existing folder, even an empty one: it may be a mountpoint, and its mode and
    # owner must stay.
    if target.exists():
        _write_over(target, ranges, write_all)
    else:
        _write_new(target, ranges, write_all)


def _write_new(
    target: Path, ranges: list[range], write_all: Callable[[list[_Shard]], None]
) -> None:
    check = partial(check_new_folder, str(target), "dump needs a")
    folder = NewFolder(str(target), "dumping", check)
    try:
        write_all(_shards(Path(folder.path), ranges))
        folder.publish()
    finally:
        folder.discard()


def _write_over(
    folder: Path, ranges: list[range], write_all: Callable[[list[_Shard]], None]
) -> None:
    shards = _shards(folder, ranges)
    parts = [_Shard(s.start, s.stop, s.path + ".part") for s in shards]
    with _locked(str(folder)):
        _refuse_strangers(folder, shards)
        try:
            write_all(parts)
            for part, shard in zip(parts, shards, strict=True):
                keep_access(part.path, shard.path)
                os.rename(part.path, shard.path)
            sync_folder(str(folder))
        finally:
            for part in parts:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part.path)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Keep other dumps out of an existing folder."""
    fd = locks.open_locked_folder(folder)
    try:
        yield
    finally:
        locks.unlock(fd)  # forked workers hold copies of the descriptor: closing is not enough
        os.close(fd)


@dataclass(frozen=True, slots=True)
class _Shard:
    start: int
    stop: int
    path: str


def _ranges(n: int, nfiles: int) -> list[range]:
    """Return the records of each file."""
    each = max(1, -(-n // nfiles))
    starts = range(0, max(n, 1), each)  # a dataset without records is one empty shard
    return [range(start, min(start + each, n)) for start in starts]


def _shards(folder: Path, ranges: list[range]) -> list[_Shard]:
    return [
        _Shard(each.start, each.stop, str(folder / part_name(k))) for k, each in enumerate(ranges)
    ]


def _refuse_strangers(folder: Path, shards: list[_Shard]) -> None:
    """Raise FileExistsError if the folder has other `*.ffr` files: readers would read them too."""
    ours = {os.path.basename(shard.path) for shard in shards}
    strangers = sorted(path.name for path in folder.glob("*.ffr") if path.name not in ours)
    if strangers:
        raise FileExistsError(
            f"{folder}: already contains {strangers[0]}, which readers would take for a part of "
            "this dataset; remove it or choose another folder"
        )


def _refuse_in_a_worker(target: str | os.PathLike[str]) -> None:
    """Raise FFRecordError if `dump` is called while a worker process imports the program.

    A program without a `__main__` guard does that. multiprocessing calls this state "inheriting",
    and starts no process in it.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise FFRecordError(
            f"{os.fspath(target)}: dump was called again by one of its own worker processes, "
            f"while it imported the program; {_GUARD}"
        )


def _write_all(
    dataset: Indexable,
    parts: list[_Shard],
    verbose: bool,
    max_workers: int | None,
    executor: Executor | None,
    target: str,
) -> None:
    if executor is not None:
        tasks = ((dataset, part, verbose) for part in parts)
        wait(submitted(executor, _write, tasks, target=target))
        return
    workers = min(max_workers or MOST_WORKERS, len(parts))
    has_server = multiprocessing.get_start_method() == "forkserver"
    # Forked workers inherit the arguments of the initializer, so the dataset is not pickled.
    adopted = (dataset, None if has_server else os.getpid())
    with ProcessPoolExecutor(workers, initializer=_adopt, initargs=adopted) as pool:
        inherited = ((part, verbose) for part in parts)
        wait(submitted(pool, _write_adopted, inherited, target=target))


_dataset: Indexable | None = None


def _adopt(dataset: Indexable, parent: int | None) -> None:
    """Start a worker that ends with its parent.

    Otherwise it would outlive a killed parent for ever, and keep the lock on the unfinished folder.
    `parent` is None if a fork server starts the workers: the fork server ends with this process.
    """
    global _dataset
    _dataset = dataset
    die_with_parent()
    if parent is not None and os.getppid() != parent:  # the parent ended before
        os._exit(1)


def _write_adopted(shard: _Shard, verbose: bool) -> None:
    assert _dataset is not None
    _write(_dataset, shard, verbose)


def _write(dataset: Indexable, shard: _Shard, verbose: bool) -> None:
    count = shard.stop - shard.start
    drawn = bar(shown=verbose, total=count, desc=os.path.basename(shard.path), unit=" records")
    with FileWriter(shard.path, count) as writer, drawn:
        for index in range(shard.start, shard.stop):
            writer.write_one(dataset[index])
            drawn.update()

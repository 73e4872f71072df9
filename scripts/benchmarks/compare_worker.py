"""One measurement of `compare`, inside its fresh process: the same code for both trees.

The library comes from the given tree, this module from the tree that runs the benchmark. Only the
public names of `ffrecord` are used here. Neither this module nor its imports may import
`ffrecord` before `use` has set the tree.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import batches, harness, mount_client, packers, processes
from .mounters import Mounter

PACKAGES = ("ffrecord", "ffrecord_fuse")
UNTIMED_BATCHES = 3
CLIENT_TIMEOUT = 300.0

Values = dict[str, float]


class WrongTreeError(Exception):
    """Raised when a package was imported from another tree than the measured one."""


class WrongDataError(Exception):
    """Raised when the bytes that were read differ from the written ones."""


def use(tree: str) -> dict[str, str]:
    """Import the packages from a tree, here and in every process started from here.

    Returns the file of each package.
    """
    os.chdir(tree)
    os.environ["PYTHONPATH"] = tree
    sys.path.insert(0, tree)
    files = {name: str(importlib.import_module(name).__file__) for name in PACKAGES}
    for name, file in files.items():
        if Path(file) != Path(tree, name, "__init__.py"):
            raise WrongTreeError(f"{name} was imported from {file}, not from {tree}")
    return files


def command(tree: str) -> list[str]:
    """Return the `ffrecord` command of a tree.

    `python -m` looks into its working folder first, and `mounters` starts commands in the tree of
    the benchmark. `env` therefore changes to the measured tree.
    """
    return ["env", f"--chdir={tree}", f"PYTHONPATH={tree}", *packers.FFRECORD]


def read(
    *,
    tree: str,
    packed: bool,
    file: str,
    keys: Sequence[Sequence[Any]],
    sizes: Sequence[int],
    cold: bool,
    budget: float,
) -> Values:
    """Read batches for `budget` seconds: records by number, or files of a packed folder by name.

    `sizes` are the bytes of each batch. The last batches are read first, without the clock, so that
    the code is loaded and the file is open. Cold: no batch is read twice.
    """
    use(tree)
    from ffrecord import FileReader, PackedFolder

    if not cold:
        harness.read_through(Path(file).parent)
    take: Callable[[Any], Sequence[Any]]
    take = PackedFolder(file).read if packed else FileReader(file, check_data=True).read
    timed, untimed = keys[:-UNTIMED_BATCHES], keys[-UNTIMED_BATCHES:]
    batches.exhaust(map(take, untimed))
    if cold:
        harness.drop_caches()
    following = iter(timed) if cold else itertools.cycle(timed)
    used = time.process_time()
    done, seconds, last = batches.clock(map(take, following), budget)
    used = time.process_time() - used
    _expect("bytes", sum(map(len, last)), sizes[(done - 1) % len(timed)])
    return _values(done * len(keys[0]), seconds, used)


def read_mounted(
    *,
    tree: str,
    archive: str,
    point: str,
    cores: int,
    names: Sequence[str],
    size: int,
    clients: int,
) -> Values:
    """Read files through a fresh mount on some of the cores; CPU time is the daemon's.

    Without `clients`, one process reads while the archive is in the page cache. With `clients`,
    that many processes read at once, and all caches are empty.
    """
    use(tree)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    if clients:
        harness.drop_caches()
    else:
        harness.read_through(Path(archive).parent)
        harness.sync()
    ours = command(tree)
    mounter = Mounter(
        "ours", packers.OURS, [*ours, "mount", "{archive}", "{point}"], [*ours, "umount", "{point}"]
    )
    with mounter.mounted(Path(archive), Path(point), names[0]) as mount:
        daemon = processes.marked(mount.mark)
        what = {"top": str(mount.top), "names": names}
        if clients:
            before = _cpu_seconds(daemon)
            took = _client(mount_client.read_together, **what, clients=clients)
            seconds, used = took["seconds"], _cpu_seconds(daemon) - before
        else:
            took = _client(mount_client.read_twice, **what, daemon=daemon)
            seconds, used = took["first"], took["daemon_cpu"]
    _expect("bytes", took["size"], size)
    return _values(len(names), seconds, used)


def load(
    *,
    tree: str,
    archive: str,
    order: Sequence[int],
    rehearsed: Sequence[int],
    checksums: Sequence[int],
    batch: int,
    workers: int,
    cold: bool,
) -> Values:
    """Load an epoch in the given order; `checksums` are the CRC-32s of its samples.

    Before the clock starts, the workers load the samples of `rehearsed`.

    Imported objects are frozen, so that the garbage collector leaves them alone. One full
    collection after the fork copies 10,000 pages of the process, which takes a fifth of an epoch. A
    few objects more or less decide whether the collection happens before or after the clock starts.
    """
    use(tree)
    from ffrecord.torch import DataLoader, PackedFolderDataset

    sampler = list(rehearsed)
    loader = DataLoader(
        PackedFolderDataset(archive, loader=_decode),
        batch_size=batch,
        num_workers=workers,
        persistent_workers=True,
        sampler=sampler,
    )
    if not cold:
        harness.read_through(Path(archive).parent)
    gc.collect()
    gc.freeze()
    batches.exhaust(loader)
    sampler[:] = order  # the loader asks the sampler again for every epoch
    if cold:
        harness.drop_caches()
    everyone = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    running = [pid for pid in everyone if pid is not None]
    seen: list[int] = []
    used, began = _cpu_seconds(running), time.perf_counter()
    for found, _ in loader:
        seen += found.tolist()
    seconds, used = time.perf_counter() - began, _cpu_seconds(running) - used
    _expect("samples in the requested order", seen == list(checksums), True)
    return _values(len(order), seconds, used)


def _decode(data: Any) -> int:
    """Simulate decoding a sample: use every byte, and return a small result to compare."""
    return zlib.crc32(data)


def _client(function: Callable[..., Values], **arguments: Any) -> Values:
    values: Values = harness.call_fresh(function, CLIENT_TIMEOUT, **arguments)
    return values


def _cpu_seconds(pids: Sequence[int]) -> float:
    return sum(map(processes.cpu_seconds, pids))


def _values(count: int, seconds: float, used: float) -> Values:
    return {"per_s": count / seconds, "cpu_us": used / count * 1e6}


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise WrongDataError(f"{what}: {found} instead of {wanted}")

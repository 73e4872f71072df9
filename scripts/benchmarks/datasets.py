"""The records that every contestant stores, and their creation on disk.

Record i of a set depends only on the set's mean size and on i, so that a child process can check
its records without a second copy of the data. Bytes are random: no contestant gains by
compressing, and no disk by deduplicating.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import harness, peers

SEED = 20240601
SIGMA = 0.35
"""Spread of the log-normal sizes, similar to JPEG files of one camera."""

CHUNK = 64
"""Records drawn from one generator: few enough to draw one record again, enough to be fast."""

RECIPE = "1"
"""Part of the marker. Raise it when the bytes change; then all files are made again."""

MARKER = "done"
"""File in a set's folder. It exists if the set is whole, and has the recipe."""


@dataclass(frozen=True, slots=True)
class RecordSet:
    """`count` records of `mean` bytes on average."""

    name: str
    mean: int
    count: int

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return the size of every record. A shorter set has the first records of a longer one."""
        generator = np.random.default_rng([SEED, self.mean])
        location = np.log(self.mean) - SIGMA**2 / 2
        sizes = generator.lognormal(location, SIGMA, self.count)
        return np.maximum(1, np.rint(sizes)).astype(np.int64)

    def records(self) -> Iterator[bytes]:
        """Yield all records in order."""
        lengths = self.lengths()
        for first in range(0, self.count, CHUNK):
            yield from self._chunk(first, lengths)

    def record(self, index: int) -> bytes:
        """Return one record, to compare with a contestant's."""
        first = index - index % CHUNK
        return self._chunk(first, self.lengths())[index - first]

    def first(self, count: int) -> RecordSet:
        """Return the set of its first `count` records, or the set itself if it has fewer."""
        return replace(self, count=min(count, self.count))

    def folder(self, root: Path, layout: str) -> Path:
        """Return the folder of one layout (a peer's file format) of this set."""
        return root / f"{self.name}-x{self.count}" / layout

    def _chunk(self, first: int, lengths: npt.NDArray[np.int64]) -> list[bytes]:
        # A shorter draw from a generator is a prefix of a longer one, so that a shorter set has the
        # same records.
        sizes = lengths[first : first + CHUNK]
        generator = np.random.default_rng([SEED, self.mean, first])
        ends = np.cumsum(sizes).tolist()
        blob = generator.bytes(ends[-1])
        return [blob[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]


def stored(peer: peers.Peer, records: RecordSet) -> RecordSet:
    """Return the records that a peer stores: all, or the first ones if all would take too long."""
    return records.first(peer.capacity(records.count))


def create(peer: str, root: str, name: str, mean: int, count: int) -> None:
    """Write a set in a peer's format unless it exists; called in a fresh process."""
    contestant = peers.PEERS[peer]
    records = RecordSet(name, mean, count)
    folder = records.folder(Path(root), contestant.layout)

    def write() -> None:
        contestant.write(folder / contestant.file, records.records(), records.count)

    make_once(folder, RECIPE, write)


def make_once(folder: Path, recipe: str, write: Callable[[], None]) -> None:
    """Fill a folder unless the same recipe has filled it before.

    The marker is written last: the files of an interrupted run are removed and made again. Its time
    is that of the latest use.
    """
    marker = folder / MARKER
    if marker.exists() and marker.read_text() == recipe:
        marker.touch()
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write()
    harness.sync()
    marker.write_text(recipe)


def make_room(root: Path, size: int) -> None:
    """Remove sets below a folder, the longest unused first, until its disk has `size` bytes free.

    The sets are made again when they are needed.
    """
    markers = sorted(root.rglob(MARKER), key=lambda marker: marker.stat().st_mtime)
    for marker in markers:
        if shutil.disk_usage(root).free >= size:
            return
        shutil.rmtree(marker.parent)

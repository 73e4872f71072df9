"""Advice for loaders that read remote files in random order."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from ffrecord.dataset.combine import Interleave, Mix, Transform
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import JoinedDatasets
from ffrecord.errors import RemoteShuffleWarning
from ffrecord.records.reader import FileReader, table_of
from ffrecord.remote import meter
from ffrecord.text import counted
from ffrecord.torch.registry import ReaderRegistry

BLOCK = 8
"""Most samples in a block of the advice."""

WINDOW = 4
"""Fewest blocks in a batch of the advice. Fewer would make batches of neighbours only."""

_told = False  # the advice is given once in a process


def advise(dataset: Any, batch_size: int | None) -> None:
    """Warn if a dataset is read over the network without a cache, and say what costs less.

    If a window has as many samples as a batch, the samples of each block share a request, even
    without a cache. In a file with less than four gaps for each block of a window, a full shuffle
    has so many of its requests joined that blocks would need more. There is no warning then.
    """
    global _told
    block = min(BLOCK, (batch_size or 1) // WINDOW)
    if _told or block < 2:  # blocks of one sample save nothing
        return
    window = (batch_size or 1) // block
    if _far_bytes(dataset) <= 4 * window * meter.LARGEST_GAP:
        return
    _told = True
    warnings.warn(
        f"shuffle=True reads {counted(len(dataset), 'sample')} of remote files in random order, in "
        "every epoch: most of them cost a request, or the bytes up to the next one; set "
        "FFRECORD_CACHE or pass cache=FOLDER where the files are opened, to fetch all bytes once, "
        f"or pass sampler=BlockShuffleSampler(dataset, block={block}, window={window}) of "
        f"ffrecord.torch in place of shuffle=True, to read {block} neighbours at a time; use the "
        f"cache if the samples are sorted, for example by class, because a batch of this sampler "
        f"is from {window} places only",
        RemoteShuffleWarning,
        stacklevel=3,
    )


def _far_bytes(dataset: Any) -> int:
    """Return the size of the files that a dataset reads over the network without a cache."""
    if not isinstance(dataset, (FileReader, DatasetReader)):
        return sum(map(_far_bytes, _inside(dataset)))
    remote = dataset._remote
    if remote is None or remote.options.cache is not None:
        return 0
    return table_of(dataset).file_bytes if isinstance(dataset, FileReader) else dataset.size


def _inside(dataset: Any) -> Iterable[Any]:
    """Return the readers and datasets that a dataset reads from, as far as is known."""
    if isinstance(dataset, ReaderRegistry):
        return [*dataset.ffreaders(), *dataset.ffdatasets()]
    if isinstance(dataset, JoinedDatasets):
        return dataset.parts
    if isinstance(dataset, (Mix, Interleave)):
        return dataset.readers
    if isinstance(dataset, Transform):
        return [dataset.reader]
    if isinstance(dataset, Subset):  # random_split makes these
        return [dataset.dataset]
    return dataset.datasets if isinstance(dataset, ConcatDataset) else []

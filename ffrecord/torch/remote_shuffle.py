"""Advice for loaders that read remote files in random order."""

from __future__ import annotations

import warnings
from typing import Any

from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import JoinedDatasets
from ffrecord.errors import RemoteShuffleWarning
from ffrecord.records.reader import FileReader
from ffrecord.text import counted
from ffrecord.torch.registry import ReaderRegistry

BLOCK = 8
"""Samples in a block of the advice: an eighth of the requests, and a batch still has samples from
an eighth as many places as it has samples."""

_told = False  # the advice is given once in a process


def advise(dataset: Any, batch_size: int | None) -> None:
    """Warn if a dataset is read over the network without a cache, and say what costs less.

    If a window has as many samples as a batch, each block is one request, even without a cache.
    """
    global _told
    if _told or not _is_far(dataset):
        return
    _told = True
    block = min(BLOCK, batch_size or 1)
    window = max(1, (batch_size or 1) // block)
    if block < 2:
        return  # blocks of one sample save nothing
    warnings.warn(
        f"shuffle=True reads remote files with one request for each of {len(dataset):,} samples; "
        f"for an epoch with about {counted(-(-len(dataset) // block), 'request')}, pass "
        f"sampler=BlockShuffleSampler(dataset, block={block}, window={window}) of ffrecord.torch "
        "in place of shuffle=True",
        RemoteShuffleWarning,
        stacklevel=3,
    )


def _is_far(dataset: Any) -> bool:
    """Return True if a dataset reads a file over the network without a cache."""
    if isinstance(dataset, ReaderRegistry):
        return any(map(_is_far, [*dataset.ffreaders(), *dataset.ffdatasets()]))
    if isinstance(dataset, JoinedDatasets):
        return any(map(_is_far, dataset.parts))
    if isinstance(dataset, (FileReader, DatasetReader)):
        remote = dataset._remote
        return remote is not None and remote.options.cache is None
    return False

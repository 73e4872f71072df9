"""A few batches of the record file, through a DataLoader with workers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.torch import DataLoader, Dataset, ShuffleSampler

BATCHES = 20
WORKERS = 2
Sample = tuple[int, npt.NDArray[np.uint8]]


class Records(Dataset[Sample]):
    """Dataset of all records, each with its number."""

    def process(self, indices: list[int], data: list[npt.NDArray[np.uint8]]) -> list[Sample]:
        return [(index, record.copy()) for index, record in zip(indices, data, strict=True)]


def some_batches(path: str, seed: int) -> Iterator[Sample]:
    dataset = Records(path)
    sampler = ShuffleSampler(dataset, seed=seed)
    loader: DataLoader[Any] = DataLoader(
        dataset, 32, sampler=sampler, num_workers=WORKERS, collate_fn=list
    )
    for batch in islice(loader, BATCHES):
        yield from batch

"""The dataset of the loader in `disks`; a module of its own, because it imports torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ffrecord.torch import Dataset


class Sizes(Dataset[tuple[int, int]]):
    """The number and the size of each record."""

    def process(
        self, indices: list[int], data: list[npt.NDArray[np.uint8]]
    ) -> list[tuple[int, int]]:
        return [(int(index), len(record)) for index, record in zip(indices, data, strict=True)]

"""Datasets, samplers and a loader that train PyTorch models from record files and packed folders.

Importing this package without PyTorch raises `MissingPackageError`.
"""

from __future__ import annotations

from ffrecord.errors import MissingPackageError

try:
    import torch  # noqa: F401 - first, so that a missing torch is reported in plain words
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingPackageError(
        "ffrecord.torch needs PyTorch, which is not installed; run: pip install 'ffrecord[torch]'"
    ) from error

from ffrecord.torch.dataloader import DataLoader
from ffrecord.torch.dataset import ConcatDataset, Dataset, Subset
from ffrecord.torch.folder import PackedFolderDataset
from ffrecord.torch.registry import ReaderRegistry
from ffrecord.torch.samplers import (
    BlockShuffleSampler,
    DistributedBlockShuffleSampler,
    DistributedShuffleSampler,
    ShuffleSampler,
)

__all__ = [
    "BlockShuffleSampler", "ConcatDataset", "DataLoader", "Dataset",
    "DistributedBlockShuffleSampler", "DistributedShuffleSampler", "PackedFolderDataset",
    "ReaderRegistry", "ShuffleSampler", "Subset",
]  # fmt: skip

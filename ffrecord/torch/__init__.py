"""Training straight from record files and packed folders with PyTorch."""

from __future__ import annotations

from ffrecord.torch.dataloader import DataLoader
from ffrecord.torch.dataset import ConcatDataset, Dataset, Subset
from ffrecord.torch.folder import PackedFolderDataset
from ffrecord.torch.registry import ReaderRegistry
from ffrecord.torch.samplers import DistributedShuffleSampler, ShuffleSampler

__all__ = [
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedShuffleSampler",
    "PackedFolderDataset",
    "ReaderRegistry",
    "ShuffleSampler",
    "Subset",
]

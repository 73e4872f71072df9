"""Training straight from record files and packed folders with PyTorch."""

from __future__ import annotations

from ffrecord.errors import MissingPackageError

try:
    import torch  # noqa: F401 - before the modules that need it, to say what is missing
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingPackageError(
        "ffrecord.torch needs PyTorch, which is not installed: pip install 'ffrecord[torch]'"
    ) from error

from ffrecord.torch.dataloader import DataLoader
from ffrecord.torch.dataset import ConcatDataset, Dataset, Subset
from ffrecord.torch.folder import PackedFolderDataset
from ffrecord.torch.registry import ReaderRegistry
from ffrecord.torch.samplers import DistributedShuffleSampler, ShuffleSampler

__all__ = [
    "ConcatDataset", "DataLoader", "Dataset", "DistributedShuffleSampler", "PackedFolderDataset",
    "ReaderRegistry", "ShuffleSampler", "Subset",
]  # fmt: skip

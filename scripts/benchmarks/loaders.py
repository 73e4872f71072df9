"""The contestants of `loader`: ways to get batches of decoded samples from worker processes.

All get the same decoder, batch size and number of workers. All return the same small results:
(result of the decoder, class) of every sample, as two tensors. Workers live from one epoch to the
next. Libraries, including torch, are imported where they are used.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import loader_archives, mounters
from .decode import Decoder

if TYPE_CHECKING:
    import torch

    Loaded = Iterable[Sequence[torch.Tensor]]

SHUFFLE_BUFFER = 1000
"""Samples in WebDataset's shuffle buffer: its default, also used in its documentation."""
SHARD_BUFFER = 100


class Orders:
    """A sampler with a given order for each epoch."""

    def __init__(self, orders: Iterable[Sequence[int]]) -> None:
        self._orders = iter(orders)

    def __iter__(self) -> Iterator[int]:
        return iter(next(self._orders))


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments that every contestant gets."""

    decode: Decoder
    orders: Orders
    labels: Sequence[int]
    """The class of every sample, for contestants that do not store it."""
    batch: int
    workers: int

    def options(self) -> dict[str, Any]:
        """Return the arguments of torch's DataLoader, which others take too."""
        return {
            "batch_size": self.batch,
            "num_workers": self.workers,
            "persistent_workers": True,
            "sampler": self.orders,
        }


class Contestant(ABC):
    """A way to load samples."""

    layout: str
    ordered = True
    """True if samples come in the requested order."""

    def __init__(self, name: str) -> None:
        self.name = name

    @contextmanager
    def opened(self, source: Path, point: Path, witness: str) -> Iterator[Path]:
        """Provide the path to read from; a contestant may mount its archive at `point`."""
        del point, witness
        yield source

    @abstractmethod
    def loader(self, source: Path, task: Task) -> Loaded:
        """Return a loader; one iteration over it is an epoch."""


class PlainFolder(Contestant):
    """torch's DataLoader on a folder of classes, as torchvision's ImageFolder reads it."""

    layout = loader_archives.FOLDER

    def loader(self, source: Path, task: Task) -> Loaded:
        return _torchs(ImageFolder(source, task.decode), task)


class Mounted(PlainFolder):
    """The same code on the mounted archive."""

    def __init__(self, name: str, layout: str, mounter: mounters.Mounter) -> None:
        super().__init__(name)
        self.layout = layout
        self.mounter = mounter

    @contextmanager
    def opened(self, source: Path, point: Path, witness: str) -> Iterator[Path]:
        with self.mounter.mounted(source, point, witness) as mount:
            yield mount.top


class WebDataset(Contestant):
    """Tar files in a shuffled order, with a shuffle buffer: not every order is possible."""

    layout = loader_archives.SHARDS
    ordered = False

    def loader(self, source: Path, task: Task) -> Loaded:
        import webdataset
        from torch.utils.data import default_collate

        shards = sorted(map(str, source.glob("*.tar")))
        samples = webdataset.WebDataset(shards, shardshuffle=SHARD_BUFFER)
        batches = (
            samples.shuffle(SHUFFLE_BUFFER)
            .to_tuple("jpg", "cls")
            .map_tuple(task.decode, int)
            .batched(task.batch, collation_fn=default_collate)
        )
        loader: Loaded = webdataset.WebLoader(
            batches, batch_size=None, num_workers=task.workers, persistent_workers=True
        )
        return loader


class ArrayRecord(Contestant):
    """torch's DataLoader on array_record's own data source, which reads a batch at once."""

    layout = loader_archives.ARRAY_RECORD

    def loader(self, source: Path, task: Task) -> Loaded:
        return _torchs(ArrayRecordPictures(source, task), task)


class Ours(Contestant):
    """Our DataLoader, or torch's, on our dataset of a packed folder."""

    layout = loader_archives.PACKED

    def __init__(self, name: str, *, torchs: bool = False, read_ahead: bool = True) -> None:
        super().__init__(name)
        self.torchs = torchs
        self.read_ahead = read_ahead

    def loader(self, source: Path, task: Task) -> Loaded:
        from ffrecord.torch import DataLoader, PackedFolderDataset

        dataset = PackedFolderDataset(source, loader=task.decode)
        if self.torchs:
            return _torchs(dataset, task)
        loader: Loaded = DataLoader(dataset, read_ahead=self.read_ahead, **task.options())
        return loader


class ImageFolder:
    """Finds and reads files as torchvision's class of the same name does."""

    def __init__(self, top: Path, decode: Decoder) -> None:
        self.decode = decode
        classes = sorted(entry.name for entry in os.scandir(top) if entry.is_dir())
        self.samples = [
            (os.path.join(parent, name), label)
            for label, folder in enumerate(classes)
            for parent, _, names in sorted(os.walk(top / folder))
            for name in sorted(names)
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            return self.decode(file.read()), label


class ArrayRecordPictures:
    """Records of array_record, decoded, with the classes in a separate list."""

    def __init__(self, file: Path, task: Task) -> None:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self.source = ArrayRecordDataSource(str(file))
        self.decode = task.decode
        self.labels = task.labels

    def __len__(self) -> int:
        return len(self.source)

    def __getitems__(self, indices: list[int]) -> list[tuple[int, int]]:
        records = zip(indices, self.source.__getitems__(indices), strict=True)
        return [(self.decode(record), self.labels[index]) for index, record in records]


def _torchs(dataset: Any, task: Task) -> Loaded:
    """Return torch's own DataLoader."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, **task.options())


OURS = Ours("ours")
OURS_TORCHS = Ours("ours, torch's DataLoader", torchs=True)
MOUNTED = Mounted("ours, mounted", loader_archives.PACKED, mounters.OURS)
MOUNTED_KERNEL = Mounted("ours, mounted, kernel", loader_archives.ALIGNED, mounters.OURS_ALIGNED)
PLAIN_FOLDER = PlainFolder("plain folder")
WEBDATASET = WebDataset("WebDataset")
ARRAY_RECORD = ArrayRecord("array_record")

CONTESTANTS: dict[str, Contestant] = {
    contestant.name: contestant
    for contestant in (
        OURS,
        Ours("ours, no read-ahead", read_ahead=False),
        OURS_TORCHS,
        MOUNTED,
        MOUNTED_KERNEL,
        PLAIN_FOLDER,
        WEBDATASET,
        ARRAY_RECORD,
    )
}

"""The contestants of `remote` that load epochs with worker processes, as training does.

All return the CRC-32 of every record as a tensor, and have the same batch size and number of
workers. They sign their requests, as for a real object store. Libraries are imported where they
are used.
"""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from . import remote_archives
from .datasets import RecordSet
from .loaders import SHARD_BUFFER, SHUFFLE_BUFFER

if TYPE_CHECKING:
    import torch

    Loaded = Iterable[torch.Tensor]

Blocks: TypeAlias = dict[int, tuple[int, int]]
"""Block shuffles by the mean size of records: records of a block, and blocks that are mixed."""

MIXED: Blocks = {10_000: (256, 8), 110_000: (64, 16)}
"""More records are mixed than in WebDataset's buffer. The first batch waits for most of them."""

WHOLE: Blocks = {10_000: (32, 8), 110_000: (16, 16)}
"""As the loader suggests it: a window is one batch, which so has whole blocks. They are from
anywhere in the file, and each is one request."""


@dataclass(frozen=True, slots=True)
class Site:
    """The server, the local folder that it serves, and an empty folder for a contestant's cache."""

    url: str
    root: Path
    scratch: Path

    def enter(self) -> None:
        """Let this process and its children find the server in the way of S3's clients."""
        os.environ.update(
            AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_REGION="us-east-1",
            AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL=self.url, S3_ENDPOINT_URL=self.url,
            AWS_ALLOW_HTTP="true", AWS_EC2_METADATA_DISABLED="true",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments that every contestant gets."""

    records: RecordSet
    batch: int
    workers: int
    seed: int

    def options(self) -> dict[str, Any]:
        """Return arguments of torch's DataLoader, which others take too."""
        return {
            "batch_size": self.batch,
            "num_workers": self.workers,
            "persistent_workers": self.workers > 0,
        }


class Contestant(ABC):
    """A way to load records over the network."""

    layout: str

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def prepare(self) -> None:
        """Import everything, because loading libraries is not measured."""

    @abstractmethod
    def loader(self, site: Site, task: Task) -> Loaded:
        """Open the data and return a loader; one iteration over it is an epoch."""

    def url(self, task: Task) -> str:
        """Return the S3 URL of the object or folder."""
        return f"s3://{remote_archives.BUCKET}/{remote_archives.key(self.layout, task.records)}"


class Ours(Contestant):
    """Our DataLoader on the records of one file."""

    layout = remote_archives.OURS

    def __init__(
        self, name: str, *, blocks: Blocks | None = None, cache: bool = False,
        local: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.blocks, self.cache, self.local = blocks, cache, local

    def prepare(self) -> None:
        import obstore.store  # noqa: F401

        import ffrecord.torch  # noqa: F401

    def loader(self, site: Site, task: Task) -> Loaded:
        from ffrecord.torch import BlockShuffleSampler, DataLoader, ShuffleSampler

        path: Any = self.url(task)
        if self.local:
            path = remote_archives.file(self.layout, task.records, site.root)
        options = {"cache": site.scratch / "cache"} if self.cache else {}
        dataset = _ours()(path, **options)
        sampler: Any = ShuffleSampler(dataset, seed=task.seed)
        if self.blocks is not None:
            block, window = self.blocks.get(task.records.mean, (64, 8))
            sampler = BlockShuffleSampler(dataset, block=block, window=window, seed=task.seed)
        loader: Loaded = DataLoader(dataset, sampler=sampler, **task.options())
        return loader


class Streaming(Contestant):
    """MosaicML streaming with its defaults: whole shards, which stay on the local disk."""

    layout = remote_archives.MDS

    def prepare(self) -> None:
        import boto3.s3.transfer  # noqa: F401

        _streaming()

    def loader(self, site: Site, task: Task) -> Loaded:
        kind, loader = _streaming()
        dataset = kind(
            remote=self.url(task).rstrip("/"), local=str(site.scratch / "mds"), shuffle=True,
            shuffle_seed=task.seed, batch_size=task.batch,
        )  # fmt: skip
        loaded: Loaded = loader(dataset, **task.options())
        return loaded


class LitData(Contestant):
    """litdata with its defaults: whole chunks, which stay on the local disk."""

    layout = remote_archives.LITDATA

    def prepare(self) -> None:
        import litdata.streaming.downloader
        import obstore.store  # noqa: F401

        # It has no option for servers without TLS.
        litdata.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    def loader(self, site: Site, task: Task) -> Loaded:
        import litdata

        dataset = litdata.StreamingDataset(
            self.url(task).rstrip("/"), cache_dir=str(site.scratch / "litdata"), shuffle=True,
            seed=task.seed, storage_options={"endpoint_url": site.url}, transform=checksum,
        )  # fmt: skip
        loaded: Loaded = litdata.StreamingDataLoader(dataset, **task.options())
        return loaded


class WebDataset(Contestant):
    """Tar files, streamed by curl, with a shuffle buffer. Nothing is kept for the next epoch."""

    layout = remote_archives.SHARDS

    def prepare(self) -> None:
        import webdataset  # noqa: F401

    def loader(self, site: Site, task: Task) -> Loaded:
        import webdataset
        from torch.utils.data import default_collate

        folder = remote_archives.key(self.layout, task.records)
        names = remote_archives.shards(task.records)
        urls = [f"{site.url}/{remote_archives.BUCKET}/{folder}/{name}" for name in names]
        samples = webdataset.WebDataset(urls, shardshuffle=SHARD_BUFFER, seed=task.seed)
        batches = (
            samples.shuffle(SHUFFLE_BUFFER, seed=task.seed)
            .to_tuple("bin")
            .map(lambda sample: checksum(sample[0]))
            .batched(task.batch, collation_fn=default_collate)
        )
        options = {**task.options(), "batch_size": None}
        loader: Loaded = webdataset.WebLoader(batches, **options)
        return loader


class Zip(Contestant):
    """torch's DataLoader on a zip file that s3fs opens, in random order."""

    layout = remote_archives.ZIP

    def prepare(self) -> None:
        import s3fs  # noqa: F401

    def loader(self, site: Site, task: Task) -> Loaded:
        import torch
        from torch.utils.data import DataLoader

        dataset: Any = ZipRecords(self.url(task), task.records, site.url)
        generator = torch.Generator().manual_seed(task.seed)
        return DataLoader(dataset, shuffle=True, generator=generator, **task.options())


class ZipRecords:
    """Records of a zip file. Each worker opens it for itself."""

    def __init__(self, url: str, records: RecordSet, endpoint: str) -> None:
        self.url, self.count, self.endpoint = url, records.count, endpoint
        # One request for a record. The default of 50 MiB would be read for each record.
        self.block = -(-2 * records.mean >> 14) << 14
        self._archive: zipfile.ZipFile | None = None

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> bytes:
        if self._archive is None:
            import s3fs

            fs = s3fs.S3FileSystem(endpoint_url=self.endpoint)
            self._archive = zipfile.ZipFile(fs.open(self.url, block_size=self.block))
        return self._archive.read(remote_archives.member(index))

    def __getitem__(self, index: int) -> int:
        return checksum(self.read(index))


def checksum(record: Any) -> int:
    """Return the CRC-32 of a record: the work that every contestant does with it."""
    from isal import isal_zlib

    return isal_zlib.crc32(record)


def _ours() -> Any:
    from ffrecord.torch import Dataset

    class Checksums(Dataset[int]):
        def process(self, indices: list[int], data: Any) -> list[int]:
            return [checksum(record) for record in data]

    return Checksums


def _streaming() -> tuple[Any, Any]:
    streaming = remote_archives.streaming()

    class Checksums(streaming.StreamingDataset):  # type: ignore[misc, name-defined]
        def __getitem__(self, at: int) -> int:
            return checksum(super().__getitem__(at)["data"])

    return Checksums, streaming.StreamingDataLoader


FULL = Ours("ours, full shuffle")
BLOCKS = Ours("ours, block shuffle, cache", blocks=MIXED, cache=True)
WHOLE_BLOCKS = Ours("ours, whole blocks, cache", blocks=WHOLE, cache=True)
LOCAL = Ours("ours, block shuffle, local file", blocks=MIXED, local=True)
STREAMING = Streaming("MosaicML streaming")
LITDATA = LitData("litdata")
WEBDATASET = WebDataset("WebDataset")
ZIP = Zip("s3fs + zip")

CONTESTANTS: dict[str, Contestant] = {
    contestant.name: contestant
    for contestant in (FULL, BLOCKS, WHOLE_BLOCKS, LOCAL, STREAMING, LITDATA, WEBDATASET, ZIP)
}

"""The contestants of `read`, all with the same interface: write a file, open it, read batches.

Each library is imported where it is used. A fresh process then loads only the library that it
measures, and a missing library affects only its own contestant. Readers are not closed, because
their process ends.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from .batches import one_ahead

Record = bytes | npt.NDArray[np.uint8]
Batch = Sequence[Record]
Read = Callable[[list[int]], Batch]
Stream = Callable[[Iterable[list[int]]], Iterator[Batch]]


class Peer(ABC):
    """A way to store records and to read batches of them."""

    name: str
    layout: str
    """The format's name. Contestants with the same layout read the same files."""
    file: str
    sequential: ClassVar[bool] = False
    """True if records come only in file order, regardless of the indices."""

    @abstractmethod
    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        """Store `count` records."""

    @abstractmethod
    def open(self, path: Path) -> Read:
        """Open for random access: return a function from indices to records in the same order."""

    def stream(self, path: Path) -> Stream:
        """Open for a training loop: batches of indices in, batches of records out."""
        read = self.open(path)
        return lambda batches: map(read, batches)

    def capacity(self, count: int) -> int:
        """Return the number of records that are stored: `count`, or fewer if all take too long."""
        return count


class Ours(Peer):
    """`FileReader.read` with checksums, in one of its modes."""

    layout = "ffrecord"
    file = "records.ffr"

    def __init__(self, name: str, mode: str) -> None:
        self.name = name
        self.mode = mode

    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        from ffrecord import FileWriter

        with FileWriter(path, count) as writer:
            for record in records:
                writer.write_one(record)

    def open(self, path: Path) -> Read:
        from ffrecord import FileReader

        return FileReader(path, check_data=True, mode=self.mode).read


class OursAhead(Ours):
    """`FileReader.read_async`, one batch ahead of the one in use."""

    def stream(self, path: Path) -> Stream:
        from ffrecord import FileReader

        reader = FileReader(path, check_data=True, mode=self.mode)
        return partial(one_ahead, reader.read_async)


class ArrayRecord(Peer):
    """One record per chunk, uncompressed, as its documentation recommends for random access.

    Its own data source opens files with `readahead_buffer_size:0`; the default is for sequential
    reads and slower here.
    """

    name = "array_record"
    layout = "array_record"
    file = "records.array_record"

    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        from array_record.python import array_record_module

        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        for record in records:
            writer.write(record)
        writer.close()

    def open(self, path: Path) -> Read:
        from array_record.python import array_record_module

        reader = array_record_module.ArrayRecordReader(str(path), "readahead_buffer_size:0")
        read: Read = reader.read
        return read


class Lmdb(Peer):
    """8-byte big-endian keys, values copied to bytes; LMDB has no checksums."""

    name = "LMDB (no checksum)"
    layout = "lmdb"
    file = "records.lmdb"

    PER_TRANSACTION = 10_000
    MAP_SIZE = 1 << 40
    """Bytes of address space, not of disk: the file grows as it is written."""

    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        import lmdb

        environment = lmdb.open(str(path), map_size=self.MAP_SIZE, subdir=False)
        keyed = ((index.to_bytes(8, "big"), record) for index, record in enumerate(records))
        while some := list(itertools.islice(keyed, self.PER_TRANSACTION)):
            with environment.begin(write=True) as transaction:
                for key, record in some:
                    transaction.put(key, record, append=True)
        environment.close()

    def open(self, path: Path) -> Read:
        import lmdb

        # readahead stays on, which is LMDB's default.
        environment = lmdb.open(str(path), subdir=False, readonly=True, lock=False)
        get: Callable[[bytes], Any] = environment.begin().get
        return lambda indices: [get(index.to_bytes(8, "big")) for index in indices]


class Hdf5(Peer):
    """All records end to end in one contiguous uint8 dataset, and their offsets in another.

    This is the usual way to avoid variable-length datasets, whose heap makes them slower to read
    (0.7 times at 1 kB as one selection per batch, 0.1 times record by record). Within a batch,
    records are read in file order, as h5py requires for selections and as suits a disk.
    """

    name = "h5py (flat + offsets)"
    layout = "hdf5"
    file = "records.h5"

    PER_WRITE = 1000

    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        import h5py

        offsets = np.zeros(count + 1, np.int64)
        with h5py.File(path, "w") as file:
            # Contiguous datasets cannot grow, and chunked ones are slower: so the sizes come first.
            blobs = path.with_suffix(".part")
            offsets[1:] = np.cumsum(_spool(records, blobs))
            data = file.create_dataset("data", (int(offsets[-1]),), np.uint8)
            for start, block in _blocks(blobs):
                data[start : start + len(block)] = block
            file.create_dataset("offsets", data=offsets)
        blobs.unlink()

    def open(self, path: Path) -> Read:
        import h5py

        file = h5py.File(path, "r")
        data = file["data"]
        # h5py has a fast path for slices with Python integers, not with numpy's.
        offsets: list[int] = file["offsets"][:].tolist()

        def read(indices: list[int]) -> Batch:
            order = sorted(range(len(indices)), key=indices.__getitem__)
            batch: list[Record] = [b""] * len(indices)
            for place in order:
                index = indices[place]
                batch[place] = data[offsets[index] : offsets[index + 1]]
            return batch

        return read


class Granular(Peer):
    """A bag: records end to end, index in shared memory, one seek and read per record."""

    name = "granular bag"
    layout = "granular"
    file = "records.bag"

    PER_FLUSH = 1000

    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        import granular

        with granular.BagWriter(path) as writer:
            for index, record in enumerate(records, start=1):
                writer.append(record, flush=index % self.PER_FLUSH == 0)

    def open(self, path: Path) -> Read:
        import granular

        get = granular.BagReader(path).__getitem__
        return lambda indices: [get(index) for index in indices]


class WebDataset(Peer):
    """A tar file through webdataset, which only reads in order; no shuffling."""

    name = "WebDataset (sequential)"
    layout = "webdataset"
    file = "records.tar"
    sequential = True

    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        import webdataset

        with webdataset.TarWriter(str(path)) as writer:
            for index, record in enumerate(records):
                writer.write({"__key__": f"{index:08d}", "bin": record})

    def open(self, path: Path) -> Read:
        raise NotImplementedError("a tar file has no random access")

    def stream(self, path: Path) -> Stream:
        import webdataset

        samples = webdataset.WebDataset(str(path), shardshuffle=False)

        def in_order(batches: Iterable[list[int]]) -> Iterator[Batch]:
            # A new iterator for each call, so that every pass starts at the first record.
            records = (sample["bin"] for sample in samples)
            for indices in batches:
                yield list(itertools.islice(records, len(indices)))

        return in_order


class PlainFiles(Peer):
    """One file per record, a thousand in each folder."""

    name = "plain files"
    layout = "files"
    file = "records"

    PER_FOLDER = 1000
    MOST = 200_000
    INSTEAD = 50_000
    """Above MOST files, only the first INSTEAD are made, so that creation takes seconds."""

    def write(self, path: Path, records: Iterable[bytes], count: int) -> None:
        for index, record in enumerate(records):
            file = Path(self._name(path, index))
            if index % self.PER_FOLDER == 0:
                file.parent.mkdir(parents=True)
            file.write_bytes(record)

    def open(self, path: Path) -> Read:
        def read(indices: list[int]) -> Batch:
            batch = []
            for index in indices:
                with open(self._name(path, index), "rb", buffering=0) as file:
                    batch.append(file.read())
            return batch

        return read

    def capacity(self, count: int) -> int:
        return count if count <= self.MOST else self.INSTEAD

    def _name(self, path: Path, index: int) -> str:
        folder, place = divmod(index, self.PER_FOLDER)
        return f"{path}/{folder:04d}/{place:03d}"


OURS = Ours("ours", "auto")
OURS_AHEAD = OursAhead("ours, read_async", "auto")
OURS_AIO = Ours("ours, without pieces", "aio")
OURS_MMAP = Ours("ours, mmap", "mmap")
OURS_BUFFERED = Ours("ours, buffered", "buffered")
ARRAY_RECORD = ArrayRecord()
LMDB = Lmdb()
PLAIN_FILES = PlainFiles()

CONTESTANTS: tuple[Peer, ...] = (
    OURS,
    OURS_AHEAD,
    OURS_MMAP,
    OURS_BUFFERED,
    ARRAY_RECORD,
    LMDB,
    Hdf5(),
    Granular(),
    WebDataset(),
    PLAIN_FILES,
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in (*CONTESTANTS, OURS_AIO)}


def _spool(records: Iterable[bytes], path: Path) -> list[int]:
    """Write records end to end, and return their sizes."""
    with path.open("wb") as file:
        return [file.write(record) for record in records]


def _blocks(path: Path, size: int = 64 << 20) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yield a file in large pieces, with the offset of each."""
    with path.open("rb") as file:
        start = 0
        while block := file.read(size):
            yield start, np.frombuffer(block, np.uint8)
            start += len(block)

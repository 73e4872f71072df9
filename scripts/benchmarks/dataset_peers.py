"""The contestants of `dataset`: write samples to a folder, open it, read batches by index.

All return the same: a list of dicts in the requested order, with an int, a str, two numpy arrays
and bytes. Libraries are imported where they are used, and readers are not closed, as in `peers`.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .batches import one_ahead
from .dataset_samples import FEATURES, FIELDS, SIDE, Sample, SampleSet

Samples: TypeAlias = list[Sample]
Read: TypeAlias = Callable[[list[int]], Samples]
Stream: TypeAlias = Callable[[Iterable[list[int]]], Iterator[Samples]]
Column: TypeAlias = Callable[[Any], Sequence[Any]]
"""A function from an array of ascending row numbers to the values of a field."""

PER_WRITE = 100


class Peer(ABC):
    """A way to store samples and to read batches of them."""

    name: str
    layout: str
    """The format's name. Contestants with the same layout read the same files."""

    file: str = "samples"

    @abstractmethod
    def write(self, path: Path, samples: SampleSet) -> None:
        """Store all samples."""

    @abstractmethod
    def open(self, path: Path, fields: Sequence[str] | None) -> Read:
        """Open for random access to all fields (None) or to some."""

    def stream(self, path: Path, fields: Sequence[str] | None) -> Stream:
        """Open for a training loop: batches of indices in, batches of samples out."""
        return partial(map, self.open(path, fields))


class Ours(Peer):
    """`DatasetReader.read` with defaults: one batch over all files, checksums verified."""

    def __init__(self, name: str, compression: str = "") -> None:
        self.name = name
        self.layout = f"ffrecord{compression}"
        self._spec = {
            "label": "int",
            "caption": "utf8",
            "features": f"array{compression}",
            "jpeg": "bytes",
            "mask": f"array{compression}",
        }

    def write(self, path: Path, samples: SampleSet) -> None:
        from ffrecord import DatasetWriter

        with DatasetWriter(path, self._spec) as writer:
            for sample in samples:
                writer.append(sample)

    def open(self, path: Path, fields: Sequence[str] | None) -> Read:
        from ffrecord import DatasetReader

        reader = DatasetReader(path)
        return lambda indices: reader.read(indices, fields)


class OursAhead(Ours):
    """`DatasetReader.read_async`, one batch ahead of the one in use."""

    def stream(self, path: Path, fields: Sequence[str] | None) -> Stream:
        from ffrecord import DatasetReader

        reader = DatasetReader(path)
        return partial(one_ahead, lambda indices: reader.read_async(indices, fields))


class Granular(Peer):
    """One bag for each field, read sample by sample: granular has no batches of random samples.

    `parallel` reads the fields of a sample in one thread each. granular's `Loader` does not take
    part: it requires values of one shape, and returns only arrays.
    """

    layout = "granular"

    def __init__(self, name: str, parallel: bool) -> None:
        self.name = name
        self._parallel = parallel

    def write(self, path: Path, samples: SampleSet) -> None:
        import granular

        spec = {
            "label": "int", "caption": "utf8", "features": "array", "jpeg": "bytes",
            "mask": "array",
        }  # fmt: skip
        with granular.DatasetWriter(path, spec, granular.encoders) as writer:
            for count, sample in enumerate(samples, start=1):
                writer.append(sample, flush=count % PER_WRITE == 0)

    def open(self, path: Path, fields: Sequence[str] | None) -> Read:
        import granular

        reader = granular.DatasetReader(path, granular.decoders, parallel=self._parallel)
        if fields is None:
            return lambda indices: [reader[index] for index in indices]
        keys = tuple(fields)
        return lambda indices: [reader[index, keys] for index in indices]


class Hdf5(Peer):
    """One row per sample in a dataset for each field; compressed fields have one chunk per row.

    A chunk is read and decompressed as a whole, so one row is the best chunk for random rows.
    Uncompressed fields need no chunks and are contiguous.

    Fields of variable size are rows of variable length, which HDF5 does not compress (so ours are
    not compressed either). With `flat` they lie end to end in one dataset, with their offsets in
    another.

    Contiguous rows are read as one selection per batch, in ascending order as h5py requires. Chunks
    are read one by one, because a selection of 64 rows of masks took 20 times as long.
    """

    file = "samples.h5"

    def __init__(self, name: str, compression: str | None, *, flat: bool = False) -> None:
        self.name = name
        self.layout = f"hdf5-{compression or 'none'}{'-flat' if flat else ''}"
        self._compression = compression
        self._flat = flat

    def write(self, path: Path, samples: SampleSet) -> None:
        import h5py

        # The newer format: its files were a little smaller than with h5py's default.
        with h5py.File(path, "w", libver="latest") as file:
            self._create(file, samples)
            rows = iter(samples)
            for first in range(0, samples.count, PER_WRITE):
                some = list(itertools.islice(rows, PER_WRITE))
                place = slice(first, first + len(some))
                for name in FIELDS:
                    self._put(file, name, place, [sample[name] for sample in some])

    def open(self, path: Path, fields: Sequence[str] | None) -> Read:
        import h5py

        file = h5py.File(path, "r")
        columns = {name: self._column(file, name) for name in fields or FIELDS}

        def read(indices: list[int]) -> Samples:
            rows = np.array(indices)
            order = rows.argsort()
            rows = rows[order]
            samples: Samples = [{} for _ in indices]
            for name, column in columns.items():
                for place, value in zip(order.tolist(), column(rows), strict=True):
                    samples[place][name] = value
            return samples

        return read

    def _create(self, file: Any, samples: SampleSet) -> None:
        import h5py

        count = samples.count
        file.create_dataset("label", (count,), np.int64)
        for name, shape, dtype in (
            ("features", (FEATURES,), np.float32),
            ("mask", (SIDE, SIDE), np.uint8),
        ):
            chunks = (1, *shape) if self._compression else None
            file.create_dataset(
                name, (count, *shape), dtype, chunks=chunks, compression=self._compression
            )
        if self._flat:
            # Contiguous datasets cannot grow, so their sizes come first.
            for name in ("caption", "jpeg"):
                sizes = [len(_raw(sample[name])) for sample in samples]
                offsets = np.cumsum([0, *sizes])
                file.create_dataset(f"{name} offsets", data=offsets)
                file.create_dataset(name, (int(offsets[-1]),), np.uint8)
        else:
            file.create_dataset("caption", (count,), h5py.string_dtype())
            file.create_dataset("jpeg", (count,), h5py.vlen_dtype(np.uint8))

    def _put(self, file: Any, name: str, place: slice, values: list[Any]) -> None:
        if self._flat and name in ("caption", "jpeg"):
            begin, end = file[f"{name} offsets"][[place.start, place.stop]].tolist()
            file[name][begin:end] = np.frombuffer(b"".join(map(_raw, values)), np.uint8)
        elif name == "jpeg":
            for row, value in enumerate(values, start=place.start):
                file[name][row] = np.frombuffer(value, np.uint8)
        else:
            file[name][place] = values

    def _column(self, file: Any, name: str) -> Column:
        data = file[name]
        if self._flat and name in ("caption", "jpeg"):
            # h5py has a fast path for slices with Python integers, not with numpy's.
            ends = file[f"{name} offsets"][:].tolist()
            decode = _text if name == "caption" else bytes
            return lambda rows: [
                decode(data[ends[row] : ends[row + 1]].tobytes()) for row in rows.tolist()
            ]
        if name == "label":
            return lambda rows: data[rows].tolist()
        if name == "caption":
            texts = data.asstr()
            return lambda rows: texts[rows].tolist()
        if name == "jpeg":
            return lambda rows: [value.tobytes() for value in data[rows]]
        if data.chunks is not None:
            return lambda rows: [data[row] for row in rows.tolist()]
        return lambda rows: data[rows]


OURS = Ours("ours, none")
OURS_AHEAD = OursAhead("ours, none, read_async")
OURS_LZ4 = Ours("ours, lz4", "+lz4")
# Rates are compared at equal or smaller size: at the default level, 3, files were 0.7 % larger than
# HDF5's with gzip at its default.
OURS_ZSTD = Ours("ours, zstd:6", "+zstd:6")
GRANULAR = Granular("granular", parallel=False)
GRANULAR_PARALLEL = Granular("granular, parallel", parallel=True)
HDF5 = Hdf5("HDF5, none", None)
HDF5_FLAT = Hdf5("HDF5, none, flat", None, flat=True)
HDF5_LZF = Hdf5("HDF5, lzf", "lzf")
HDF5_GZIP = Hdf5("HDF5, gzip", "gzip")

CONTESTANTS: tuple[Peer, ...] = (
    OURS,
    OURS_AHEAD,
    OURS_LZ4,
    OURS_ZSTD,
    GRANULAR,
    GRANULAR_PARALLEL,
    HDF5,
    HDF5_FLAT,
    HDF5_LZF,
    HDF5_GZIP,
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in CONTESTANTS}


def formats() -> Iterator[Peer]:
    """Yield one contestant for each layout on disk."""
    yield from {peer.layout: peer for peer in CONTESTANTS}.values()


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _text(value: bytes) -> str:
    return value.decode()

"""Datasets in shards: one folder with subfolders `000000`, `000001` …, each a complete dataset.

Several writers can fill such a folder in parallel, on one machine or on many that share the folder.
Each writer has a different `shardstart`, and the number of writers as `shardstep`. Readers can
divide the shards among themselves in the same way.

A shard appears when it is complete. If a writer is killed, its finished shards stay, and a new
writer can continue with the first missing number as `shardstart`, or with `append=True`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from ffrecord.aliases import Closing, Finishing, Ints, Path
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Decoder, Encoder
from ffrecord.dataset.continuing import require_same
from ffrecord.dataset.datapoints import Datapoint, Datapoints, Part, Parts
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.remote import remote_dataset
from ffrecord.dataset.spec import SPEC_NAME, load
from ffrecord.dataset.writer import DatasetWriter
from ffrecord.errors import (
    ClosedError,
    DatasetError,
    MissingShardWarning,
    SpecError,
    UnclosedWarning,
)
from ffrecord.records.fingerprints import combined
from ffrecord.records.opening import refuse_remote_options
from ffrecord.remote.urls import is_remote, joined, shown
from ffrecord.text import counted, integer, path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

SHARDLEN = 10_000  # datapoints per shard, by default
AT_ONCE = 64  # shards that are opened over the network at once

# Only the writer's spelling of a number: with others, two folders could be the same shard.
SHARD_NAME = r"[0-9]{6}|[1-9][0-9]{6,18}"


class ShardedDatasetWriter(Finishing):
    """Writer of a dataset in shards.

    Without `append`, a shard that already exists is an error. If the first shard exists, the
    constructor raises the error.

    Args:
        directory: The folder of the shards. It is created if it is missing.
        spec: The type of each field, as for `DatasetWriter`.
        encoders: A function for each type name, as for `DatasetWriter`.
        shardlen: Datapoints per shard. The last shard may have fewer. None writes one shard.
        shardstart: The number of this writer's first shard.
        shardstep: The distance from one of this writer's shard numbers to the next.
        append: Continue after the last existing shard among this writer's numbers: fill it up,
            which replaces it in one step, then write further shards. `spec` may be left out then.
        remote: Options for URLs, as for `DatasetReader`.
    """

    def __init__(
        self,
        directory: Path,
        spec: Mapping[str, str] | None = None,
        encoders: Mapping[str, Encoder] = codecs.encoders,
        shardlen: int | None = SHARDLEN,
        shardstart: int = 0,
        shardstep: int = 1,
        *,
        append: bool = False,
        **remote: Unpack[RemoteOptions],
    ) -> None:
        self.shardlen = None if shardlen is None else integer(shardlen, "shardlen")
        if self.shardlen is not None and self.shardlen < 1:
            raise ValueError(f"shardlen is {shardlen}; it must be at least 1")
        numbers = _numbers(shardstart, shardstep)
        self._encoders = encoders
        self._shards = self._finished = 0  # complete shards, and their datapoints
        self._closed = False
        self._writer: DatasetWriter | None = None
        self._reopened: int | None = None  # datapoints that the shard had before; None: it is new
        self._remote = remote
        if is_remote(directory, remote):
            from ffrecord.remote.target import refuse_append  # needed for URLs only

            refuse_append(directory, append=append)
            self._folder: Any = directory
            self.directory = shown(str(directory)).rstrip("/")
        else:
            refuse_remote_options(remote)
            self.directory = self._folder = os.path.abspath(path_text(directory))
            os.makedirs(self.directory, exist_ok=True)
        there = _found(self.directory, numbers) if append else {}
        if there:
            self._numbers = iter(numbers[numbers.index(max(there)) + 1 :])
            self._continue(there, spec)
        elif spec is None:
            raise SpecError(
                f"{self.directory}: there are no shards to take the spec from; pass spec"
            )
        else:
            self._numbers = iter(numbers)
            self._spec = dict(spec)
            self._writer = self._next()
        self._empty = True
        # Shard 0 is written without datapoints too: a dataset needs a shard that has the spec.
        self._is_first = not there and numbers.start == 0

    def _continue(self, there: Mapping[int, str], spec: Mapping[str, str] | None) -> None:
        """Continue after the existing shards: open the last one if it has room."""
        lengths = {number: load(folder).length for number, folder in there.items()}
        last = there[max(there)]
        self._spec = load(last).spec
        if spec is not None:
            require_same(last, self._spec, spec)
        self._shards, self._finished = len(lengths), sum(lengths.values())
        if self.shardlen is None or lengths[max(there)] < self.shardlen:
            self._writer = DatasetWriter(last, self._spec, self._encoders, append=True)
            self._reopened = len(self._writer)

    @property
    def spec(self) -> dict[str, str]:
        """The types of the fields, by name."""
        return dict(self._spec)

    @property
    def shards(self) -> int:
        """Number of this writer's shards, with the one that is being written."""
        return self._shards + (self._writer is not None and self._reopened is None)

    def __len__(self) -> int:
        if self._writer is None:
            return self._finished
        return self._finished + len(self._writer) - (self._reopened or 0)

    def append(self, datapoint: Mapping[str, Any]) -> int:
        """Add a datapoint, and return its number among those in this writer's shards.

        A full shard is finished at once.
        """
        if self._closed:
            raise ClosedError(
                f"{self.directory}: this writer is closed; open another one with append=True"
            )
        if self._writer is None:
            self._writer = self._next()
        self._writer.append(datapoint)
        self._empty = False
        if self.shardlen is not None and len(self._writer) >= self.shardlen:
            self._finish()
        return len(self) - 1

    def close(self) -> None:
        """Finish the last shard. Without datapoints, only shard 0 is written."""
        if self._empty and not self._is_first:
            self.discard()
        elif self._writer is not None:
            self._finish()
        self._closed = True

    def discard(self) -> None:
        """Drop the shard that is being written. Finished shards stay."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()

    def _next(self) -> DatasetWriter:
        name = f"{next(self._numbers):06}"
        top = self._folder
        folder = joined(top, name) if isinstance(top, str) else top / name  # a UPath
        return DatasetWriter(folder, self._spec, self._encoders, **self._remote)

    def _finish(self) -> None:
        shards, length = self.shards, len(self)
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._shards, self._finished, self._reopened = shards, length, None

    def _give_up(self) -> None:
        self.discard()

    def __del__(self) -> None:
        writer = getattr(self, "_writer", None)
        if writer is None or writer._folder is None or not writer._mine:
            return
        self.discard()
        if not self._empty:
            warnings.warn(
                f"{writer.directory}: the writer was never closed: {writer._lost()}, and the "
                "finished shards stay; use a with block, or call close()",
                UnclosedWarning,
                stacklevel=2,
            )


class JoinedDatasets(Datapoints):
    """Datasets with the same spec, end to end. A batch reads from all of them at the same time."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)
        self._stops = np.cumsum([len(part) for part in parts], dtype=np.int64)
        self._starts = np.concatenate([[0], self._stops[:-1]])

    @property
    def spec(self) -> dict[str, str]:
        return dict(self.parts[0].spec)

    @property
    def size(self) -> int:
        """Total size of the record files, or of the records in memory, in bytes."""
        return sum(part.size for part in self.parts)

    def __len__(self) -> int:
        return int(self._stops[-1])

    @property
    def fingerprint(self) -> str:
        return combined(*(part.fingerprint for part in self.parts))

    def available(self, index: SupportsIndex) -> dict[str, Part]:
        number = self._number(index)
        part = int(self._stops.searchsorted(number, side="right")[0])
        found: dict[str, Part] = self.parts[part].available(int(number[0] - self._starts[part]))
        return found

    def _begin(
        self, indices: Ints, masks: Sequence[Parts], ahead: bool
    ) -> Callable[[], list[Datapoint]]:
        which = self._stops.searchsorted(indices, side="right")
        pending = []
        used = np.unique(which).tolist()
        for part in used:
            rows = np.flatnonzero(which == part)
            some = masks if len(masks) == 1 else [masks[row] for row in rows.tolist()]
            local = indices[rows] - self._starts[part]
            begun = self.parts[part]._begin(local, some, ahead or len(used) > 1)
            pending.append((rows.tolist(), begun))

        def datapoints() -> list[Datapoint]:
            result: list[Datapoint] = [{} for _ in range(len(indices))]
            for rows, collect in pending:
                for row, datapoint in zip(rows, collect(), strict=True):
                    result[row] = datapoint
            return result

        return datapoints


class ShardedDatasetReader(Closing, JoinedDatasets):
    """Reader of a folder of shards, or of some of its shards, as one dataset.

    Args:
        directory: The folder of the shards, or its URL.
        decoders: A function for each type name, as for `DatasetReader`.
        shardstart: The number of the first shard to read.
        shardstep: The distance from one shard number to the next.
        cache_index: Keep the index in memory, as for `DatasetReader`.
        cache_keys: Small fields to keep in memory, as for `DatasetReader`.
        check_data: Verify the CRC-32 of every record.
        mode: The way to read, as for `FileReader`.
        remote: Options for URLs, as for `FileReader`.
    """

    def __init__(
        self,
        directory: Path,
        decoders: Mapping[str, Decoder] = codecs.decoders,
        shardstart: int = 0,
        shardstep: int = 1,
        *,
        cache_index: bool = True,
        cache_keys: Collection[str] = (),
        check_data: bool = True,
        mode: str = "auto",
        **remote: Unpack[RemoteOptions],
    ) -> None:
        numbers = _numbers(shardstart, shardstep)
        folders: Sequence[Any]
        if is_remote(directory, remote):
            folder = remote_dataset(directory, remote)
            self.directory = folder.name
            names = _shards(self.directory, folder.entries(), numbers)
            folders = [folder.inside(name) for name in names]
        else:
            self.directory = os.path.abspath(path_text(directory))
            names = _shards(self.directory, os.listdir(self.directory), numbers)
            folders = [os.path.join(self.directory, name) for name in names]

        def opened(folder: Any) -> DatasetReader:
            return DatasetReader(
                folder, decoders, cache_index=cache_index, cache_keys=cache_keys,
                check_data=check_data, mode=mode, **remote,
            )  # fmt: skip

        if is_remote(directory, remote):  # all shards at once: each waits for the network
            with ThreadPoolExecutor(AT_ONCE) as pool:
                readers = list(pool.map(opened, folders))
        else:
            readers = list(map(opened, folders))
        for reader in readers:
            if reader.spec != readers[0].spec:
                raise DatasetError(
                    f"{reader.directory}: this shard has another spec than {readers[0].directory}; "
                    "keep datasets with different specs in different folders"
                )
        super().__init__(readers)

    @property
    def shards(self) -> int:
        """Number of shards that are read."""
        return len(self.parts)

    def to_memory(self, fields: Collection[str] | None = None) -> JoinedDatasets:
        """Load all fields, or those in `fields`, into memory."""
        return JoinedDatasets([part.to_memory(fields) for part in self.parts])

    def close(self) -> None:
        """Close the files of all shards. Values that were read stay valid."""
        for part in self.parts:
            part.close()

    def __repr__(self) -> str:
        return f"<ShardedDatasetReader {self.directory}: {len(self)} in {self.shards} shards>"


def _numbers(start: int, step: int) -> range:
    start, step = integer(start, "shardstart"), integer(step, "shardstep")
    if start < 0 or step < 1:
        raise ValueError(
            f"shardstart is {start} and shardstep is {step}; they must be at least 0 and 1"
        )
    return range(start, 1 << 62, step)


def all_shards(directory: str, entries: Iterable[str]) -> list[str]:
    """Return the names of all shards in a folder; warn if one is missing."""
    return _shards(directory, entries, _numbers(0, 1))


def _shards(directory: str, entries: Iterable[str], numbers: range) -> list[str]:
    """Return the names of the shards in a folder among `numbers`; warn if one is missing."""
    entries = list(entries)
    there = shards_among(entries)
    found = {int(name): name for name in there if int(name) in numbers}
    if not found:
        raise DatasetError(f"{directory}: {_why_none(entries, there, numbers)}")
    last = numbers.index(max(found))
    if len(found) != last + 1:
        missing = next(number for number in numbers if number not in found)
        warnings.warn(
            f"{directory}: shard {missing:06} is missing, but later shards exist; it was lost, or "
            "its writer wrote fewer shards than the others",
            MissingShardWarning,
            stacklevel=3,
        )
    return list(found.values())


def _why_none(entries: Collection[str], shards: Collection[str], numbers: range) -> str:
    if SPEC_NAME in entries:
        return "one dataset, not a folder of shards; read it with DatasetReader"
    if not shards:
        return "not a dataset: this folder has no shards (000000, 000001 …); check the path"
    asked = f"{numbers.start}, {numbers.start + numbers.step} …"
    return (
        f"no shards with the numbers {asked} among the {counted(len(shards), 'shard')} of this "
        "folder; check shardstart and shardstep"
    )


def _found(directory: str, numbers: range) -> dict[int, str]:
    """Return the folders of existing shards by number, in increasing order."""
    names = shards_among(os.listdir(directory))
    return {int(n): os.path.join(directory, n) for n in names if int(n) in numbers}


def shards_among(names: Iterable[str]) -> list[str]:
    """Return the names of shards among `names`, in the order of their numbers."""
    return sorted((name for name in names if re.fullmatch(SHARD_NAME, name)), key=int)

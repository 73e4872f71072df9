"""Datasets in shards: folders `000000`, `000001` …, each a dataset of its own, in one folder.

Several writers fill such a folder side by side, each with a `shardstart` of its own and the number
of writers as `shardstep`, on one machine or on many that share the folder; readers divide it
among themselves in the same way. A shard appears when it is whole. So what a writer that was killed
has finished stays, and another can go on with `shardstart` at the first shard that is missing.
"""

from __future__ import annotations

import operator
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from ffrecord.aliases import Closing, Finishing, Ints, Path
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Decoder, Encoder
from ffrecord.dataset.continuing import require_same
from ffrecord.dataset.datapoints import Datapoint, Datapoints, Part, Parts
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.spec import load
from ffrecord.dataset.writer import DatasetWriter
from ffrecord.errors import ClosedError, DatasetError, MissingShardWarning, SpecError
from ffrecord.records.fingerprints import combined

# As the writer spells them: another spelling of a number would be a second shard of it.
SHARD_NAME = r"[0-9]{6}|[1-9][0-9]{6,18}"


class ShardedDatasetWriter(Finishing):
    """Writes datapoints into shards.

    Args:
        directory: the folder of the shards; it is made if it is not there.
        spec, encoders: as for `DatasetWriter`.
        shardlen: datapoints in a shard; the last one may have fewer.
        shardstart: the number of the first shard that this writer writes.
        shardstep: how many numbers to go on to the next one.
        append: go on after the last shard that this writer's numbers have: fill it up, which
            replaces it in one step, then write further ones. `spec` may be left out then.

    Without `append` a shard that is there already is an error, at once for the first one.
    """

    def __init__(
        self,
        directory: Path,
        spec: Mapping[str, str] | None = None,
        encoders: Mapping[str, Encoder] = codecs.encoders,
        shardlen: int = 10_000,
        shardstart: int = 0,
        shardstep: int = 1,
        *,
        append: bool = False,
    ) -> None:
        self.shardlen = operator.index(shardlen)
        if self.shardlen < 1:
            raise ValueError(f"shardlen must be at least 1, not {shardlen}")
        numbers = _numbers(shardstart, shardstep)
        self.directory = os.path.abspath(os.fsdecode(directory))
        self._encoders = encoders
        self._finished = 0
        self._closed = False
        self._writer: DatasetWriter | None = None
        os.makedirs(self.directory, exist_ok=True)
        there = _found(self.directory, numbers) if append else {}
        if there:
            self._numbers = iter(numbers[numbers.index(max(there)) + 1 :])
            self._continue(there, spec)
        elif spec is None:
            raise SpecError(f"{self.directory}: new shards need a spec")
        else:
            self._numbers = iter(numbers)
            self._spec = dict(spec)
            self._writer = self._next()
        self._empty = True

    def _continue(self, there: Mapping[int, str], spec: Mapping[str, str] | None) -> None:
        """Fill up the last shard, if it has room."""
        lengths = {number: load(folder).length for number, folder in there.items()}
        last = there[max(there)]
        self._spec = load(last).spec
        if spec is not None:
            require_same(last, self._spec, spec)
        self._finished = sum(lengths.values())
        if lengths[max(there)] < self.shardlen:
            self._writer = DatasetWriter(last, self._spec, self._encoders, append=True)
            self._finished -= len(self._writer)

    @property
    def spec(self) -> dict[str, str]:
        return dict(self._spec)

    def __len__(self) -> int:
        return self._finished + (0 if self._writer is None else len(self._writer))

    def append(self, datapoint: Mapping[str, Any]) -> int:
        """Add a datapoint; a shard that is full is finished at once. Return the datapoint's number
        among those in this writer's shards."""
        if self._closed:
            raise ClosedError(f"{self.directory}: this writer is closed")
        if self._writer is None:
            self._writer = self._next()
        self._writer.append(datapoint)
        self._empty = False
        if len(self._writer) >= self.shardlen:
            self._finish()
        return len(self) - 1

    def close(self) -> None:
        """Finish the last shard. A writer that was given nothing leaves nothing."""
        if self._empty:
            self.discard()
        elif self._writer is not None:
            self._finish()
        self._closed = True

    def discard(self) -> None:
        """Give up the shard that is being written. Those that are finished stay."""
        self._closed = True
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()

    def _next(self) -> DatasetWriter:
        folder = os.path.join(self.directory, f"{next(self._numbers):06}")
        return DatasetWriter(folder, self._spec, self._encoders)

    def _finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._finished += len(writer)

    def _give_up(self) -> None:
        self.discard()


class JoinedDatasets(Datapoints):
    """Datasets with one spec, end to end. What is asked of several is read at the same time."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)
        self._stops = np.cumsum([len(part) for part in parts], dtype=np.int64)
        self._starts = np.concatenate([[0], self._stops[:-1]])

    @property
    def spec(self) -> dict[str, str]:
        return dict(self.parts[0].spec)

    @property
    def size(self) -> int:
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
    """Reads a folder of shards, or some of them, as one dataset.

    Args:
        directory: the folder of the shards.
        decoders, cache_index, cache_keys, check_data, mode: as for `DatasetReader`.
        shardstart: the number of the first shard to read.
        shardstep: how many numbers to go on to the next one.
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
    ) -> None:
        self.directory = os.path.abspath(os.fsdecode(directory))
        folders = _shards(self.directory, _numbers(shardstart, shardstep))
        readers = [
            DatasetReader(
                folder, decoders, cache_index=cache_index, cache_keys=cache_keys,
                check_data=check_data, mode=mode,
            )
            for folder in folders
        ]  # fmt: skip
        for reader in readers:
            if reader.spec != readers[0].spec:
                raise DatasetError(f"{reader.directory}: not of the spec that other shards have")
        super().__init__(readers)

    @property
    def shards(self) -> int:
        return len(self.parts)

    def to_memory(self, fields: Collection[str] | None = None) -> JoinedDatasets:
        """All of it, or some fields, in memory."""
        return JoinedDatasets([part.to_memory(fields) for part in self.parts])

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def __repr__(self) -> str:
        return f"<ShardedDatasetReader {self.directory}: {len(self)} in {self.shards} shards>"


def _numbers(start: int, step: int) -> range:
    if operator.index(start) < 0 or operator.index(step) < 1:
        raise ValueError(f"shardstart is 0 or more and shardstep 1 or more, not {start} and {step}")
    return range(start, 1 << 62, step)


def _shards(directory: str, numbers: range) -> list[str]:
    """The folders of those of the shards that are there."""
    found = _found(directory, numbers)
    if not found:
        raise DatasetError(f"{directory}: there are no shards in it, or none of those asked for")
    last = numbers.index(max(found))
    if len(found) != last + 1:
        missing = next(number for number in numbers if number not in found)
        warnings.warn(
            f"{directory}: shard {missing:06} is not there, but later ones are: it is missing, or "
            "its writer had fewer shards than others",
            MissingShardWarning,
            stacklevel=3,
        )
    return list(found.values())


def _found(directory: str, numbers: range) -> dict[int, str]:
    """Shards that are there, by number and in that order."""
    names = shards_among(os.listdir(directory))
    return {int(n): os.path.join(directory, n) for n in names if int(n) in numbers}


def shards_among(names: Iterable[str]) -> list[str]:
    """Return those of some names that are names of shards, in the order of the shards."""
    return sorted((name for name in names if re.fullmatch(SHARD_NAME, name)), key=int)

"""Readers transformed and combined on the way to a loader: `Transform`, `Mix`, `Interleave`.

Each takes readers with `len` and `[]`, and has `len`, `[]` and `__getitems__` itself. Datapoint k
depends only on k and on the constructor's arguments, not on the order of reading, on processes or
threads. Therefore the state of a loop over `Mix` or `Interleave` is just its position.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, SupportsIndex

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.records.fingerprints import combined, fingerprint_of
from ffrecord.records.indices import record_numbers

# A period of `Mix` has this many slots, if the weights are not small whole numbers.
SLOTS = 10_000
STEP = 16  # datapoints that iteration reads at once


class Reader(Protocol):
    """An object that can be transformed or combined: it has `len` and `[]`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def seed_of(seed: int, epoch: int, index: int) -> int:
    """Return a number of 63 bits, hashed from all three arguments."""
    text = f"{seed} {epoch} {index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Transform:
    """A reader whose datapoints go through a function, `fn(datapoint, seed)`.

    Args:
        reader: The reader of the datapoints.
        fn: The function. Each datapoint has its own seed, computed from `seed`, `epoch` and the
            datapoint's number. `fn` should use no other source of randomness.
        seed: A number that changes the seeds of all datapoints.
        epoch: Another such number. Change it with `set_epoch` before a loader's workers start.
    """

    def __init__(
        self, reader: Reader, fn: Callable[[Any, int], Any], seed: int = 0, epoch: int = 0
    ) -> None:
        self.reader = reader
        self.fn = fn
        self.seed = operator.index(seed)
        self.epoch = operator.index(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which changes the seeds of all datapoints."""
        self.epoch = operator.index(epoch)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the reader. It identifies the data, not the function."""
        return fingerprint_of(self.reader)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, key: Any) -> Any:
        index, *mask = key if isinstance(key, tuple) else (key,)
        (number,) = _numbers([index], len(self))
        read: Any = (number, *mask) if mask else number
        return self.fn(self.reader[read], seed_of(self.seed, self.epoch, number))

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        numbers = _numbers(indices, len(self))
        seeds = [seed_of(self.seed, self.epoch, number) for number in numbers]
        return list(map(self.fn, _read(self.reader, numbers), seeds))


class _Combined:
    """Several readers as one. Subclasses decide in `_places` where each datapoint comes from."""

    _length: int

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = list(readers)
        if not self.readers:
            raise ValueError("readers is empty; pass at least one reader")
        self.position = 0

    def _places(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the reader of each datapoint, and the datapoint's number in that reader."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._length

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the readers and of the way they are combined."""
        way = f"{type(self).__name__} {self._way()}"
        return combined(way, *map(fingerprint_of, self.readers))

    def _way(self) -> str:
        """Return a text that differs whenever the readers are combined in another way."""
        return str(len(self))

    def __getitem__(self, index: SupportsIndex) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        which, local = self._places(record_numbers(indices, len(self)))
        result: list[Any] = [None] * len(which)
        for reader in np.unique(which).tolist():
            rows = np.flatnonzero(which == reader)
            found = _read(self.readers[reader], local[rows].tolist())
            for row, datapoint in zip(rows.tolist(), found, strict=True):
                result[row] = datapoint
        return result

    def __iter__(self) -> Iterator[Any]:
        """Yield the datapoints from `position` to the end, then set `position` back to 0."""
        while self.position < len(self):
            start = self.position
            for datapoint in self.__getitems__(range(start, min(start + STEP, len(self)))):
                self.position += 1
                yield datapoint
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """Return the state of the iteration: the number of the datapoint that comes next."""
        return {"position": self.position, "length": len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue the iteration where `state_dict` was called.

        Raises:
            ValueError: The state was saved with another number of datapoints.
        """
        if state["length"] != len(self) or not 0 <= state["position"] <= len(self):
            raise ValueError(
                f"the state {state} does not fit {len(self)} datapoints; combine the same readers "
                "in the same way as when it was saved"
            )
        self.position = state["position"]


class Interleave(_Combined):
    """Datapoints of several readers in turn, each datapoint once.

    One datapoint of the first reader, one of the second, and so on. A reader at its end is skipped.

    Args:
        readers: The readers to combine.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        super().__init__(readers)
        lengths = np.array([len(reader) for reader in self.readers], np.int64)
        self._length = int(lengths.sum())
        # A round takes one datapoint of each reader that is not at its end yet. The same readers
        # take part in every round between the ends of two readers.
        ends = np.unique(np.concatenate([[0], lengths]))
        self._round = ends[:-1]
        self._taking_part = [np.flatnonzero(lengths > first) for first in self._round.tolist()]
        rounds = np.diff(ends) * [len(part) for part in self._taking_part]
        self._starts = np.concatenate([[0], rounds.cumsum()]).astype(np.int64)

    def _places(self, numbers: Ints) -> tuple[Ints, Ints]:
        stage = self._starts.searchsorted(numbers, side="right") - 1
        which, local = np.empty_like(numbers), np.empty_like(numbers)
        for at in np.unique(stage).tolist():
            rows, readers = stage == at, self._taking_part[at]
            turn, place = np.divmod(numbers[rows] - self._starts[at], len(readers))
            which[rows], local[rows] = readers[place], self._round[at] + turn
        return which, local


class Mix(_Combined):
    """Datapoints of several readers in fixed proportions, evenly spread, each reader in its order.

    Args:
        readers: The readers to mix.
        weights: A positive number for each reader. Whole numbers that add up to at most 10,000
            are kept exactly, others to one part in 10,000.
        length: The number of datapoints. A reader at its end starts again. By default the mix ends
            as soon as one of the readers is at its end, so that no datapoint comes twice.
    """

    def __init__(
        self, readers: Sequence[Reader], weights: Sequence[float], length: int | None = None
    ) -> None:
        super().__init__(readers)
        slots = _slots(weights, len(self.readers))
        lengths = np.array([len(reader) for reader in self.readers], np.int64)
        # In one period, the slots of each reader are spread evenly.
        times = np.concatenate([(np.arange(n) + 0.5) / n for n in slots.tolist()])
        owners = np.repeat(np.arange(len(slots)), slots)
        order = np.lexsort((owners, times))
        ranks = np.concatenate([np.arange(n) for n in slots.tolist()])
        self._slots, self._owner, self._rank = slots, owners[order], ranks[order]
        self._lengths = lengths
        if length is None:
            self._length = self._until_one_ends()
        else:
            self._length = operator.index(length)
            if self._length < 0:
                raise ValueError(f"length is {length}; it must be 0 or more")
            if self._length and not lengths.all():
                empty = lengths.tolist().index(0)
                raise ValueError(
                    f"reader {empty} is empty, and a mix with a length repeats every reader; "
                    "leave the empty reader out"
                )

    def _way(self) -> str:
        return f"{len(self)} {self._slots.tolist()}"

    def _until_one_ends(self) -> int:
        ends = []
        for reader, length in enumerate(self._lengths.tolist()):
            # In this slot of this period the mix would need a datapoint after the reader's last.
            period, rank = divmod(length, int(self._slots[reader]))
            slot = np.flatnonzero((self._owner == reader) & (self._rank == rank))[0]
            ends.append(period * len(self._owner) + int(slot))
        return int(min(ends))

    def _places(self, numbers: Ints) -> tuple[Ints, Ints]:
        period, slot = np.divmod(numbers, len(self._owner))
        which = self._owner[slot]
        return which, (period * self._slots[which] + self._rank[slot]) % self._lengths[which]


def _slots(weights: Sequence[float], count: int) -> Ints:
    """Return the number of slots of each reader in a period."""
    given = np.array(weights, np.float64)
    if given.shape != (count,) or not (np.isfinite(given).all() and (given > 0).all()):
        raise ValueError(f"weights is {weights!r}; {count} readers need {count} positive numbers")
    if (given == given.round()).all() and given.sum() <= SLOTS:
        whole: Ints = given.astype(np.int64)
        smallest: Ints = whole // math.gcd(*whole.tolist())
        return smallest
    exact = given / given.sum() * SLOTS
    slots: Ints = np.maximum(1, np.floor(exact).astype(np.int64))
    most_cut = np.argsort(slots - exact, kind="stable")
    slots[most_cut[: max(0, SLOTS - int(slots.sum()))]] += 1
    return slots


def _numbers(indices: Sequence[SupportsIndex], length: int) -> list[int]:
    numbers: list[int] = record_numbers(indices, length).tolist()
    return numbers


def _read(reader: Any, numbers: list[int]) -> list[Any]:
    if hasattr(reader, "__getitems__"):
        found: list[Any] = reader.__getitems__(numbers)
        return found
    return [reader[number] for number in numbers]

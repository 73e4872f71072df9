"""Shuffles that need a few integers: seekable, resumable, the same for the same seed everywhere.

The order of an epoch is a `Permutation` of the dataset's indices. Of a number of ranks, rank r
takes the positions r, r + ranks, r + 2 * ranks, … of it, so that what all ranks together have
seen is always its beginning: its length is all the state there is, and any other number of ranks
can go on from there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sized
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from ffrecord.aliases import Ints
from ffrecord.errors import StateError
from ffrecord.records.fingerprints import fingerprint_of, former_fingerprint_of
from ffrecord.torch.permutation import Permutation

State: TypeAlias = dict[str, Any]

# So many indices are computed at a time: enough for numpy to be quick, and few to keep.
STRETCH = 4096


class _Shuffle:
    """An epoch's order, where in it the next iteration begins, and the state of that.

    `ranks` share the order; this one takes every `ranks`-th index from its place on.
    """

    shuffle: bool
    seed: int
    epoch: int

    def _prepare(self, data_source: Sized | SupportsIndex) -> None:
        if isinstance(data_source, Sized):
            self._length = len(data_source)
            self._fingerprint = fingerprint_of(data_source)
            self._former = former_fingerprint_of(data_source)
        else:
            self._length = operator.index(data_source)
            self._fingerprint = self._former = f"length {self._length}"
        if self._length < 0:
            raise ValueError(f"there cannot be {self._length} samples")
        self._begin = 0  # where the next iteration begins in the epoch's order
        self._present = 0  # where the present one began
        self._given = 0  # how many indices it has given out

    def _share(self) -> tuple[int, int]:
        """The number of this rank, and of all ranks."""
        return 0, 1

    def _count(self, begin: int) -> int:
        """How many indices this rank gets of the order from `begin` on."""
        return max(self._length - begin, 0)

    def __len__(self) -> int:
        return self._count(self._begin)

    @property
    def begin(self) -> int:
        """Where the next iteration begins in the epoch's order."""
        return self._begin

    def count_from(self, begin: int, skip: int = 0) -> int:
        """Return how many indices an iteration gives that leaves out `skip` after `begin`."""
        return max(self._count(begin) - skip, 0)

    def _indices(self) -> Iterator[int]:
        """The iteration that begins now."""
        self._present, self._begin, self._given = self._begin, 0, 0
        return self._given_out(self.epoch, self._present)

    def _given_out(self, epoch: int, begin: int) -> Iterator[int]:
        count = self._count(begin)
        rank, ranks = self._share()
        order = Permutation(self._length, self.seed, epoch) if self.shuffle else None
        for start in range(0, count, STRETCH):
            steps = np.arange(start, min(start + STRETCH, count), dtype=np.int64)
            # Where indices are missing for an equal share, the order begins anew.
            positions = (begin + rank + steps * ranks) % self._length
            indices: Ints = positions if order is None else order(positions)
            for index in indices.tolist():
                self._given += 1
                yield index

    def set_epoch(self, epoch: int) -> None:
        """Take the order of that epoch from the next iteration on.

        From its beginning, unless it is the epoch that a loaded state is in the middle of.
        """
        if epoch != self.epoch:
            self._begin = 0
        self.epoch = epoch

    def skip(self, count: int) -> None:
        """Begin the next iteration so many of this rank's indices later."""
        self._begin = self._skipped(count)

    def _skipped(self, count: int) -> int:
        return min(self._begin + count * self._share()[1], self._length)

    def rewind(self) -> None:
        """Begin the next iteration at the beginning of its epoch after all."""
        self._begin = 0

    def state_dict(self, given: int | None = None) -> State:
        """Where it is, or was when it had given out the first `given` indices of this iteration."""
        given = self._given if given is None else given
        position = min(self._present + given * self._share()[1], self._length)
        return self._state(self.epoch, position)

    def _state(self, epoch: int, position: int) -> State:
        return {
            "shuffle": self.shuffle,
            "seed": self.seed,
            "epoch": epoch,
            "position": position,
            "length": self._length,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration where a state says, that of any number of ranks.

        StateError if the state belongs to other data.
        """
        try:
            seed, epoch, position = (int(state[key]) for key in ("seed", "epoch", "position"))
            length, fingerprint = int(state["length"]), str(state["fingerprint"])
            shuffle = bool(state["shuffle"])
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            # The last two are those of infinity and of tensors.
            raise StateError(f"not the state of a shuffle: {error!r}") from None
        # States of the first version have its fingerprint.
        if length != self._length or fingerprint not in (self._fingerprint, self._former):
            raise StateError(
                f"the state belongs to other data: {length} samples with the fingerprint "
                f"{fingerprint[:16]}, here are {self._length} with {self._fingerprint[:16]}"
            )
        if shuffle != self.shuffle:
            raise StateError("the state belongs to a sampler that shuffles, or this one does")
        if not 0 <= position <= length:
            raise StateError(f"the state is at sample {position} of {length}")
        self.seed, self.epoch = seed, epoch
        self._begin = self._present = position
        self._given = 0


class ShuffleSampler(_Shuffle, Sampler[int]):
    """All indices of a dataset in random order, in O(1) memory; each epoch another order.

    An iteration is an epoch: the next one, unless `set_epoch` or a loaded state names it.

    Args:
        data_source: the dataset, or its length.
        seed: the same seed gives the same orders, on every machine.
    """

    def __init__(self, data_source: Sized | SupportsIndex, *, seed: int = 0) -> None:
        self.shuffle = True
        self.seed = seed
        self.epoch = 0
        self._begun = False
        self._prepare(data_source)

    def __iter__(self) -> Iterator[int]:
        # A generator: an iterator that torch makes and does not use begins no epoch.
        if self._begun:
            self.epoch += 1
        self._begun = True
        yield from self._indices()

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._begun = False

    def next_state(self, skip: int = 0) -> State:
        """Return the state in which the next iteration begins if it skips so many indices."""
        return self._state(self.epoch + self._begun, self._skipped(skip))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._begun = False


class DistributedShuffleSampler(_Shuffle, DistributedSampler[int]):
    """`ShuffleSampler` for one of several ranks, in place of torch's DistributedSampler.

    As with that one, an epoch's order is another only after `set_epoch`; shares are made equal by
    repeating indices from the beginning of the order or, with `drop_last`, by leaving some out.
    The state is that of all ranks, which are taken to have given out equally many indices.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        shares = num_replicas, rank, shuffle, seed, drop_last
        DistributedSampler.__init__(self, dataset, *shares)  # type: ignore[arg-type]
        self._prepare(dataset)

    def __iter__(self) -> Iterator[int]:
        yield from self._indices()

    def _share(self) -> tuple[int, int]:
        return self.rank, self.num_replicas

    def _count(self, begin: int) -> int:
        left = super()._count(begin)
        return left // self.num_replicas if self.drop_last else -(-left // self.num_replicas)

    def next_state(self, skip: int = 0) -> State:
        """Return the state in which the next iteration begins if it skips so many indices."""
        return self._state(self.epoch, self._skipped(skip))

"""Samplers that shuffle in O(1) memory. They can seek and resume.

The order of an epoch is a `Permutation` of the dataset's indices, or a `BlockPermutation`, which
keeps neighbours together. The same seed gives the same order on every machine. Rank r takes the
positions r, r + ranks, r + 2 * ranks, … of the order. So all ranks together have always seen the
beginning of the order, without gaps. The state holds the length of this beginning as `position`,
and any other number of ranks can continue from there.

A sampler's state is the position of its latest iteration. A state that does not fit raises
`StateError`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from ffrecord.aliases import Ints
from ffrecord.errors import StateError
from ffrecord.records.fingerprints import fingerprint_of, former_fingerprint_of
from ffrecord.torch.block_permutation import BlockPermutation
from ffrecord.torch.permutation import Permutation

State: TypeAlias = dict[str, Any]

# Indices that are computed at a time: enough for numpy to be fast, and little memory.
STRETCH = 4096

BLOCK = 256  # 2.5 MB of samples of 10 kB: a read that long hides the delay of most networks
WINDOW = 64  # blocks; many numbers of ranks divide it


class _Shuffle:
    """The order of an epoch, the position of the next iteration in it, and the sampler's state.

    All ranks share the order. Each takes every `ranks`-th index.
    """

    shuffle: bool
    seed: int
    epoch: int
    block: int | None = None  # None: no blocks, every index moves by itself
    window: int | None = None

    def _prepare(self, data_source: Sized | SupportsIndex) -> None:
        if isinstance(data_source, Sized):
            self._length = len(data_source)
            self._fingerprint = fingerprint_of(data_source)
            self._former = former_fingerprint_of(data_source)
        else:
            self._length = operator.index(data_source)
            self._fingerprint = self._former = f"length {self._length}"
        if self._length < 0:
            raise ValueError(
                f"a sampler cannot have {self._length} samples; pass a dataset, or a length of at "
                "least 0"
            )
        self._begin = 0  # position in the epoch's order at which the next iteration begins
        self._present = 0  # position at which the present iteration began
        self._given = 0  # indices that the present iteration has yielded

    def _use_blocks(self, block: int, window: int) -> None:
        """Keep blocks of neighbours together."""
        self.block, self.window = operator.index(block), operator.index(window)
        if self.block < 1 or self.window < 1:
            raise ValueError(f"block and window must be at least 1, not {block} and {window}")

    def _order(self, epoch: int) -> Callable[[Ints], Ints] | None:
        """Return the order of an epoch; None if indices are not shuffled."""
        if not self.shuffle:
            return None
        if self.block is None or self.window is None:
            return Permutation(self._length, self.seed, epoch)
        return BlockPermutation(self._length, self.block, self.window, self.seed, epoch)

    def _share(self) -> tuple[int, int]:
        """Return this rank and the number of ranks."""
        return 0, 1

    def _count(self, begin: int) -> int:
        """Return the number of indices that this rank gets from position `begin` on."""
        return max(self._length - begin, 0)

    def __len__(self) -> int:
        return self._count(self._begin)

    @property
    def begin(self) -> int:
        """The position in the epoch's order at which the next iteration begins."""
        return self._begin

    def count_from(self, begin: int, skip: int = 0) -> int:
        """Return the number of this rank's indices from position `begin` on, minus `skip`."""
        return max(self._count(begin) - skip, 0)

    def _indices(self) -> Iterator[int]:
        """Begin an iteration and return its indices."""
        self._present, self._begin, self._given = self._begin, 0, 0
        return self._given_out(self.epoch, self._present)

    def _given_out(self, epoch: int, begin: int) -> Iterator[int]:
        count = self._count(begin)
        rank, ranks = self._share()
        order = self._order(epoch)
        for start in range(0, count, STRETCH):
            steps = np.arange(start, min(start + STRETCH, count), dtype=np.int64)
            # If the length does not divide equally, the last ranks take indices from the beginning.
            positions = (begin + rank + steps * ranks) % self._length
            indices: Ints = positions if order is None else order(positions)
            for index in indices.tolist():
                self._given += 1
                yield index

    def set_epoch(self, epoch: int) -> None:
        """Use the order of `epoch` from the next iteration on.

        The next iteration starts at the beginning of the order, unless a loaded state is in the
        middle of the same epoch.
        """
        if epoch != self.epoch:
            self._begin = 0
        self.epoch = epoch

    def skip(self, count: int) -> None:
        """Begin the next iteration `count` of this rank's indices later."""
        self._begin = self._skipped(count)

    def _skipped(self, count: int) -> int:
        return min(self._begin + count * self._share()[1], self._length)

    def rewind(self) -> None:
        """Begin the next iteration at the beginning of its epoch again."""
        self._begin = 0

    def state_dict(self, given: int | None = None) -> State:
        """Return the state after the present iteration has yielded `given` indices.

        Without an argument, return the present state.
        """
        given = self._given if given is None else given
        position = min(self._present + given * self._share()[1], self._length)
        return self._state(self.epoch, position)

    def _state(self, epoch: int, position: int) -> State:
        blocks = {} if self.block is None else {"block": self.block, "window": self.window}
        return {
            "shuffle": self.shuffle,
            "seed": self.seed,
            "epoch": epoch,
            "position": position,
            "length": self._length,
            "fingerprint": self._fingerprint,
            **blocks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a saved state, which may be from another number of ranks.

        Raises:
            StateError: the state belongs to other data, or is not the state of a sampler.
        """
        try:
            seed, epoch, position = (int(state[key]) for key in ("seed", "epoch", "position"))
            length, fingerprint = int(state["length"]), str(state["fingerprint"])
            shuffle = bool(state["shuffle"])
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            # int() raises OverflowError for infinity, and RuntimeError for some tensors.
            raise StateError(
                f"not the state of a ShuffleSampler: {error!r}; pass a state that state_dict() "
                "returned"
            ) from None
        # States of version 1 have the fingerprint of that version.
        if length != self._length or fingerprint not in (self._fingerprint, self._former):
            raise StateError(
                f"the state belongs to other data: {length} samples with the fingerprint "
                f"{fingerprint[:16]}, and this sampler has {self._length} with "
                f"{self._fingerprint[:16]}; open the data that the state was saved with, or start "
                "without the state"
            )
        if shuffle != self.shuffle:
            raise StateError(
                f"the state was saved with shuffle={shuffle}, and this sampler has "
                f"shuffle={self.shuffle}; pass shuffle={shuffle}"
            )
        saved = state.get("block"), state.get("window")
        if saved != (self.block, self.window):
            raise StateError(
                f"the state was saved with {_blocks(*saved)}, and this sampler has "
                f"{_blocks(self.block, self.window)}; use the sampler that the state was saved with"
            )
        if not 0 <= position <= length:
            raise StateError(
                f"the state is at position {position}, and the data has {length} samples; pass a "
                "state that state_dict() returned, unchanged"
            )
        self.seed, self.epoch = seed, epoch
        self._begin = self._present = position
        self._given = 0


class ShuffleSampler(_Shuffle, Sampler[int]):
    """A sampler that gives all indices in random order, in O(1) memory.

    Each iteration is the next epoch, with another order. `set_epoch` or a loaded state chooses
    another epoch.

    Args:
        data_source: the dataset, or its length.
        seed: an integer. The same seed gives the same orders on every machine.
    """

    def __init__(self, data_source: Sized | SupportsIndex, *, seed: int = 0) -> None:
        self.shuffle = True
        self.seed = seed
        self.epoch = 0
        self._begun = False
        self._prepare(data_source)

    def __iter__(self) -> Iterator[int]:
        # A generator function: an iterator that is never used must not begin an epoch, and torch
        # makes such iterators.
        if self._begun:
            self.epoch += 1
        self._begun = True
        yield from self._indices()

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._begun = False

    def next_state(self, skip: int = 0) -> State:
        """Return the state in which the next iteration begins if it skips `skip` indices."""
        return self._state(self.epoch + self._begun, self._skipped(skip))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._begun = False


class BlockShuffleSampler(ShuffleSampler):
    """A `ShuffleSampler` that keeps neighbours together, for data on slow disks or far away.

    Blocks of neighbours come in random order. Some blocks at a time are mixed. So a reader with a
    cache reads each block once, in one piece. See `ffrecord.torch.block_permutation`.

    Args:
        data_source: the dataset, or its length.
        block: samples in a block.
        window: blocks that are mixed. A cache must hold `block * window` samples.
        seed: an integer. The same seed gives the same orders on every machine.
    """

    def __init__(
        self, data_source: Sized | SupportsIndex, *, block: int = BLOCK, window: int = WINDOW,
        seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(data_source, seed=seed)
        self._use_blocks(block, window)


class DistributedShuffleSampler(_Shuffle, DistributedSampler[int]):
    """A `ShuffleSampler` for one of several ranks, in place of torch's `DistributedSampler`.

    As in torch, the order changes only after `set_epoch`. All ranks get equally many indices. If
    the length does not divide equally, indices from the beginning of the order are repeated, or
    with `drop_last` the last ones are left out. One state fits all ranks. It assumes that all ranks
    have yielded equally many indices.

    Args:
        dataset: the dataset.
        num_replicas: the number of ranks; by default from `torch.distributed`.
        rank: the rank of this process; by default from `torch.distributed`.
        shuffle: True to shuffle, False to keep the order of the dataset.
        seed: an integer. It must be the same on all ranks.
        drop_last: leave out indices that do not divide equally, instead of repeating some.
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
        """Return the state in which the next iteration begins if it skips `skip` indices."""
        return self._state(self.epoch, self._skipped(skip))


class DistributedBlockShuffleSampler(DistributedShuffleSampler):
    """A `BlockShuffleSampler` for one of several ranks.

    If the number of ranks divides `window`, no two ranks read the same block, except at the end of
    an epoch and in the window with a shorter last block. Otherwise it is a
    `DistributedShuffleSampler`.

    Args:
        dataset: the dataset.
        num_replicas: the number of ranks; by default from `torch.distributed`.
        rank: the rank of this process; by default from `torch.distributed`.
        shuffle: True to shuffle, False to keep the order of the dataset.
        seed: an integer. It must be the same on all ranks.
        drop_last: leave out indices that do not divide equally, instead of repeating some.
        block: samples in a block.
        window: blocks that are mixed, of all ranks together.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int | None = None, rank: int | None = None,
        shuffle: bool = True, seed: int = 0, drop_last: bool = False, *, block: int = BLOCK,
        window: int = WINDOW,
    ) -> None:  # fmt: skip
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self._use_blocks(block, window)


def _blocks(block: object, window: object) -> str:
    return "no blocks" if block is None else f"block={block} and window={window}"

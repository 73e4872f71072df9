"""The batches of an epoch as a loader sends them out: from any step on, and with a look ahead."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, Sampler

from ffrecord.torch.batches import Batch
from ffrecord.torch.samplers import DistributedShuffleSampler, ShuffleSampler

SEEKABLE = (ShuffleSampler, DistributedShuffleSampler)


@dataclass(frozen=True, slots=True)
class Start:
    """Where an epoch begins."""

    skip: int = 0  # so many batches of the sampler are left out
    number: int = 0  # the first one after them is this one of the epoch
    seed: int | None = None  # for the random transforms of its batches
    rng: torch.Tensor | None = None  # what the sampler's generator is to be when it draws


class Steps(Sampler[Any]):
    """Batches of a batch sampler, or indices of a sampler where a loader makes no batches.

    `start` says where the next iteration begins. Where the sampler can be moved there, it is; any
    other is asked for its batches, and those before are dropped.
    """

    def __init__(self, source: Any, *, batched: bool, ahead: int, promises: bool) -> None:
        self.source = source
        self.batched = batched
        self.ahead = ahead  # a worker's next batch is the one after so many; 0: not to be told
        self.promises = promises  # whether the dataset is one of ours
        self.start = Start()
        self.rng: torch.Tensor | None = None  # the sampler's generator when it last drew
        self._present = _Drawable(iter(()))

    @property
    def sampler(self) -> Any:
        """Where indices come from."""
        return self.source.sampler if type(self.source) is BatchSampler else self.source

    @property
    def seekable(self) -> bool:
        """Whether the sampler can be moved to a step."""
        return isinstance(self.sampler, SEEKABLE)

    @property
    def step_size(self) -> int:
        """How many indices a step takes from the sampler."""
        return self.source.batch_size if type(self.source) is BatchSampler else 1

    @property
    def kind(self) -> str:
        """What a saved state must have in common with the sampler that goes on from it."""
        if self.seekable:
            return "shuffle of ffrecord"
        ranks = getattr(self.sampler, "num_replicas", None)
        return type(self.sampler).__name__ + (f" of {ranks} ranks" if ranks else "")

    @property
    def generator(self) -> torch.Generator | None:
        """Where the sampler draws from; None if that is torch's global generator, or nothing."""
        generator: torch.Generator | None = getattr(self._with("generator"), "generator", None)
        return generator

    @property
    def epoch(self) -> int | None:
        """The epoch of a sampler that is told it, or counts it."""
        epoch: int | None = getattr(self._with("set_epoch"), "epoch", None)
        return epoch

    @property
    def next_epoch(self) -> int | None:
        """The epoch that such a sampler will take next if nobody tells it another."""
        sampler = self._with("set_epoch")
        return sampler.next_state()["epoch"] if isinstance(sampler, SEEKABLE) else self.epoch

    def set_epoch(self, epoch: int) -> None:
        sampler = self._with("set_epoch")
        if sampler is not None:
            sampler.set_epoch(epoch)

    def _with(self, name: str) -> Any:
        """The sampler or, of a batch sampler of another kind, the one inside, if it has that."""
        for sampler in (self.sampler, getattr(self.sampler, "sampler", None)):
            if getattr(sampler, name, None) is not None:
                return sampler
        return None

    def __len__(self) -> int:
        """How many are still to come, from the start on."""
        return max(len(self.source) - self.start.skip, 0)

    @property
    def count(self) -> int | None:
        """How many an epoch has; None if the sampler does not know."""
        try:
            return len(self.source)
        except TypeError:
            return None

    def __iter__(self) -> Iterator[Any]:
        # All generators: nothing is moved or drawn before the first step is asked for. A torch
        # loader with workers makes two iterators at the beginning and uses one.
        drawn = self._moved(self.start) if self.seekable else self._drawn(self.start)
        steps = self._batches(drawn, self.start) if self.promises else drawn
        self._present = _Drawable(steps)
        return self._present

    def draw(self) -> None:
        """Let the sampler draw its random numbers now.

        With workers it has: they have their first batches. Without, torch would let it wait until
        the first batch is wanted, and a state saved before that would miss them.
        """
        self._present.draw()

    def _moved(self, start: Start) -> Iterator[Any]:
        self.sampler.skip(start.skip * self.step_size)
        indices: Iterator[int] = iter(self.sampler)
        if self.source is self.sampler:
            yield from indices
        else:
            yield from BatchSampler(indices, self.source.batch_size, self.source.drop_last)

    def _drawn(self, start: Start) -> Iterator[Any]:
        """What the sampler gives from the start on. It draws when its first is asked for."""
        generator = self.generator
        before = random_state(generator)
        self.rng = before if start.rng is None else start.rng
        if start.rng is not None:
            set_random_state(generator, start.rng)
        source = _Once(iter(self.source))
        first = list(islice(source, start.skip, start.skip + 1))
        if start.rng is not None and generator is None:
            set_random_state(None, before)  # the program's own numbers are not to be touched
        yield from first
        yield from source

    def _batches(self, drawn: Iterator[Any], start: Start) -> Iterator[Batch]:
        """Each with its seed, and with the indices that the same worker gets after it."""
        window: deque[Batch] = deque()
        for number, key in enumerate(drawn, start.number):
            seed = None if start.seed is None else mixed_seed(start.seed, number)
            single = not self.batched and _is_one(key)
            window.append(Batch([key] if single else key, seed=seed, single=single))
            if len(window) > self.ahead:
                present = window.popleft()
                if self.ahead and not single:  # one record is read faster than it is announced
                    present.following = list(window[-1])
                yield present
        yield from window


class _Once(Iterator[Any]):
    """An iterator that is not asked for its iterator again.

    Some begin anew then, and some cannot be asked: torch needs nothing but `__next__`.
    """

    def __init__(self, items: Any) -> None:
        self._items = items

    def __next__(self) -> Any:
        return next(self._items)


class _Drawable(Iterator[Any]):
    """An iterator whose first item may be drawn before it is wanted."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def draw(self) -> None:
        self._items = chain(list(islice(self._items, 1)), self._items)

    def __next__(self) -> Any:
        return next(self._items)


def _is_one(key: Any) -> bool:
    """Whether a sampler gave an index, not several; one may be an array or tensor of no axes."""
    return not hasattr(key, "__len__") or getattr(key, "ndim", 1) == 0


def mixed_seed(*parts: int) -> int:
    """A seed of 64 bits that differs where any of the parts does."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def random_state(generator: torch.Generator | None) -> torch.Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def set_random_state(generator: torch.Generator | None, state: torch.Tensor) -> None:
    if generator is None:
        torch.set_rng_state(state)
    else:
        generator.set_state(state)


def is_random_state(state: torch.Tensor) -> bool:
    """Whether a generator takes it: torch looks at its type, its size and what is in it."""
    try:
        torch.Generator().set_state(state)
    except (RuntimeError, TypeError):
        return False
    return True

"""The batches of an epoch as a loader sends them out: from any step on, and with a look ahead."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ffrecord.torch.assembler import BatchRequest
from ffrecord.torch.draws import Draws
from ffrecord.torch.randomness import mixed_seed
from ffrecord.torch.samplers import DistributedShuffleSampler, ShuffleSampler
from ffrecord.torch.stateful import is_stateful, own_state

SamplerState: TypeAlias = dict[str, Any]

END = object()
SEEKABLE = (ShuffleSampler, DistributedShuffleSampler)
# The order of an epoch of theirs is settled when it begins. Any other sampler may decide on a batch
# when it is asked for it, by the losses of the last one for example, and is not asked early.
SETTLED = (
    *SEEKABLE, SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler,
    DistributedSampler, list, tuple, range, torch.Tensor, np.ndarray,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start:
    """Where an epoch begins."""

    skip: int = 0  # so many batches of the sampler are left out
    number: int = 0  # the first one after them is this one of the epoch
    seed: int | None = None  # for the random transforms of its batches
    origin: torch.Tensor | None = None  # the state of a generator, to draw the order from
    sampler: SamplerState | None = None  # the state of a sampler that has one of its own
    given: frozenset[int] = frozenset()  # batches after `number` that were handed out already
    passing: int = 0  # so many workers get an empty batch first: it is the turn of the next one
    restored: tuple[Any, ...] = ()  # states of the dataset, for the workers from then on


class Steps(Sampler[Any]):
    """Batches of a batch sampler, or indices of a sampler where a loader makes no batches.

    `start` says where the next iteration begins. A sampler of ours is moved there, one with a state
    of its own is given that, and any other is asked for its batches, and those before are dropped.

    Args:
        source: the batch sampler, or the sampler.
        batched: whether it gives batches.
        ahead: a worker's next batch is the one after so many; 0: it is not to be told.
        promises: whether the dataset is given `BatchRequest`s: it is ours, or wrapped.
        ours: whether the dataset is ours: a list of indices is then several samples, not one key.
        kept: so many states of a sampler of its own are kept: as many as batches can be under way.
    """

    def __init__(
        self, source: Any, *, batched: bool, ahead: int, promises: bool, ours: bool, kept: int
    ) -> None:
        self.source = source
        self.batched = batched
        self.ahead = ahead
        self.promises = promises
        self.ours = ours
        self.kept = kept
        self.start = Start()
        self.draws = Draws(self._with("generator") or self.sampler)
        self.present = _Iteration(self, Start())

    @property
    def sampler(self) -> Any:
        """Where indices come from."""
        return self.source.sampler if type(self.source) is BatchSampler else self.source

    @property
    def seekable(self) -> bool:
        """Whether the sampler can be moved to a step."""
        return isinstance(self.sampler, SEEKABLE)

    @property
    def settled(self) -> bool:
        """Whether the sampler may be asked for a batch before it is wanted."""
        return type(self.sampler) in SETTLED

    @property
    def step_size(self) -> int:
        """How many indices a step takes from the sampler."""
        return self.source.batch_size if type(self.source) is BatchSampler else 1

    @property
    def kind(self) -> str:
        """The kind of sampler: a saved state fits only a sampler of the same kind."""
        if self.seekable:
            return "shuffle of ffrecord"
        ranks = getattr(self.sampler, "num_replicas", None)
        return type(self.sampler).__name__ + (f" of {ranks} ranks" if ranks else "")

    @property
    def ranks(self) -> int:
        """How many ranks share the sampler's order."""
        return int(getattr(self.sampler, "num_replicas", 1))

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

    @property
    def count(self) -> int | None:
        """How many an epoch has; None if the sampler does not know."""
        try:
            return len(self.source)
        except TypeError:
            return None

    def __len__(self) -> int:
        """How many are still to come, from the start on."""
        if not self.seekable:
            return self.left(self.start)
        return self.left(self.start, 0 if self.present.waits else self.sampler.begin)

    def left(self, start: Start, begin: int | None = None) -> int:
        """How many come from a start on; TypeError if the sampler does not know.

        Args:
            begin: where in its order a sampler of ours is moved to before it begins.
        """
        if not self.seekable:
            return max(len(self.source) - start.number - len(start.given), 0)
        count: int = self.sampler.count_from(begin or 0, start.skip * self.step_size)
        if self.source is not self.sampler:
            size = self.source.batch_size
            count = count // size if self.source.drop_last else -(-count // size)
        return max(count - len(start.given), 0)

    def __iter__(self) -> Iterator[Any]:
        # A torch loader with workers makes two iterators at the beginning and uses one.
        self.present = _Iteration(self, self.start, waits=True)
        return self.present

    def next_state(self) -> SamplerState | None:
        """Return the sampler's own state before the next epoch; None if it has none."""
        if self.seekable:
            state: SamplerState = self.sampler.next_state()
            return state
        return _own_state(self)

    def pass_over(self) -> None:
        """Go through what is left of an epoch, for what that does to the sampler."""
        for _ in _Iteration(self, self.start).numbered():
            pass


class _Iteration(Iterator[Any]):
    """The batches of one epoch. Nothing is moved or drawn before the first one is asked for."""

    def __init__(self, steps: Steps, start: Start, waits: bool = False) -> None:
        self.steps = steps
        self.start = start
        self.waits = waits  # until the first batch the place of a sampler of ours is this one's
        self.origin = start.origin  # what the order is drawn from
        self._states: deque[tuple[int, SamplerState | None]] = deque(maxlen=steps.kept)
        self._batches: Iterator[Any] | None = None

    @property
    def drawn(self) -> bool:
        """Whether the first batch was asked for."""
        return self._batches is not None

    def __next__(self) -> Any:
        if self._batches is None:
            self.waits = False
            keys, promises = self.numbered(), self.steps.promises
            self._batches = self._with_more(keys) if promises else (key for _, key in keys)
        return next(self._batches)

    # ---- states --------------------------------------------------------------------------

    def pin(self) -> None:
        """Settle what the order will be drawn from, if it was not drawn yet.

        A state is saved: it must be the same order then, whatever the program draws meanwhile.
        """
        if not self.drawn and self.origin is None and not self.steps.draws.never:
            self.origin = self.steps.draws.origin()

    def sampler_state(self, step: int) -> SamplerState | None:
        """Return the sampler's own state before the batch `step`; None if it is not known."""
        steps = self.steps
        if steps.seekable:
            if self.drawn:
                moved = step - self.start.number
                state: SamplerState = steps.sampler.state_dict(moved * steps.step_size)
            else:
                state = steps.sampler.next_state(self.start.skip * steps.step_size)
            return state
        if not self.drawn:
            return self.start.sampler if self.start.sampler is not None else _own_state(steps)
        return next((state for number, state in self._states if number == step), None)

    # ---- batches -------------------------------------------------------------------------

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """Yield the sampler's batches from the start on, with their numbers."""
        steps, start = self.steps, self.start
        if steps.seekable:
            steps.sampler.skip(start.skip * steps.step_size)
            items: Iterator[Any] = self._items(_Once(iter(steps.sampler)))
        else:
            items = self._drawn()
        for number, key in enumerate(items, start.number):
            if number not in start.given:
                yield number, key

    def _drawn(self) -> Iterator[Any]:
        """The items of a sampler that is not ours. It draws when its first is asked for."""
        steps, start, draws = self.steps, self.start, self.steps.draws
        if self.origin is None and not draws.never:
            self.origin = draws.origin()
        with draws.coming_from(self.origin):
            indices = self._begun()
            if start.sampler is not None and start.sampler["ended"]:
                return
            stateful = is_stateful(steps.sampler) or is_stateful(indices.inner)
            if stateful:
                self._states.append((start.number, _own_state(steps, indices)))
            items = self._items(indices)
            items = items if draws.known else draws.watched(items)
            item = next(islice(items, start.skip, None), END)
        number = start.number
        while item is not END:
            number += 1
            if stateful:
                self._states.append((number, _own_state(steps, indices)))
            yield item
            item = next(items, END)

    def _begun(self) -> _Once:
        """The sampler's iterator, in the states that it has of its own."""
        sampler, states = self.steps.sampler, copy.deepcopy(self.start.sampler)
        if states is not None and states["sampler"] is not None:
            sampler.load_state_dict(states["sampler"])
        indices = iter(sampler)
        if states is not None and states["iterator"] is not None:
            indices.load_state_dict(states["iterator"])
        return _Once(indices)

    def _items(self, indices: _Once) -> Iterator[Any]:
        """Indices as they are, or in batches."""
        steps = self.steps
        once: Any = indices.inner if steps.settled else indices  # torch's are iterators like others
        if steps.source is steps.sampler:
            return once  # type: ignore[no-any-return]
        return iter(BatchSampler(once, steps.source.batch_size, steps.source.drop_last))

    def _with_more(self, keys: Iterator[tuple[int, Any]]) -> Iterator[BatchRequest]:
        """Each with its number and seed, and with the indices that the same worker gets next."""
        steps, start = self.steps, self.start
        restored = deque(start.restored)
        for _ in range(start.passing):
            yield BatchRequest([])
        window: deque[BatchRequest] = deque()
        for number, key in keys:
            single = not steps.batched and (_is_one(key) or not steps.ours)
            batch = BatchRequest([key] if single else key, single=single, number=number)
            batch.seed = None if start.seed is None else mixed_seed(start.seed, number)
            if restored:
                batch.restored = restored.popleft()
            window.append(batch)
            if len(window) > steps.ahead:
                present = window.popleft()
                if steps.ahead and not single:  # one record is read faster than it is announced
                    present.following = list(window[-1])
                yield present
        yield from window


def _own_state(steps: Steps, indices: _Once | None = None) -> SamplerState | None:
    """Return the state of a sampler that has one of its own, and of its iterator."""
    sampler = own_state(steps.sampler)
    iterator = None if indices is None else own_state(indices.inner)
    if sampler is None and iterator is None:
        return None
    ended = indices is not None and indices.ended
    return {"sampler": sampler, "iterator": iterator, "ended": ended}


class _Once(Iterator[Any]):
    """An iterator that is not asked for its iterator again.

    Some begin anew then, and some cannot be asked: torch needs nothing but `__next__`.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.ended = False

    def __next__(self) -> Any:
        try:
            return next(self.inner)
        except StopIteration:
            self.ended = True
            raise


def _is_one(key: Any) -> bool:
    """Whether a sampler gave an index, not several; one may be an array or tensor of no axes."""
    return not hasattr(key, "__len__") or getattr(key, "ndim", 1) == 0

"""The batches of an epoch as a loader sends them to its workers.

An epoch can begin at any batch. Each request also names the batch that the same worker gets next.
Use `Steps` from one thread.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
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
from ffrecord.torch.samplers import (
    BlockShuffleSampler,
    DistributedBlockShuffleSampler,
    DistributedShuffleSampler,
    ShuffleSampler,
)
from ffrecord.torch.stateful import is_stateful, own_state

SamplerState: TypeAlias = dict[str, Any]

END = object()
SEEKABLE = (ShuffleSampler, DistributedShuffleSampler)
# Samplers that fix the order of an epoch when it begins, so batches may be asked for early. Any
# other sampler may choose a batch when it is asked, for example from the losses of the last batch.
SETTLED = (
    ShuffleSampler, BlockShuffleSampler, DistributedShuffleSampler, DistributedBlockShuffleSampler,
    SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler,
    DistributedSampler, list, tuple, range, torch.Tensor, np.ndarray,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start:
    """The point at which an epoch begins."""

    skip: int = 0  # the number of the sampler's batches to leave out
    number: int = 0  # the number of the first batch after the skipped ones, in the epoch
    seed: int | None = None  # for the random transforms of the batches
    origin: torch.Tensor | None = None  # the random state that the order is drawn from
    sampler: SamplerState | None = None  # the sampler's state, if it has a state_dict
    given: frozenset[int] = frozenset()  # batches after `number` that were returned already
    passing: int = 0  # the number of workers that get an empty batch first, to pass their turn
    restored: tuple[Any, ...] = ()  # the dataset's state for each worker, in the order of turns


class Steps(Sampler[Any]):
    """The batches of a batch sampler, or the indices of a sampler if a loader makes no batches.

    `start` says where the next iteration begins. Our samplers seek to that point. A sampler with a
    `state_dict` gets its saved state. Any other sampler is iterated, and the batches before that
    point are dropped.

    Args:
        source: the batch sampler or the sampler.
        batched: True if `source` gives batches.
        promises: True if the dataset takes `BatchRequest`s: it is ours, or wrapped.
        ours: True if the dataset is ours. Then a list from the sampler is several indices. For
            other datasets it is one key.
        kept: how many states of a sampler with a `state_dict` are kept. It must be at least the
            number of batches that workers can have at a time.

    `ahead` is how many batches later a worker gets its next batch, and `depth` how many of its next
    batches a worker is told about. With `ahead` 0 nothing is read ahead.
    """

    def __init__(
        self, source: Any, *, batched: bool, promises: bool, ours: bool, kept: int
    ) -> None:
        self.source = source
        self.batched = batched
        self.ahead = 0
        self.depth = 1
        self.promises = promises
        self.ours = ours
        self.kept = kept
        self.start = Start()
        self.draws = Draws(self._with("generator") or self.sampler)
        self.present = _Iteration(self, Start())

    @property
    def sampler(self) -> Any:
        """The sampler that gives the indices."""
        return self.source.sampler if type(self.source) is BatchSampler else self.source

    @property
    def seekable(self) -> bool:
        """True if the sampler can seek to a step."""
        return isinstance(self.sampler, SEEKABLE)

    @property
    def settled(self) -> bool:
        """True if the sampler may be asked for a batch before the batch is needed."""
        return type(self.sampler) in SETTLED

    @property
    def step_size(self) -> int:
        """The number of indices that a step takes from the sampler."""
        return self.source.batch_size if type(self.source) is BatchSampler else 1

    @property
    def kind(self) -> str:
        """The kind of sampler. A saved state fits only a sampler of the same kind."""
        if self.seekable:
            return "shuffle of ffrecord"
        ranks = getattr(self.sampler, "num_replicas", None)
        return type(self.sampler).__name__ + (f" of {ranks} ranks" if ranks else "")

    @property
    def ranks(self) -> int:
        """The number of ranks that share the sampler's order."""
        return int(getattr(self.sampler, "num_replicas", 1))

    @property
    def epoch(self) -> int | None:
        """The sampler's epoch; None if it has no `set_epoch`."""
        epoch: int | None = getattr(self._with("set_epoch"), "epoch", None)
        return epoch

    @property
    def next_epoch(self) -> int | None:
        """The epoch of the sampler's next iteration, unless `set_epoch` is called before."""
        sampler = self._with("set_epoch")
        return sampler.next_state()["epoch"] if isinstance(sampler, SEEKABLE) else self.epoch

    def set_epoch(self, epoch: int) -> None:
        sampler = self._with("set_epoch")
        if sampler is not None:
            sampler.set_epoch(epoch)

    def _with(self, name: str) -> Any:
        """Return the sampler that has the attribute: `sampler`, or the sampler inside it."""
        for sampler in (self.sampler, getattr(self.sampler, "sampler", None)):
            if getattr(sampler, name, None) is not None:
                return sampler
        return None

    @property
    def count(self) -> int | None:
        """The number of steps in an epoch; None if the sampler has no length."""
        try:
            return len(self.source)
        except TypeError:
            return None

    def __len__(self) -> int:
        """Return the number of steps from `start` to the end of the epoch."""
        if not self.seekable:
            return self.left(self.start)
        return self.left(self.start, 0 if self.present.waits else self.sampler.begin)

    def left(self, start: Start, begin: int | None = None) -> int:
        """Return the number of steps from a start to the end of the epoch.

        Args:
            start: the point at which the epoch begins.
            begin: the position of our sampler in its order before it skips.

        Raises:
            TypeError: the sampler has no length.
        """
        if not self.seekable:
            return max(len(self.source) - start.number - len(start.given), 0)
        count: int = self.sampler.count_from(begin or 0, start.skip * self.step_size)
        if self.source is not self.sampler:
            size = self.source.batch_size
            count = count // size if self.source.drop_last else -(-count // size)
        return max(count - len(start.given), 0)

    def __iter__(self) -> Iterator[Any]:
        # A torch loader with workers makes two iterators and uses one. So do not draw or seek
        # before the first batch is asked for.
        self.present = _Iteration(self, self.start, waits=True)
        return self.present

    def next_state(self) -> SamplerState | None:
        """Return the sampler's state before the next epoch; None if it does not save one."""
        if self.seekable:
            state: SamplerState = self.sampler.next_state()
            return state
        return _own_state(self)

    def pass_over(self) -> None:
        """Iterate over the rest of an epoch and drop it, so that the sampler makes its draws."""
        for _ in _Iteration(self, self.start).numbered():
            pass


class _Iteration(Iterator[Any]):
    """The batches of one epoch. The sampler does not seek or draw before the first is asked for."""

    def __init__(self, steps: Steps, start: Start, waits: bool = False) -> None:
        self.steps = steps
        self.start = start
        # True until the first batch is asked for. The position of our sampler is for this epoch
        # until then, and for the next epoch afterwards.
        self.waits = waits
        self.origin = start.origin  # the random state that the order is drawn from
        self._states: deque[tuple[int, SamplerState | None]] = deque(maxlen=steps.kept)
        self._batches: Iterator[Any] | None = None

    @property
    def drawn(self) -> bool:
        """True after the first batch was asked for."""
        return self._batches is not None

    def __next__(self) -> Any:
        if self._batches is None:
            self.waits = False
            self._batches = self._requests()
        return next(self._batches)

    # ---- states --------------------------------------------------------------------------

    def pin(self) -> None:
        """Fix the random state that the order will be drawn from, if it was not drawn yet.

        Saving a state calls this. The order must be the same after resuming, even if the program
        draws random numbers before the first batch.
        """
        if not self.drawn and self.origin is None and not self.steps.draws.never:
            self.origin = self.steps.draws.origin()

    def sampler_state(self, step: int) -> SamplerState | None:
        """Return the sampler's state before the batch `step`; None if it is not known."""
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
        """Yield the numbers and the batches of the sampler, from the start on."""
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
        """Yield the items of a foreign sampler, which draws when its first item is asked for."""
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
        """Return the sampler's iterator, after loading the saved states of both."""
        sampler, states = self.steps.sampler, copy.deepcopy(self.start.sampler)
        if states is not None and states["sampler"] is not None:
            sampler.load_state_dict(states["sampler"])
        indices = iter(sampler)
        if states is not None and states["iterator"] is not None:
            indices.load_state_dict(states["iterator"])
        return _Once(indices)

    def _items(self, indices: _Once) -> Iterator[Any]:
        """Return an iterator over the indices, or over batches if the loader makes batches."""
        steps = self.steps
        # Iterators of known samplers return themselves from `iter()`, so they need no `_Once`.
        once: Any = indices.inner if steps.settled else indices
        if steps.source is steps.sampler:
            return once  # type: ignore[no-any-return]
        return iter(BatchSampler(once, steps.source.batch_size, steps.source.drop_last))

    def _requests(self) -> Iterator[Any]:
        """Return the items for torch: requests, or indices if the dataset takes no requests."""
        keys = self.numbered()
        if not self.steps.promises:
            return (key for _, key in keys)
        batches = self._with_more(keys)
        passing = (BatchRequest([]) for _ in range(self.start.passing))
        return chain(passing, self._announcing(batches) if self.steps.ahead else batches)

    def _with_more(self, keys: Iterator[tuple[int, Any]]) -> Iterator[BatchRequest]:
        """Yield a request for each batch, with its number and its seed."""
        steps, start = self.steps, self.start
        restored = deque(start.restored)
        for number, key in keys:
            single = not steps.batched and (_is_one(key) or not steps.ours)
            # Foreign datasets get the sampler's batch as it is: it need not be a list.
            several = steps.ours and not single
            batch = BatchRequest(key if several else [key], single=single, number=number)
            batch.seed = None if start.seed is None else mixed_seed(start.seed, number)
            if restored:
                batch.restored = restored.popleft()
            yield batch

    def _announcing(self, batches: Iterator[BatchRequest]) -> Iterator[BatchRequest]:
        """Let each request announce batches that the same worker gets later.

        A worker's first request announces its next batch. Each further request announces two more,
        until `depth` batches are announced, so that an epoch need not begin with many draws.
        """
        turns, depth = self.steps.ahead, self.steps.depth
        window: deque[BatchRequest] = deque()  # the present batch and the later ones
        for number in count():
            turn = number // turns  # of the present batch's worker
            known, wanted = max(min(depth, turn) - 1, 0), min(depth, turn + 1)
            window.extend(islice(batches, max(0, wanted * turns + 1 - len(window))))
            if not window:
                return
            present = window.popleft()
            if not present.single:  # reading one record is faster than announcing it
                later = islice(window, (known + 1) * turns - 1, wanted * turns, turns)
                present.following = [list(batch) for batch in later]
            yield present


def _own_state(steps: Steps, indices: _Once | None = None) -> SamplerState | None:
    """Return the states of the sampler and its iterator; None if neither saves one."""
    sampler = own_state(steps.sampler)
    iterator = None if indices is None else own_state(indices.inner)
    if sampler is None and iterator is None:
        return None
    ended = indices is not None and indices.ended
    return {"sampler": sampler, "iterator": iterator, "ended": ended}


class _Once(Iterator[Any]):
    """A wrapper so that `iter()` is not called on a sampler's iterator.

    Some iterators would start again, and some have no `__iter__`. torch needs only `__next__`.
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
    """Return True for one index, which may be an array or tensor without axes."""
    return not hasattr(key, "__len__") or getattr(key, "ndim", 1) == 0

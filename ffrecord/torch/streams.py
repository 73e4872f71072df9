"""Positions in IterableDatasets: in each worker, after each batch.

If a dataset or its iterator has `state_dict` and `load_state_dict`, these are used, as in
torchdata's StatefulDataLoader. Any other dataset starts from the beginning when a state is loaded,
and the samples that were returned before are read and dropped.

Each worker process has its own `Samples`. States travel to the main process with the batches.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from torch.utils.data import get_worker_info

from ffrecord.torch.assembler import Delivery, Opaque
from ffrecord.torch.stateful import own_state, state_or_reason
from ffrecord.torch.wrapping import Wrapper, inner_of

WorkerState: TypeAlias = dict[str, Any]

FIELDS = {"given", "batches", "at", "ended", "over", "dataset", "iterator"}
PASS = object()  # a placeholder sample, for an empty batch of a worker that passes its turn


def after_the_epoch(state: WorkerState | None) -> WorkerState | None:
    """Turn a worker's state at the end of an epoch into one at the beginning of the next."""
    return None if state is None else {**state, "over": True, "given": 0, "batches": 0}


class Place:
    """The position at which the next iteration over a stream begins, and the present iteration.

    Args:
        states: the state of each worker, or of this process if there are no workers. None: from
            the beginning.
        turn: the worker that gives the first batch. torch asks workers with lower numbers earlier,
            so these return an empty batch first.
    """

    def __init__(self, states: Sequence[WorkerState | None] = (), turn: int = 0) -> None:
        self._states = list(states)
        self._turn = turn
        self.samples: Samples | None = None

    def begin(self, dataset: Any) -> Samples:
        """Begin an iteration in this process."""
        info = get_worker_info()
        number = 0 if info is None else info.id
        state = self._states[number] if number < len(self._states) else None
        self.samples = Samples(dataset, state, passing=number < self._turn)
        # The states are for the first iteration only. Persistent workers continue by themselves.
        self._states, self._turn = [], 0
        return self.samples


class Stream(Wrapper):
    """A wrapper that makes an IterableDataset begin at a `Place`."""

    _ffrecord_place: Place

    def __init__(self, dataset: Any, place: Place) -> None:
        super().__init__(dataset)
        object.__setattr__(self, "_ffrecord_place", place)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Stream, (inner_of(self), self._ffrecord_place)

    def __iter__(self) -> Samples:
        return self._ffrecord_place.begin(inner_of(self))


class Samples(Iterator[Any]):
    """The samples of one worker, from a state on.

    The state is loaded when the first sample is asked for, not earlier. Loading a state may set
    torch's random numbers, and a loader resets these at the end of `iter()`.
    """

    def __init__(self, dataset: Any, state: WorkerState | None, passing: bool) -> None:
        self._dataset = dataset
        self._loaded = state
        self.passing = passing
        self._given = 0
        self._batches = 0
        self._ended = False
        self._iterator: Any = iter(dataset) if state is None else None

    def __next__(self) -> Any:
        if self.passing:
            return PASS
        if self._loaded is not None:
            self._restore(self._loaded)
            self._loaded = None
        if self._ended:
            raise StopIteration
        try:
            sample = next(self._iterator)
        except StopIteration:
            self._ended = True
            raise
        self._given += 1
        return sample

    def _restore(self, state: WorkerState) -> None:
        """Load the states of dataset and iterator, then drop samples that were given after them."""
        dataset = self._dataset
        own, iterators = copy.deepcopy((state["dataset"], state["iterator"]))
        known, ended, over = state["at"], state["ended"], state["over"]
        iterator: Any = None
        if own is not None:
            dataset.load_state_dict(own)
        if iterators is not None or (own is not None and not ended):
            iterator = iter(dataset)
        if iterators is not None:
            iterator.load_state_dict(iterators)
        if over and iterator is not None and not ended:
            _pass_over(iterator)  # reaching the end may change the dataset
        if over or (own is None and iterators is None):
            iterator, known = iter(dataset), 0
        self._given, self._batches, self._ended = state["given"], state["batches"], False
        if ended and not over:
            self._ended = True
        else:
            _pass_over(iterator, state["given"] - known)
        self._iterator = iterator

    def after_batch(self, every: int) -> WorkerState:
        """Count a batch and return the state after it.

        The state is complete for the first batch, for every `every`-th batch, and after the end of
        the samples. For other batches it has only the counts.
        """
        self._batches += 1
        if self._ended or self._batches == 1 or self._batches % every == 0:
            return self.state()
        return {"given": self._given, "batches": self._batches}

    def state(self) -> WorkerState:
        """Return the complete state."""
        if self._loaded is not None:
            return self._loaded
        itself = self._iterator is self._dataset
        return {
            "given": self._given,
            "batches": self._batches,
            "at": self._given,  # the value of "given" when the states below were taken
            "ended": self._ended,
            "over": False,  # True if the states below are from the previous, finished epoch
            "dataset": None if itself else own_state(self._dataset),
            "iterator": own_state(self._iterator),
        }


def _pass_over(iterator: Any, count: int | None = None) -> None:
    """Read and drop `count` samples, or all samples.

    This calls only `next`, because some iterators start again when `iter` is called on them.
    """
    end = object()
    numbers = itertools.count() if count is None else range(count)
    for _ in numbers:
        if next(iterator, end) is end:
            return


class Stamping:
    """A collate function that sends the worker's state along with each batch.

    Args:
        collate_fn: the loader's collate function.
        place: the stream's `Place`. A worker gets the stream and this function in one pickle, so
            they share the place there too.
        every: the number of batches after which the dataset is asked for its state.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], place: Place, every: int) -> None:
        self.collate_fn = collate_fn
        self.place = place
        self.every = every

    def __call__(self, fetched: Any) -> Any:
        samples = self.place.samples
        assert samples is not None  # iteration began before the first batch
        if samples.passing:
            samples.passing = False
            return Delivery((), [], None)
        batch = self.collate_fn(fetched)
        info = get_worker_info()
        if info is None:  # in the main process, state_dict() asks for the state itself
            return batch
        state = state_or_reason(lambda: samples.after_batch(self.every))
        return Delivery((batch,), [], None, worker=info.id, state=Opaque(state))

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

from ffrecord.errors import FFRecordError
from ffrecord.torch.assembler import Delivery, Opaque
from ffrecord.torch.stateful import own_state, state_or_reason
from ffrecord.torch.wrapping import Wrapper, inner_of

WorkerState: TypeAlias = dict[str, Any]

FIELDS = {"given", "batches", "at", "ended", "over", "dataset", "iterator"}
PASS = object()  # a placeholder sample, for a batch that is empty or has failed


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
        self._states = dict(enumerate(states))
        self._turn = turn
        self._at_the_end = False  # True if `finish` has been called
        self.samples: Samples | None = None

    def finish(self, dataset: Any) -> None:
        """Load the state of a finished epoch, if the main process begins with one.

        Call this before torch draws a seed for the next epoch: the state was saved before that, and
        loading it may set torch's random numbers.
        """
        state = self._states.get(0)
        if state is not None and state["over"]:
            _load_the_end(dataset, state)
            self._at_the_end = True

    def begin(self, dataset: Any) -> Samples:
        """Begin an iteration in this process."""
        info = get_worker_info()
        number = 0 if info is None else info.id
        state = self._states.get(number)
        self.samples = Samples(dataset, state, number < self._turn, self._at_the_end)
        # The states are for the first iteration. Later ones continue with the dataset as it is. But
        # if the first has no samples left, the state is loaded when the second begins.
        self._states = {number: after_the_epoch(state)} if _at_an_end(state) else {}
        self._turn, self._at_the_end = 0, False
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

    An `FFRecordError` in a worker is kept in `failed`, because torch would raise it in the main
    process with another type. The batch is filled with placeholders.

    Args:
        dataset: the stream.
        state: the state. None: from the beginning.
        passing: True if the worker passes its first turn.
        at_the_end: True if the state is of a finished epoch, and the dataset has loaded it.
    """

    def __init__(
        self, dataset: Any, state: WorkerState | None, passing: bool, at_the_end: bool
    ) -> None:
        self._dataset = dataset
        self._loaded = state
        self.passing = passing
        self._at_the_end = at_the_end
        self._given = 0
        self._batches = 0
        self._ended = _at_an_end(state)
        self._may_be_empty = False  # True if an iterator without samples is not the next epoch
        self._in_worker = get_worker_info() is not None
        self.failed: FFRecordError | None = None
        self._iterator: Any = iter(dataset) if state is None and not self._in_worker else None

    def __next__(self) -> Any:
        if self.passing or self.failed is not None:
            return PASS
        try:
            return self._next()
        except FFRecordError as error:
            if not self._in_worker:
                raise
            self.failed = error.with_traceback(None)
            return PASS

    def _next(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._loaded is not None:
            self._restore(self._loaded)
            self._loaded = None
        elif self._iterator is None:
            self._iterator = iter(self._dataset)
        try:
            sample = next(self._iterator)
        except StopIteration:
            if not self._may_be_empty:
                self._ended = True
                raise
            self._may_be_empty = False
            self._iterator = iter(self._dataset)
            return self._next()
        self._may_be_empty = False
        self._given += 1
        return sample

    def _restore(self, state: WorkerState) -> None:
        """Load the states of dataset and iterator, then drop samples that were given after them."""
        iterator: Any = None
        if not state["over"]:
            iterator = _load(self._dataset, state)
        elif not self._at_the_end:
            _load_the_end(self._dataset, state)
        known = state["at"]
        if iterator is None:
            iterator, known = iter(self._dataset), 0
        _pass_over(iterator, state["given"] - known)
        self._given, self._batches, self._iterator = state["given"], state["batches"], iterator
        # A dataset that was saved after its last sample may save the end of that epoch, or the
        # beginning of the next. At the end, its first iterator has no samples.
        own = state["dataset"] is not None and state["iterator"] is None
        self._may_be_empty = state["over"] and state["ended"] and own

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


def _at_an_end(state: WorkerState | None) -> bool:
    """Return True if a state is from the middle of an epoch, but its worker has no samples left."""
    return state is not None and state["ended"] and not state["over"]


def _load(dataset: Any, state: WorkerState) -> Any:
    """Load the states of a dataset and its iterator. Return the iterator, or None if neither has a
    state from which more samples come."""
    own, iterators = copy.deepcopy((state["dataset"], state["iterator"]))
    if own is not None:
        dataset.load_state_dict(own)
    if iterators is None and (own is None or state["ended"]):
        return None
    iterator = iter(dataset)
    if iterators is not None:
        iterator.load_state_dict(iterators)
    return iterator


def _load_the_end(dataset: Any, state: WorkerState) -> None:
    """Load the state of a finished epoch, and read and drop the samples that it had left."""
    iterator = _load(dataset, state)
    if iterator is not None and not state["ended"]:
        _pass_over(iterator)  # reaching the end may change the dataset


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
        if samples.failed is not None:
            error, samples.failed = samples.failed, None
            return Delivery((), [], error)
        batch = self.collate_fn(fetched)
        info = get_worker_info()
        if info is None:  # in the main process, state_dict() asks for the state itself
            return batch
        state = state_or_reason(lambda: samples.after_batch(self.every))
        return Delivery((batch,), [], None, worker=info.id, state=Opaque(state))

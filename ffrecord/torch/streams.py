"""IterableDatasets whose place is known: in each worker, after each batch.

A dataset, or its iterator, that has `state_dict` and `load_state_dict` is asked for its state, as
torchdata's StatefulDataLoader does. Any other is begun anew when a state is loaded, and the samples
that were handed out are passed over.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

from torch.utils.data import get_worker_info

from ffrecord.torch.batches import Delivery, Opaque
from ffrecord.torch.stateful import own_state
from ffrecord.torch.wrapping import Wrapper, inner_of

WorkerState: TypeAlias = dict[str, Any]

FIELDS_OF_A_STREAM = {"given", "at", "ended", "over", "dataset", "iterator"}
PASS = object()  # stands for a sample of a worker whose turn it is not


class Place:
    """Where the next iteration over a stream begins, and the present one.

    Args:
        states: of each worker, or of this process if there are none; None: from the beginning.
        turn: the worker that gives the first batch. Those before it are asked first by torch, and
            give an empty one.
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
        # They are for the first iteration. Workers that persist go on by themselves.
        self._states, self._turn = [], 0
        return self.samples


class Stream(Wrapper):
    """An IterableDataset that begins at a place."""

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

    The state is loaded when the first sample is asked for: it may set torch's random numbers, which
    a loader puts back when it has begun.
    """

    def __init__(self, dataset: Any, state: WorkerState | None, passing: bool) -> None:
        self._dataset = dataset
        self._loaded = state
        self.passing = passing
        self._given = 0
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
        """Load the dataset's state, then that of its iterator; read over what is missing."""
        dataset = self._dataset
        iterator: Any = None
        own, iterators = copy.deepcopy((state["dataset"], state["iterator"]))
        if own is not None:
            dataset.load_state_dict(own)
        if iterators is not None or not state["ended"]:
            iterator = iter(dataset)
        if iterators is not None:
            iterator.load_state_dict(iterators)
        if iterator is not None:
            known = 0 if own is None and iterators is None else state["at"]
            deque(islice(iterator, state["given"] - known), maxlen=0)
        self._given, self._ended = state["given"], state["ended"]
        if state["over"]:
            if iterator is not None and not self._ended:
                deque(iterator, maxlen=0)  # as far as the end, for what that does to the dataset
            iterator, self._given, self._ended = iter(dataset), 0, False
        self._iterator = iterator

    @property
    def ended(self) -> bool:
        return self._ended

    def place(self) -> WorkerState:
        """Return how far it is, in samples."""
        return {"given": self._given}

    def state(self) -> WorkerState:
        """Return all that is known."""
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        itself = self._iterator is self._dataset
        return {
            "given": self._given,
            "at": self._given,  # when the states below were asked for
            "ended": self._ended,
            "over": False,  # the state is that of an epoch that is over: the next one is meant
            "dataset": None if itself else own_state(self._dataset),
            "iterator": own_state(self._iterator),
        }


class Stamping:
    """A collate function that sends the worker's state along with a batch.

    Args:
        collate_fn: the loader's.
        place: the stream's. Both reach a worker together, so that it is the same object there.
        every: the dataset is asked for its state after so many batches.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], place: Place, every: int) -> None:
        self.collate_fn = collate_fn
        self.place = place
        self.every = every
        self._made = 0

    def __call__(self, fetched: Any) -> Any:
        samples = self.place.samples
        assert samples is not None  # a batch comes after the beginning
        if samples.passing:
            samples.passing = False
            return Delivery((), [], None)
        batch = self.collate_fn(fetched)
        info = get_worker_info()
        if info is None:  # the state is asked for when it is wanted
            return batch
        self._made += 1
        try:
            whole = samples.ended or self._made % self.every == 0
            state: Any = samples.state() if whole else samples.place()
        except Exception as error:
            state = f"the dataset's state_dict raised {type(error).__name__}: {error}"
        return Delivery((batch,), [], None, worker=info.id, state=Opaque(state))

"""Iteration over one epoch of a loader. It counts the returned batches and keeps workers' states.

Workers run ahead of the main process, so only this count says which batch is next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ffrecord.torch.assembler import Delivery, Skipped
from ffrecord.torch.dataset import warn_of_skipped

WorkerStates = list[Any]


@dataclass(slots=True)
class Progress:
    """The progress of an epoch."""

    epoch: int
    step: int  # the first batch that was not returned
    given: set[int] = field(default_factory=set)  # later batches that were returned
    failed: int = 0  # batches that raised since `step`; a state saved now begins with them
    finished: bool = False
    turn: int = 0  # the worker that is next
    workers: WorkerStates = field(default_factory=list)  # the dataset's state in each worker
    problem: str | None = None  # the reason if a worker's state is not known

    def count(self, delivery: Any, in_order: bool) -> None:
        """Count a batch that is being returned."""
        number = delivery.number if isinstance(delivery, Delivery) else None
        if in_order or number is None:
            self.step += 1 + self.failed
            self.failed = 0
            return
        self.given.add(number)
        while self.step in self.given:
            self.given.remove(self.step)
            self.step += 1

    def note(self, delivery: Delivery, in_order: bool) -> None:
        """Keep the dataset's state that came with a batch."""
        if delivery.worker is None or delivery.state is None:
            return
        if in_order:
            self.turn = (delivery.worker + 1) % len(self.workers)
        state = delivery.state.value
        if isinstance(state, str):
            self.problem = state
        else:
            self.workers[delivery.worker] = (self.workers[delivery.worker] or {}) | state


class Epoch(Iterator[Any]):
    """An iterator over an epoch that counts the batches of torch's iterator.

    Args:
        batches: torch's iterator.
        progress: the progress of the epoch.
        report: a function that is called with the samples that were left out.
        length: a function that returns the number of batches left, or raises TypeError if it is
            not known.
        in_order: True if batches come in the sampler's order.
        discarded: the number of batches to drop first.
        following: a function that makes the next epoch, for a resumed epoch that may have no
            batches left.
        renewed: a function that makes this epoch again if `set_epoch` was called after `iter()`,
            and otherwise returns None. Lightning calls `set_epoch` then, when workers already have
            their first batches.
    """

    def __init__(
        self, batches: Any, progress: Progress, report: Callable[[Skipped], None],
        length: Callable[[], int], in_order: bool = True, discarded: int = 0,
        following: Callable[[], Epoch] | None = None,
        renewed: Callable[[], Epoch | None] | None = None,
    ) -> None:  # fmt: skip
        self._batches = batches
        self._progress = progress
        self._report = report
        self._length = length
        self._in_order = in_order
        self._discarded = discarded
        self._following = following
        self._renewed = renewed

    def __next__(self) -> Any:
        while True:
            got = self._next()
            if not isinstance(got, Delivery):
                return got
            if got.skipped:
                self._report(got.skipped)
                warn_of_skipped(got.skipped, stacklevel=2)
            if got.batch:
                return got.batch[0]

    def _next(self) -> Any:
        renewed, self._renewed = self._renewed, None
        other = None if renewed is None else renewed()
        if other is not None:
            self._continue_as(other)
        progress = self._progress
        try:
            for _ in range(self._discarded):
                next(self._batches)
            self._discarded = 0
            got = next(self._batches)
            if isinstance(got, Delivery):
                progress.note(got, self._in_order)
                if got.error is not None:
                    raise got.error
        except StopIteration:
            progress.finished = True
            if self._following is None:
                raise
            self._continue_as(self._following())
            return self._next()
        except Exception:
            progress.failed += 1
            raise
        handed_out = not isinstance(got, Delivery) or bool(got.batch)
        if handed_out:
            self._following = None
        if handed_out or got.skipped:
            progress.count(got, self._in_order)
        return got

    def _continue_as(self, other: Epoch) -> None:
        """Take over all attributes of another epoch."""
        vars(self).update(vars(other))

    def __len__(self) -> int:
        return self._length()

    def __getstate__(self) -> Any:
        return self._batches.__getstate__()  # torch's method raises: its iterators cannot be copied

    def __getattr__(self, name: str) -> Any:
        if "_batches" not in vars(self):  # __init__ has not run
            raise AttributeError(name)
        return getattr(self._batches, name)

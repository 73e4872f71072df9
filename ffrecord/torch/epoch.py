"""One pass over a loader: what it has handed out, and the states that its workers were in then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ffrecord.torch.assembler import Delivery, Skipped
from ffrecord.torch.dataset import warn_of_skipped

WorkerStates = list[Any]


@dataclass(slots=True)
class Progress:
    """How far an epoch is."""

    epoch: int
    step: int  # the first batch that was not handed out
    given: set[int] = field(default_factory=set)  # later ones that were
    failed: int = 0  # batches that were an error: a state begins with them until another follows
    finished: bool = False
    turn: int = 0  # the worker that is next
    workers: WorkerStates = field(default_factory=list)  # their datasets' states
    problem: str | None = None  # why a worker's state is not known

    def count(self, delivery: Any, in_order: bool) -> None:
        """Take note of a batch that is being handed out."""
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
        """Take over the state that came with a batch."""
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
    """torch's iterator over an epoch, counting what it hands out.

    Args:
        batches: torch's iterator.
        progress: how far the epoch is.
        report: is told which samples were left out.
        length: how many batches are to come; raises TypeError if nobody knows.
        in_order: whether they come in their order.
        discarded: so many are passed over first.
        following: makes the next epoch, if this one may turn out to be over: it was resumed.
        renewed: makes this epoch once more if the sampler was told another one, else None.
            Workers get their first batches when the iterator is made; Lightning calls `set_epoch`
            after that.
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
            self._go_on_with(other)
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
            self._go_on_with(self._following())
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

    def _go_on_with(self, other: Epoch) -> None:
        """Become another epoch: a state was saved after the last batch of this one."""
        vars(self).update(vars(other))

    def __len__(self) -> int:
        return self._length()

    def __getstate__(self) -> Any:
        return self._batches.__getstate__()  # torch's iterators cannot be copied: it says so

    def __getattr__(self, name: str) -> Any:
        if "_batches" not in vars(self):  # it is being made
            raise AttributeError(name)
        return getattr(self._batches, name)

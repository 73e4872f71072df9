"""Requests and deliveries between a loader and its workers, and a worker's work for one batch.

A batch of indices goes to a worker as a `BatchRequest`. The request also carries a seed, and
batches that the same worker gets later, so that their reads run while this batch is decoded. Our
datasets answer with a `Promise`. torch passes the promise to its collate function, which is our
`Assembler`, and the assembler reads the batch. So a loader's options reach a worker once, with the
collate function, and torch's classes need no change.

`Lookahead` announces the next batches to the dataset, and the dataset announces them to its
readers. A reader starts to read the announced batch and keeps it until the same records are asked
for (`ffrecord.records.ahead`). It compares record numbers, because the user's `__getitem__` lies in
between and cannot pass a handle on.

An `FFRecordError` travels in the `Delivery` and is raised in the main process with its own type.
Foreign datasets are wrapped in workers for the same (`wrapping`, `streams`).
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ffrecord.errors import FFRecordError, ReplacedLoaderWarning
from ffrecord.torch.lookahead import Lookahead, Readable
from ffrecord.torch.randomness import NumpyNumbers
from ffrecord.torch.stateful import is_stateful, own_state, state_or_reason

REPLACED = (
    "batches are read without the loader's on_error, batch seeds, read-ahead and state: another "
    "package made a torch DataLoader from this loader, or the dataset defines __getitems__; with "
    "Accelerate call ffrecord.torch.accelerate.prepare_loader(accelerator, loader), otherwise pass "
    "on_error to the dataset"
)

OnError: TypeAlias = "str | Callable[[int, Exception], Any]"
Skipped: TypeAlias = list[tuple[int, str]]


class BatchRequest(list[Any]):
    """The indices of one batch, and everything else that the worker needs for it.

    Args:
        indices: the indices. For a foreign dataset, one item of the sampler.
        following: batches that the same worker gets later and was not told about yet, in order.
            None: nothing is read ahead.
        seed: the seed for random transforms.
        single: True for one index from a loader that makes no batches.
        number: the batch's number in the epoch. None: the batch is empty, and only takes the
            worker's turn.
        restored: a state that the dataset loads before it reads the batch.
    """

    __slots__ = ("following", "number", "restored", "seed", "single")

    def __init__(
        self, indices: Iterable[Any], following: list[Any] | None = None, seed: int | None = None,
        single: bool = False, number: int | None = None, restored: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(indices)
        self.following = following
        self.seed = seed
        self.single = single
        self.number = number
        self.restored = restored

    def __reduce__(self) -> tuple[type[BatchRequest], tuple[Any, ...]]:
        more = (self.following, self.seed, self.single, self.number, self.restored)
        return BatchRequest, (list(self), *more)


class Loadable(Readable, Protocol):
    """A dataset that can read ahead and gives samples."""

    def __getitem__(self, key: Any, /) -> Any: ...


class Promise(NamedTuple):
    """A batch that the assembler will read."""

    dataset: Loadable
    batch: BatchRequest


class Opaque:
    """A box that keeps torch from pinning tensors in a state when it pins a batch."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Delivery(NamedTuple):
    """One batch as a worker returns it. It is a named tuple so that torch pins its tensors."""

    batch: tuple[Any, ...]  # empty if every sample was skipped, or after an error
    skipped: Skipped
    error: FFRecordError | None  # raised in the main process
    number: int | None = None  # the batch's number in the epoch
    worker: int | None = None
    state: Opaque | None = None  # the dataset's state after this batch, or text: why it is missing


class Assembler:
    """The collate function of our loaders: reads the promised batch and collates its samples."""

    def __init__(self, collate_fn: Callable[[Any], Any], on_error: OnError) -> None:
        self.collate_fn = collate_fn
        self.on_error = on_error
        self._lookahead = Lookahead()
        self._replaced = False  # True after the warning that the loader is not ours

    def __call__(self, fetched: Any) -> Any:
        if not isinstance(fetched, Promise):
            self._warn_of_replacement()
            return self.collate_fn(fetched)
        dataset, batch = fetched
        if batch.number is None and not batch:  # a resumed epoch begins with another worker
            return Delivery((), [], None)
        self._lookahead.turn_to(dataset, batch, batch.following)
        if batch.restored is not None:
            dataset.load_state_dict(batch.restored)  # type: ignore[attr-defined]
        with _Seeded(batch.seed):
            try:
                samples, skipped = samples_of(dataset, list(batch), self.on_error)
            except FFRecordError as error:
                return Delivery((), [], error.with_traceback(None), batch.number)
            collated: tuple[Any, ...] = ()
            if not skipped or len(samples):
                collated = (self.collate_fn(samples[0] if batch.single else samples),)
        return Delivery(collated, skipped, None, batch.number, *_state_in_worker(dataset))

    def _warn_of_replacement(self) -> None:
        """Warn that the loader is not ours, once and in one worker only."""
        worker = get_worker_info()
        if self._replaced or (worker is not None and worker.id > 0):
            return
        self._replaced = True
        warnings.warn(REPLACED, ReplacedLoaderWarning, stacklevel=3)


def _state_in_worker(dataset: Any) -> tuple[int | None, Opaque | None]:
    """Return the worker's number and its dataset's state; None for both if it has no state."""
    info = get_worker_info()
    if info is None or not is_stateful(dataset):
        return None, None
    return info.id, Opaque(state_or_reason(lambda: {"dataset": own_state(dataset)}))


def check_on_error(on_error: OnError) -> OnError:
    """Return `on_error`, or raise ValueError if it is not valid."""
    if on_error not in ("raise", "skip") and not callable(on_error):
        raise ValueError(
            f'on_error={on_error!r} is not valid; pass "raise", "skip" or a function of the index '
            "and the error"
        )
    return on_error


def samples_of(dataset: Loadable, indices: list[int], on_error: OnError) -> tuple[Any, Skipped]:
    """Return the samples at `indices`, and a list of the samples that were left out.

    If a batch fails, its samples are read one by one, and each sample that fails again is bad. If
    `on_error` is a function, it is called with the index and the error. It returns a sample to
    use instead, or None to leave the sample out.
    """
    try:
        return dataset[indices], []
    except Exception:
        if on_error == "raise":
            raise
    samples: list[Any] = []
    skipped: Skipped = []
    for index in indices:
        try:
            (sample,) = dataset[[index]]
        except Exception as error:
            sample = on_error(index, error) if callable(on_error) else None
            if sample is None:
                skipped.append((index, f"{type(error).__name__}: {error}"))
                continue
        samples.append(sample)
    return samples, skipped


class _Seeded:
    """A block with seeded random numbers of Python, numpy and torch. None: they are not seeded.

    In the main process, the generators are restored afterwards. A worker seeds them again for its
    next batch.
    """

    __slots__ = ("_before", "_seed")

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._before: tuple[Any, NumpyNumbers, torch.Tensor] | None = None

    def __enter__(self) -> None:
        seed = self._seed
        if seed is None:
            return
        if get_worker_info() is None:
            torchs = torch.default_generator.get_state()
            self._before = random.getstate(), NumpyNumbers(), torchs
        random.seed(seed)
        # Python and numpy use the same algorithm: without the 1 they would draw the same numbers.
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32, 1])
        # torch's numbers depend only on the lowest 32 bits. Clear the highest bit, so that
        # `torch.initial_seed()` fits into a tensor.
        torch.default_generator.manual_seed(seed & (1 << 63) - 1)

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            pythons, numpys, torchs = self._before
            random.setstate(pythons)
            numpys.restore()
            torch.default_generator.set_state(torchs)

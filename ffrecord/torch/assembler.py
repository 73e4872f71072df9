"""Requests and deliveries between a loader and its workers, and the work there for one batch.

A batch of indices goes to a worker as a `BatchRequest`: it also carries the indices that the same
worker will get next, so that their reads can be on the way while this batch is decoded, and a seed.
A dataset of ours answers with a `Promise`, and `Assembler`, which torch takes for the collate
function, keeps it: so a loader's options reach the worker once, with that function, and torch's
own classes do the rest.

The assembler tells the dataset which indices come next, the dataset tells its readers, and there
the announced batch waits for the read of the same records (`ffrecord.records.ahead`): in between
is the user's `__getitem__`, which no handle passes through.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from ffrecord.errors import FFRecordError, ReplacedLoaderWarning
from ffrecord.torch.stateful import is_stateful, own_state, state_or_reason

REPLACED = (
    "batches are read without the loader's on_error, batch seeds, read-ahead and state: another "
    "package made a torch DataLoader from it, or the dataset defines __getitems__. For Accelerate "
    "use ffrecord.torch.accelerate.prepare_loader(accelerator, loader); on_error can also be given "
    "to the dataset"
)

OnError: TypeAlias = "str | Callable[[int, Exception], Any]"
Skipped: TypeAlias = list[tuple[int, str]]


class BatchRequest(list[Any]):
    """Indices, and what the worker needs to know about them.

    Args:
        following: the indices that the same worker gets next.
        seed: for random transforms.
        single: one index, of a loader that makes no batches.
        number: which batch of the epoch it is. An empty batch without one is passed over.
        restored: a state that the dataset is to load first.
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


class Loadable(Protocol):
    """A dataset whose batches can be put on their way."""

    def __getitem__(self, key: Any, /) -> Any: ...
    def prefetch(self, indices: list[int]) -> None: ...
    def drop_prefetched(self) -> None: ...


class Promise(NamedTuple):
    """A batch that is read when the assembler asks for it."""

    dataset: Loadable
    batch: BatchRequest


class Opaque:
    """Something that torch does not look into when it pins a batch."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Delivery(NamedTuple):
    """One batch as a worker hands it over. A named tuple, so that torch pins the tensors in it."""

    batch: tuple[Any, ...]  # empty if every sample was skipped, or there was an error
    skipped: Skipped
    error: FFRecordError | None  # raised again where it can be caught as what it is
    number: int | None = None  # which batch of the epoch it is
    worker: int | None = None
    state: Opaque | None = None  # the dataset's, after this batch; text: why there is none


class Assembler:
    """Keeps promises: reads a batch with the next one on its way, and collates the samples."""

    def __init__(self, collate_fn: Callable[[Any], Any], on_error: OnError) -> None:
        self.collate_fn = collate_fn
        self.on_error = on_error
        self._announced: list[Any] | None = None  # the batch that was begun and should be next
        self._replaced = False  # whether it was said that the loader is not ours

    def __call__(self, fetched: Any) -> Any:
        if not isinstance(fetched, Promise):
            self._warn_of_replacement()
            return self.collate_fn(fetched)
        dataset, batch = fetched
        if batch.number is None and not batch:  # it is another worker's turn
            return Delivery((), [], None)
        if self._announced is not None and self._announced != batch:
            dataset.drop_prefetched()  # the epoch that it was begun for was left early
        self._announced = batch.following
        if batch.following:
            # What is wrong with it, or that its keys are no indices, will show when it is read.
            with contextlib.suppress(FFRecordError, OSError, LookupError, TypeError, ValueError):
                dataset.prefetch(batch.following)
        if batch.restored is not None:
            dataset.load_state_dict(batch.restored)  # type: ignore[attr-defined]
        with _seeded(batch.seed):
            try:
                samples, skipped = samples_of(dataset, list(batch), self.on_error)
            except FFRecordError as error:
                return Delivery((), [], error.with_traceback(None), batch.number)
            collated: tuple[Any, ...] = ()
            if not skipped or len(samples):
                collated = (self.collate_fn(samples[0] if batch.single else samples),)
        return Delivery(collated, skipped, None, batch.number, *_state_in_worker(dataset))

    def _warn_of_replacement(self) -> None:
        """Warn once that batches come from a loader that is not ours, in one worker only."""
        worker = get_worker_info()
        if self._replaced or (worker is not None and worker.id > 0):
            return
        self._replaced = True
        warnings.warn(REPLACED, ReplacedLoaderWarning, stacklevel=3)


def _state_in_worker(dataset: Any) -> tuple[int | None, Opaque | None]:
    """The worker's number and its dataset's own state; None where there is none to be sent."""
    info = get_worker_info()
    if info is None or not is_stateful(dataset):
        return None, None
    return info.id, Opaque(state_or_reason(lambda: {"dataset": own_state(dataset)}))


def check_on_error(on_error: OnError) -> OnError:
    if on_error not in ("raise", "skip") and not callable(on_error):
        raise ValueError(f'on_error must be "raise", "skip" or a function, not {on_error!r}')
    return on_error


def samples_of(dataset: Loadable, indices: list[int], on_error: OnError) -> tuple[Any, Skipped]:
    """The samples at `indices`, and what was left out of them.

    Where a batch fails, its samples are asked for one by one, and only those that fail by
    themselves are bad: a function is given the index and the error, and what it returns, unless
    that is None, takes the sample's place.
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


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Random numbers of Python, numpy and torch from a seed.

    A worker process is there for nothing else. The main process gets its own numbers back.
    """
    if seed is None:
        yield
        return
    in_worker = get_worker_info() is not None
    before = None if in_worker else _random_states()
    random.seed(seed)
    # Python's generator and numpy's are the same one: the same words would give the same numbers.
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32, 1])
    # torch uses 32 bits of it. Without the highest, `torch.initial_seed()` fits into a tensor.
    torch.default_generator.manual_seed(seed & (1 << 63) - 1)
    try:
        yield
    finally:
        if before is not None:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.default_generator.set_state(before[2])


def _random_states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()

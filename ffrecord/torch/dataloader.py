"""`DataLoader`: torch's, with steps that can be skipped and a state that can be saved.

Everything is torch's own machinery: this class only says which batches come (`Steps`), what is
done with them where they are read (`Assembler`), and counts those that were handed out.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from ffrecord.errors import StateError
from ffrecord.torch.batches import Assembler, Delivery, OnError, Skipped, check_on_error
from ffrecord.torch.dataset import Dataset, fingerprint_of, warn_of_skipped
from ffrecord.torch.skipable import SkipableSampler as SkipableSampler  # as in the original
from ffrecord.torch.skipable import Skipping
from ffrecord.torch.steps import (
    Start,
    Steps,
    is_random_state,
    mixed_seed,
    random_state,
    set_random_state,
)

T_co = TypeVar("T_co", covariant=True)
State: TypeAlias = dict[str, Any]

VERSION = 1
# What a state has, and of what type.
STATE_FIELDS: dict[str, Any] = {
    "version": int, "fingerprint": str, "step_size": int, "begun": bool, "epoch": int, "step": int,
    "sampler_kind": str, "sampler": (Mapping, NoneType), "sampler_epoch": (int, NoneType),
    "seed": (int, NoneType), "rng": (torch.Tensor, NoneType), "generator": (torch.Tensor, NoneType),
}  # fmt: skip


class DataLoader(Skipping, TorchDataLoader[T_co]):
    """torch's DataLoader, for datasets of ours and any other.

    Takes all of torch's arguments, and with a dataset of ours does more:

    - While a worker decodes a batch, its next one is being read.
    - Random transforms get their numbers from the epoch's seed and the batch's number, so that
      the samples are the same with any number of workers, and after resuming. The seed comes
      from `generator`, or torch's global one, as torch's worker seeds do.
    - Samples that cannot be read or decoded are treated as `on_error` says.

    `state_dict()` between any two batches, given to `load_state_dict()` of a loader of the same
    data and batch size, goes on with the next batch, also with another number of workers and,
    with a `DistributedShuffleSampler`, of ranks.

    Args:
        skippable: whether `set_step` may be used. It need not be off for anything; the original
            asked for that with Lightning.
        on_error: as `Dataset` has it, whose own choice it overrides.
        read_ahead: read the next batch while the present one is decoded.
        batch_seeds: seed Python's, numpy's and torch's random numbers for each batch. Turn it off
            if a `worker_init_fn` is to have the last word.
    """

    def __init__(
        self,
        dataset: TorchDataset[T_co],
        batch_size: int | None = 1,
        *args: Any,
        skippable: bool = True,
        on_error: OnError | None = None,
        read_ahead: bool = True,
        batch_seeds: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(dataset, batch_size, *_in_torchs_order(args), **options)
        ours = isinstance(dataset, Dataset)
        check_on_error("raise" if on_error is None else on_error)
        if on_error is not None and not ours:
            raise ValueError("on_error needs a dataset of ffrecord.torch")
        self.skippable = skippable
        self.on_error = on_error
        self.read_ahead = read_ahead
        self.batch_seeds = batch_seeds
        self.skipped: Skipped = []  # index and reason of every sample that was left out
        if ours:
            inner = self.collate_fn  # already wrapped, if the loader was made from another
            inner = inner.collate_fn if isinstance(inner, Assembler) else inner
            policy = dataset.on_error if on_error is None else on_error  # type: ignore[attr-defined]
            self.collate_fn = Assembler(inner, policy)
        batches = self._take_batch_sampler(skippable=skippable)
        self._steps = Steps(
            self.sampler if batches is None else batches,
            batched=batches is not None,
            ahead=max(self.num_workers, 1) if read_ahead else 0,
            promises=ours,
        )
        self._steps.start = Start(self._step, self._step)  # the step that set_step said
        self._epoch = 0  # how many have begun
        self._seed: int | None = None  # what the seeds of all epochs are made of
        self._progress: _Progress | None = None  # of the present epoch
        self._loaded: State | None = None  # a state in mid-epoch, to go on from

    @property
    def _index_sampler(self) -> Any:
        """Where torch's iterators take their batches from."""
        return super()._index_sampler if self._iterable else self._steps

    @property
    def _iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    # ---- iteration -----------------------------------------------------------------------

    def __iter__(self) -> Any:
        if self._iterable:
            return super().__iter__()
        steps, loaded, self._loaded = self._steps, self._loaded, None
        if loaded is None:
            steps.start = Start(self._step, self._step, self._epoch_seed())
        # A resumed epoch drew its random numbers when it began: the program's stay as they are.
        kept = contextlib.nullcontext() if loaded is None else _kept_random_numbers()
        self._progress = _Progress(self._epoch, steps.start.number)
        self._epoch += 1
        with kept:
            iterator = super().__iter__()
            if not self.num_workers:
                steps.draw()
        if loaded is not None and steps.generator is not self.generator:
            self._restore(self.generator, loaded["generator"])  # torch has drawn from it
        skip, steps.start = steps.start.skip, Start(self._step, self._step)
        return _Epoch(self, iterator, self._progress, skip)

    def _epoch_seed(self) -> int | None:
        """What torch was about to draw for its workers in the first epoch, made another for each
        epoch and rank. So it does not matter who draws how often afterwards."""
        if not self.batch_seeds:
            return None
        if self._seed is None:
            generator = torch.Generator()
            generator.set_state(random_state(self.generator))
            drawn = torch.empty((), dtype=torch.int64).random_(generator=generator)
            self._seed = int(drawn.item())
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else 0
        return mixed_seed(self._seed, self._epoch, rank)

    # ---- steps and state -----------------------------------------------------------------

    def set_step(self, step: int) -> None:
        """Leave out so many batches at the beginning of every epoch, until it is set again."""
        self._require_steps("set_step")
        step = operator.index(step)
        steps = self._steps
        if self._loaded is not None and steps.seekable:
            steps.sampler.rewind()
        most = steps.count
        if not self.skippable or step < 0 or (most is not None and step > most):
            why = f"there are {most}" if self.skippable else "the loader is not skippable"
            raise ValueError(f"step {step} cannot be set: {why}")
        self._step = step
        self._loaded = None
        steps.start = Start(step, step)

    def state_dict(self) -> State:
        """Where the loader is: after the last batch that was handed out."""
        self._require_steps("state_dict")
        if self._loaded is not None:
            return dict(self._loaded)
        steps, progress = self._steps, self._progress
        state = {
            "version": VERSION,
            "fingerprint": fingerprint_of(self.dataset),
            "step_size": steps.step_size,
            "sampler_kind": steps.kind,
            "seed": self._seed,
            "generator": None if self.generator is None else random_state(self.generator),
        }
        if progress is None or progress.finished:
            return state | {
                "begun": False,
                "epoch": self._epoch,
                "step": self._step,
                "sampler": steps.sampler.next_state() if steps.seekable else None,
                "sampler_epoch": steps.next_epoch,
                "rng": None if steps.generator is None else random_state(steps.generator),
            }
        given = (progress.step - progress.first) * steps.step_size
        return state | {
            "begun": True,
            "epoch": progress.epoch,
            "step": progress.step,
            "sampler": steps.sampler.state_dict(given) if steps.seekable else None,
            "sampler_epoch": steps.epoch,
            "rng": None if steps.seekable else steps.rng,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next epoch begins with the batch after the last one then.

        A `generator` that was given to the loader or its sampler goes on from where it was too;
        torch's global one is the program's own to restore. StateError if it is the state of a
        loader of other data, or of another kind.
        """
        self._require_steps("load_state_dict")
        steps = self._steps
        self._compare(state)
        if steps.seekable:
            steps.sampler.load_state_dict(state["sampler"])
        elif state["sampler_epoch"] is not None:
            steps.set_epoch(state["sampler_epoch"])
        self._epoch, self._seed = state["epoch"], state["seed"]
        self._progress, self._loaded = None, None
        step = state["step"]
        if state["begun"]:
            self._step, self._loaded = 0, dict(state)
            skip = 0 if steps.seekable else step
            steps.start = Start(skip, step, self._epoch_seed(), state["rng"])
        else:
            self._restore(self.generator, state["generator"])
            self._restore(steps.generator, state["rng"])
            self._step = step
            steps.start = Start(step, step)

    @staticmethod
    def _restore(generator: torch.Generator | None, state: torch.Tensor | None) -> None:
        """Where either is missing there is nothing to: torch's global one is the program's."""
        if generator is not None and state is not None:
            set_random_state(generator, state)

    def _compare(self, state: Mapping[str, Any]) -> None:
        """Whether a state can be one of this loader's."""
        version = state.get("version") if isinstance(state, Mapping) else None
        if not isinstance(version, int) or version != VERSION:
            raise StateError("this is not the state of a loader, or one of another version")
        for name, kind in STATE_FIELDS.items():
            if name not in state or not isinstance(state[name], kind):
                raise StateError(f"this is not the state of a loader: its {name} is missing or odd")
        for name in ("rng", "generator"):
            if state[name] is not None and not is_random_state(state[name]):
                raise StateError(f"this is not the state of a loader: its {name} is no generator's")
        if state["epoch"] < 0 or state["step"] < 0:
            raise StateError(f"the state is at step {state['step']} of epoch {state['epoch']}")
        here = fingerprint_of(self.dataset)
        if state["fingerprint"] != here:
            raise StateError(
                "the state belongs to other data: its fingerprint is "
                f"{state['fingerprint'][:16]}, here it is {here[:16]}"
            )
        if state["sampler_kind"] != self._steps.kind:
            raise StateError(
                "the state belongs to a loader with another kind of sampler: "
                f"{state['sampler_kind']}, here it is {self._steps.kind}"
            )
        if not self._steps.seekable and state["step_size"] != self._steps.step_size:
            raise StateError(
                f"the state belongs to a loader with a batch size of {state['step_size']}, here "
                f"it is {self._steps.step_size}; ShuffleSampler allows that, others do not"
            )
        if not self._steps.seekable and state["step"] > len(self._steps.source):
            raise StateError(
                f"the state is at step {state['step']}, there are {len(self._steps.source)}"
            )

    def _require_steps(self, what: str) -> None:
        if self._iterable:
            raise TypeError(f"{what} needs a dataset with indices, not an IterableDataset")
        if what == "state_dict" and self.num_workers and not getattr(self, "in_order", True):
            raise StateError("with in_order=False nobody knows which batches are still to come")


def _in_torchs_order(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make room for torch's start method before a generator, where the original has none."""
    place = 9  # after the dataset and the batch size
    if len(args) > place and isinstance(args[place], torch.Generator):
        return (*args[:place], None, *args[place:])
    return args


@dataclass(slots=True)
class _Progress:
    """How far an epoch is."""

    epoch: int
    step: int  # the number of the next batch
    first: int = field(init=False)  # the number of the first batch of this iteration
    failed: int = 0  # batches that were an error: a state begins with them until another follows
    finished: bool = False

    def __post_init__(self) -> None:
        self.first = self.step


class _Epoch(Iterator[Any]):
    """torch's iterator over an epoch, counting what it hands out."""

    def __init__(
        self, loader: DataLoader[Any], batches: Any, progress: _Progress, skip: int
    ) -> None:
        self._loader = loader
        self._skip = skip
        self._batches = batches
        self._progress = progress

    def __next__(self) -> Any:
        while True:
            got = self._next()
            if not isinstance(got, Delivery):
                return got
            if got.skipped:
                self._loader.skipped += got.skipped
                warn_of_skipped(got.skipped, stacklevel=2)
            if got.batch:
                return got.batch[0]

    def _next(self) -> Any:
        progress = self._progress
        try:
            got = next(self._batches)
            if isinstance(got, Delivery) and got.error is not None:
                raise got.error
        except StopIteration:
            progress.finished = True
            raise
        except Exception:
            progress.failed += 1
            raise
        progress.step += 1 + progress.failed
        progress.failed = 0
        return got

    def __len__(self) -> int:
        return max(len(self._loader._steps.source) - self._skip, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


@contextlib.contextmanager
def _kept_random_numbers() -> Iterator[None]:
    before = random_state(None)
    try:
        yield
    finally:
        set_random_state(None, before)

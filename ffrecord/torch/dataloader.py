"""`DataLoader`: torch's, with steps that can be skipped and a state that can be saved.

Everything is torch's own machinery: this class only says which batches come (`Steps`), what is
done with them where they are read (`Assembler`, `Stamping`), and counts those that were handed out
(`Epoch`). Its state is `ResumableLoader`'s.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset as TorchDataset

from ffrecord.torch.assembler import Assembler, OnError, Skipped, check_on_error
from ffrecord.torch.dataset import Dataset
from ffrecord.torch.epoch import Epoch, Progress
from ffrecord.torch.randomness import drawing_from, random_state, set_random_state
from ffrecord.torch.resuming import ResumableLoader
from ffrecord.torch.schedule import Start, Steps
from ffrecord.torch.skipable import SkipableSampler as SkipableSampler  # as in the original
from ffrecord.torch.states import State
from ffrecord.torch.streams import Place, Stamping, Stream
from ffrecord.torch.wrapping import Promising

T_co = TypeVar("T_co", covariant=True)


class DataLoader(ResumableLoader[T_co]):
    """torch's DataLoader, for datasets of ours and any other.

    Takes all of torch's arguments, and with a dataset of ours does more:

    - While a worker decodes a batch, its next one is being read.
    - Random transforms get their numbers from the epoch's seed and the batch's number, so that
      the samples are the same with any number of workers, and after resuming. The seed comes
      from `generator`, or torch's global one, as torch's worker seeds do.
    - Samples that cannot be read or decoded are treated as `on_error` says.

    `state_dict()` between any two batches, given to `load_state_dict()` of a loader of the same
    data and batch size, goes on with the next batch, also with another number of workers and,
    with a `DistributedShuffleSampler`, of ranks. docs/torch.md says what holds for datasets and
    samplers from elsewhere.

    Args:
        skippable: whether `set_step` may be used. It need not be off for anything; the original
            asked for that with Lightning.
        on_error: as `Dataset` has it, whose own choice it overrides.
        read_ahead: read the next batch while the present one is decoded.
        batch_seeds: seed Python's, numpy's and torch's random numbers for each batch. Turn it off
            if a `worker_init_fn` is to have the last word.
        snapshot_every_n_steps: a worker asks an IterableDataset for its state after so many
            batches. Loading a state passes over the samples since then.
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
        snapshot_every_n_steps: int | None = 1,
        **options: Any,
    ) -> None:
        super().__init__(dataset, batch_size, *_in_torchs_order(args), **options)
        self._ours = isinstance(dataset, Dataset)
        check_on_error("raise" if on_error is None else on_error)
        if on_error is not None and not self._ours:
            raise ValueError("on_error needs a dataset of ffrecord.torch")
        self.skippable = skippable
        self.on_error = on_error
        self.read_ahead = read_ahead
        self.batch_seeds = batch_seeds
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.skipped: Skipped = []  # index and reason of every sample that was left out
        if self._ours:
            inner = self.collate_fn  # already wrapped, if the loader was made from another
            inner = inner.collate_fn if isinstance(inner, Assembler) else inner
            policy = dataset.on_error if on_error is None else on_error  # type: ignore[attr-defined]
            self.collate_fn = Assembler(inner, policy)
        batches = self._take_batch_sampler(skippable=skippable)
        self._steps = Steps(
            self.sampler if batches is None else batches,
            batched=batches is not None,
            promises=self._ours or self._wrapped,
            ahead=0,
            ours=self._ours,
            kept=(self.prefetch_factor or 0) * self.num_workers + max(self.num_workers, 1) + 2,
        )
        self._steps.ahead = self._ahead()
        self._steps.start = Start(self._step, self._step)  # the step that set_step said
        self._epoch = 0
        self._seed = self._base = self._progress = None
        self._place = Place()
        self._loaded = self._resumed = None

    @property
    def _index_sampler(self) -> Any:
        """Where torch's iterators take their batches from."""
        return super()._index_sampler if self._iterable else self._steps

    def _ahead(self) -> int:
        """Say after how many batches a worker gets its next one; 0 if it is not to be told."""
        if not self._ours or not self.read_ahead:
            return 0
        if not self.num_workers:
            return 1 if self._steps.settled else 0
        return self.num_workers

    # ---- iteration -----------------------------------------------------------------------

    def __iter__(self) -> Any:
        resumed, self._loaded, self._resumed = self._resumed, None, None
        begun = resumed is not None and resumed["begun"]
        steps = self._steps
        if steps.start.seed is None and not self._iterable:
            steps.start = replace(steps.start, seed=self._epoch_seed())
        self._progress = progress = Progress(
            self._epoch,
            resumed["step"] if resumed is not None and begun else self._step,
            given=set(steps.start.given),
            turn=resumed["turn"] if resumed is not None and begun else 0,
            workers=self._workers_at_the_beginning(resumed),
        )
        self._epoch += 1
        self._restore_dataset(progress, resumed)
        begin = steps.sampler.begin if steps.seekable else None
        with self._numbers_for_torch(resumed):
            batches = super().__iter__()
        start, steps.start = steps.start, Start(self._step, self._step)
        told = steps.epoch
        return Epoch(
            batches,
            progress,
            report=self._report,
            length=lambda: steps.left(start, begin),
            in_order=not self._out_of_order,
            discarded=progress.step if begun and self._iterable and not self._tracked else 0,
            following=(lambda: DataLoader.__iter__(self)) if begun else None,
            renewed=lambda: self._renewed(progress, told),
        )

    def _renewed(self, progress: Progress, told: int | None) -> Epoch | None:
        """Make an epoch once more if its sampler was told another number since; else None."""
        if self._progress is not progress or self._steps.epoch == told:
            return None
        self._epoch -= 1
        renewed: Epoch = DataLoader.__iter__(self)  # not of a class that wraps what it gives
        return renewed

    def _get_iterator(self) -> Any:
        """Let torch see the dataset in a wrapper, where it needs one. `self.dataset` stays."""
        if self._tracked:
            collate: Any = Stamping(
                self.collate_fn, self._place, self.snapshot_every_n_steps or 1 << 62
            )
            dataset: Any = Stream(self.dataset, self._place)
        elif self._wrapped:
            collate, dataset = Assembler(self.collate_fn, "raise"), Promising(self.dataset)
        else:
            return super()._get_iterator()
        shown = copy.copy(self)
        vars(shown).update(dataset=dataset, collate_fn=collate)
        return TorchDataLoader._get_iterator(shown)

    def _report(self, skipped: Skipped) -> None:
        self.skipped += skipped

    @contextlib.contextmanager
    def _numbers_for_torch(self, resumed: State | None) -> Iterator[None]:
        """The random numbers that torch draws when it begins: those of a resumed epoch again."""
        begun = resumed is not None and resumed["begun"]
        base = None if resumed is None else resumed["base_rng"]
        program = random_state(None)
        with drawing_from(self.generator, base):
            if self.num_workers and not self._pool_stays:
                self._base = random_state(self.generator)
            yield
        if resumed is None or not begun:
            return
        # A resumed epoch drew its random numbers when it began: the program's stay as they are.
        set_random_state(None, program)
        if self._steps.draws.generator is not self.generator:
            self._restore(self.generator, resumed["generator"])


def _in_torchs_order(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make room for torch's start method before a generator, where the original has none."""
    place = 9  # after the dataset and the batch size
    if len(args) > place and isinstance(args[place], torch.Generator):
        return (*args[:place], None, *args[place:])
    return args

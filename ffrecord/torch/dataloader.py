"""`DataLoader`: torch's DataLoader with a state that can be saved, and steps that can be skipped.

torch's own code runs the workers and queues. This class chooses the batches (`Steps`), adds work
where they are read (`Assembler`, `Stamping`), and counts the batches it returns (`Epoch`).
`ResumableLoader` saves and loads the state.

Use a loader from one thread. A state that does not fit raises `StateError`.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset as TorchDataset

from ffrecord.torch.assembler import Assembler, OnError, Skipped, check_on_error
from ffrecord.torch.dataset import Dataset
from ffrecord.torch.epoch import Epoch, Progress
from ffrecord.torch.lookahead import MOST_AHEAD
from ffrecord.torch.randomness import drawing_from, random_state, set_random_state
from ffrecord.torch.remote_shuffle import advise
from ffrecord.torch.resuming import ResumableLoader
from ffrecord.torch.schedule import Start, Steps
from ffrecord.torch.skipable import SkipableSampler as SkipableSampler  # as in the original
from ffrecord.torch.states import State
from ffrecord.torch.streams import Place, Stamping, Stream
from ffrecord.torch.wrapping import Promising

T_co = TypeVar("T_co", covariant=True)


class DataLoader(ResumableLoader[T_co]):
    """torch's DataLoader with read-ahead, batch seeds, `on_error` and a state.

    It takes any dataset and all of torch's arguments. With a dataset of `ffrecord.torch` it adds:

    - Read-ahead: while a worker decodes a batch, its next batch is being read. If the disk does not
      keep up, several batches are read at a time.
    - Batch seeds: random transforms are seeded from the epoch's seed and the batch's number. So
      the samples are the same with any number of workers, and after resuming. The seed comes
      from `generator` or from torch's global generator, like torch's worker seeds.
    - `on_error` for samples that cannot be read or decoded.

    Call `state_dict()` between any two batches to save the position. `load_state_dict()` of
    another loader with the same data and batch size continues with the next batch. The number of
    workers may change, and with a `DistributedShuffleSampler` the number of ranks too.
    docs/torch.md lists the limits for other datasets and samplers.

    Args:
        dataset: a dataset of `ffrecord.torch`, or any other.
        batch_size: samples in a batch. None: no batches.
        skippable: allow `set_step`. Only the original FFRecord needed False, for Lightning.
        on_error: how bad samples are treated, as for `Dataset`. None: as the dataset's `on_error`
            says.
        read_ahead: read the next batches while the present one is decoded.
        batch_seeds: seed the random numbers of Python, numpy and torch for each batch. Turn it
            off to keep the seeds that a `worker_init_fn` sets.
        snapshot_every_n_steps: the number of batches after which a worker asks an
            `IterableDataset` for its state again. A resumed loader reads and drops the samples
            that came after the dataset's last state. None: a worker asks only after its first
            batch and at the end.
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
        if isinstance(dataset, (str, bytes, os.PathLike)):
            path = os.fspath(dataset)
            raise TypeError(
                f"{path!r} is a path, not a dataset; derive a class from ffrecord.torch.Dataset "
                f"that defines process, for example Samples, and pass Samples({path!r})"
            )
        super().__init__(dataset, batch_size, *_in_torchs_order(args), **options)
        if args[:1] == (True,) or options.get("shuffle") is True:
            advise(dataset, batch_size)
        self._ours = isinstance(dataset, Dataset)
        check_on_error("raise" if on_error is None else on_error)
        if on_error is not None and not self._ours:
            raise ValueError(
                f"on_error={on_error!r} needs a dataset of ffrecord.torch, not "
                f"{type(dataset).__name__}; derive the dataset from ffrecord.torch.Dataset, or "
                "remove on_error"
            )
        self.skippable = skippable
        self.on_error = on_error
        self.read_ahead = read_ahead
        self.batch_seeds = batch_seeds
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.skipped: Skipped = []  # index and reason for every sample that was left out
        if self._ours:
            inner = self.collate_fn  # already an Assembler if this loader was made from another
            inner = inner.collate_fn if isinstance(inner, Assembler) else inner
            policy = dataset.on_error if on_error is None else on_error  # type: ignore[attr-defined]
            self.collate_fn = Assembler(inner, policy)
        batches = self._take_batch_sampler(skippable=skippable)
        self._steps = Steps(
            self.sampler if batches is None else batches,
            batched=batches is not None,
            promises=self._ours or self._wrapped,
            ours=self._ours,
            kept=(self.prefetch_factor or 0) * self.num_workers + max(self.num_workers, 1) + 2,
        )
        self._steps.ahead = self._ahead()
        if self._steps.settled and not self._out_of_order:
            self._steps.depth = MOST_AHEAD
        self._steps.start = Start(self._step, self._step)  # the user's SkipableSampler has a step
        self._epoch = 0
        self._seed = self._base = self._progress = None
        self._place = Place()
        self._loaded = self._resumed = None

    @property
    def _index_sampler(self) -> Any:
        """The source that torch's iterators take batches from."""
        return super()._index_sampler if self._iterable else self._steps

    def _ahead(self) -> int:
        """Return how many batches later a worker gets its next batch, or 0 for no read-ahead."""
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
        """Start the epoch again if `set_epoch` was called after `iter()`; otherwise return None."""
        if self._progress is not progress or self._steps.epoch == told:
            return None
        self._epoch -= 1
        renewed: Epoch = DataLoader.__iter__(self)  # a subclass may wrap the result
        return renewed

    def _get_iterator(self) -> Any:
        """Give torch a wrapped dataset if needed. `self.dataset` stays unwrapped."""
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
        """Let torch draw the epoch's first random numbers. A resumed epoch draws the same again."""
        begun = resumed is not None and resumed["begun"]
        base = None if resumed is None else resumed["base_rng"]
        program = random_state(None)
        with drawing_from(self.generator, base):
            if self.num_workers and not self._pool_stays:
                self._base = random_state(self.generator)
            yield
        if resumed is None or not begun:
            return
        # The resumed epoch drew these numbers before it was saved, so they must not count twice.
        set_random_state(None, program)
        if self._steps.draws.generator is not self.generator:
            self._restore(self.generator, resumed["generator"])


def _in_torchs_order(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Insert None for torch's `multiprocessing_context` if the arguments have the original's order.

    In that order the generator is at the place of `multiprocessing_context`.
    """
    place = 9  # counted after the dataset and the batch size
    if len(args) > place and isinstance(args[place], torch.Generator):
        return (*args[:place], None, *args[place:])
    return args

"""`ResumableLoader`: the part of `DataLoader` that saves where it is, and goes on from there.

The other part, iteration, asks it in which states an epoch and its workers begin.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, IterDataPipe, MapDataPipe

from ffrecord.errors import StateError
from ffrecord.records.fingerprints import (
    UNSIZED,
    fingerprint_of,
    former_fingerprint_of,
    has_fingerprint,
)
from ffrecord.torch.epoch import Progress, WorkerStates
from ffrecord.torch.randomness import (
    drawn_seed,
    encoded,
    generator_at,
    mixed_seed,
    random_state,
    set_random_state,
)
from ffrecord.torch.schedule import Start, Steps
from ffrecord.torch.skipable import Skipping
from ffrecord.torch.stateful import is_stateful, own_state
from ffrecord.torch.states import VERSION, State, checked, unresumable
from ffrecord.torch.streams import FIELDS, Place, after_the_epoch

T_co = TypeVar("T_co", covariant=True)


class ResumableLoader(Skipping, TorchDataLoader[T_co]):
    """A loader that can tell where it is, and go on from there."""

    skippable: bool
    batch_seeds: bool
    _ours: bool  # whether the dataset is one of ours
    _steps: Steps
    _epoch: int  # how many have begun
    _seed: int | None  # what the seeds of all epochs are made of
    _base: torch.Tensor | None  # what torch draws its workers' seeds from
    _progress: Progress | None  # of the present epoch
    _place: Place  # in an IterableDataset
    _loaded: State | None  # a state to go on from, as it was given
    _resumed: State | None  # the same, checked

    # ---- what kind of dataset it is ------------------------------------------------------

    @property
    def _iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    @property
    def _tracked(self) -> bool:
        """Whether it is an IterableDataset whose place is known. torch looks into data pipes."""
        return self._iterable and not isinstance(self.dataset, IterDataPipe)

    @property
    def _out_of_order(self) -> bool:
        return self.num_workers > 0 and not getattr(self, "in_order", True)

    @property
    def _wrapped(self) -> bool:
        """Whether a dataset from elsewhere must tell which batch it made, or its own state."""
        if self._ours or self._iterable or isinstance(self.dataset, MapDataPipe):
            return False
        return self._out_of_order or (self.num_workers > 0 and is_stateful(self.dataset))

    @property
    def _stateful(self) -> bool:
        """Whether workers' states are a part of the loader's."""
        return self._tracked or (not self._iterable and is_stateful(self.dataset))

    @property
    def _pool_stays(self) -> bool:
        """Whether there are workers that the next epoch goes on with."""
        return self.persistent_workers and self._iterator is not None

    def _epoch_seed(self) -> int | None:
        """Return the seed of the epoch that begins, for random transforms.

        It is made of what torch was about to draw for its workers in the first epoch, of the
        epoch's number and of the rank. So it does not matter who draws how often afterwards.
        """
        if not self.batch_seeds or not self._ours:
            return None
        if self._seed is None:
            self._seed = drawn_seed(generator_at(random_state(self.generator)))
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else 0
        return mixed_seed(self._seed, self._epoch, rank)

    # ---- datasets with a state of their own ----------------------------------------------

    def _workers_at_the_beginning(self, resumed: State | None) -> WorkerStates:
        """The states in which the workers begin, or this process; None: as they are made."""
        count = max(self.num_workers, 1)
        if resumed is not None and resumed["workers"]:
            return list(resumed["workers"])
        last = self._progress
        if not self._pool_stays or last is None or resumed is not None:
            return [None] * count
        if not self._iterable:
            return list(last.workers)
        return [after_the_epoch(each) if last.finished else None for each in last.workers]

    def _restore_dataset(self, progress: Progress, resumed: State | None) -> None:
        """Have the dataset begin in its states, where it has some."""
        if self._tracked:
            if not self._pool_stays:
                self._place = Place(progress.workers, progress.turn)
        elif resumed is not None and any(progress.workers):
            states = [each and copy.deepcopy(each["dataset"]) for each in progress.workers]
            if self.num_workers:
                in_turn = tuple(states[progress.turn :] + states[: progress.turn])
                self._steps.start = replace(
                    self._steps.start, passing=progress.turn, restored=in_turn
                )
            elif states[0] is not None:
                self.dataset.load_state_dict(states[0])  # type: ignore[attr-defined]

    def _worker_states(self, progress: Progress | None, begun: bool) -> WorkerStates:
        """The states that a saved state has of the dataset."""
        if not self._stateful:
            return []
        if self.num_workers:
            if progress is None or not (begun or self._pool_stays):
                return []  # each epoch has workers of its own
            workers = copy.deepcopy(progress.workers)
        elif not self._tracked:
            workers = [{"dataset": own_state(self.dataset)}]
        elif self._place.samples is None:
            return []
        else:
            workers = [self._place.samples.state()]
        if self._iterable and not begun:
            workers = [after_the_epoch(each) for each in workers]
        return workers

    # ---- steps and state -----------------------------------------------------------------

    def set_step(self, step: int) -> None:
        """Leave out so many batches at the beginning of every epoch, until it is set again."""
        if self._iterable:
            raise TypeError("set_step needs a dataset with indices, not an IterableDataset")
        step = operator.index(step)
        steps = self._steps
        if self._loaded is not None and steps.seekable:
            steps.sampler.rewind()
        most = steps.count
        if not self.skippable or step < 0 or (most is not None and step > most):
            why = f"there are {most}" if self.skippable else "the loader is not skippable"
            raise ValueError(f"step {step} cannot be set: {why}")
        self._step = step
        self._loaded, self._resumed = None, None
        steps.start = Start(step, step, origin=steps.start.origin)

    def state_dict(self) -> State:
        """Return where the loader is: after the last batch that was handed out.

        This never fails. Where a place cannot be told, the state says so when it is loaded.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        try:
            return self._state()
        except Exception as error:
            why = str(error) if isinstance(error, StateError) else repr(error)
            warnings.warn(f"this loader's state cannot be resumed: {why}", stacklevel=2)
            return unresumable(why)

    def _state(self) -> State:
        steps, progress = self._steps, self._progress
        begun = progress is not None and not progress.finished
        if begun and self._out_of_order and not (self._ours or self._wrapped or self._tracked):
            raise StateError("with in_order=False it is not known which batches are to come")
        if progress is not None and progress.problem is not None:
            raise StateError(progress.problem)
        now = progress if begun else None
        sampler, origin = (None, None) if self._iterable else self._order(now)
        return {
            "version": VERSION,
            "fingerprint": self._fingerprint(),
            "begun": begun,
            "epoch": self._epoch if now is None else now.epoch,
            "step": self._step if now is None else now.step,
            "given": [] if now is None else sorted(now.given),
            "step_size": steps.step_size,
            "ranks": steps.ranks,
            "sampler_kind": steps.kind,
            "sampler": sampler,
            "sampler_epoch": steps.epoch if begun and steps.present.drawn else steps.next_epoch,
            "seed": self._seed,
            "rng": None if origin is None else encoded(origin),
            "generator": None if self.generator is None else encoded(random_state(self.generator)),
            "base_rng": self._base_state(begun),
            "num_workers": self.num_workers,
            "turn": 0 if now is None else now.turn,
            "workers": self._worker_states(progress, begun),
        }

    def _order(self, progress: Progress | None) -> tuple[Any, torch.Tensor | None]:
        """The sampler's own state, and what the order is drawn from if it has none.

        Args:
            progress: of the present epoch; None: the next one is meant.
        """
        steps, draws = self._steps, self._steps.draws
        if progress is not None:
            steps.present.pin()
            sampler = steps.present.sampler_state(progress.step)
            if sampler is not None:
                return sampler, None
            if is_stateful(steps.sampler):
                raise StateError(f"the state of the sampler at step {progress.step} is not known")
            matter = draws.matter if steps.present.drawn else draws.may_matter
            return None, steps.present.origin if matter else None
        sampler = steps.next_state()
        if sampler is not None or not draws.matter:
            return sampler, None
        ahead = generator_at(random_state(None))
        if self.generator is None and not self._pool_stays:
            drawn_seed(ahead)  # torch draws a seed for its workers first
        return None, draws.origin(ahead.get_state())

    def _base_state(self, begun: bool) -> Any:
        """Return the state that torch draws workers' seeds from, if their states depend on it."""
        if not self.num_workers or not (self._stateful or self._iterable):
            return None
        if begun or self._pool_stays:
            return None if self._base is None else encoded(self._base)
        return encoded(random_state(None)) if self.generator is None else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next epoch begins with the batch after the last one then.

        A state of an epoch's end goes on with the next epoch. A `generator` that was given to the
        loader or its sampler goes on from where it was too; torch's global one is the program's own
        to restore.

        Raises:
            StateError: it is the state of a loader of other data, or of another kind.
        """
        saved = checked(state)
        self._compare(saved)
        self._epoch, self._seed = saved["epoch"], saved["seed"]
        self._progress = None
        self._restore(self.generator, saved["generator"])
        if self._stateful:
            self._iterator = None  # workers that persist are made again, with their states
        if not self._iterable:
            self._move(saved)
        self._loaded, self._resumed = dict(state), saved

    def _move(self, saved: State) -> None:
        """Put the sampler where a state says."""
        steps, step, begun = self._steps, saved["step"], saved["begun"]
        own = None
        steps.present.waits = False
        if steps.seekable:
            steps.sampler.load_state_dict(saved["sampler"])
        else:
            own = saved["sampler"]
            if saved["sampler_epoch"] is not None:
                steps.set_epoch(saved["sampler_epoch"])
        origin = saved["rng"]
        if saved["version"] == 1 and origin is not None and steps.draws.generator is None:
            origin = steps.draws.origin(origin)  # it was the global generator's state
        self._step = 0 if begun else step
        if not begun:
            if steps.draws.generator is not None:
                self._restore(steps.draws.generator, origin)
                origin = None
            steps.start = Start(step, step, origin=origin, sampler=own)
            return
        skip = 0 if steps.seekable or own is not None else step
        steps.start = Start(skip, step, self._epoch_seed(), origin, own, frozenset(saved["given"]))
        if steps.count is not None and len(steps) == 0:
            # It was the last batch: the next epoch follows, with what the sampler draws for it.
            steps.pass_over()
            steps.start = Start()
            self._epoch += 1
            saved["begun"], saved["step"] = False, 0
            saved["base_rng"] = None if not self.persistent_workers else saved["base_rng"]

    @staticmethod
    def _restore(generator: torch.Generator | None, state: torch.Tensor | None) -> None:
        """Where either is missing there is nothing to: torch's global one is the program's."""
        if generator is not None and state is not None:
            set_random_state(generator, state)

    def _fingerprint(self) -> str:
        """Return the fingerprint that a state knows its data by."""
        if self._iterable and not has_fingerprint(self.dataset):
            return UNSIZED  # the length of a stream may be that of a worker's share
        return fingerprint_of(self.dataset)

    def _compare(self, saved: State) -> None:
        """Refuse a state that cannot be one of this loader's."""
        steps = self._steps
        here = self._fingerprint()
        former = former_fingerprint_of(self.dataset) if saved["version"] == 1 else here
        if saved["fingerprint"] not in (here, former):
            raise StateError(
                "the state belongs to other data: its fingerprint is "
                f"{saved['fingerprint'][:16]}, here it is {here[:16]}"
            )
        if saved["sampler_kind"] != steps.kind:
            raise StateError(
                "the state belongs to a loader with another kind of sampler: "
                f"{saved['sampler_kind']}, here it is {steps.kind}"
            )
        fixed = saved["given"] or not (steps.seekable or self._tracked)
        if fixed and saved["step_size"] != steps.step_size:
            raise StateError(
                f"the state belongs to a loader with a batch size of {saved['step_size']}, here "
                f"it is {steps.step_size}; ShuffleSampler allows that, others do not"
            )
        if saved["given"] and saved["ranks"] != steps.ranks:
            raise StateError(
                f"the state was saved out of order on {saved['ranks']} ranks, here are "
                f"{steps.ranks}; with in_order=True the number may change"
            )
        count = None if steps.seekable or self._iterable else steps.count
        if count is not None and saved["step"] > count:
            raise StateError(f"the state is at step {saved['step']}, there are {count}")
        own = None if steps.seekable else saved["sampler"]
        if own is not None and set(own) != {"sampler", "iterator", "ended"}:
            raise StateError("this is not the state of a sampler from elsewhere")
        self._compare_workers(saved)

    def _compare_workers(self, saved: State) -> None:
        known = [each for each in saved["workers"] if each is not None]
        if (known or (self._iterable and saved["begun"])) and (
            saved["num_workers"] != self.num_workers
        ):
            raise StateError(
                f"the state has {saved['num_workers']} workers' places in the dataset, here are "
                f"{self.num_workers} workers"
            )
        if self._tracked and not all(set(each) == FIELDS for each in known):
            raise StateError("this is not the state of a loader with an IterableDataset")
        own = any(each.get("dataset") is not None for each in known)
        if own and not is_stateful(self.dataset):
            raise StateError("the state has one of the dataset, which has no load_state_dict")

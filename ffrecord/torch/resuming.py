"""`ResumableLoader`: the part of `DataLoader` that saves and loads the loader's state.

`DataLoader` iterates. This class gives it the states in which an epoch and its workers begin. Use a
loader from one thread. A state that does not fit raises `StateError`.
"""

from __future__ import annotations

import copy
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
from ffrecord.text import integer
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
    """A torch DataLoader that saves its position and continues from a saved one."""

    skippable: bool
    batch_seeds: bool
    _ours: bool  # True if the dataset is an ffrecord.torch.Dataset
    _steps: Steps
    _epoch: int  # the number of epochs that have begun
    _seed: int | None  # the seed that the seeds of all epochs are computed from
    _base: torch.Tensor | None  # the random state that torch draws its workers' seeds from
    _progress: Progress | None  # of the present epoch
    _place: Place  # the position in an IterableDataset
    _loaded: State | None  # a loaded state, unchanged; None after an epoch has begun with it
    _resumed: State | None  # the same state after `checked`

    # ---- kinds of datasets ---------------------------------------------------------------

    @property
    def _iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    @property
    def _tracked(self) -> bool:
        """True for an IterableDataset whose position is tracked.

        Data pipes are not tracked: torch inspects them, so they cannot be wrapped.
        """
        return self._iterable and not isinstance(self.dataset, IterDataPipe)

    @property
    def _out_of_order(self) -> bool:
        return self.num_workers > 0 and not getattr(self, "in_order", True)

    @property
    def _wrapped(self) -> bool:
        """True for a foreign map-style dataset that workers get in a wrapper.

        Batch numbers, the dataset's state and our errors come from the workers with the batches.
        Data pipes are not wrapped, see `_tracked`.
        """
        foreign = not (self._ours or self._iterable or isinstance(self.dataset, MapDataPipe))
        return foreign and self.num_workers > 0

    @property
    def _stateful(self) -> bool:
        """True if the loader's state includes the states of its workers."""
        return self._tracked or (not self._iterable and is_stateful(self.dataset))

    @property
    def _pool_stays(self) -> bool:
        """True if persistent workers exist that the next epoch will use again."""
        return self.persistent_workers and self._iterator is not None

    def _epoch_seed(self) -> int | None:
        """Return the seed for the random transforms of the next epoch.

        It is computed from a base seed, the epoch's number and the rank. The base seed is the seed
        that torch is about to draw for its workers when the first epoch begins. Later draws by the
        program do not change it.
        """
        if not self.batch_seeds or not self._ours:
            return None
        if self._seed is None:
            self._seed = drawn_seed(generator_at(random_state(self.generator)))
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else 0
        return mixed_seed(self._seed, self._epoch, rank)

    # ---- datasets that save their own state ----------------------------------------------

    def _workers_at_the_beginning(self, resumed: State | None) -> WorkerStates:
        """Return the state in which each worker, or this process, begins; None: a fresh start."""
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
        """Arrange for the dataset to begin in its saved states, if it has any."""
        if self._tracked:
            if resumed is not None or (self.num_workers and not self._pool_stays):
                self._place = Place(progress.workers, progress.turn)
            if not self.num_workers:
                self._place.finish(self.dataset)
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
        """Return the states of the dataset in each worker, for the loader's state."""
        if not self._stateful:
            return []
        if self.num_workers:
            if progress is None or not (begun or self._pool_stays):
                return []  # the next epoch starts new workers
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
        """Skip the first `step` batches of every epoch, until it is called again."""
        if self._iterable:
            raise TypeError(
                f"set_step({step}) does not work with an IterableDataset, which has no indices; "
                "use state_dict() and load_state_dict() instead"
            )
        step = integer(step, "step")
        steps = self._steps
        if self._loaded is not None and steps.seekable:
            steps.sampler.rewind()
        most = steps.count
        if not self.skippable:
            raise ValueError(
                f"step {step} cannot be set: the loader was made with skippable=False; remove "
                "that argument"
            )
        if step < 0 or (most is not None and step > most):
            highest = "up" if most is None else f"to {most}, the number of batches in an epoch"
            raise ValueError(f"step {step} cannot be set; pass a number from 0 {highest}")
        self._step = step
        self._loaded, self._resumed = None, None
        steps.start = Start(step, step, origin=steps.start.origin)

    def state_dict(self) -> State:
        """Return the loader's position, which is after the last batch that it returned.

        This never raises. If the position is not known, this method warns, and loading the returned
        state raises a `StateError` that says why.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        try:
            return self._state()
        except Exception as error:
            why = str(error) if isinstance(error, StateError) else repr(error)
            warnings.warn(
                f"the state of this loader is saved, but cannot be resumed: {why}", stacklevel=2
            )
            return unresumable(why)

    def _state(self) -> State:
        steps, progress = self._steps, self._progress
        begun = progress is not None and not progress.finished
        if begun and self._out_of_order and not (self._ours or self._wrapped or self._tracked):
            raise StateError(
                "with in_order=False a loader of a data pipe does not know which batches are left; "
                "pass in_order=True"
            )
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
        """Return the sampler's state, or the random state that the order is drawn from.

        Args:
            progress: the progress of the present epoch; None to ask about the next epoch.
        """
        steps, draws = self._steps, self._steps.draws
        if progress is not None:
            steps.present.pin()
            sampler = steps.present.sampler_state(progress.step)
            if sampler is not None:
                return sampler, None
            if is_stateful(steps.sampler):
                raise StateError(
                    f"the sampler's state before batch {progress.step} is no longer known; pass "
                    "in_order=True, or use a ShuffleSampler"
                )
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
        """Return the random state that torch draws its workers' seeds from, or None.

        It is saved only if the dataset's states in the workers may depend on these seeds.
        """
        if not self.num_workers or not (self._stateful or self._iterable):
            return None
        if begun or self._pool_stays:
            return None if self._base is None else encoded(self._base)
        return encoded(random_state(None)) if self.generator is None else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state: the next iteration begins after the last returned batch.

        If that was the last batch of an epoch, the next epoch begins. A `generator` that was passed
        to the loader or its sampler is restored too. torch's global generator is not restored:
        restore it yourself.

        Raises:
            StateError: the state belongs to a loader with other data or other settings.
        """
        saved = checked(state)
        self._compare(saved)
        self._epoch, self._seed = saved["epoch"], saved["seed"]
        self._progress = None
        self._restore(self.generator, saved["generator"])
        if self._stateful:
            self._iterator = None  # start persistent workers again, in the saved states
        if not self._iterable:
            self._move(saved)
        self._loaded, self._resumed = dict(state), saved

    def _move(self, saved: State) -> None:
        """Move the sampler to the position of a state."""
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
            origin = steps.draws.origin(origin)  # version 1 saved the global generator's state
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
            # The saved epoch has no batches left. Let the sampler make all draws of that epoch, so
            # that the next epoch has the right order.
            steps.pass_over()
            steps.start = Start()
            self._epoch += 1
            saved["begun"], saved["step"] = False, 0
            saved["base_rng"] = None if not self.persistent_workers else saved["base_rng"]

    @staticmethod
    def _restore(generator: torch.Generator | None, state: torch.Tensor | None) -> None:
        """Restore a generator, unless it is torch's global one (None) or no state was saved."""
        if generator is not None and state is not None:
            set_random_state(generator, state)

    def _fingerprint(self) -> str:
        """Return the dataset's fingerprint, for comparison with a state."""
        if self._iterable and not has_fingerprint(self.dataset):
            return UNSIZED  # a stream may report the length of one worker's share
        return fingerprint_of(self.dataset)

    def _compare(self, saved: State) -> None:
        """Raise StateError if a state does not fit this loader."""
        steps = self._steps
        here = self._fingerprint()
        former = former_fingerprint_of(self.dataset) if saved["version"] == 1 else here
        if saved["fingerprint"] not in (here, former):
            raise StateError(
                f"the state belongs to other data: its fingerprint is {saved['fingerprint'][:16]}, "
                f"and the fingerprint of this loader's data is {here[:16]}; open the data that the "
                "state was saved with, or start without the state"
            )
        if saved["sampler_kind"] != steps.kind:
            raise StateError(
                f"the state belongs to a loader with the sampler {saved['sampler_kind']!r}, and "
                f"this loader has {steps.kind!r}; use the sampler, the shuffle= and the number of "
                "ranks that the state was saved with"
            )
        fixed = saved["given"] or not (steps.seekable or self._tracked)
        if fixed and saved["step_size"] != steps.step_size:
            raise StateError(
                f"the state was saved with a batch size of {saved['step_size']}, and this loader "
                f"has {steps.step_size}; pass batch_size={saved['step_size']} (only states of a "
                "ShuffleSampler with in_order=True fit another batch size)"
            )
        if saved["given"] and saved["ranks"] != steps.ranks:
            raise StateError(
                f"the state was saved with in_order=False on {saved['ranks']} ranks, and this "
                f"loader has {steps.ranks}; use {saved['ranks']} ranks (only states saved with "
                "in_order=True fit another number)"
            )
        count = None if steps.seekable or self._iterable else steps.count
        if count is not None and saved["step"] > count:
            raise StateError(
                f"the state is at batch {saved['step']}, and an epoch of this loader has only "
                f"{count} batches; use the batch size and drop_last that it was saved with"
            )
        own = None if steps.seekable else saved["sampler"]
        if own is not None and set(own) != {"sampler", "iterator", "ended"}:
            raise StateError(
                f"the sampler's part of the state has the keys {sorted(map(str, own))}, not "
                "'ended', 'iterator' and 'sampler'; pass a state that state_dict() returned, "
                "unchanged"
            )
        self._compare_workers(saved)

    def _compare_workers(self, saved: State) -> None:
        known = [each for each in saved["workers"] if each is not None]
        if (known or (self._iterable and saved["begun"])) and (
            saved["num_workers"] != self.num_workers
        ):
            raise StateError(
                f"the state has {saved['num_workers']} workers' positions in the dataset, and this "
                f"loader has {self.num_workers} workers; pass num_workers={saved['num_workers']}"
            )
        if self._tracked and not all(set(each) == FIELDS for each in known):
            raise StateError(
                "the state does not belong to a loader with an IterableDataset, and this loader "
                "has one; use the dataset that the state was saved with"
            )
        own = any(each.get("dataset") is not None for each in known)
        if own and not is_stateful(self.dataset):
            raise StateError(
                f"the state includes a state of the dataset, but {type(self.dataset).__name__} "
                "cannot load it; define state_dict() and load_state_dict() in the dataset"
            )

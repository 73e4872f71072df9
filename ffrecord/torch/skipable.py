"""`SkipableSampler`: a batch sampler whose first batches can be left out.

Loaders of the original FFRecord skip steps with it: `loader.batch_sampler` is one, and programs set
its step. Loaders of ours skip steps themselves, and have such an object for these programs. It is
also torch's `BatchSampler`, because Lightning and Accelerate make new loaders out of what they find
in one: the sampler, the batch size and `drop_last`.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset


class SkipableSampler(BatchSampler):
    """Batches, from the one on that `set_step` says.

    Args:
        sampler: gives batches or, if there is a batch size, indices to make batches of.
        batch_size, drop_last: as in torch's `BatchSampler`.

    Attributes:
        batches: all batches, whatever the step is.
        step: how many batches are left out.
    """

    def __init__(
        self, sampler: Any, batch_size: int | None = None, drop_last: bool = False
    ) -> None:
        # Not super().__init__(): it refuses to be without a batch size.
        self.batches = sampler
        self.sampler = sampler
        self.batch_size = batch_size  # type: ignore[assignment]
        self.drop_last = drop_last
        self.step = 0
        self._loader: weakref.ref[Any] | None = None
        if batch_size is not None:
            self.batches = BatchSampler(sampler, batch_size, drop_last)

    def __setattr__(self, name: str, value: Any) -> None:
        """Pass on what is set: some programs change a loader's sampler or batch size like that."""
        super().__setattr__(name, value)
        makes_batches = getattr(self, "batches", None) is not getattr(self, "sampler", None)
        if makes_batches and name in ("sampler", "batch_size", "drop_last"):
            setattr(self.batches, name, value)

    def set_step(self, step: int) -> None:
        """Leave out so many batches, here and in the loader that has this batch sampler."""
        loader = None if self._loader is None else self._loader()
        if loader is not None:
            loader.set_step(step)
            return
        if operator.index(step) < 0:
            raise ValueError(f"step {step} cannot be set: it is negative")
        self.step = operator.index(step)

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self.batches, self.step, None)

    def __len__(self) -> int:
        return max(len(self.batches) - self.step, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loader": None}


class Skipping:
    """The part of a loader that shares its step with a `SkipableSampler`."""

    _skipable: SkipableSampler

    @property
    def _step(self) -> int:
        return self._skipable.step

    @_step.setter
    def _step(self, step: int) -> None:
        self._skipable.step = step

    def _take_batch_sampler(self: Any, *, skippable: bool) -> Any:
        """Put a `SkipableSampler` in the place of the batch sampler that torch has made.

        A batch sampler that the user has given stays, and is shared if it is a `SkipableSampler`.
        Return what gives all batches, or None if the loader makes none.
        """
        batches = self.batch_sampler
        self._skipable = SkipableSampler(())
        if type(batches) is SkipableSampler:  # not a subclass: that may do more than skip
            self._skipable = batches
        elif skippable and self.batch_size and not isinstance(self.dataset, IterableDataset):
            self._skipable = SkipableSampler(batches.sampler, batches.batch_size, batches.drop_last)
            # Past torch's __setattr__, which refuses it: torch itself has no need to.
            self.__dict__["batch_sampler"] = self._skipable
        self._link()
        return self._skipable.batches if self.batch_sampler is self._skipable else batches

    def _link(self) -> None:
        if self._skipable._loader is None:
            self._skipable._loader = weakref.ref(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copied loader, whose sampler is a copy too."""
        self.__dict__.update(state)
        self._link()

"""`SkipableSampler`: a batch sampler whose first batches can be skipped.

In the original FFRecord, `loader.batch_sampler` is a `SkipableSampler`, and programs set its step.
Our loaders skip steps themselves, but keep this object for such programs. It is a subclass of
torch's `BatchSampler`, because Lightning and Accelerate make new loaders from a batch sampler's
`sampler`, `batch_size` and `drop_last`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from ffrecord.text import integer


class SkipableSampler(BatchSampler):
    """A batch sampler that skips the first batches, as many as `set_step` says.

    Args:
        sampler: a sampler of indices if `batch_size` is set, otherwise a sampler of batches.
        batch_size: indices in a batch, as in torch's `BatchSampler`.
        drop_last: leave out a last batch that is smaller, as in torch's `BatchSampler`.

    Attributes:
        batches: all batches, including skipped ones.
        step: the number of batches that are skipped.
    """

    def __init__(
        self, sampler: Any, batch_size: int | None = None, drop_last: bool = False
    ) -> None:
        # Not super().__init__(), which raises without a batch size.
        self.batches = sampler
        self.sampler = sampler
        self.batch_size = batch_size  # type: ignore[assignment]
        self.drop_last = drop_last
        self.step = 0
        self._loader: weakref.ref[Any] | None = None
        if batch_size is not None:
            self.batches = BatchSampler(sampler, batch_size, drop_last)

    def __setattr__(self, name: str, value: Any) -> None:
        """Change `batches` too, because some programs set `sampler` or `batch_size` here."""
        super().__setattr__(name, value)
        makes_batches = getattr(self, "batches", None) is not getattr(self, "sampler", None)
        if makes_batches and name in ("sampler", "batch_size", "drop_last"):
            setattr(self.batches, name, value)

    def set_step(self, step: int) -> None:
        """Skip the first `step` batches, here and in the loader that has this batch sampler."""
        loader = None if self._loader is None else self._loader()
        if loader is not None:
            loader.set_step(step)
            return
        step = integer(step, "step")
        if step < 0:
            raise ValueError(f"step {step} cannot be set; pass a number from 0 up")
        self.step = step

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
        """Replace the batch sampler that torch made with a `SkipableSampler`.

        A batch sampler from the user stays. If it is a `SkipableSampler`, it is shared.

        Returns:
            The object that gives all batches, or None if the loader makes no batches.
        """
        batches = self.batch_sampler
        self._skipable = SkipableSampler(())
        if type(batches) is SkipableSampler:  # a subclass may do more than skip
            self._skipable = batches
        elif skippable and self.batch_size and not isinstance(self.dataset, IterableDataset):
            self._skipable = SkipableSampler(batches.sampler, batches.batch_size, batches.drop_last)
            # Bypass torch's __setattr__, which does not allow a new batch sampler.
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

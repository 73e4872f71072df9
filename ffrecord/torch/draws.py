"""The random numbers that foreign samplers draw an epoch's order from.

torch's samplers draw when the first index of an epoch is asked for. They draw from their own
generator or from torch's global generator. A `RandomSampler` without a generator makes a new one
for each epoch, with a seed that it draws from the global generator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

from ffrecord.torch.randomness import (
    drawing_from,
    drawn_seed,
    generator_at,
    random_state,
    set_random_state,
)

# Samplers that draw nothing, or draw from a generator that they seed with the epoch's number.
NEVER = (SequentialSampler, DistributedSampler, list, tuple, range, torch.Tensor, np.ndarray)


class Draws:
    """The random numbers of one sampler.

    Args:
        sampler: the sampler, or the sampler inside it if only the inner one has a `generator`.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.touched = False  # True if an unknown kind of sampler used torch's global generator
        self._seen = False  # True after an unknown kind of sampler was watched

    @property
    def generator(self) -> torch.Generator | None:
        """The sampler's own generator, or None."""
        generator: torch.Generator | None = getattr(self._sampler, "generator", None)
        return generator

    @property
    def never(self) -> bool:
        """True if the order surely does not depend on random numbers."""
        return type(self._sampler) in NEVER

    @property
    def known(self) -> bool:
        """True if the sampler's kind tells whether its order depends on random numbers."""
        return self.never or hasattr(self._sampler, "generator")

    @property
    def matter(self) -> bool:
        """True if the order depends on random numbers, as far as is known."""
        return not self.never if self.known else self.touched

    @property
    def may_matter(self) -> bool:
        """True if the order depends on random numbers, or if that is not known yet."""
        return self.matter or not (self.known or self._seen)

    @property
    def _seeds_its_own(self) -> bool:
        """True if the sampler draws only a seed for a new generator from the global generator."""
        return getattr(type(self._sampler), "__iter__", None) is RandomSampler.__iter__

    def origin(self, state: torch.Tensor | None = None) -> torch.Tensor:
        """Return the random state that the sampler would draw its order from now.

        Args:
            state: a state to use in place of the global generator's present one.
        """
        if self.generator is not None:
            return random_state(self.generator)
        state = random_state(None) if state is None else state
        if self._seeds_its_own:
            return torch.Generator().manual_seed(drawn_seed(generator_at(state))).get_state()
        return state

    @contextlib.contextmanager
    def coming_from(self, origin: torch.Tensor | None) -> Iterator[None]:
        """Make the sampler draw from the random state `origin` in the block; None: change nothing.

        If torch's global generator would give the same order anyway, it is used and not restored.
        Otherwise it is left as it was before the block.
        """
        if origin is None:
            yield
        elif self.generator is not None:
            set_random_state(self.generator, origin)
            yield
        elif torch.equal(self.origin(), origin):
            yield
        elif self._seeds_its_own:
            self._sampler.generator = generator_at(origin)
            try:
                yield
            finally:
                self._sampler.generator = None
        else:
            with drawing_from(None, origin):
                yield

    def watched(self, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items, and notice if the sampler uses torch's global generator."""
        while not self.touched:
            before = random_state(None).numpy().tobytes()  # faster to compare than tensors
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.touched = before != random_state(None).numpy().tobytes()
                self._seen = True
            yield item
        yield from items

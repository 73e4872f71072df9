"""Random numbers of samplers from elsewhere: what an epoch's order was drawn from.

torch's samplers draw when the first index of an epoch is asked for: from a generator of their own,
from torch's global one or, `RandomSampler`, from a new one whose seed is drawn from the global one.
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

# They draw nothing, or from a generator that they seed with the epoch's number.
NEVER = (SequentialSampler, DistributedSampler, list, tuple, range, torch.Tensor, np.ndarray)


class Draws:
    """The random numbers of one sampler.

    Args:
        sampler: the sampler, or the one inside it, that has a `generator`; else any sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.touched = False  # whether a sampler of unknown kind used torch's global numbers
        self._seen = False  # whether it was looked at when it gave something

    @property
    def generator(self) -> torch.Generator | None:
        """The sampler's own generator; None if it has none."""
        generator: torch.Generator | None = getattr(self._sampler, "generator", None)
        return generator

    @property
    def never(self) -> bool:
        """Whether the order is known not to depend on them."""
        return type(self._sampler) in NEVER

    @property
    def known(self) -> bool:
        """Whether it is known beforehand if the order depends on them."""
        return self.never or hasattr(self._sampler, "generator")

    @property
    def matter(self) -> bool:
        """Whether the order depends on them, as far as was seen."""
        return not self.never if self.known else self.touched

    @property
    def may_matter(self) -> bool:
        """Whether the order may depend on them, as long as the sampler was not seen to draw."""
        return self.matter or not (self.known or self._seen)

    @property
    def _seeds_its_own(self) -> bool:
        """Whether the sampler draws a seed from the global numbers and then uses only that."""
        return getattr(type(self._sampler), "__iter__", None) is RandomSampler.__iter__

    def origin(self, state: torch.Tensor | None = None) -> torch.Tensor:
        """Return the generator's state that the sampler would draw its order from now.

        Args:
            state: of torch's global generator, if that is not to be taken as it is.
        """
        if self.generator is not None:
            return random_state(self.generator)
        state = random_state(None) if state is None else state
        if self._seeds_its_own:
            return torch.Generator().manual_seed(drawn_seed(generator_at(state))).get_state()
        return state

    @contextlib.contextmanager
    def coming_from(self, origin: torch.Tensor | None) -> Iterator[None]:
        """Let the sampler draw from `origin`; None: from where it would anyway.

        torch's global numbers stay as they are, unless the sampler draws the same from them.
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
        """Pass items on, and see whether torch's global numbers were used for them."""
        while not self.touched:
            before = random_state(None).numpy().tobytes()  # quicker to compare than tensors
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.touched = before != random_state(None).numpy().tobytes()
                self._seen = True
            yield item
        yield from items

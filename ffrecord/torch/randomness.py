"""Seeds, states of torch's generators, and the form of these states as JSON values.

The state of a freshly seeded generator is written as its seed, an int. Any other state is written
as text: torch's 5,056 bytes, half of them zeros, compressed and encoded.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import zlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.random import mtrand

Encoded: TypeAlias = "int | str"

STATE_BYTES = torch.Generator().get_state().numel()


def mixed_seed(*parts: int) -> int:
    """Return a 64-bit seed that is a hash of the parts, so each part changes it."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


# ---- generators; None means torch's global one ---------------------------------------------


def random_state(generator: torch.Generator | None) -> torch.Tensor:
    return torch.get_rng_state() if generator is None else generator.get_state()


def set_random_state(generator: torch.Generator | None, state: torch.Tensor) -> None:
    if generator is None:
        torch.set_rng_state(state)
    else:
        generator.set_state(state)


def generator_at(state: torch.Tensor) -> torch.Generator:
    """Return a new generator with the given state."""
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def drawn_seed(generator: torch.Generator | None) -> int:
    """Draw a seed as torch's loaders and `RandomSampler` do."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


@contextlib.contextmanager
def drawing_from(
    generator: torch.Generator | None, state: torch.Tensor | None
) -> Iterator[None]:  # fmt: skip
    """Set a generator to a state for the block, and restore it afterwards.

    If the generator is already in that state, or the state is None, nothing is restored. So a
    program that restored its random numbers itself continues as if it had never stopped.
    """
    before = random_state(generator)
    if state is None or torch.equal(before, state):
        yield
        return
    set_random_state(generator, state)
    try:
        yield
    finally:
        set_random_state(generator, before)


# ---- numpy's global generator ----------------------------------------------------------------


class NumpyNumbers:
    """The program's global random numbers of numpy, set aside until `restore` is called.

    Copying a state of numpy's generator takes 20 µs each way. So the program's generator is
    replaced by one for batches, and later put back as it was. Only a normal number that numpy keeps
    for the next call is not part of the generator.
    """

    def __init__(self) -> None:
        self._generator = mtrand.get_bit_generator()
        self._state: Any = np.random.get_state()
        mtrand.set_bit_generator(_FOR_BATCHES)

    def restore(self) -> None:
        mtrand.set_bit_generator(self._generator)
        if self._state[3]:  # a normal number is kept
            np.random.set_state(self._state)


_FOR_BATCHES = np.random.MT19937(0)


# ---- states as JSON values -----------------------------------------------------------------


def encoded(state: torch.Tensor) -> Encoded:
    """Return a generator's state as a JSON value."""
    seed = generator_at(state).initial_seed()
    if torch.equal(torch.Generator().manual_seed(seed).get_state(), state):
        return seed
    words = np.frombuffer(state.numpy().tobytes(), np.uint32)
    # Every second word is zero. Moved to the end, the zeros compress to almost nothing.
    packed = zlib.compress(words.reshape(-1, 2).T.tobytes(), 9)
    return base64.b85encode(packed).decode()


def decoded(value: Any) -> torch.Tensor:
    """Return the state that `encoded` turned into this value.

    The value may also be a tensor, as in states of version 1.

    Raises:
        ValueError: the value is not a generator's state.
    """
    try:
        state = value if isinstance(value, torch.Tensor) else _unpacked(value)
        return generator_at(state).get_state()  # torch checks type, size and content
    except (RuntimeError, TypeError, binascii.Error, zlib.error) as error:
        raise ValueError(f"not the state of a generator: {error}") from None


def _unpacked(value: Any) -> torch.Tensor:
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.Generator().manual_seed(value).get_state()
    if not isinstance(value, str):
        raise TypeError(f"expected an int or a str, not {type(value).__name__}")
    raw = zlib.decompressobj().decompress(base64.b85decode(value), STATE_BYTES + 1)
    if len(raw) != STATE_BYTES:
        raise ValueError(
            f"not the state of a generator: it has {len(raw)} bytes, not {STATE_BYTES}"
        )
    words = np.frombuffer(raw, np.uint32).reshape(2, -1).T
    return torch.from_numpy(np.frombuffer(words.tobytes(), np.uint8).copy())

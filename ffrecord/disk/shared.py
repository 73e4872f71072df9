"""Memory that forked processes share, so that the workers of a loader or a mount learn together.

Writers need no lock: each value is a hint, and a lost change does no harm. Spawned processes share
nothing; each of them learns on its own.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TypeVar

import numpy as np

from ffrecord.aliases import Mask

Made = TypeVar("Made", bound="Shared")


class Shared(ctypes.Structure):
    """A structure that forked processes share. All fields are 0 at first."""

    def __new__(cls: type[Made], *_: object) -> Made:
        return cls.from_buffer(mmap.mmap(-1, ctypes.sizeof(cls)))


def flags(count: int) -> Mask:
    """Return flags that forked processes share. They take no memory until one is set."""
    return np.frombuffer(mmap.mmap(-1, max(count, 1)), bool)[:count]

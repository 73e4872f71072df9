"""Ranges of numbers and of bytes, many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Bytes, Ints


def numbers(first: npt.NDArray[Any], count: npt.NDArray[Any]) -> Ints:
    """Return the numbers of all ranges, one range after the other."""
    before = np.cumsum(count) - count
    all_numbers: Ints = np.repeat(first - before, count)
    all_numbers += np.arange(len(all_numbers))
    return all_numbers


def copy(target: Bytes, at: Ints, source: Bytes, begin: Ints, length: Ints) -> None:
    """Copy pieces of `source` to their places in `target`."""
    if not len(begin):
        return
    end = begin + length
    if (begin[1:] == end[:-1]).all():
        taken = source[begin[0] : end[-1]]
    else:
        taken = source[numbers(begin, length)]
    target[numbers(at, length)] = taken


def up_to(step: int, total: int) -> list[tuple[int, int]]:
    """Return the bounds of pieces of `step` that together are `total`."""
    return [(low, min(low + step, total)) for low in range(0, total, step)]

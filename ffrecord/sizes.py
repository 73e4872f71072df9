"""Sizes as people write them and read them: `10GB`, `1.2 MB`. Pure."""

from __future__ import annotations

import operator
import re
from fractions import Fraction


def parse_size(size: int | str) -> int:
    """10, "10", "10kB", "1.5 GiB" in bytes."""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(f"not a size: {size!r}; write 500MB or 10GB")
        number, prefix, binary = match.groups()
        step = 1024 if binary else 1000
        size = int(Fraction(number) * step ** " kmgt".index(prefix.lower() or " "))
    if operator.index(size) < 1:
        raise ValueError(f"a shard must be at least 1 byte, not {size}")
    return size


def human(size: int) -> str:
    """1234567 as `1.2 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")

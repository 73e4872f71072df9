"""What `pack` and `convert` say of a `--shard-size` that is most likely not the one meant."""

from __future__ import annotations

from ffrecord.sizes import parse_size
from ffrecord.terminal import complain
from ffrecord.wording import counted

LEAST_LIKELY = 1_000_000
"""Bytes. Who wants shards that small writes a unit: `20kB`, `100B`."""


def warn_of_bytes(size: str | None) -> None:
    """Before the work begins: `10` for 10GB makes a shard of every file."""
    if size is None or not size.strip()[-1:].isdecimal():
        return
    number, bytes_ = size.strip(), parse_size(size)
    if bytes_ < LEAST_LIKELY:
        meant = f"is a unit missing, as in {number}MB or {number}GB?"
        complain(f"--shard-size {number} is {counted(bytes_, 'byte')}: {meant}", warning=True)

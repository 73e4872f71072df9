"""Decide whether and when a failed request is sent again. No I/O."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ffrecord.remote.trouble import Kind

SHORTEST, LONGEST = 0.1, 5.0
"""Seconds of the first pause and of the longest. Each pause is about twice the one before."""

DOUBLINGS = 50
"""Most times that the pause is doubled: with a long deadline, the number would not fit a float."""

OPENING_ATTEMPTS = 10
"""Attempts of a request while a file is opened, or its upload prepared or ended. A server that
worked before gets all the time until the deadline: it may be restarting."""

CONNECT_ATTEMPTS = 4
"""Attempts to connect meanwhile. A misspelled host shows within a second."""

SLOWEST = 100_000
"""Bytes per second below which an answer counts as stuck."""

PATIENCE = 10.0
"""Seconds that an attempt may take in addition to the time that its bytes need."""

UNLIMITED = 1_000_000
"""Retries of obstore: so the deadline alone limits them."""

UPLOAD = 3
"""How many deadlines a request of an upload may take. A part has 16 MiB, and a store may need a
minute to join the parts of a large object."""


def pause(
    kind: Kind, attempts: int, elapsed: float, deadline: float, chance: float, *, opening: bool
) -> float | None:
    """Return the seconds to wait before the next attempt; None to give up.

    Args:
        kind: how the last attempt failed.
        attempts: attempts so far.
        elapsed: seconds since the first attempt began.
        deadline: most seconds for all attempts.
        chance: a random number from 0 to 1. It spreads the attempts of many clients over time.
        opening: True while a file is being opened.
    """
    if kind not in (Kind.BUSY, Kind.CONNECT):
        return None
    if opening and attempts >= (CONNECT_ATTEMPTS if kind is Kind.CONNECT else OPENING_ATTEMPTS):
        return None
    # Half of the pause is fixed, so that a server in trouble gets at least that.
    full = min(LONGEST, SHORTEST * 2 ** min(attempts - 1, DOUBLINGS))
    wait = full * (0.5 + 0.5 * chance)
    return None if elapsed + wait >= deadline else wait


def time_limit(length: int, elapsed: float, deadline: float) -> float:
    """Return the seconds that one attempt for `length` bytes may take."""
    return max(0.001, min(PATIENCE + length / SLOWEST, deadline - elapsed))


def of_parts(deadline: float) -> dict[str, Any]:
    """Return the same rules for obstore, which repeats the parts of uploads by itself."""
    backoff = {
        "init_backoff": timedelta(seconds=SHORTEST), "max_backoff": timedelta(seconds=LONGEST),
        "base": 2,
    }  # fmt: skip
    limit = timedelta(seconds=deadline)
    return {"max_retries": UNLIMITED, "backoff": backoff, "retry_timeout": limit}


def part_limit(deadline: float) -> timedelta:
    """Return the time that one request of an upload may take."""
    return timedelta(seconds=UPLOAD * deadline)

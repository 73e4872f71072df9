"""Warnings about a cache that cannot be used. Reading goes on without it."""

from __future__ import annotations

import warnings

from ffrecord.errors import CacheWarning

_warned: set[tuple[str, str]] = set()


def warn(path: str, error: Exception) -> None:
    """Warn that a cache cannot be used, once in each process."""
    what = getattr(error, "strerror", None) or str(error)
    _once(path, "unusable", f"the cache cannot be used: {what}; reading goes on without it")


def warn_full(path: str) -> None:
    """Warn that nothing more can be kept, once in each process."""
    what = "the cache is full, and all files in it are in use; more is not kept. Choose a larger "
    what += "cache_size"
    _once(path, "full", what)


def warn_unversioned(path: str, shown: str) -> None:
    """Warn that an object is not kept because it has no strong version."""
    what = f"{shown} is not kept, because the server states no version that can be demanded "
    _once(path, f"unversioned {shown.partition('://')[0]}", what + "(a strong ETag)")


def warn_offline(path: str, shown: str) -> None:
    """Warn that an object is read from the cache alone."""
    what = f"no answer from the server, so {shown} is read from the cache; "
    what += "it may have been replaced since"
    _once(path, f"offline {shown}", what)


def _once(path: str, kind: str, what: str) -> None:
    if (path, kind) not in _warned:
        _warned.add((path, kind))
        warnings.warn(f"{path}: {what}", CacheWarning, stacklevel=2)

"""The options of reading over the network, which every reader passes on unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ffrecord.text import integer

REQUESTS = 64
"""Requests in flight at once. More did not read faster, and servers begin to refuse them."""

DEADLINE = 60.0
"""Seconds after which a request fails, with all its retries. Object stores recover within seconds
from most of their troubles; a training job that waits longer looks as if it hung."""


class RemoteOptions(TypedDict, total=False):
    """Keyword arguments of readers for URLs."""

    storage_options: Mapping[str, Any] | None
    """Options of the object store (obstore's names) or of fsspec's file system."""
    store: Any
    """An open store of obstore. Paths are then keys in this store."""
    fs: Any
    """An open file system of fsspec. Paths are then paths in this file system."""
    requests: int
    """Most requests in flight at once."""
    deadline: float
    """Seconds after which a request fails, with all its retries."""


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options. The text of this object contains no secrets."""

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    store: Any = field(default=None, repr=False)
    fs: Any = field(default=None, repr=False)
    requests: int = REQUESTS
    deadline: float = DEADLINE


def checked(given: RemoteOptions) -> Options:
    """Check the options for URLs that a caller passed."""
    known = RemoteOptions.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f"unknown argument {name!r}; for URLs there are {', '.join(known)}")
    if given.get("store") is not None and given.get("fs") is not None:
        raise ValueError("store and fs were both given; pass one of them")
    storage_options = given.get("storage_options") or {}
    if not isinstance(storage_options, Mapping):
        kind = type(storage_options).__name__
        raise TypeError(f"storage_options must be a dict, not {kind}")
    requests = integer(given.get("requests", REQUESTS), "requests")
    deadline = float(given.get("deadline", DEADLINE))
    if requests < 1 or not deadline > 0:
        raise ValueError(
            f"requests is {requests} and deadline is {deadline:g}; they must be at least 1, and "
            "more than 0 seconds"
        )
    return Options(dict(storage_options), given.get("store"), given.get("fs"), requests, deadline)


def refuse_for_paths(given: RemoteOptions) -> None:
    """Raise an error if options for URLs came with a local path."""
    checked(given)  # a misspelled name is the better explanation
    used = [name for name, value in given.items() if value]
    if used:
        raise ValueError(f"{used[0]} is for URLs, but the path is local; leave it out")

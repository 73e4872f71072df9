"""The options of reading over the network, which every reader passes on unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ffrecord.errors import UrlError
from ffrecord.remote import urls
from ffrecord.text import integer, parse_size

CACHE, CACHE_SIZE = "FFRECORD_CACHE", "FFRECORD_CACHE_SIZE"
"""Environment variables with the folder of the cache and its size."""

REQUESTS = 64
"""Requests in flight at once. More did not read faster, and servers begin to refuse them."""

DEADLINE = 60.0
"""Seconds after which a request fails, with all its retries. Object stores recover within seconds
from most of their troubles; a training job that waits longer looks as if it hung."""

LONGEST_DEADLINE = 10 * 365 * 86400.0
"""Seconds. An infinite deadline counts as this: obstore and timedelta know no infinity."""


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
    cache: Any
    """Folder that keeps what was read. None: FFRECORD_CACHE in the environment. False: no cache."""
    cache_size: int | str | None
    """Most bytes of this folder, such as "100GB". None: FFRECORD_CACHE_SIZE, or half of the free
    space."""


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options. The text of this object contains no secrets."""

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    store: Any = field(default=None, repr=False)
    fs: Any = field(default=None, repr=False)
    requests: int = REQUESTS
    deadline: float = DEADLINE
    cache: str | None = None
    cache_size: int | None = None
    cache_is_given: bool = False
    """True if the caller named the folder of the cache, False if the environment did."""


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
    deadline = min(float(given.get("deadline", DEADLINE)), LONGEST_DEADLINE)
    if requests < 1 or not deadline > 0:
        raise ValueError(
            f"requests is {requests} and deadline is {deadline:g}; they must be at least 1, and "
            "more than 0 seconds"
        )
    return Options(
        dict(storage_options), given.get("store"), given.get("fs"), requests, deadline,
        *_cache(given.get("cache"), given.get("cache_size")), given.get("cache") is not None,
    )  # fmt: skip


def cache_folder(path: str | os.PathLike[Any]) -> str:
    """Return the absolute path of a cache folder: workers may have another working directory.

    Raises:
        UrlError: it is not on a local disk.
    """
    if urls.is_url(path) or urls.is_upath(path):
        what = "the cache must be a folder on a local disk; name one with cache= or --cache, or set"
        raise UrlError(f"{urls.shown(str(path))}: {what} {CACHE}")
    return os.path.abspath(os.path.expanduser(os.fsdecode(path)))


def _cache(folder: Any, size: int | str | None) -> tuple[str | None, int | None]:
    """Return the folder of the cache and its size, given or from the environment."""
    if folder is None:
        folder = os.environ.get(CACHE)
    if not folder:
        return None, None
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"cache must be a path or False, not {type(folder).__name__}")
    name = "cache_size"
    if size is None:
        name, size = CACHE_SIZE, os.environ.get(CACHE_SIZE) or None
    try:
        most = None if size is None else parse_size(size)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None
    return cache_folder(folder), most


def refuse_for_paths(given: RemoteOptions) -> None:
    """Raise an error if options for URLs came with a local path."""
    checked(given)  # a misspelled name is the better explanation
    used = [name for name, value in given.items() if value]
    if used:
        raise ValueError(f"{used[0]} is for URLs, but the path is local; leave it out")

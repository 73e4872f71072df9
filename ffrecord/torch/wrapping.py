"""Wrappers around foreign datasets. Workers get the wrapper in place of the dataset.

A wrapper passes all attributes on to the dataset inside. So a `worker_init_fn` can read and change
`get_worker_info().dataset` as if it were the dataset itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ffrecord.torch.assembler import BatchRequest, Promise
from ffrecord.torch.dataset import fetch

INNER = "_ffrecord_inner"


class Wrapper:
    """A wrapper that looks like the object inside."""

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, INNER, inner)

    @property
    def __class__(self) -> Any:
        return type(inner_of(self))

    @__class__.setter
    def __class__(self, value: Any) -> None:
        raise TypeError(
            f"the class of a {type(inner_of(self)).__name__} cannot be changed in a worker; change "
            "it before the loader is made"
        )

    def __getattr__(self, name: str) -> Any:
        if name == INNER:  # __init__ has not run
            raise AttributeError(name)
        return getattr(inner_of(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(inner_of(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(inner_of(self), name)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return type(self), (inner_of(self),)

    def __repr__(self) -> str:
        return repr(inner_of(self))

    def __len__(self) -> int:
        return len(inner_of(self))

    def __getitem__(self, key: Any) -> Any:
        return inner_of(self)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(inner_of(self))


def inner_of(wrapper: Wrapper) -> Any:
    """Return the object inside."""
    return object.__getattribute__(wrapper, INNER)


class Promising(Wrapper):
    """A foreign map-style dataset that answers a `BatchRequest` with a `Promise`."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, BatchRequest):
            return Promise(_OneByOne(inner_of(self)), key)
        return inner_of(self)[key]

    def __getitems__(self, keys: Any) -> Any:
        if isinstance(keys, BatchRequest):
            return Promise(_Batchwise(inner_of(self)), keys)
        return fetch(inner_of(self), keys)


class _Batchwise(Wrapper):
    """A foreign dataset that takes a list with one batch of its sampler."""

    def __getitem__(self, keys: list[Any]) -> Any:
        [batch] = keys
        return fetch(inner_of(self), batch)

    def prefetch(self, keys: list[Any]) -> None:
        pass

    def drop_prefetched(self) -> None:
        pass


class _OneByOne(_Batchwise):
    """A foreign dataset that takes a list with one key, for a loader that makes no batches."""

    def __getitem__(self, keys: list[Any]) -> Any:
        return [inner_of(self)[key] for key in keys]

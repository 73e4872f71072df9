"""Helpers for objects that save their own state: datasets, samplers and their iterators."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def is_stateful(thing: Any) -> bool:
    """Return True if an object has `state_dict` and `load_state_dict`."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def own_state(thing: Any) -> Any:
    """Return a copy of an object's state; None if it does not save one.

    It must be a copy: `state_dict` may return a part of the object itself.
    """
    return copy.deepcopy(thing.state_dict()) if is_stateful(thing) else None


def state_or_reason(ask: Callable[[], Any]) -> Any:
    """Return the state that `ask` returns; if it raises, return text that says why."""
    try:
        return ask()
    except Exception as error:
        return f"the dataset's state_dict raised {type(error).__name__}: {error}"

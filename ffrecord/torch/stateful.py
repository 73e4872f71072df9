"""Objects that save and load their own state: datasets, samplers and their iterators."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def is_stateful(thing: Any) -> bool:
    """Return whether an object has `state_dict` and `load_state_dict`."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def own_state(thing: Any) -> Any:
    """Return a copy of an object's own state, which may be a part of it; None if it has none."""
    return copy.deepcopy(thing.state_dict()) if is_stateful(thing) else None


def state_or_reason(ask: Callable[[], Any]) -> Any:
    """Return the state that `ask` returns; if it raises, text that says why there is none."""
    try:
        return ask()
    except Exception as error:
        return f"the dataset's state_dict raised {type(error).__name__}: {error}"

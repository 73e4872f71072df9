"""The fields of a loader's state, and checks of a state that is loaded.

A state consists of JSON values, unless a dataset or a sampler puts other values into its own part.
States of version 1 can be loaded too. They contain generators' states as tensors. A malformed state
raises `StateError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeAlias

import torch

from ffrecord.errors import StateError
from ffrecord.torch.randomness import decoded

State: TypeAlias = dict[str, Any]

VERSION = 2
RANDOM = (int, str, torch.Tensor, NoneType)  # forms of a generator's state, see randomness.py
# Every field and its types.
FIELDS: dict[str, Any] = {
    "version": int,
    "fingerprint": str,  # of the dataset
    "begun": bool,  # True in the middle of an epoch
    "epoch": int,  # the present epoch if `begun`, otherwise the next one
    "step": int,  # the first batch of the epoch that was not returned
    "given": list,  # later batches that were returned, with in_order=False
    "step_size": int,  # indices in a batch
    "ranks": int,  # processes that share the order
    "sampler_kind": str,
    "sampler": (Mapping, NoneType),  # the sampler's state, if it has a state_dict
    "sampler_epoch": (int, NoneType),  # the epoch of a sampler that has set_epoch
    "seed": (int, NoneType),  # the seed that the seeds of all epochs are computed from
    "rng": RANDOM,  # the random state that the epoch's order is drawn from
    "generator": RANDOM,  # the loader's `generator`
    "base_rng": RANDOM,  # the random state that torch draws its workers' seeds from
    "num_workers": int,
    "turn": int,  # the worker that is next
    "workers": list,  # the dataset's state in each worker, or in the main process
}
# Fields that version 1 does not have, with their defaults.
ADDED: State = {
    "given": [], "ranks": 1, "base_rng": None, "num_workers": 0, "turn": 0, "workers": [],
}  # fmt: skip
UNRESUMABLE = "unresumable"


def unresumable(why: str) -> State:
    """Return a state that can be saved. Loading it raises a StateError that says `why`."""
    return {"version": VERSION, UNRESUMABLE: why}


def checked(state: Any) -> State:
    """Return a copy of a state in the present version, with generators' states as tensors.

    Raises:
        StateError: it is not the state of a loader, or it cannot be resumed.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if not isinstance(version, int) or version not in (1, VERSION):
        found = (
            f"its version is {version!r}" if isinstance(state, Mapping) else f"it is {_kind(state)}"
        )
        raise StateError(
            f"not the state of a loader, version 1 or {VERSION}: {found}; pass a state that "
            "state_dict() returned, or update ffrecord if a newer version saved it"
        )
    if isinstance(state.get(UNRESUMABLE), str):
        raise StateError(
            f"the state cannot be resumed: {state[UNRESUMABLE]}; load an earlier state, or start "
            "the epoch again"
        )
    whole = {**(ADDED if version == 1 else {}), **state}
    for name, kind in FIELDS.items():
        if name not in whole or not isinstance(whole[name], kind):
            raise _odd(name, _kind(whole[name]) if name in whole else "missing")
    for name in ("rng", "generator", "base_rng"):
        if whole[name] is not None:
            try:
                whole[name] = decoded(whole[name])
            except ValueError:
                raise _odd(name, "not the state of a torch.Generator") from None
    for name in ("epoch", "step"):
        if whole[name] < 0:
            raise _odd(name, f"{whole[name]}, which is negative")
    if not all(type(number) is int and number > whole["step"] for number in whole["given"]):
        raise _odd("given", f"not a list of batch numbers after {whole['step']}")
    _check_workers(whole)
    return whole


def _check_workers(state: State) -> None:
    workers, count = state["workers"], max(state["num_workers"], 1)
    if workers and len(workers) != count:
        raise _odd("workers", f"a list of {len(workers)} states for {count} workers")
    if not 0 <= state["turn"] < count:
        raise _odd("turn", f"{state['turn']}, and the workers are 0 to {count - 1}")
    for each in workers:
        if each is not None and not isinstance(each, Mapping):
            raise _odd("workers", f"a list that contains {_kind(each)} in place of a state")


def _kind(value: Any) -> str:
    return f"an object of type {type(value).__name__}"


def _odd(name: str, problem: str) -> StateError:
    return StateError(
        f"not the state of a loader: its field {name!r} is {problem}; pass a state that "
        "state_dict() returned, unchanged"
    )

"""The state of a loader: what it consists of, and whether one that is loaded makes sense.

A state is made of JSON values, unless a dataset or a sampler puts something else into its own.
Version 1, which had the states of generators as tensors, is read too.
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
RANDOM = (int, str, torch.Tensor, NoneType)
# What a state consists of, and of which types.
FIELDS: dict[str, Any] = {
    "version": int,
    "fingerprint": str,  # of the dataset
    "begun": bool,  # whether an epoch was under way
    "epoch": int,  # that one, or the next
    "step": int,  # the first batch of it that was not handed out
    "given": list,  # later ones that were, with in_order=False
    "step_size": int,  # indices in a batch
    "ranks": int,  # processes that shared the order
    "sampler_kind": str,
    "sampler": (Mapping, NoneType),  # the state of a sampler that has one of its own
    "sampler_epoch": (int, NoneType),  # of a sampler that is told it
    "seed": (int, NoneType),  # what the seeds of all epochs are made of
    "rng": RANDOM,  # what the order of the epoch is drawn from
    "generator": RANDOM,  # the loader's own generator
    "base_rng": RANDOM,  # what torch draws the seeds of its workers from
    "num_workers": int,
    "turn": int,  # the worker that is next
    "workers": list,  # states of the dataset in each worker; one if there are none
}
# What version 1 did not have.
ADDED: State = {
    "given": [], "ranks": 1, "base_rng": None, "num_workers": 0, "turn": 0, "workers": [],
}  # fmt: skip
UNRESUMABLE = "unresumable"


def unresumable(why: str) -> State:
    """Return a state that can be saved, and that says when it is loaded why it is of no use."""
    return {"version": VERSION, UNRESUMABLE: why}


def checked(state: Any) -> State:
    """Return a copy of a state in the present version, with generators' states as tensors.

    Raises:
        StateError: it is not the state of a loader, or one that cannot be resumed.
    """
    version = state.get("version") if isinstance(state, Mapping) else None
    if not isinstance(version, int) or version not in (1, VERSION):
        raise StateError("this is not the state of a loader, or one of another version")
    if isinstance(state.get(UNRESUMABLE), str):
        raise StateError(f"the state cannot be resumed: {state[UNRESUMABLE]}")
    whole = {**(ADDED if version == 1 else {}), **state}
    for name, kind in FIELDS.items():
        if name not in whole or not isinstance(whole[name], kind):
            raise _odd(name, "missing or of another type")
    for name in ("rng", "generator", "base_rng"):
        if whole[name] is not None:
            try:
                whole[name] = decoded(whole[name])
            except ValueError:
                raise _odd(name, "not a generator's") from None
    if whole["epoch"] < 0 or whole["step"] < 0:
        raise StateError(f"the state is at step {whole['step']} of epoch {whole['epoch']}")
    if not all(type(number) is int and number > whole["step"] for number in whole["given"]):
        raise _odd("given", f"not made of batches after {whole['step']}")
    _check_workers(whole)
    return whole


def _check_workers(state: State) -> None:
    workers, count = state["workers"], max(state["num_workers"], 1)
    if workers and len(workers) != count:
        raise _odd("workers", f"{len(workers)} states for {count} workers")
    if not 0 <= state["turn"] < count:
        raise _odd("turn", f"{state['turn']} of {count} workers")
    for each in workers:
        if each is not None and not isinstance(each, Mapping):
            raise _odd("workers", "not made of states")


def _odd(name: str, what: str) -> StateError:
    return StateError(f"this is not the state of a loader: its {name} is {what}")

"""Target: saved states of loaders. A changed state loads correctly or raises StateError.

An input is a list of changes. Each gives a field of the state one of some odd values.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from ffrecord.errors import StateError
from ffrecord.torch import DataLoader, Dataset, ShuffleSampler
from tests.robustness.fuzzing.scratch import folder
from tests.robustness.fuzzing.target import Target
from tests.support import handmade

COUNT = 10
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, -1, 7, COUNT, COUNT + 1, 1 << 31, 1 << 62, 1 << 64, 1 << 200,
    -(1 << 70), 0.5, float("nan"), float("inf"), "", "0", "x" * 64, b"", [], (), {}, {"seed": 1},
    torch.empty(0), torch.zeros(5), torch.zeros(5056, dtype=torch.uint8), object(),
    torch.zeros((2, 2), dtype=torch.int64), "9" * 5000, torch.get_rng_state(),
)  # fmt: skip


class Numbers(Dataset[int]):
    """Dataset whose samples are record numbers, from the only byte of each record."""

    def process(self, indices: list[int], data: list[Any]) -> list[int]:
        return [int(each[0]) for each in data]


def states() -> Target:
    path = handmade.write_records(folder() / "numbers.ffr", [bytes([i]) for i in range(COUNT)])
    dataset = Numbers(path)
    kinds = [_seekable, _drawn, _in_order]
    saved = [state for make in kinds for state in _saved(make(dataset))]

    def run(data: bytes) -> str:
        which = data[0] % (2 * len(kinds)) if data else 0
        loader, state = kinds[which // 2](dataset), _changed(saved[which], data[1:])
        loader.load_state_dict(state)
        again = loader.state_dict()
        got = Counter(each for batch in loader for each in batch.tolist())
        assert again["epoch"] == state["epoch"]
        assert all(0 <= number < COUNT for number in got)
        assert max(got.values(), default=0) <= 1, "a sample came twice"
        return "loaded"

    generator = random.Random(1)
    seeds = tuple(bytes([i]) + generator.randbytes(4) for i in range(2 * len(kinds)))
    return Target("state", run, seeds, errors=(StateError,))


def _seekable(dataset: Numbers) -> DataLoader[int]:
    return DataLoader(dataset, 3, sampler=ShuffleSampler(dataset, seed=4))


def _drawn(dataset: Numbers) -> DataLoader[int]:
    return DataLoader(dataset, 3, shuffle=True, generator=torch.Generator())


def _in_order(dataset: Numbers) -> DataLoader[int]:
    return DataLoader(dataset, 3)


def _saved(loader: DataLoader[int]) -> list[Mapping[str, Any]]:
    """Return a state before an epoch, and one in the middle of it."""
    found = [loader.state_dict()]
    next(iter(loader))
    return [*found, loader.state_dict()]


def _changed(state: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """Change a state, two bytes per change: the field (also of the sampler), and its new value."""
    changed = dict(state)
    if isinstance(changed["sampler"], Mapping):
        changed["sampler"] = dict(changed["sampler"])
    for field, value in zip(data[::2], data[1::2], strict=False):
        inner = changed.get("sampler") if field & 1 else None
        of = inner if isinstance(inner, dict) and inner else changed
        name = sorted(map(str, of))[(field >> 1) % len(of)]
        if value == 255:
            del of[name]
            if not changed:
                break
        else:
            of[name] = ODD[value % len(ODD)]
    return changed

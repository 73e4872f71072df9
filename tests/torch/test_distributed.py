"""Ranks in separate processes, with gloo: samples come once, and fewer ranks can resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from ffrecord.torch import DataLoader, DistributedShuffleSampler
from tests.torch.datasets import Noisy, plain, write_numbers
from tests.torch.ranks import run_ranks

COUNT = 48
SIZE = 3


def run_rank(rank: int, ranks: int, folder: Path, name: str, plan: dict[str, Any]) -> None:
    """Run one rank: some epochs, some batches and the state; write all to a file."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}.meeting", rank=rank, world_size=ranks
    )
    torch.manual_seed(0)
    dataset = Noisy(folder / "data.ffr")
    sampler = DistributedShuffleSampler(dataset, seed=4)
    assert (sampler.rank, sampler.num_replicas) == (rank, ranks)
    loader = DataLoader(dataset, SIZE, sampler=sampler)
    if plan["state"] is not None:
        loader.load_state_dict(torch.load(plan["state"], weights_only=True))
    epochs = []
    for epoch in plan["epochs"]:
        sampler.set_epoch(epoch)
        epochs.append([plain(batch) for batch in loader])
    stopped = []
    if plan["stop"] is not None:
        epoch, count = plan["stop"]
        sampler.set_epoch(epoch)
        iterator = iter(loader)
        stopped = [plain(next(iterator)) for _ in range(count)]
    torch.save(loader.state_dict(), folder / f"{name}.{rank}.state")
    (folder / f"{name}.{rank}.json").write_text(json.dumps([epochs, stopped]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run(folder: Path, name: str, ranks: int, **plan: Any) -> list[Any]:
    """Run all ranks and return their results."""
    plan = {"state": None, "epochs": [], "stop": None} | plan
    return run_ranks("tests.torch.test_distributed", ranks, folder, name, plan)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_numbers(folder / "data.ffr", range(COUNT))
    return folder


def numbers_of(batches: list[Any]) -> list[int]:
    return [number for batch in batches for number in batch[0]]


def test_ranks_cover_every_sample_once_and_fewer_ranks_continue(folder: Path) -> None:
    """Four ranks read an epoch and two batches. Two ranks read the rest and another epoch."""
    four = run(folder, "four", 4, epochs=[0], stop=[1, 2])
    assert Counter(number for rank in four for number in numbers_of(rank[0][0])) == Counter(
        range(COUNT)
    )
    assert all(len(rank[0][0]) == COUNT // 4 // SIZE for rank in four)
    # The random transforms differ between the ranks.
    assert len({rank[0][0][0][1][0] for rank in four}) == 4
    before = [number for rank in four for number in numbers_of(rank[1])]
    assert len(set(before)) == len(before) == 4 * 2 * SIZE

    two = run(folder, "two", 2, state=str(folder / "four.3.state"), epochs=[1, 2])
    rest = [number for rank in two for number in numbers_of(rank[0][0])]
    assert Counter(before + rest) == Counter(range(COUNT))
    assert Counter(number for rank in two for number in numbers_of(rank[0][1])) == Counter(
        range(COUNT)
    )

"""Accelerate with our loader inside: Accelerate splits the batches; our options and states work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler

from ffrecord.errors import BadRecordWarning, ReplacedLoaderWarning, StateError
from ffrecord.torch import DataLoader, ShuffleSampler
from ffrecord.torch.accelerate import prepare_loader
from tests.torch.datasets import N, Noisy, Processed, batches, damaged, plain, seeded
from tests.torch.frameworks import package
from tests.torch.ranks import run_ranks

accelerate = package("accelerate")

SIZE = 4
STEPS = -(-N // SIZE)
EPOCHS = 3


@pytest.fixture
def accelerator() -> Iterator[Any]:
    yield fresh()
    accelerate.state.AcceleratorState._reset_state(True)


def fresh(**config: Any) -> Any:
    """Return an Accelerator as in a program that has just started."""
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    return accelerate.Accelerator(
        cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(**config)
    )


def made(numbers: Path, kind: str, workers: int = 0, seed: int = 3) -> DataLoader[Any]:
    dataset = Noisy(numbers)
    options: dict[str, dict[str, Any]] = {
        "in order": {},
        "shuffle": {"shuffle": True},
        "ShuffleSampler": {"sampler": ShuffleSampler(dataset, seed=seed)},
    }
    generator = seeded(seed + 1)
    return DataLoader(dataset, SIZE, num_workers=workers, generator=generator, **options[kind])


# ---- one process -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["in order", "shuffle", "ShuffleSampler"])
def test_a_prepared_loader_gives_the_same_batches(
    kind: str, accelerator: Any, numbers: Path
) -> None:
    """The compared batches include random transforms."""
    loader, prepared = made(numbers, kind), prepare_loader(accelerator, made(numbers, kind))
    for _ in range(2):
        assert batches(prepared) == batches(loader)
    assert len(prepared) == STEPS


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("shuffle", 0),
        ("ShuffleSampler", 2),
        pytest.param("in order", 0, marks=pytest.mark.long),
        pytest.param("ShuffleSampler", 0, marks=pytest.mark.long),
        pytest.param("in order", 2, marks=pytest.mark.long),
        pytest.param("shuffle", 2, marks=pytest.mark.long),
    ],
)
def test_load_state_continues_with_the_next_batch(
    kind: str, workers: int, numbers: Path, tmp_path: Path
) -> None:
    accelerator = fresh()
    prepared = prepare_loader(accelerator, made(numbers, kind, workers))
    whole = []
    for _ in range(EPOCHS):
        for batch in prepared:
            whole.append(plain(batch))
            accelerator.save_state(str(tmp_path / str(len(whole))))
    assert len(whole) == EPOCHS * STEPS
    for step in (1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS):
        accelerator = fresh()
        prepared = prepare_loader(accelerator, made(numbers, kind, workers, seed=99))
        accelerator.load_state(str(tmp_path / str(step)))
        rest: list[Any] = []
        while step + len(rest) < EPOCHS * STEPS:
            rest += batches(prepared)
        assert rest == whole[step:], step


def test_the_options_of_the_loader_are_kept(
    accelerator: Any, numbers: Path, tmp_path: Path
) -> None:
    dataset = Processed(damaged(numbers, tmp_path / "bad.ffr", 7))
    prepared = prepare_loader(accelerator, DataLoader(dataset, SIZE, on_error="skip"))
    with pytest.warns(BadRecordWarning, match="sample 7"):
        given = [n for batch in batches(prepared) for n in batch]
    assert given == [n for n in range(N) if n != 7]
    assert [index for index, _ in prepared.skipped] == [7]
    assert dataset.reader.prefetch_hits > 0


def test_accelerate_knows_the_last_batch(accelerator: Any, numbers: Path) -> None:
    prepared = prepare_loader(accelerator, made(numbers, "in order"))
    assert [prepared.end_of_dataloader for _ in prepared] == (STEPS - 1) * [False] + [True]
    assert prepared in accelerator._dataloaders


def test_a_loader_replaced_by_accelerate_warns_of_lost_options(
    accelerator: Any, numbers: Path
) -> None:
    replaced = accelerator.prepare(made(numbers, "in order"))
    with pytest.warns(ReplacedLoaderWarning, match=r"on_error.*prepare_loader") as caught:
        assert [n for batch in batches(replaced) for n in batch[0]] == list(range(N))
    assert len(caught) == 1


def test_the_state_of_another_loader_is_refused(accelerator: Any, numbers: Path) -> None:
    prepared = prepare_loader(accelerator, made(numbers, "in order"))
    with pytest.raises(StateError, match="prepare_loader"):
        prepared.load_state_dict(made(numbers, "in order").state_dict())


# ---- two processes ---------------------------------------------------------------------------


def run_rank(rank: int, ranks: int, folder: Path, name: str, plan: dict[str, Any]) -> None:
    """Run one rank: some epochs, some batches and a saved state, and Accelerate's own batches."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}.meeting", rank=rank, world_size=ranks
    )
    torch.manual_seed(0)
    accelerator = fresh(**plan["config"])
    assert (accelerator.process_index, accelerator.num_processes) == (rank, ranks)
    numbers = Path(plan["numbers"])
    prepared = prepare_loader(accelerator, made(numbers, plan["kind"]))
    if plan["state"]:
        accelerator.load_state(plan["state"])
    epochs, gathered = [], []
    for _ in range(plan["epochs"]):
        given = []
        for batch in prepared:
            given.append(plain(batch))
            if plan["config"].get("even_batches", True):  # Accelerate gathers only equal shares
                gathered.append(accelerator.gather_for_metrics(batch[0]).tolist())
        epochs.append(given)
    stopped = []
    if plan["stop"]:
        iterator = iter(prepared)
        stopped = [plain(next(iterator)) for _ in range(plan["stop"])]
        accelerator.save_state(str(folder / f"{name}.state"))
    loader = made(numbers, plan["kind"])
    own = accelerator.prepare(
        TorchDataLoader(
            loader.dataset, batch_sampler=loader.batch_sampler, generator=loader.generator
        )
    )
    theirs = [[batch[0].tolist() for batch in own] for _ in range(plan["epochs"])]
    (folder / f"{name}.{rank}.json").write_text(json.dumps([epochs, stopped, gathered, theirs]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run(folder: Path, name: str, numbers: Path, ranks: int = 2, **plan: Any) -> list[Any]:
    plan = {"state": None, "epochs": 0, "stop": 0, "config": {}, "kind": "ShuffleSampler"} | plan
    plan["numbers"] = str(numbers)
    return run_ranks(
        "tests.torch.test_accelerate", ranks, folder, name, plan, ACCELERATE_USE_CPU="true"
    )


def test_two_processes_get_accelerates_shares(numbers: Path, tmp_path: Path) -> None:
    ranks = run(tmp_path, "both", numbers, epochs=2)
    for epochs, _, gathered, theirs in ranks:
        assert [[batch[0] for batch in epoch] for epoch in epochs] == theirs
        for epoch in (gathered[: len(gathered) // 2], gathered[len(gathered) // 2 :]):
            assert sorted(n for batch in epoch for n in batch) == list(range(N))
    # The random transforms differ between the processes.
    assert ranks[0][0][0][0][1] != ranks[1][0][0][0][1]


@pytest.mark.parametrize(
    "kind", [pytest.param("shuffle", marks=pytest.mark.long), "ShuffleSampler"]
)
def test_two_processes_continue_from_their_state(kind: str, numbers: Path, tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", numbers, kind=kind, epochs=2)
    stopped = run(tmp_path, "stopped", numbers, kind=kind, stop=2)
    state = str(tmp_path / "stopped.state")
    resumed = run(tmp_path, "resumed", numbers, kind=kind, epochs=2, state=state)
    for unbroken, begun, rest in zip(whole, stopped, resumed, strict=True):
        assert [begun[1] + rest[0][0], rest[0][1]] == unbroken[0]
    accelerator = fresh()
    prepare_loader(accelerator, made(numbers, kind))
    with pytest.raises(StateError, match=r"saved by 2 processes, .* has 1"):
        accelerator.load_state(state)


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        {"split_batches": True},
        {"even_batches": False},
        {"use_seedable_sampler": True},
        {"dispatch_batches": True},
        {"dispatch_batches": True, "split_batches": True},
    ],
)
@pytest.mark.parametrize("kind", ["in order", "shuffle"])
def test_every_sharing_option_works_as_in_accelerate(
    kind: str, config: dict[str, Any], numbers: Path, tmp_path: Path
) -> None:
    given = []
    for epochs, _, gathered, theirs in run(
        tmp_path, "both", numbers, kind=kind, config=config, epochs=2
    ):
        assert [[batch[0] for batch in epoch] for epoch in epochs] == theirs
        given += [n for epoch in theirs for batch in epoch for n in batch]
        if gathered:
            assert sorted(n for batch in gathered for n in batch) == sorted(2 * list(range(N)))
    assert set(given) == set(range(N))


def test_a_distributed_sampler_is_refused(numbers: Path) -> None:
    class Two:
        num_processes = 2

    dataset = Processed(numbers)
    loader = DataLoader(dataset, SIZE, sampler=DistributedSampler(dataset, 2, 0))
    with pytest.raises(ValueError, match="use ShuffleSampler"):
        prepare_loader(Two(), loader)

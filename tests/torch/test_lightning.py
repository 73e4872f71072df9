"""Lightning's Trainer with our loader: every batch comes once, also after resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, RandomSampler, get_worker_info

from ffrecord.errors import BadRecordWarning
from ffrecord.torch import DataLoader, ShuffleSampler
from tests.torch.datasets import N, Noisy, Processed, damaged, plain, seeded
from tests.torch.frameworks import package

pl = package("pytorch_lightning")

SIZE = 4
STEPS = -(-N // SIZE)
EPOCHS = 3

pytestmark = [
    pytest.mark.filterwarnings(each)
    for each in (
        # Advice for real training, which does not apply to a test.
        "ignore:The '.*_dataloader' does not have many workers",
        "ignore:Be aware that when using `ckpt_path`, callbacks",
        "ignore:You defined a `.*_step` but have no `.*_dataloader`",
        "ignore:Your `IterableDataset` has `__len__` defined",
        # A deprecated call in Lightning itself.
        r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
    )
]


class Recorder(pl.LightningModule):  # type: ignore[name-defined,misc]
    """A model that keeps every batch with the kind of step and the epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[tuple[int, Any]] = []
        self.evaluated: list[Any] = []

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        self.trained.append((self.current_epoch, plain(batch)))
        loss: torch.Tensor = self.layer(torch.ones(1)).sum()
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.evaluated.append(plain(batch))

    test_step = validation_step

    def predict_step(self, batch: Any, number: int) -> Any:
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder: Path, **options: Any) -> Any:
    return pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"devices": 1, "enable_checkpointing": False, "max_epochs": EPOCHS, **options},
    )


def every_checkpoint(folder: Path) -> list[Any]:
    """Return callbacks that save a checkpoint after every batch and after every epoch."""
    steps = pl.callbacks.ModelCheckpoint(
        folder, "{epoch}-{step}", every_n_train_steps=1, save_top_k=-1
    )
    epochs = pl.callbacks.ModelCheckpoint(
        folder, "end-{epoch}-{step}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True
    )
    return [steps, epochs]


# ---- fit -------------------------------------------------------------------------------------


def made(numbers: Path, kind: str, workers: int, seed: int = 3) -> DataLoader[Any]:
    dataset = Noisy(numbers)
    samplers = {
        "in order": None,
        "ShuffleSampler": ShuffleSampler(dataset, seed=seed),
        "RandomSampler": RandomSampler(dataset, generator=seeded(seed)),
    }
    return DataLoader(
        dataset, SIZE, sampler=samplers[kind], num_workers=workers, generator=seeded(seed + 1)
    )


def fit_with_checkpoints(loader: DataLoader[Any], folder: Path) -> Recorder:
    model = Recorder()
    training = trainer(folder, enable_checkpointing=True, callbacks=every_checkpoint(folder))
    training.fit(model, loader)
    assert [epoch for epoch, _ in model.trained] == [e for e in range(EPOCHS) for _ in range(STEPS)]
    for epoch in range(EPOCHS):
        given = [n for e, batch in model.trained if e == epoch for n in batch[0]]
        assert sorted(given) == list(range(N))
    return model


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("RandomSampler", 0),
        ("ShuffleSampler", 2),
        pytest.param("in order", 0, marks=pytest.mark.long),
        pytest.param("ShuffleSampler", 0, marks=pytest.mark.long),
        pytest.param("in order", 2, marks=pytest.mark.long),
        pytest.param("RandomSampler", 2, marks=pytest.mark.long),
    ],
)
def test_fit_continues_after_any_batch(
    kind: str, workers: int, numbers: Path, tmp_path: Path
) -> None:
    """The compared batches include random transforms. Some steps are the last of an epoch."""
    whole = fit_with_checkpoints(made(numbers, kind, workers), tmp_path)
    wrong = {}
    for step in (1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS, EPOCHS * STEPS):
        resumed = Recorder()
        path = tmp_path / f"epoch={(step - 1) // STEPS}-step={step}.ckpt"
        trainer(tmp_path).fit(resumed, made(numbers, kind, workers, seed=99), ckpt_path=path)
        if resumed.trained != whole.trained[step:]:
            wrong[step] = len(resumed.trained)
    assert wrong == {}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_fit_from_a_checkpoint_at_the_end_of_an_epoch_uses_the_next_order(
    workers: int, numbers: Path, tmp_path: Path
) -> None:
    """From such a checkpoint Lightning loads no state. It calls `set_epoch` after `iter()`."""
    whole = fit_with_checkpoints(made(numbers, "ShuffleSampler", workers), tmp_path)
    for epoch in range(EPOCHS - 1):
        step = (epoch + 1) * STEPS
        resumed = Recorder()
        path = tmp_path / f"end-epoch={epoch}-step={step}.ckpt"
        trainer(tmp_path).fit(resumed, made(numbers, "ShuffleSampler", workers), ckpt_path=path)
        given, expected = (
            [(e, batch[0]) for e, batch in trained]
            for trained in (resumed.trained, whole.trained[step:])
        )
        assert given == expected, epoch


def test_fit_begins_the_next_epoch_after_one_that_was_cut_short(
    numbers: Path, tmp_path: Path
) -> None:
    """`limit_train_batches` ends every epoch before the loader does."""
    whole, resumed = Recorder(), Recorder()
    trainer(
        tmp_path,
        limit_train_batches=2,
        enable_checkpointing=True,
        callbacks=every_checkpoint(tmp_path),
    ).fit(whole, made(numbers, "ShuffleSampler", 0))
    orders = ShuffleSampler(N, seed=3)
    for epoch in range(EPOCHS):
        first = list(orders)[: 2 * SIZE]
        assert [n for e, batch in whole.trained if e == epoch for n in batch[0]] == first
    trainer(tmp_path, limit_train_batches=2).fit(
        resumed, made(numbers, "ShuffleSampler", 0), ckpt_path=tmp_path / "epoch=1-step=3.ckpt"
    )
    assert resumed.trained[0] == whole.trained[3]


def test_validation_during_fit_sees_every_sample_in_order(numbers: Path, tmp_path: Path) -> None:
    model = Recorder()
    training = DataLoader(Processed(numbers), SIZE, shuffle=True)
    trainer(tmp_path, num_sanity_val_steps=2).fit(
        model, training, DataLoader(Processed(numbers), SIZE, num_workers=2)
    )
    given = [n for batch in model.evaluated for n in batch]
    sanity, epochs = given[: 2 * SIZE], given[2 * SIZE :]
    assert sanity == list(range(2 * SIZE))
    assert epochs == EPOCHS * list(range(N))


class Reporting(Recorder):
    """A model that writes the batches of each process to a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_train_end(self) -> None:
        given = json.dumps([self.trained, type(self.trainer.train_dataloader).__module__])
        (self.folder / f"{self.global_rank}.json").write_text(given)


@pytest.mark.long
def test_several_processes_share_every_epoch_and_keep_the_options(
    numbers: Path, tmp_path: Path
) -> None:
    """Lightning makes a loader with a DistributedSampler from ours."""
    dataset = Processed(damaged(numbers, tmp_path / "bad.ffr", 7))
    loader = DataLoader(dataset, SIZE, shuffle=True, on_error="skip")
    trainer(tmp_path, strategy="ddp_spawn", devices=2).fit(Reporting(tmp_path), loader)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [module for _, module in ranks] == 2 * [DataLoader.__module__]
    for epoch in range(EPOCHS):
        given = [n for trained, _ in ranks for e, batch in trained if e == epoch for n in batch]
        assert set(given) == set(range(N)) - {7}
        assert len(given) <= N  # equal shares repeat one sample, and the bad sample is left out


# ---- validate, test, predict -----------------------------------------------------------------


@pytest.mark.parametrize(("stage", "workers"), [("validate", 0), ("test", 2)])
def test_evaluation_sees_every_sample_once_in_order(
    stage: str, workers: int, numbers: Path, tmp_path: Path
) -> None:
    model = Recorder()
    loader = DataLoader(Processed(numbers), SIZE, num_workers=workers)
    getattr(trainer(tmp_path), stage)(model, loader, verbose=False)
    assert [n for batch in model.evaluated for n in batch] == list(range(N))


@pytest.mark.parametrize(("drop_last", "workers"), [(False, 0), (True, 2)])
def test_predictions_cover_every_sample_in_order(
    drop_last: bool, workers: int, numbers: Path, tmp_path: Path
) -> None:
    """To predict, Lightning makes a new loader whose batch sampler is its own iterator."""
    loader = DataLoader(Processed(numbers), SIZE, num_workers=workers, drop_last=drop_last)
    predictions = trainer(tmp_path).predict(Recorder(), loader)
    assert [len(batch) for batch in predictions] == (N // SIZE) * [SIZE] + [N % SIZE]
    assert torch.cat(predictions).tolist() == list(range(N))


def test_predictions_leave_out_bad_samples(numbers: Path, tmp_path: Path) -> None:
    loader = DataLoader(Processed(damaged(numbers, tmp_path / "bad.ffr", 7)), SIZE, on_error="skip")
    with pytest.warns(BadRecordWarning, match="sample 7"):
        predictions = trainer(tmp_path).predict(Recorder(), loader)
    assert torch.cat(predictions).tolist() == [n for n in range(N) if n != 7]


# ---- streams, and in_order=False -----------------------------------------------------------


class Stream(IterableDataset[int]):
    """The samples of a file as a stream, shared among the workers.

    It has a length. Without one, Lightning takes a batch in advance, and loses it when it resumes.
    """

    def __init__(self, fname: Path) -> None:
        self.fname = fname

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        dataset = Processed(self.fname)
        yield from (dataset[number] for number in range(first, N, step))


LOADERS: dict[str, Callable[[Path], DataLoader[Any]]] = {
    "a stream": lambda fname: DataLoader(Stream(fname), SIZE),
    "a stream with workers": lambda fname: DataLoader(Stream(fname), SIZE, num_workers=2),
    "any order": lambda fname: DataLoader(
        Processed(fname), SIZE, num_workers=2, in_order=False, shuffle=True, generator=seeded(3)
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_epoch_is_complete_after_resuming(kind: str, numbers: Path, tmp_path: Path) -> None:
    whole, resumed = Recorder(), Recorder()
    training = trainer(tmp_path, enable_checkpointing=True, callbacks=every_checkpoint(tmp_path))
    training.fit(whole, LOADERS[kind](numbers))
    trainer(tmp_path).fit(
        resumed, LOADERS[kind](numbers), ckpt_path=tmp_path / "epoch=0-step=2.ckpt"
    )
    for trained in (whole.trained, whole.trained[:2] + resumed.trained):
        for epoch in range(EPOCHS):
            given = [n for e, batch in trained if e == epoch for n in batch]
            assert sorted(given) == list(range(N)), epoch

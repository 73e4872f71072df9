"""The Trainer of Hugging Face's transformers with our datasets and our loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ffrecord.errors import BadRecordWarning, ReplacedLoaderWarning
from ffrecord.torch import DataLoader, Dataset, ShuffleSampler
from ffrecord.torch.accelerate import prepare_loader
from tests.torch.datasets import Bytes, N, damaged, number_of
from tests.torch.frameworks import package

transformers = package("transformers")

SIZE = 4
STEPS = -(-N // SIZE)
EPOCHS = 3

pytestmark = [
    pytest.mark.long,
    # The Trainer pins memory even without an accelerator.
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
]


class Samples(Dataset[dict[str, Any]]):
    """A dataset of dictionaries for the Trainer: their keys are the model's arguments."""

    def __init__(self, fname: Path, **options: Any) -> None:
        super().__init__(fname, **options)
        self.calls: list[int] = []

    def process(self, indices: list[int], data: list[Bytes]) -> list[dict[str, Any]]:
        self.calls.append(len(indices))
        return [{"number": number_of(each), "noise": float(torch.rand(()))} for each in data]


class Recorder(torch.nn.Module):
    """A model that keeps its training batches, and predicts its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.trained: list[list[int]] = []

    def forward(self, number: torch.Tensor, noise: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.trained.append(number.tolist())
        return {"loss": self.weight * noise.sum(), "number": number}


class WithOurLoader(transformers.Trainer):  # type: ignore[name-defined,misc]
    def get_train_dataloader(self) -> Any:
        dataset, args = self.train_dataset, self.args
        loader: DataLoader[Any] = DataLoader(
            dataset,
            args.per_device_train_batch_size,
            sampler=ShuffleSampler(dataset, seed=args.seed),
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            on_error="skip",
        )
        return prepare_loader(self.accelerator, loader)


def trainer(kind: type[Any], folder: Path, dataset: Any, workers: int = 0) -> Any:
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=SIZE,
        per_device_eval_batch_size=SIZE,
        num_train_epochs=EPOCHS,
        save_steps=1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=workers,
        seed=5,
    )
    return kind(
        model=Recorder(),
        args=args,
        data_collator=transformers.default_data_collator,
        train_dataset=dataset,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_trainers_own_loader_reads_our_dataset_a_batch_at_a_time(
    workers: int, numbers: Path, tmp_path: Path
) -> None:
    dataset = Samples(numbers)
    training = trainer(transformers.Trainer, tmp_path, dataset, workers)
    training.train()
    trained = training.model.trained
    for epoch in range(EPOCHS):
        given = [n for batch in trained[epoch * STEPS : (epoch + 1) * STEPS] for n in batch]
        assert sorted(given) == list(range(N))
    if not workers:
        assert dataset.calls == EPOCHS * [*((N // SIZE) * [SIZE]), N % SIZE]


def test_predictions_cover_every_sample_in_order(numbers: Path, tmp_path: Path) -> None:
    training = trainer(transformers.Trainer, tmp_path, None)
    _, given = training.predict(Samples(numbers)).predictions  # loss and numbers
    assert given.tolist() == list(range(N))


def test_bad_samples_are_left_out_by_the_dataset(numbers: Path, tmp_path: Path) -> None:
    dataset = Samples(damaged(numbers, tmp_path / "bad.ffr", 7), on_error="skip")
    training = trainer(transformers.Trainer, tmp_path, dataset)
    with pytest.warns(BadRecordWarning, match="sample 7"):
        training.train()
    assert sorted({n for batch in training.model.trained for n in batch}) == [
        n for n in range(N) if n != 7
    ]


@pytest.mark.filterwarnings("ignore::ffrecord.errors.ReplacedLoaderWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_our_loader_continues_after_any_checkpoint(
    workers: int, numbers: Path, tmp_path: Path
) -> None:
    whole = trainer(WithOurLoader, tmp_path, Samples(numbers), workers)
    whole.train()
    trained = whole.model.trained
    orders = ShuffleSampler(N, seed=5)
    assert [n for batch in trained for n in batch] == [n for _ in range(EPOCHS) for n in orders]
    for step in (1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS):
        resumed = trainer(WithOurLoader, tmp_path / "again", Samples(numbers), workers)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert resumed.model.trained == trained[step:], step


def test_the_options_of_our_loader_are_kept(numbers: Path, tmp_path: Path) -> None:
    dataset = Samples(damaged(numbers, tmp_path / "bad.ffr", 7))
    training = trainer(WithOurLoader, tmp_path, dataset)
    with pytest.warns(BadRecordWarning, match="sample 7"):
        training.train()
    given = [n for batch in training.model.trained for n in batch]
    assert sorted(given) == sorted(EPOCHS * [n for n in range(N) if n != 7])


def test_a_resumed_epoch_warns_that_a_torch_loader_replaces_ours(
    numbers: Path, tmp_path: Path
) -> None:
    """To skip batches, the Trainer makes a torch loader from ours."""
    trainer(WithOurLoader, tmp_path, Samples(numbers)).train()
    resumed = trainer(WithOurLoader, tmp_path / "again", Samples(numbers))
    with pytest.warns(ReplacedLoaderWarning, match="on_error") as caught:
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(caught) == 1

"""States of loaders whose dataset is an IterableDataset, or saves its own state."""

from __future__ import annotations

import copy
import json
import pickle
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from ffrecord.errors import StateError
from ffrecord.torch import DataLoader
from tests.torch.datasets import Processed, as_list, batches, plain, seeded, shut_down

COUNTS = (0, 11, 5)  # samples of each worker; without workers, the main process has all


def mine(counts: tuple[int, ...]) -> range:
    """Return the samples of this process."""
    info = get_worker_info()
    if info is None:
        return range(sum(counts))
    begin = sum(counts[: info.id])
    return range(begin, begin + counts[info.id])


class Plain(IterableDataset[Any]):
    """A stream without a state: a loader reads it again from the beginning."""

    def __iter__(self) -> Iterator[Any]:
        for sample in mine(COUNTS):
            yield sample, float(torch.rand(()))


class Counting(IterableDataset[Any]):
    """A stream with a state: its position and the number of its epoch."""

    def __init__(self) -> None:
        self.at = 0
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(mine(COUNTS)):
            self.at += 1
            yield mine(COUNTS)[self.at - 1], self.epoch
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return self.__dict__  # not a copy

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__ = state


class Draws(Iterator[Any]):
    """An iterator that draws random numbers. Its state includes their generator's state."""

    def __init__(self, samples: range) -> None:
        self.left = list(samples)

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        return self.left.pop(0), float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]
        torch.set_rng_state(state["random"])


class Drawing(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return Draws(mine(COUNTS))


class Itself(IterableDataset[Any]):
    """A stream that is its own iterator, and starts again with every `iter()`."""

    def __iter__(self) -> Iterator[Any]:
        self.left = list(mine(COUNTS))
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


class Resuming(IterableDataset[Any]):
    """A stream whose state after the last sample is the end, not the beginning of the next epoch.

    The stream of torchdata's own tests is made in this way.
    """

    def __init__(self) -> None:
        self.at = 0
        self.resume: int | None = None

    def __iter__(self) -> Iterator[Any]:
        self.at, self.resume = self.resume or 0, None
        for sample in mine(COUNTS)[self.at :]:
            self.at += 1
            yield sample

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resume = state["at"]


KINDS: dict[str, type[IterableDataset[Any]]] = {
    "plain": Plain, "counting": Counting, "drawing": Drawing, "itself": Itself,
    "resuming": Resuming,
}  # fmt: skip
WORKERS = [(0, False), (3, False), (3, True)]


def made(kind: str, workers: int, stays: bool, **options: Any) -> DataLoader[Any]:
    everything: dict[str, Any] = {"batch_size": 2, "collate_fn": as_list}
    everything.update(options, num_workers=workers, persistent_workers=stays)
    return DataLoader(KINDS[kind](), **everything)


def take(iterator: Any, count: int) -> list[Any]:
    return [plain(next(iterator)) for _ in range(count)]


# ---- IterableDatasets --------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "stays"), WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_continues_after_any_batch(kind: str, workers: int, stays: bool) -> None:
    """The test covers two epochs, the order of the workers, and random numbers."""
    torch.manual_seed(3)
    unbroken = made(kind, workers, stays)
    epochs = [batches(unbroken) for _ in range(3)]
    loader = made(kind, workers, stays)
    for epoch, stop in [(0, 4), (1, 0), (1, len(epochs[1]))]:
        torch.manual_seed(3)
        loader = made(kind, workers, stays)
        for before in epochs[:epoch]:
            assert batches(loader) == before
        iterator = iter(loader)
        found = take(iterator, stop)
        assert found == epochs[epoch][:stop]
        state, program = loader.state_dict(), torch.get_rng_state()
        shut_down(iterator)
        torch.manual_seed(99)
        second = made(kind, workers, stays)
        second.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert second.state_dict() is not state
        if not workers or stop == len(epochs[epoch]):
            # A stream without workers draws from the program's global generator, and so does
            # torch for new workers.
            torch.set_rng_state(program)
        rest = epochs[epoch][stop:] or epochs[epoch + 1]
        found = batches(second)
        if kind == "plain" and (not workers or (stays and epoch)):
            # The process of the stream is not new, and its earlier draws are not saved. So compare
            # only the samples.
            assert [[sample for sample, _ in batch] for batch in found] == [
                [sample for sample, _ in batch] for batch in rest
            ]
        else:
            assert found == rest, (epoch, stop)


@pytest.mark.parametrize(("workers", "stays"), WORKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_between_epochs_is_at_the_next_epoch(kind: str, workers: int, stays: bool) -> None:
    torch.manual_seed(3)
    first = made(kind, workers, stays, generator=seeded(4))
    batches(first)
    state, program = first.state_dict(), torch.get_rng_state()
    following = [batches(first) for _ in range(2)]
    torch.set_rng_state(program)
    second = made(kind, workers, stays, generator=seeded(5))
    second.load_state_dict(state)
    if kind == "plain" and stays:  # see the test above
        assert [len(batch) for batch in batches(second)] == [len(batch) for batch in following[0]]
    else:
        assert [batches(second) for _ in range(2)] == following


@pytest.mark.parametrize("batch_size", [None, 3])
def test_random_numbers_that_a_stream_restores_at_the_end_are_those_of_the_next_epoch(
    batch_size: int | None,
) -> None:
    """Without workers, torch draws a seed when the next epoch begins, after the state was saved."""
    first = made("drawing", 0, False, batch_size=batch_size)
    batches(first)
    state = first.state_dict()
    following = batches(first)
    second = made("drawing", 0, False, batch_size=batch_size)
    second.load_state_dict(state)
    assert batches(second) == following


@pytest.mark.parametrize(("workers", "stays"), WORKERS)
def test_a_resumed_stream_can_be_saved_before_every_worker_has_answered(
    workers: int, stays: bool
) -> None:
    whole = batches(made("counting", workers, stays))
    found: list[Any] = []
    state = None
    while len(found) < len(whole):
        loader = made("counting", workers, stays)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        found += take(iterator, 1)
        state = loader.state_dict()
        shut_down(iterator)
    assert found == whole


@pytest.mark.parametrize("every", [3, None])
def test_snapshot_every_n_steps_still_resumes_exactly(every: int | None) -> None:
    options: dict[str, Any] = {"snapshot_every_n_steps": every}
    unbroken = made("counting", 3, True, **options)
    epochs = [batches(unbroken) for _ in range(3)]
    for epoch in (0, 1):
        for stop in (3, 7):
            loader = made("counting", 3, True, **options)
            for before in epochs[:epoch]:
                assert batches(loader) == before
            iterator = iter(loader)
            take(iterator, stop)
            second = made("counting", 3, True, **options)
            second.load_state_dict(loader.state_dict())
            shut_down(iterator)
            assert batches(second) == epochs[epoch][stop:]
            assert batches(second) == epochs[epoch + 1]


@pytest.mark.parametrize("workers", [0, 3])
def test_streams_resume_with_drop_last_and_without_batches(workers: int) -> None:
    for options in ({"batch_size": 2, "drop_last": True}, {"batch_size": None}):
        whole = batches(made("counting", workers, False, **options))
        for stop in (1, len(whole) - 1, len(whole)):
            loader = made("counting", workers, False, **options)
            iterator = iter(loader)
            take(iterator, stop)
            second = made("counting", workers, False, **options)
            second.load_state_dict(loader.state_dict())
            shut_down(iterator)
            rest = batches(second)
            # After the last batch, the next epoch follows. Without workers it is the stream's
            # second epoch, but new workers begin with their first. So compare only sizes there.
            assert [len(batch) for batch in rest] == [len(b) for b in whole[stop:] or whole]
            if stop < len(whole):
                assert rest == whole[stop:]


def test_the_batch_size_of_a_stream_may_change() -> None:
    first = made("counting", 0, False)
    iterator = iter(first)
    found = [sample for batch in take(iterator, 3) for sample in batch]
    second = made("counting", 0, False, batch_size=5)
    second.load_state_dict(first.state_dict())
    found += [sample for batch in batches(second) for sample in batch]
    assert found == [[sample, 0] for sample in range(sum(COUNTS))]


def test_a_state_of_a_stream_is_json_if_the_datasets_state_is() -> None:
    for workers in (0, 3):
        loader = made("counting", workers, False)
        iterator = iter(loader)
        take(iterator, 2)
        text = json.dumps(loader.state_dict())
        rest = [plain(batch) for batch in iterator]
        second = made("counting", workers, False)
        second.load_state_dict(json.loads(text))
        assert batches(second) == rest


def test_another_number_of_workers_is_refused() -> None:
    """Each worker has its own part of the samples."""
    loader = made("counting", 3, False)
    iterator = iter(loader)
    take(iterator, 2)
    state = loader.state_dict()
    shut_down(iterator)
    for workers in (0, 2):
        with pytest.raises(StateError, match=rf"3 workers' positions .* has {workers} workers"):
            made("counting", workers, False).load_state_dict(state)


def test_a_state_of_another_kind_of_dataset_is_refused() -> None:
    loader = made("counting", 0, False)
    take(iter(loader), 1)
    state = loader.state_dict()
    with pytest.raises(StateError, match="cannot load it"):
        made("plain", 0, False).load_state_dict(state)
    changes: list[dict[str, Any]] = [
        {"workers": [{}]}, {"workers": [3]}, {"workers": [None, None]}, {"turn": 1},
        {"turn": -1}, {"num_workers": "x"},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(StateError):
            made("counting", 0, False).load_state_dict(state | change)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_worker_init_fn_sees_the_dataset_itself(workers: int) -> None:
    """The function may read and change the dataset, as torch's documentation shows."""
    loader = DataLoader(
        Configured(), None, num_workers=workers,
        worker_init_fn=configure if workers else None,
    )  # fmt: skip
    expected = [5, 6] * workers if workers else [0, 1]
    assert sorted(batches(loader)) == sorted(expected)


class Configured(IterableDataset[int]):
    samples = "mine"
    begin = 0

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.begin, self.begin + 2))

    def __getitem__(self, key: int) -> int:
        return key

    def __len__(self) -> int:
        return 2


def configure(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    assert info.id == number
    assert issubclass(dataset.__class__, Configured)
    assert (dataset.samples, dataset[3], len(dataset)) == ("mine", 3, 2)
    assert list(dataset) == [0, 1]
    assert pickle.loads(pickle.dumps(dataset)).begin == 0
    dataset.begin = 5


def test_a_data_pipe_is_read_again_from_its_beginning() -> None:
    def pipe() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return IterableWrapper(range(10)).shuffle()

    torch.manual_seed(1)
    loader: DataLoader[Any] = DataLoader(pipe(), 2, num_workers=1)
    iterator = iter(loader)
    take(iterator, 2)
    state = loader.state_dict()
    rest = [plain(batch) for batch in iterator]
    torch.manual_seed(2)
    second: DataLoader[Any] = DataLoader(pipe(), 2, num_workers=1)
    second.load_state_dict(state)
    assert batches(second) == rest


# ---- map-style datasets that save their own state ----------------------------------------


class Stateful(TorchDataset[Any]):
    """A dataset that counts the samples it has read, and draws random numbers."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return index, self.read, float(torch.rand(()))

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "random": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]
        torch.set_rng_state(state["random"])


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize(("workers", "stays"), WORKERS)
def test_the_datasets_state_is_part_of_the_loaders(
    workers: int, stays: bool, size: int | None
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(
            Stateful(), size, shuffle=True, num_workers=workers, persistent_workers=stays,
            collate_fn=as_list,
        )  # fmt: skip

    for stop in (0, 1, 4, 9):
        torch.manual_seed(3)
        loader = make()
        batches(loader)
        iterator = iter(loader)
        take(iterator, stop)
        state = loader.state_dict()
        rest = [plain(batch) for batch in iterator]
        torch.manual_seed(99)
        second = make()
        second.load_state_dict(state)
        assert batches(second) == rest, stop


def test_a_datasets_state_needs_the_same_number_of_workers() -> None:
    loader: DataLoader[Any] = DataLoader(Stateful(), 2, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    shut_down(iterator)
    with pytest.raises(StateError, match=r"2 workers' positions in the dataset, .* has 3"):
        DataLoader(Stateful(), 2, num_workers=3).load_state_dict(state)


class Ours(Processed):
    """A dataset of ours with a state."""

    read = 0

    def process(self, indices: list[int], data: list[Any]) -> list[Any]:
        self.read += len(indices)
        return [(number, self.read) for number in super().process(indices, data)]

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]


@pytest.mark.parametrize("workers", [0, 2])
def test_our_dataset_may_have_a_state_too(workers: int, numbers: Path) -> None:
    loader = DataLoader(Ours(numbers), 4, num_workers=workers)
    iterator = iter(loader)
    take(iterator, 3)
    state = loader.state_dict()
    rest = [plain(batch) for batch in iterator]
    second = DataLoader(Ours(numbers), 4, num_workers=workers)
    second.load_state_dict(state)
    assert batches(second) == rest


# ---- samplers that save their own state --------------------------------------------------


class Remembering:
    """A sampler that saves its position."""

    def __init__(self) -> None:
        self.at = 0
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            yield (self.at - 1 + 3 * self.epoch) % 20
        self.at = 0
        self.epoch += 1

    def __len__(self) -> int:
        return 20

    def state_dict(self) -> dict[str, Any]:
        return self.__dict__

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__ = dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_samplers_state_is_part_of_the_loaders(workers: int) -> None:
    dataset = list(range(20))

    def make() -> DataLoader[Any]:
        return DataLoader(dataset, 3, sampler=Remembering(), num_workers=workers)  # type: ignore[arg-type]

    unbroken = make()
    epochs = [batches(unbroken) for _ in range(4)]
    for stop in (None, 0, 1, 4, len(epochs[1])):
        loader = make()
        batches(loader)
        if stop is not None:
            iterator = iter(loader)
            take(iterator, stop)
        second = make()
        second.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert len(second) == len(epochs[1]) - (stop or 0) % len(epochs[1])
        rest = epochs[1][stop or 0 :]
        after = epochs[2:]
        for expected in [rest, *after] if rest else after:
            assert batches(second) == expected


# ---- in_order=False ----------------------------------------------------------------------


class Slow(Processed):
    """A dataset whose first batch waits until a file exists."""

    release: Path

    def process(self, indices: list[int], data: list[Any]) -> list[int]:
        waited(indices, self.release)
        return super().process(indices, data)


class SlowElsewhere(TorchDataset[int]):
    def __init__(self, release: Path) -> None:
        self.release = release

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> int:
        waited([index], self.release)
        return index


def waited(indices: list[int], release: Path) -> None:
    while 0 in indices and not release.exists():
        time.sleep(0.01)


@pytest.mark.parametrize("ours", [True, False])
def test_with_in_order_false_every_batch_comes_once(
    ours: bool, numbers: Path, tmp_path: Path
) -> None:
    release = tmp_path / "released"
    dataset: Any = SlowElsewhere(release)
    if ours:
        dataset = Slow(numbers)
        dataset.release = release
    options: dict[str, Any] = {"num_workers": 2, "in_order": False}
    loader = DataLoader(dataset, 4, **options)
    iterator = iter(loader)
    found = take(iterator, 2)
    assert [0, 1, 2, 3] not in found
    state = json.loads(json.dumps(loader.state_dict()))
    release.touch()
    rest = sorted(plain(batch) for batch in iterator)
    in_order: dict[str, Any] = {"num_workers": 0}
    for changed in (options, in_order):
        second = DataLoader(dataset, 4, **changed)
        second.load_state_dict(state)
        assert len(second) == 4
        assert sorted(batches(second)) == rest
    with pytest.raises(StateError, match=r"batch size of 4, .* has 5"):
        DataLoader(dataset, 5, **options).load_state_dict(state)


def test_a_stream_with_in_order_false_loses_nothing() -> None:
    loader = made("counting", 3, False, in_order=False)
    iterator = iter(loader)
    found = take(iterator, 4)
    second = made("counting", 3, False, in_order=False)
    second.load_state_dict(loader.state_dict())
    found += batches(second)
    shut_down(iterator)
    assert sorted(s for batch in found for s in batch) == [[s, 0] for s in range(sum(COUNTS))]


# ---- unknown positions -------------------------------------------------------------------


class Broken(Counting):
    def state_dict(self) -> dict[str, Any]:
        raise OSError("lost")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unknown_state_warns_and_says_why_when_it_is_loaded(workers: int) -> None:
    """`state_dict` must not raise, so that the program can still save its checkpoint."""
    loader = DataLoader(Broken(), 2, num_workers=workers, collate_fn=as_list)
    iterator = iter(loader)
    take(iterator, 1)
    with pytest.warns(UserWarning, match=r"cannot be resumed: .*lost"):
        state = loader.state_dict()
    shut_down(iterator)
    json.dumps(state)
    with pytest.raises(StateError, match=r"cannot be resumed: .*lost"):
        made("counting", workers, False).load_state_dict(state)


def test_an_iterator_is_not_copied() -> None:
    """torch's iterators cannot be copied either."""
    for loader in (made("counting", 0, False), DataLoader(list(range(4)))):  # type: ignore[arg-type]
        with pytest.raises(NotImplementedError):
            copy.copy(iter(loader))

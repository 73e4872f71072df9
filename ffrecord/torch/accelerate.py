"""`prepare_loader`: what `Accelerator.prepare` does for a loader, with a loader of ours inside.

Accelerate builds a loader of torch's from the attributes of the one it is given: `on_error`, batch
seeds, read-ahead and the state are lost. Everything else that it does is needed: it splits the
batches over the processes, moves them to the device, synchronizes random numbers and knows the
last batch of an epoch. So Accelerate prepares the loader here too, and then the loader inside of
the prepared one is replaced by one of ours, with the batches that this process should get.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, IterableDataset

from ffrecord.errors import StateError
from ffrecord.torch.dataloader import DataLoader

BATCHING = {"self", "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
"""Options that say which batches there are: Accelerate has the last word on these."""


def _keywords(loader: type[TorchDataLoader[Any]]) -> set[str]:
    """Return the options that the constructor of a loader names."""
    parameters = inspect.signature(loader.__init__).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name for each in parameters if each.kind in named} - BATCHING


TORCHS = _keywords(TorchDataLoader)
OURS = _keywords(DataLoader)


def prepare_loader(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """Prepare a loader for an `accelerate.Accelerator`, in place of `accelerator.prepare(loader)`.

    Returns the loader that Accelerate makes, so its other functions know it, with all options of
    `loader`. `accelerator.save_state` and `load_state` include its state; `skip_first_batches`
    is not needed then. With `dispatch_batches=True`, where only the main process reads, there is
    no state.
    """
    if isinstance(loader.dataset, IterableDataset):
        return accelerator.prepare_data_loader(loader)
    _check_is_whole(loader, accelerator.num_processes)
    prepared = accelerator.prepare_data_loader(loader)
    sampler = getattr(getattr(prepared.batch_sampler, "batch_sampler", None), "sampler", None)
    if sampler is not None:
        prepared.set_sampler(sampler)  # so that the share of the batches has it as well
    inside = _Inside(loader, prepared)
    inside.processes = accelerator.num_processes
    prepared.base_dataloader = inside
    dispatched = bool(accelerator.dispatch_batches)
    prepared.use_stateful_dataloader = not dispatched  # whether save_state asks for a state
    prepared.dl_state_dict = inside.state_dict()
    return prepared


def _check_is_whole(loader: DataLoader[Any], processes: int) -> None:
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if processes > 1 and isinstance(sampler, DistributedSampler):
        raise ValueError(
            f"{type(sampler).__name__} gives each process a share, and Accelerate splits the "
            "batches once more: samples would be lost. Use ShuffleSampler, or shuffle=True"
        )


class _Inside(DataLoader[Any]):
    """The loader inside of a prepared one, whose count of epochs belongs to the state."""

    processes = 1

    def __init__(self, loader: DataLoader[Any], prepared: Any) -> None:
        torchs = prepared.base_dataloader
        options = {name: getattr(torchs, name) for name in TORCHS}
        options |= {name: getattr(loader, name) for name in OURS}
        if torchs.batch_sampler is None:
            options |= {"batch_size": None, "sampler": torchs.sampler}
        else:
            options["batch_sampler"] = torchs.batch_sampler
        super().__init__(loader.dataset, **options)
        self.prepared = prepared

    def state_dict(self) -> dict[str, Any]:
        # Accelerate tells the sampler the number of the epoch whenever one begins.
        following = self.prepared.iteration + self.prepared.end_of_dataloader
        return super().state_dict() | {"iteration": following, "processes": self.processes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        iteration, processes = state.get("iteration"), state.get("processes")
        if not isinstance(iteration, int) or not isinstance(processes, int):
            raise StateError("this is not the state of a loader that prepare_loader made")
        if processes != self.processes:
            raise StateError(
                f"the state was saved by {processes} processes, here are {self.processes}"
            )
        super().load_state_dict(state)
        self.prepared.iteration = iteration

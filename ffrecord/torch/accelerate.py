"""`prepare_loader`: a replacement for `Accelerator.prepare` that keeps our loader's features.

`Accelerator.prepare` builds a torch loader from the attributes of our loader. The torch loader has
no `on_error`, batch seeds, read-ahead or state. The rest of Accelerate's work is needed: Accelerate
splits the batches over the processes, moves them to the device, synchronises random numbers and
knows the last batch of an epoch. So `prepare_loader` lets Accelerate prepare the loader, and then
replaces the torch loader inside the prepared one by one of ours with the same batches.
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
"""Options that choose the batches. The new loader gets its batches from Accelerate instead."""


def _keywords(loader: type[TorchDataLoader[Any]]) -> set[str]:
    """Return the names of a loader's options, except the ones in `BATCHING`."""
    parameters = inspect.signature(loader.__init__).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name for each in parameters if each.kind in named} - BATCHING


TORCHS = _keywords(TorchDataLoader)
OURS = _keywords(DataLoader)


def prepare_loader(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """Prepare a loader for Accelerate. Call this in place of `accelerator.prepare(loader)`.

    `accelerator.save_state` and `load_state` include the loader's state, so do not call
    `skip_first_batches`. With `dispatch_batches=True`, only the main process reads, and the state
    is not saved.

    Args:
        accelerator: the `accelerate.Accelerator`.
        loader: the loader.

    Returns:
        The loader that Accelerate makes, with all options of `loader`. Accelerate's other functions
        accept it.

    Raises:
        ValueError: there are several processes, and the sampler is a `DistributedSampler`.
    """
    if isinstance(loader.dataset, IterableDataset):
        return accelerator.prepare_data_loader(loader)
    _check_is_whole(loader, accelerator.num_processes)
    prepared = accelerator.prepare_data_loader(loader)
    sampler = getattr(getattr(prepared.batch_sampler, "batch_sampler", None), "sampler", None)
    if sampler is not None:
        # Accelerate's BatchSamplerShard has no `sampler`, and our loader looks for one there.
        prepared.set_sampler(sampler)
    inside = _Inside(loader, prepared)
    inside.processes = accelerator.num_processes
    prepared.base_dataloader = inside
    dispatched = bool(accelerator.dispatch_batches)
    prepared.use_stateful_dataloader = not dispatched  # if True, save_state includes our state
    prepared.dl_state_dict = inside.state_dict()
    return prepared


def _check_is_whole(loader: DataLoader[Any], processes: int) -> None:
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if processes > 1 and isinstance(sampler, DistributedSampler):
        raise ValueError(
            f"{type(sampler).__name__} gives each process a share of the samples, and Accelerate "
            "would split that share again; use ShuffleSampler or shuffle=True instead"
        )


class _Inside(DataLoader[Any]):
    """The loader inside a prepared one. Its state includes Accelerate's count of epochs."""

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
        # Accelerate calls the sampler's set_epoch(iteration) whenever an epoch begins. After the
        # last batch, the state is for the next epoch.
        following = self.prepared.iteration + self.prepared.end_of_dataloader
        return super().state_dict() | {"iteration": following, "processes": self.processes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        iteration, processes = state.get("iteration"), state.get("processes")
        if not isinstance(iteration, int) or not isinstance(processes, int):
            raise StateError(
                "not the state of a loader that prepare_loader made: 'iteration' or 'processes' is "
                "missing; pass a state that such a loader saved"
            )
        if processes != self.processes:
            raise StateError(
                f"the state was saved by {processes} processes, and this run has "
                f"{self.processes}; run it with {processes} processes"
            )
        super().load_state_dict(state)
        self.prepared.iteration = iteration

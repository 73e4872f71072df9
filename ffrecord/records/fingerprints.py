"""Fingerprints of datasets. The same data in the same order has the same fingerprint.

All readers of this package have a `fingerprint`. A dataset from elsewhere may have one too, as an
attribute or as a method without arguments. torch's `Subset` (and `random_split`), `ConcatDataset`,
`StackDataset` and `ChainDataset` combine the fingerprints of the datasets in them. For all other
datasets only the length is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Fingerprinting: TypeAlias = Callable[[Any], str]

UNSIZED = "length unknown"


def fingerprint_of(dataset: Any) -> str:
    """Return a dataset's fingerprint, or its length as text if it has no fingerprint."""
    own = getattr(dataset, "fingerprint", None)
    if own is not None:
        return str(own() if callable(own) else own)
    return _of_torchs(dataset, fingerprint_of) or _length(dataset)


def has_fingerprint(thing: Any) -> bool:
    """Return True if more than the length is known about `thing`."""
    return getattr(thing, "fingerprint", None) is not None or _is_composed(thing)


def former_fingerprint_of(dataset: Any) -> str:
    """Return the fingerprint as version 1 of saved states contains it."""
    inside = getattr(type(dataset), "fingerprint_by", None)
    if inside is not None:
        return str(dataset.fingerprint_by(former_fingerprint_of))
    known = not type(dataset).__module__.startswith("ffrecord.dataset.")
    own = getattr(dataset, "fingerprint", None) if known else None
    return _length(dataset) if own is None or callable(own) else str(own)


def combined(*parts: str) -> str:
    """Return one fingerprint for several. Their order counts."""
    # File names that are not UTF-8 are str with surrogates.
    joined = "\n".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(joined).hexdigest()


def of_indices(indices: Sequence[int]) -> str:
    """Return the fingerprint of a selection of samples."""
    return hashlib.sha256(np.asarray(indices, np.int64).tobytes()).hexdigest()


def _length(dataset: Any) -> str:
    try:
        return f"length {len(dataset)}"
    except (TypeError, NotImplementedError):
        return UNSIZED


def _of_torchs(dataset: Any, of: Fingerprinting) -> str | None:
    """Return the fingerprint of a torch dataset that contains others; None for other datasets."""
    names = _torchs_names(dataset)
    if "Subset" in names:
        return combined(of(dataset.dataset), of_indices(dataset.indices))
    if names & {"ConcatDataset", "ChainDataset"}:
        return combined(*map(of, dataset.datasets))
    if "StackDataset" in names:
        parts = dataset.datasets
        if isinstance(parts, Mapping):
            return combined(*(f"{name}: {of(part)}" for name, part in parts.items()))
        return combined("stacked", *map(of, parts))
    return None


def _is_composed(thing: Any) -> bool:
    return bool(_torchs_names(thing) & {"Subset", "ConcatDataset", "ChainDataset", "StackDataset"})


def _torchs_names(thing: Any) -> set[str]:
    """Return the names of the torch dataset classes that `thing` is an instance of."""
    # Compare names: torch may be missing, and must not be imported for this.
    kinds = type(thing).__mro__
    return {each.__qualname__ for each in kinds if each.__module__ == "torch.utils.data.dataset"}

"""`write_dataset`: a dataset from an iterable, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sized
from itertools import chain
from typing import Any

import numpy as np

from ffrecord.aliases import Path
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.spec import SEQUENCE
from ffrecord.dataset.writer import DatasetWriter, is_new
from ffrecord.errors import SpecError
from ffrecord.progress import bar

# The first that fits: a bool is an int to Python, and numpy's scalars may be Python's.
_TYPES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "bool"),
    ((int, np.integer), "int"),
    ((float, np.floating), "float"),
    ((str,), "utf8"),
    ((bytes, bytearray, memoryview), "bytes"),
    ((np.ndarray,), "array"),
)


def write_dataset(
    directory: Path,
    iterable: Iterable[Mapping[str, Any]],
    spec: Mapping[str, str] | None = None,
    encoders: Mapping[str, Encoder] = codecs.encoders,
    *,
    append: bool = False,
    progress: bool | None = None,
) -> int:
    """Write every datapoint of an iterable, and return how many there were.

    Args:
        directory, spec, encoders, append: as for `DatasetWriter`. Without a spec the types of a new
            dataset follow from the first datapoint (`infer_spec`).
        iterable: dicts, all with the same fields.
        progress: show a bar on stderr; left out, if that is a terminal.
    """
    datapoints = iter(iterable)
    if spec is None and not (append and not is_new(os.path.abspath(os.fsdecode(directory)))):
        first = next(datapoints, None)
        if first is None:
            raise SpecError(f"{os.fsdecode(directory)}: a dataset of nothing needs a spec")
        spec = infer_spec(first)
        datapoints = chain([first], datapoints)
    total = len(iterable) if isinstance(iterable, Sized) else None
    drawn = bar(shown=progress, total=total, unit=" datapoints", desc="writing")
    with DatasetWriter(directory, spec, encoders, append=append) as writer, drawn:
        before = len(writer)
        for datapoint in datapoints:
            writer.append(datapoint)
            drawn.update()
    return len(writer) - before


def infer_spec(datapoint: Mapping[str, Any]) -> dict[str, str]:
    """The types that a datapoint's values seem to have."""
    if not isinstance(datapoint, Mapping):
        raise SpecError(f"a datapoint is a dict, not {type(datapoint).__name__}")
    return {name: _infer(name, value) for name, value in datapoint.items()}


def _infer(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        if not value:
            raise SpecError(f"{name!r} is empty in the first datapoint: its type must be given")
        types = {_infer_one(element) for element in value}
        # Of one kind, which is not nested itself, it is a sequence; else it is one value.
        return types.pop() + SEQUENCE if len(types) == 1 and "tree" not in types else "tree"
    return _infer_one(value)


def _infer_one(value: Any) -> str:
    for classes, name in _TYPES:
        if isinstance(value, classes):
            return name
    return "array" if hasattr(value, "__array__") else "tree"

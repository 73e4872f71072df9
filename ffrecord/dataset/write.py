"""`write_dataset`: write a dataset from an iterable in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sized
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ffrecord.aliases import Path
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.spec import SEQUENCE
from ffrecord.dataset.writer import DatasetWriter, is_new
from ffrecord.errors import SpecError
from ffrecord.progress import bar
from ffrecord.remote.urls import is_remote, shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

# The first match counts: a bool is also an int, and some numpy scalars are Python numbers.
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
    **remote: Unpack[RemoteOptions],
) -> int:
    """Write every datapoint of an iterable, and return their number.

    Args:
        directory: The folder of the dataset, as for `DatasetWriter`.
        iterable: Dicts, all with the same fields.
        spec: The type of each field. By default, `infer_spec` derives the types of a new dataset
            from the first datapoint.
        encoders: A function for each type name, as for `DatasetWriter`.
        append: Add to an existing dataset, as for `DatasetWriter`.
        progress: Show a progress bar on stderr. By default, only if stderr is a terminal.
        remote: Options for URLs, as for `DatasetReader`.
    """
    datapoints = iter(iterable)
    is_url = is_remote(directory, remote)
    if spec is None and (is_url or not append or is_new(os.path.abspath(os.fsdecode(directory)))):
        first = next(datapoints, None)
        if first is None:
            raise SpecError(
                f"{shown(str(directory))}: there is no datapoint to infer the types from; an "
                "empty dataset needs a spec: pass spec"
            )
        spec = infer_spec(first)
        datapoints = chain([first], datapoints)
    total = len(iterable) if isinstance(iterable, Sized) else None
    drawn = bar(shown=progress, total=total, unit=" datapoints", desc="writing")
    with DatasetWriter(directory, spec, encoders, append=append, **remote) as writer, drawn:
        writer._drawn = progress
        before = len(writer)
        for datapoint in datapoints:
            writer.append(datapoint)
            drawn.update()
    return len(writer) - before


def infer_spec(datapoint: Mapping[str, Any]) -> dict[str, str]:
    """Return a spec that fits the values of a datapoint.

    Raises:
        SpecError: A list or tuple is empty, or the datapoint is not a dict.
    """
    if not isinstance(datapoint, Mapping):
        raise SpecError(f"the datapoint has type {type(datapoint).__name__}; it must be a dict")
    return {name: _infer(name, value) for name, value in datapoint.items()}


def _infer(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        if not value:
            raise SpecError(
                f"field {name!r} is empty in the first datapoint, so its type is unknown; pass spec"
            )
        types = {_infer_one(element) for element in value}
        # Elements of one simple type make a sequence. Anything else is one value, a tree.
        return types.pop() + SEQUENCE if len(types) == 1 and "tree" not in types else "tree"
    return _infer_one(value)


def _infer_one(value: Any) -> str:
    for classes, name in _TYPES:
        if isinstance(value, classes):
            return name
    return "array" if hasattr(value, "__array__") else "tree"

"""`write_dataset`: write a dataset from an iterable in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import Executor
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ffrecord.aliases import Path
from ffrecord.dataset import codecs, planned
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.sharded import SHARDLEN, ShardedDatasetWriter
from ffrecord.dataset.spec import SEQUENCE
from ffrecord.dataset.writer import DatasetWriter, encodable, is_new
from ffrecord.errors import SpecError
from ffrecord.plan.work import locate
from ffrecord.progress import bar
from ffrecord.records.dump import Indexable
from ffrecord.remote.urls import is_remote, shown
from ffrecord.text import integer, path_text

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
    iterable: Iterable[Mapping[str, Any]] | Indexable,
    spec: Mapping[str, str] | None = None,
    encoders: Mapping[str, Encoder] = codecs.encoders,
    *,
    append: bool = False,
    progress: bool | None = None,
    shardlen: int | None = None,
    executor: Executor | None = None,
    **remote: Unpack[RemoteOptions],
) -> int:
    """Write every datapoint of an iterable, and return their number.

    Args:
        directory: The folder of the dataset, as for `DatasetWriter`.
        iterable: Dicts, all with the same fields, or an object with `len()` and `[]` that returns
            them, such as a PyTorch dataset. `executor` needs the latter.
        spec: The type of each field. By default, `infer_spec` derives the types of a new dataset
            from the first datapoint.
        encoders: A function for each type name, as for `DatasetWriter`.
        append: Add to an existing dataset, as for `DatasetWriter`.
        progress: Show a progress bar on stderr. By default, only if stderr is a terminal.
        shardlen: Write shards of this many datapoints, as `ShardedDatasetWriter` does.
        executor: A `concurrent.futures.Executor` whose workers load and write the datapoints, one
            shard in each task. If they are processes, `iterable` must be picklable. The folder
            appears when all shards are complete. With a URL, each task uploads its shard, and the
            folder can be read when all of them are there. `shardlen` is 10,000 by default.
        remote: Options for URLs, as for `DatasetReader`.
    """
    is_url = is_remote(directory, remote)
    if executor is not None:
        return _write_in_tasks(
            directory, iterable, spec, encoders, append, progress, shardlen, executor, remote
        )
    datapoints = _in_order(iterable)
    if spec is None and (is_url or not append or is_new(os.path.abspath(path_text(directory)))):
        first = _first(shown(str(directory)), next(datapoints, None))
        spec = infer_spec(first)
        datapoints = chain([first], datapoints)
    total = len(iterable) if isinstance(iterable, Sized) else None
    drawn = bar(shown=progress, total=total, unit=" datapoints", desc="writing")
    new_writer: DatasetWriter | ShardedDatasetWriter
    if shardlen is None:
        new_writer = DatasetWriter(directory, spec, encoders, append=append, **remote)
        new_writer._drawn = progress
    else:
        new_writer = ShardedDatasetWriter(
            directory, spec, encoders, shardlen, append=append, **remote
        )
    with new_writer as writer, drawn:
        before = len(writer)
        for datapoint in datapoints:
            writer.append(datapoint)
            drawn.update()
    return len(writer) - before


def _in_order(rows: Iterable[Mapping[str, Any]] | Indexable) -> Iterator[Mapping[str, Any]]:
    if isinstance(rows, Iterable):
        return iter(rows)
    return (rows[row] for row in range(len(rows)))


def _write_in_tasks(
    directory: Path, rows: Any, spec: Mapping[str, str] | None, encoders: Mapping[str, Encoder],
    append: bool, progress: bool | None, shardlen: int | None, executor: Executor,
    remote: RemoteOptions,
) -> int:  # fmt: skip
    if append:
        raise ValueError("executor and append=True cannot be combined; leave one of them out")
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise TypeError(
            f"with an executor, iterable must have len() and [], but {type(rows).__name__} has "
            "not; pass a list or a dataset"
        )
    size = SHARDLEN if shardlen is None else integer(shardlen, "shardlen")
    if size < 1:
        raise ValueError(f"shardlen is {shardlen}; it must be at least 1")
    count = len(rows)
    target, remote = locate(directory, remote)
    if spec is None:
        spec = infer_spec(_first(shown(target), rows[0] if count else None))
    plan = planned.begin_plan(target, count, encodable(spec, encoders), size, remote)
    with bar(shown=progress, total=count, unit=" datapoints", desc="writing") as drawn:
        planned.write_in_tasks(plan, rows, encoders, executor, drawn.update, remote)
    return count


def _first(directory: str, datapoint: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the first datapoint; raise an error if there is none."""
    if datapoint is None:
        raise SpecError(
            f"{directory}: there is no datapoint to infer the types from; an empty dataset needs a "
            "spec: pass spec"
        )
    return datapoint


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

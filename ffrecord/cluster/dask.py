"""Records, packed folders and datasets as Dask collections, and collections written as such.

`read_records` and `read_folder` return bags of dicts, `read_dataset` a dataframe. A partition is a
contiguous run of rows of about 64 MiB, which the worker reads that needs it. The writers make one
shard of each partition. Neither way do contents pass through the client.

`pack_folder`, `write_dataset` and `convert` run their tasks on Dask's own executor:

    pack_folder("photos", "shards", shard_size="1GB", executor=client.get_executor())

Importing this module without Dask raises `MissingPackageError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ffrecord.aliases import Path
from ffrecord.errors import MissingPackageError

try:
    import dask
    import dask.bag
    import dask.dataframe
    import pandas as pd
    import pyarrow as pa
except ImportError as error:
    raise MissingPackageError(
        "ffrecord.cluster.dask needs Dask with its dataframes, which is not installed; run: "
        "pip install 'ffrecord[dask]'"
    ) from error

from ffrecord.cluster import reading, writing
from ffrecord.cluster.dataset import DatasetTask
from ffrecord.cluster.reading import ReadTask, Source
from ffrecord.cluster.writing import Receipt, Sink, WriteReport
from ffrecord.dataset import codecs
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.spec import split_type
from ffrecord.errors import ConversionError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

__all__ = [
    "read_dataset", "read_folder", "read_records", "write_dataset", "write_folder",
    "write_records",
]  # fmt: skip

Converter: TypeAlias = Callable[[Any], Any]
Columns: TypeAlias = "dict[str, Converter | None]"

ROWS = 256
"""Rows of a bag that become one Arrow table. They are copied, so they must not be many."""
PLAIN = ""
"""Type of the columns of records and folders."""
AS_THEY_ARE = (PLAIN, "int", "float", "bool", "utf8", "bytes")
"""Types whose values Arrow takes as they are. Other values are encoded for it."""
TIME = pa.timestamp("ns", "UTC")
"""Arrow would take times as microseconds, but those of pandas have nanoseconds."""

# ---- reading -----------------------------------------------------------------------------------


def read_records(
    paths: Path | Sequence[Path],
    columns: Sequence[str] | None = None,
    *,
    npartitions: int | None = None,
    **remote: Unpack[RemoteOptions],
) -> dask.bag.Bag:
    """Return the records of files as a bag of dicts with `number` and `content`.

    Args:
        paths: a path, a list of paths, a folder of `*.ffr`, or URLs, as for `FileReader`.
        columns: the keys of the dicts; all by default. Without `content`, only headers are read.
        npartitions: the number of partitions, at most; by default they have about 64 MiB each.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    return _bag(reading.records(paths, columns, **remote), npartitions)


def read_folder(
    archive: Path | Sequence[Path],
    pattern: str = "**",
    columns: Sequence[str] | None = None,
    *,
    npartitions: int | None = None,
    **remote: Unpack[RemoteOptions],
) -> dask.bag.Bag:
    """Return the files of a packed folder as a bag of dicts.

    The keys are `path`, `size`, `mode`, `mtime` and `content`.

    Args:
        archive: a file, a folder of shards, a list of shards, or URLs, as for `PackedFolder`.
        pattern: as for `PackedFolder.glob`, such as `train/**/*.jpg`.
        columns: the keys of the dicts; all by default. Without `content`, only the index is read.
        npartitions: the number of partitions, at most; by default they have about 64 MiB each.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    return _bag(reading.folder(archive, pattern, columns, **remote), npartitions)


def read_dataset(
    directory: Path,
    fields: Sequence[str] | None = None,
    *,
    npartitions: int | None = None,
    **remote: Unpack[RemoteOptions],
) -> dask.dataframe.DataFrame:
    """Return a dataset, plain or in shards, as a dataframe with a column for each field.

    The index is the number of the row. The columns have Arrow types (`pandas.ArrowDtype`). Dask
    leaves out the fields that a computation does not use, and they are not read.

    Args:
        directory: the folder of a dataset, or its URL.
        fields: the fields to read; all by default.
        npartitions: the number of partitions, at most; by default they have about 64 MiB each.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    source = reading.dataset(directory, fields, **remote)
    empty = _to_pandas(source.schema.empty_table(), 0)
    tasks = source.tasks(npartitions)
    if not tasks:
        return dask.dataframe.from_pandas(empty, npartitions=1)
    firsts = [0, *accumulate(task.rows for task in tasks)]
    last = firsts.pop() - 1
    return dask.dataframe.from_map(
        _frame, tasks, firsts, meta=empty, divisions=(*firsts, last), label="read-ffrecord"
    )


def _bag(source: Source, npartitions: int | None) -> dask.bag.Bag:
    return dask.bag.from_sequence(source.tasks(npartitions), partition_size=1).map_partitions(_rows)


def _rows(tasks: Iterable[ReadTask]) -> list[dict[str, Any]]:
    """Return the rows of a partition. It is a list, because Dask may keep it on the worker."""
    return [row for task in tasks for batch in task.batches() for row in batch.to_pylist()]


def _frame(task: DatasetTask, first: int, columns: list[str]) -> pd.DataFrame:
    """Return a partition. `columns` has no default: then Dask always says what it needs."""
    if not columns:  # only the index is needed
        return pd.DataFrame(index=pd.RangeIndex(first, first + task.rows))
    return _to_pandas(pa.Table.from_batches(task.select(columns).batches()), first)


def _to_pandas(table: pa.Table, first: int) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper=pd.ArrowDtype)
    frame.index = pd.RangeIndex(first, first + table.num_rows)
    return frame


# ---- writing -----------------------------------------------------------------------------------


def write_records(
    rows: dask.bag.Bag | dask.dataframe.DataFrame,
    target: Path,
    column: str = "content",
    **remote: Unpack[RemoteOptions],
) -> WriteReport:
    """Write a column of a collection as a folder of record files, one for each partition.

    Args:
        rows: a bag of dicts or of bytes, or a dataframe.
        target: the new folder, on a file system that all workers share, or its URL.
        column: the key or column of the contents.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    return _write(rows, writing.records_sink(target, column, **remote), {column: PLAIN})


def write_folder(
    rows: dask.bag.Bag | dask.dataframe.DataFrame,
    target: Path,
    path: str = "path",
    content: str = "content",
    mode: str | None = "mode",
    mtime: str | None = "mtime",
    **remote: Unpack[RemoteOptions],
) -> WriteReport:
    """Write a collection as a packed folder, with one shard for each partition.

    Args:
        rows: a bag of dicts, or a dataframe.
        target: the new folder of shards, on a file system that all workers share, or its URL.
        path: the key or column of the paths in the archive, each only once.
        content: the key or column of the contents.
        mode: the key or column of the permissions; files without it have mode 644.
        mtime: the key or column of the times of modification; files without it are from 1970.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    types = {name: PLAIN for name in (path, content, mode, mtime) if name is not None}
    sink = writing.folder_sink(target, path, content, mode, mtime, **remote)
    return _write(rows, sink, types)


def write_dataset(
    rows: dask.bag.Bag | dask.dataframe.DataFrame,
    target: Path,
    spec: Mapping[str, str] | None = None,
    encoders: Mapping[str, Encoder] | None = None,
    **remote: Unpack[RemoteOptions],
) -> WriteReport:
    """Write a collection as a dataset, with one shard for each partition.

    Args:
        rows: a bag of dicts, or a dataframe.
        target: the new folder, on a file system that all workers share, or its URL.
        spec: the type of each field, as for `DatasetWriter`. A bag needs it. For a dataframe, the
            types follow from those of the columns by default.
        encoders: a function for each type name, as for `DatasetWriter`. They are pickled.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    if spec is None and isinstance(rows, dask.bag.Bag):
        raise TypeError("a bag does not tell the types of its fields; pass spec")
    sink = writing.dataset_sink(target, spec, encoders, **remote)
    return _write(rows, sink, dict(spec or {}), encoders or codecs.encoders)


def _write(
    rows: Any, sink: Sink, types: dict[str, str], encoders: Mapping[str, Encoder] = codecs.encoders
) -> WriteReport:
    """Write one shard for each partition, and commit. After an error, nothing stays."""
    if not isinstance(rows, (dask.bag.Bag, dask.dataframe.DataFrame)):
        raise TypeError(
            f"cannot write a {type(rows).__name__}; pass a dask.bag.Bag or a "
            "dask.dataframe.DataFrame"
        )
    write = dask.delayed(_write_part, pure=False)
    sink = sink.begin()
    try:
        columns = {name: _converter(text, encoders) for name, text in types.items()}
        parts = enumerate(rows.to_delayed())
        receipts = dask.compute(*(write(sink, number, part, columns) for number, part in parts))
        return sink.commit(receipts)
    except BaseException:
        sink.abort()
        raise


def _converter(text: str, encoders: Mapping[str, Encoder]) -> Converter | None:
    """Return a function that makes values of a type fit for Arrow; None if they are."""
    name, is_sequence = split_type(text) if text else (PLAIN, False)
    if name in AS_THEY_ARE:
        return None
    return partial(_encoded, name, encoders[name], is_sequence)


def _encoded(name: str, encode: Encoder, is_sequence: bool, value: Any) -> Any:
    if is_sequence:
        return [_encoded(name, encode, False, each) for each in value]
    is_encoded = isinstance(value, bytes) or (name == "json" and isinstance(value, str))
    return value if is_encoded else encode(value)


def _write_part(
    sink: Sink, number: int, part: pd.DataFrame | Iterable[Any], columns: Columns
) -> Receipt:
    if isinstance(part, pd.DataFrame):
        return sink.write(number, [_table(part, sink.name)])
    return sink.write(number, _tables(part, columns, sink.name))


def _table(frame: pd.DataFrame, target: str) -> pa.Table:
    with _same_types(target, "a column"):  # Arrow's message names the column
        return pa.Table.from_pandas(frame, preserve_index=False)


def _tables(rows: Iterable[Any], columns: Columns, target: str) -> Iterator[pa.Table]:
    """Yield the rows of a bag as Arrow tables. A row that is no dict is in the first column."""
    rest, first = iter(rows), next(iter(columns))
    while some := list(islice(rest, ROWS)):
        dicts = [row if isinstance(row, Mapping) else {first: row} for row in some]
        there = [name for name in columns if any(name in row for row in dicts)]
        yield pa.table({
            name: _column(name, [row.get(name) for row in dicts], columns[name], target)
            for name in there
        })  # fmt: skip


def _column(
    name: str, values: list[Any], convert: Converter | None, target: str
) -> pa.Array | pa.ChunkedArray:
    first = next((value for value in values if value is not None), None)
    type_ = TIME if isinstance(first, datetime) else None
    with _same_types(target, repr(name)):
        return pa.array(values if convert is None else list(map(convert, values)), type_)


@contextlib.contextmanager
def _same_types(target: str, column: str) -> Iterator[None]:
    """Turn Arrow's error about the values of a column into one of ours."""
    try:
        yield
    except OverflowError as error:
        raise ConversionError(
            f"{target}: the values of {column} have an int that does not fit into Arrow's int64; "
            "write smaller ones, or write a dataset with ffrecord.write_dataset, which takes ints "
            "of any size"
        ) from error
    except pa.ArrowException as error:
        raise ConversionError(
            f"{target}: the values of {column} do not fit into one column ({error}); give all rows "
            "values of one type"
        ) from error

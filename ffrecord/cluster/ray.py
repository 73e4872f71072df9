"""Ray Data: read and write records, packed folders and datasets; and an executor over Ray's tasks.

Needs `pip install 'ffrecord[ray]'`. Readers return a `ray.data.Dataset` whose blocks are Arrow
tables. `select_columns`, and filters by expressions on `number`, `path` and `size`, reach the
files: rows and columns that they leave out are not read. Writers make one shard in each task of
Ray, and publish the target when all of them have ended. Ray repeats tasks whose node or worker was
killed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ffrecord.aliases import Path
from ffrecord.errors import MissingPackageError

try:
    import ray
    import ray.data
except ModuleNotFoundError as error:
    if error.name not in ("ray", "pyarrow", "pandas"):
        raise
    raise MissingPackageError(
        "ffrecord.cluster.ray needs Ray Data, which is not installed; run: "
        "pip install 'ffrecord[ray]'"
    ) from error

import pyarrow as pa
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask, WriteResult
from ray.data.expressions import BinaryExpr, ColumnExpr, Expr, LiteralExpr, Operation

from ffrecord.cluster import reading, writing
from ffrecord.cluster.ray_executor import RayExecutor
from ffrecord.cluster.reading import Source
from ffrecord.cluster.writing import Receipt, Sink, WriteReport
from ffrecord.dataset.codecs import Encoder

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

__all__ = [
    "RayExecutor", "read_dataset", "read_folder", "read_records", "write_dataset", "write_folder",
    "write_records",
]  # fmt: skip

TASKS_PER_CPU = 4
"""Tasks of a read, so that all processors end at about the same time."""
SMALLEST_TASK = 4 << 20
"""Smaller tasks cost Ray more time than they take."""

STUB = "__bsp_stub"
"""Ray's name of a hidden column. Blocks without columns, as `count` wants, have no rows in Ray."""


# ---- reading -------------------------------------------------------------------------------


def read_records(
    paths: Path | Sequence[Path],
    columns: Sequence[str] | None = None,
    *,
    override_num_blocks: int | None = None,
    ray_options: Mapping[str, Any] | None = None,
    **remote: Unpack[RemoteOptions],
) -> ray.data.Dataset:
    """Return the records of files as a dataset of Ray with the columns `number` and `content`.

    Args:
        paths: a path, a list of paths, a folder of `*.ffr`, or URLs, as for `FileReader`. All nodes
            must see the same files.
        columns: the columns to read; all by default.
        override_num_blocks: number of read tasks. By default they have up to 64 MiB each.
        ray_options: further arguments of `ray.data.read_datasource`, such as `num_cpus`.
        remote: options for URLs, as for `FileReader`.
    """
    source = reading.records(paths, columns, **remote)
    return _read(source, "Records", override_num_blocks, ray_options)


def read_folder(
    archive: Path | Sequence[Path],
    pattern: str = "**",
    columns: Sequence[str] | None = None,
    *,
    override_num_blocks: int | None = None,
    ray_options: Mapping[str, Any] | None = None,
    **remote: Unpack[RemoteOptions],
) -> ray.data.Dataset:
    """Return the regular files of a packed folder whose paths match a pattern.

    The columns are `path`, `size`, `mode`, `mtime` and `content`: see `reading.folder`.

    Args:
        archive: a file, a folder of shards, a list of shards, or URLs, as for `PackedFolder`.
        pattern: as for `PackedFolder.glob`.
        columns: the columns to read; all by default.
        override_num_blocks: number of read tasks. By default they have up to 64 MiB each.
        ray_options: further arguments of `ray.data.read_datasource`.
        remote: options for URLs, as for `FileReader`.
    """
    source = reading.folder(archive, pattern, columns, **remote)
    return _read(source, "Folder", override_num_blocks, ray_options)


def read_dataset(
    directory: Path,
    fields: Sequence[str] | None = None,
    *,
    override_num_blocks: int | None = None,
    ray_options: Mapping[str, Any] | None = None,
    **remote: Unpack[RemoteOptions],
) -> ray.data.Dataset:
    """Return the datapoints of a dataset, plain or in shards, with a column for each field.

    `reading.dataset` has the Arrow types of the fields.

    Args:
        directory: the folder of a dataset, or its URL.
        fields: the fields to read; all by default.
        override_num_blocks: number of read tasks. By default they have up to 64 MiB each.
        ray_options: further arguments of `ray.data.read_datasource`.
        remote: options for URLs, as for `FileReader`.
    """
    source = reading.dataset(directory, fields, **remote)
    return _read(source, "Dataset", override_num_blocks, ray_options)


def _read(
    source: Source, name: str, count: int | None, options: Mapping[str, Any] | None
) -> ray.data.Dataset:
    # Without a number, Ray would cut the blocks of a few large tasks into some 200 small ones.
    tasks = count or _task_count(source)
    return ray.data.read_datasource(
        _Source(source, name), override_num_blocks=tasks, **(options or {})
    )


def _task_count(source: Source) -> int:
    """Return the number of read tasks, for all processors of the cluster."""
    if not ray.is_initialized():
        ray.init()
    cpus = int(ray.cluster_resources().get("CPU", 1))
    by_size = len(source.tasks())  # without contents, the number of rows decides
    return max(by_size, min(TASKS_PER_CPU * cpus, source.bytes // SMALLEST_TASK), 1)


class _Source(Datasource):  # type: ignore[misc]
    """A source as Ray wants it. Ray calls the methods on the driver, more than once."""

    def __init__(self, source: Source, name: str) -> None:
        super().__init__()
        self._source = source
        self._name = name

    def get_name(self) -> str:
        return f"FFRecord{self._name}"

    def estimate_inmemory_data_size(self) -> int:
        return self._source.bytes + _overhead(self._source.rows, self._source.schema)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        schema = self._source.schema
        return [
            ReadTask(
                functools.partial(_blocks, task),
                BlockMetadata(
                    num_rows=task.rows, size_bytes=task.bytes + _overhead(task.rows, schema),
                    input_files=None, exec_stats=None,
                ),
                schema=schema, per_task_row_limit=per_task_row_limit,
            )
            for task in self._source.tasks(parallelism)
        ]  # fmt: skip

    # ---- what the files need not give ----------------------------------------------------

    def supports_projection_pushdown(self) -> bool:
        return True

    def get_projection_map(self) -> dict[str, str] | None:
        return {name: name for name in self._source.schema.names}

    def apply_projection(self, projection_map: dict[str, str] | None) -> _Source:
        if projection_map is None:
            return self
        names = [name for name in self._source.schema.names if name in projection_map]
        return _Source(self._source.select(names), self._name)

    def supports_predicate_pushdown(self) -> bool:
        return True

    def apply_predicate(self, predicate_expr: Expr) -> _Source:
        """Return a source with only the rows that meet a predicate, or this one if it cannot."""
        source: Source | None = self._source
        for part in _parts(predicate_expr):
            condition = _condition(part)
            if source is None or condition is None:
                return self
            source = source.where(*condition)
        return self if source is None else _Source(source, self._name)


def _blocks(task: reading.ReadTask) -> Iterator[pa.Table]:
    for batch in task.batches():
        table = pa.Table.from_batches([batch])
        if not table.num_columns:
            table = table.append_column(STUB, pa.nulls(batch.num_rows))
        yield table


def _overhead(rows: int, schema: pa.Schema) -> int:
    """Return about how many bytes the columns take besides their content."""
    return 8 * rows * len(schema)


_COMPARISONS = {
    Operation.EQ: "==", Operation.LT: "<", Operation.LE: "<=", Operation.GT: ">",
    Operation.GE: ">=", Operation.IN: "in",
}  # fmt: skip
_MIRRORED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _parts(expression: Expr) -> Iterator[Expr]:
    """Yield the conditions of which all must be met."""
    if isinstance(expression, BinaryExpr) and expression.op is Operation.AND:
        yield from _parts(expression.left)
        yield from _parts(expression.right)
    else:
        yield expression


def _condition(expression: Expr) -> tuple[str, str, Any] | None:
    """Return the column, the operation and the value of a condition; None for all others."""
    if not isinstance(expression, BinaryExpr) or expression.op not in _COMPARISONS:
        return None
    left, right, op = expression.left, expression.right, _COMPARISONS[expression.op]
    if isinstance(left, LiteralExpr) and op in _MIRRORED:
        left, right, op = right, left, _MIRRORED[op]
    if not (isinstance(left, ColumnExpr) and isinstance(right, LiteralExpr)):
        return None
    return left.name, op, right.value


# ---- writing -------------------------------------------------------------------------------


def write_records(
    dataset: ray.data.Dataset,
    target: Path,
    column: str = "content",
    *,
    ray_options: Mapping[str, Any] | None = None,
    **remote: Unpack[RemoteOptions],
) -> WriteReport:
    """Write a column of a dataset of Ray as records: see `writing.records_sink`.

    Args:
        dataset: the dataset of Ray.
        target: the new folder, which all nodes must see, or its URL.
        column: the column of the records: binary or string, without nulls.
        ray_options: further arguments of `Dataset.write_datasink`, such as `concurrency`.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    return _write(dataset, writing.records_sink(target, column, **remote), ray_options)


def write_folder(
    dataset: ray.data.Dataset,
    target: Path,
    path: str = "path",
    content: str = "content",
    mode: str | None = "mode",
    mtime: str | None = "mtime",
    *,
    ray_options: Mapping[str, Any] | None = None,
    **remote: Unpack[RemoteOptions],
) -> WriteReport:
    """Write a dataset of Ray as a packed folder in shards: see `writing.folder_sink`.

    Args:
        dataset: the dataset of Ray.
        target: the new folder of shards, which all nodes must see, or its URL.
        path: the column of the paths, each only once.
        content: the column of the contents.
        mode: the column of the permissions, if there is one.
        mtime: the column of the times of modification, if there is one.
        ray_options: further arguments of `Dataset.write_datasink`, such as `concurrency`.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    sink = writing.folder_sink(target, path, content, mode, mtime, **remote)
    return _write(dataset, sink, ray_options)


def write_dataset(
    dataset: ray.data.Dataset,
    target: Path,
    spec: Mapping[str, str] | None = None,
    encoders: Mapping[str, Encoder] | None = None,
    *,
    ray_options: Mapping[str, Any] | None = None,
    **remote: Unpack[RemoteOptions],
) -> WriteReport:
    """Write a dataset of Ray as a dataset with typed fields, in shards: see `writing.dataset_sink`.

    Args:
        dataset: the dataset of Ray.
        target: the new folder, which all nodes must see, or its URL.
        spec: the type of each field. By default the types follow from those of the columns.
        encoders: a function for each type name, as for `DatasetWriter`.
        ray_options: further arguments of `Dataset.write_datasink`, such as `concurrency`.
        remote: options for URLs, as for `FileReader`. They are sent to the workers.
    """
    return _write(dataset, writing.dataset_sink(target, spec, encoders, **remote), ray_options)


def _write(dataset: ray.data.Dataset, sink: Sink, options: Mapping[str, Any] | None) -> WriteReport:
    # Begun before anything is computed, so that a target that exists is refused now.
    datasink = _Sink(sink.begin())
    try:
        dataset.write_datasink(datasink, **(options or {}))
    except BaseException:  # Ray does not tell a sink about an interrupt
        datasink.sink.abort()
        raise
    assert datasink.report is not None
    return datasink.report


class _Sink(Datasink[Receipt]):  # type: ignore[misc]
    """A sink as Ray wants it. A copy of it is on each worker."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.report: WriteReport | None = None

    def get_name(self) -> str:
        return "FFRecord"

    def write(self, blocks: Iterable[Block], ctx: Any) -> Receipt:
        return self.sink.write(ctx.task_idx, map(_as_arrow, blocks))

    def on_write_complete(self, write_result: WriteResult[Receipt]) -> None:
        self.report = self.sink.commit(write_result.write_returns)


def _as_arrow(block: Block) -> pa.Table:
    return BlockAccessor.for_block(block).to_arrow()

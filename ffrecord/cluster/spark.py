"""Spark 4: record files, packed folders and datasets as a data source, and an executor.

    register(session)
    frame = session.read.format("ffrecord").load("photos.ffr")
    frame.write.format("ffrecord").mode("append").save("copy")
    pack_folder("photos", "shards", shard_size="1GB", executor=SparkExecutor(session))

Spark plans a query in Python processes of the driver. They pickle the reader or writer and send it
on, so it holds only small values. The processes of the executors open the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ffrecord.errors import MissingPackageError

try:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import datasource
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
    from pyspark.sql.types import StructType
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("pyarrow", "pyspark"):
        raise
    raise MissingPackageError(
        "ffrecord.cluster.spark needs PySpark 4 and PyArrow, which are not installed; run: "
        "pip install 'ffrecord[spark]'"
    ) from error

from ffrecord.archive.detect import open_if_packed
from ffrecord.cluster import reading, writing
from ffrecord.cluster.dataset_sink import inferred
from ffrecord.cluster.fields import TYPE_KEY
from ffrecord.cluster.spark_executor import SparkExecutor
from ffrecord.dataset import folders
from ffrecord.plan.work import Receipt
from ffrecord.records.reader import FileReader
from ffrecord.remote.urls import is_url, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ffrecord.remote.options import RemoteOptions

__all__ = ["FFRecordDataSource", "SparkExecutor", "register"]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
CAN_PUSH = hasattr(datasource.DataSourceReader, "pushFilters")  # PySpark 4.1 and newer


def register(session: SparkSession) -> None:
    """Make the format `ffrecord` known to a session, and let Spark push filters down to it.

    The filters need PySpark 4.1. This function sets the session's
    `spark.sql.python.filterPushdown.enabled`, which must then stay on.
    """
    session.dataSource.register(_PushingDataSource if CAN_PUSH else FFRecordDataSource)
    if CAN_PUSH:
        session.conf.set(PUSHDOWN, "true")


class FFRecordDataSource(datasource.DataSource):  # type: ignore[misc]
    """The format `ffrecord` of a Spark session: `spark.dataSource.register(FFRecordDataSource)`.

    Spark itself evaluates all filters. With `register(spark)`, the source evaluates those that it
    can, and does not read the other rows.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return "ffrecord"

    def schema(self) -> StructType:
        return _spark_schema(_source(self.options).schema)

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        return _Reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceWriter:
        return _Writer(_begun(_sink(self.options, schema)))


class _PushingDataSource(FFRecordDataSource):
    """The same with filters. Spark refuses such a reader if the session has turned them off."""

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        return _PushingReader(self.options, schema)


# ---- reading -----------------------------------------------------------------------------------


class _Reader(datasource.DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        source = _source(options)
        _require_types(schema, _spark_schema(source.schema))
        self._source = source.select(schema.names)
        self._schema = schema
        self._count = _checked(options, READING).get("partitions")

    def partitions(self) -> Sequence[datasource.InputPartition]:
        return [datasource.InputPartition(task) for task in self._source.tasks(self._count)]

    def read(self, partition: datasource.InputPartition | None) -> Iterator[pa.RecordBatch]:
        # If there are no rows to read, Spark makes one partition; Spark 4.0 passes None.
        if partition is None or partition.value is None:
            return
        schema = _arrow_schema(self._schema)
        for batch in partition.value.batches():
            yield _as_spark(batch, schema)


def _as_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the types of Spark: its times have microseconds."""
    columns = (
        column if column.type == field.type else column.cast(field.type, safe=False)
        for column, field in zip(batch.columns, schema, strict=True)
    )
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)


class _PushingReader(_Reader):
    def pushFilters(  # noqa: N802 - Spark's name
        self, filters: list[datasource.Filter]
    ) -> Iterable[datasource.Filter]:
        """Keep the filters that the source can evaluate; return the others to Spark."""
        for each in filters:
            found = self._where(each)
            if found is None:
                yield each
            else:
                self._source = found

    def _where(self, given: Any) -> reading.Source | None:
        op = OPERATORS.get(type(given).__name__)
        if op is None or len(given.attribute) != 1 or given.value is None:
            return None
        return self._source.where(given.attribute[0], op, given.value)


OPERATORS = {
    "EqualTo": "==", "EqualNullSafe": "==", "LessThan": "<", "LessThanOrEqual": "<=",
    "GreaterThan": ">", "GreaterThanOrEqual": ">=", "In": "in", "StringStartsWith": "startswith",
}  # fmt: skip
"""Names of Spark's classes of filters, and the operators of `Source.where`."""


def _spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema for Spark. The columns of datasets keep the types of their fields."""
    spark = from_arrow_schema(schema)
    for field, column in zip(spark.fields, schema, strict=True):
        if column.metadata and TYPE_KEY in column.metadata:
            field.metadata = {TYPE_KEY.decode(): column.metadata[TYPE_KEY].decode()}
    return spark


_UTC: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
"""The zone of times between Spark and Python. Older versions have no argument for it."""


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of the batches that Spark takes and gives."""
    columns = [
        column.with_metadata({TYPE_KEY: field.metadata[TYPE_KEY.decode()]})
        if TYPE_KEY.decode() in field.metadata
        else column
        for field, column in zip(schema.fields, to_arrow_schema(schema, **_UTC), strict=True)
    ]
    return pa.schema(columns)


def _require_types(asked: StructType, there: StructType) -> None:
    """Raise an error if a schema of the user has other columns or types than the source."""
    known = {field.name: field.dataType for field in there.fields}
    for field in asked.fields:
        if field.name not in known:
            raise ValueError(f"there is no column {field.name!r}; there are {', '.join(known)}")
        if field.dataType != known[field.name]:
            raise ValueError(
                f"the column {field.name!r} is {known[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}; read it as it is, then cast it"
            )


# ---- writing -----------------------------------------------------------------------------------


@dataclass
class _Written(datasource.WriterCommitMessage):  # type: ignore[misc]
    receipt: Receipt


class _Writer(datasource.DataSourceArrowWriter):  # type: ignore[misc]
    """One shard for each partition that has rows, in the order of the partitions."""

    def __init__(self, sink: writing.Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> datasource.WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None  # only a task calls this
        return _Written(self._sink.write(context.partitionId(), iterator))

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        self._sink.commit(cast(_Written, each).receipt for each in messages)

    def abort(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        self._sink.abort()


# ---- options -----------------------------------------------------------------------------------

KINDS = ("records", "folder", "dataset")
STORED = {
    "records": ("number", "content"),
    "folder": ("path", "size", "mode", "mtime", "content"),
}
"""Columns of each kind as they are read. Numbers and sizes follow from the contents."""

Convert: TypeAlias = Callable[[str], Any]


def _list_of_paths(text: str) -> list[str]:
    paths = json.loads(text)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise ValueError('pass a JSON list of paths, such as ["a.ffr", "b.ffr"]')
    return paths


def _json_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError('pass a JSON object, such as {"key": "value"}')
    return found


REMOTE: dict[str, Convert] = {
    "storage_options": _json_object,
    "requests": int,
    "deadline": float,
    "cache": lambda text: False if text.lower() == "false" else text,
    "cache_size": str,
}
READING: dict[str, Convert] = {
    "path": str, "paths": _list_of_paths, "format": str, "pattern": str, "partitions": int,
    "columns": lambda text: [name.strip() for name in text.split(",")], **REMOTE,
}  # fmt: skip
WRITING: dict[str, Convert] = {"path": str, "format": str, "spec": _json_object, **REMOTE}


def _checked(given: Mapping[str, str], known: Mapping[str, Convert]) -> dict[str, Any]:
    """Return the values of options, which Spark passes as strings."""
    values = {}
    for name, text in given.items():
        name = name.lower()
        if name not in known:
            raise ValueError(
                f"ffrecord has no option {name!r} here; there are {', '.join(sorted(known))}"
            )
        try:
            values[name] = known[name](text)
        except ValueError as error:
            raise ValueError(f"the option {name!r} cannot be {text!r}: {error}") from error
    if values.get("format", KINDS[0]) not in KINDS:
        raise ValueError(
            f"the option 'format' is {values['format']!r}; choose one of {', '.join(KINDS)}"
        )
    return values


def _source(given: Mapping[str, str]) -> reading.Source:
    """Return the source that the options of `spark.read` ask for."""
    asked = _checked(given, READING)
    paths = [_local(each) for each in asked.get("paths", []) or [_path_of(asked)]]
    path = paths[0] if len(paths) == 1 else paths
    remote = _remote(asked)
    kind, columns = asked.get("format") or _kind_of(path, remote), asked.get("columns")
    if "pattern" in asked and kind != "folder":
        raise ValueError(f"{shown(paths[0])}: pattern is for packed folders; remove this option")
    if kind == "records":
        return reading.records(path, columns, **remote)
    if kind == "folder":
        return reading.folder(path, asked.get("pattern", "**"), columns, **remote)
    if len(paths) > 1:
        raise ValueError(f"{shown(paths[0])}: load one dataset, and unite the DataFrames")
    return reading.dataset(paths[0], columns, **remote)


def _kind_of(path: str | list[str], remote: RemoteOptions) -> str:
    """Return what a path is, as `ffrecord info` does."""
    parts = folders.parts(path, remote) if isinstance(path, str) else []
    if parts and all(folders.is_dataset(each, remote) for each in parts):
        return "dataset"
    with FileReader(path, **remote) as reader:
        return "records" if open_if_packed(reader, 'set the option "format"') is None else "folder"


def _begun(sink: writing.Sink) -> writing.Sink:
    """Make the work folder of a sink.

    Spark leaves only these two modes to Python sources. A folder of shards cannot get more of them
    in one step, and no writer of this library replaces a folder. So both need a new path.
    """
    try:
        return sink.begin()
    except FileExistsError as error:
        message = (
            "already exists. The modes append and overwrite both need a path that does not exist, "
            "because a folder of shards is written once; choose another path"
        )
        raise FileExistsError(error.errno, message, error.filename) from error


def _sink(given: Mapping[str, str], schema: StructType) -> writing.Sink:
    """Return the sink that the options of `df.write` ask for."""
    asked = _checked(given, WRITING)
    path, names, remote = _local(_path_of(asked)), set(schema.names), _remote(asked)
    kind = asked.get("format") or _kind_for(names)
    if "spec" in asked and kind != "dataset":
        raise ValueError(f"{shown(path)}: spec is for datasets; remove this option")
    if kind == "dataset":
        spec = asked.get("spec") or inferred(_arrow_schema(schema), shown(path))
        return writing.dataset_sink(path, spec, **remote)
    if lost := sorted(names.difference(STORED[kind])):
        raise ValueError(
            f"{shown(path)}: a target of the format {kind!r} has no place for the columns "
            f'{", ".join(lost)}; drop them, or set the option "format" to "dataset"'
        )
    if kind == "records":
        return writing.records_sink(path, **remote)
    return writing.folder_sink(path, **remote)


def _kind_for(names: set[str]) -> str:
    """Return the format for columns: that of a source with these columns, else a dataset."""
    if {"path", "content"} <= names:
        return "folder"
    return "records" if "content" in names and names <= set(STORED["records"]) else "dataset"


def _remote(asked: Mapping[str, Any]) -> RemoteOptions:
    return cast("RemoteOptions", {name: asked[name] for name in REMOTE if name in asked})


def _path_of(asked: Mapping[str, Any]) -> str:
    if not asked.get("path"):
        raise ValueError("no path was given; pass one to load() or save()")
    return cast(str, asked["path"])


def _local(path: str) -> str:
    """Return a path that is valid in any folder. Spark's users write local paths as URLs, too."""
    if path.startswith("file:"):
        path = "/" + path[len("file:") :].lstrip("/")
    return path if is_url(path) else os.path.abspath(path)

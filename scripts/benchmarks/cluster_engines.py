"""The contestants of `cluster` that read: one engine, one form of the data.

All compute the number of rows and the sum of their lengths, on the workers. So every byte reaches
the engine's own memory, and none the driver.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .cluster_data import COLUMN, Files

CORES = 2
OURS_RECORDS = "ours, records"
OURS_ARCHIVE = "ours, archive"
WEBDATASET = "read_webdataset"
BINARY_FILES = "read_binary_files"
BINARY_FILE = "binaryFile"
PARQUET = "Parquet"

Counted = tuple[int, int]
"""Rows, and the bytes of their contents."""


class Engine(ABC):
    """A running engine with two workers."""

    contestants: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read(self, contestant: str, files: Files) -> Counted:
        """Read all rows of a contestant's files."""

    @abstractmethod
    def stop(self) -> None:
        """End the engine's processes."""


class Ray(Engine):
    """Ray Data on this machine, with two workers of one core each."""

    contestants = (OURS_RECORDS, OURS_ARCHIVE, WEBDATASET, BINARY_FILES, PARQUET)

    def __init__(self) -> None:
        import ray

        ray.init(
            "local", num_cpus=CORES, include_dashboard=False, log_to_driver=False,
            logging_level="error", _node_ip_address="127.0.0.1",
        )  # fmt: skip
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False

    def read(self, contestant: str, files: Files) -> Counted:
        open_it, column = _RAY[contestant]
        counted = open_it(files).map_batches(
            _measured, batch_size=None, batch_format="pyarrow", fn_kwargs={"column": column}
        )
        batches = list(counted.iter_batches(batch_size=None, batch_format="pyarrow"))
        return _sum(batches, "rows"), _sum(batches, "bytes")

    def stop(self) -> None:
        import ray

        ray.shutdown()


def _measured(block: Any, column: str) -> Any:
    """Replace a block of rows by their number and the sum of their lengths."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.sum(pc.binary_length(block[column])).as_py() or 0
    return pa.table({"rows": [block.num_rows], "bytes": [lengths]})


def _sum(batches: list[Any], column: str) -> int:
    return sum(sum(batch[column].to_pylist()) for batch in batches)


def _ray_records(files: Files) -> Any:
    from ffrecord.cluster.ray import read_records

    return read_records(str(files.records))


def _ray_archive(files: Files) -> Any:
    from ffrecord.cluster.ray import read_folder

    return read_folder(str(files.archive))


def _ray_webdataset(files: Files) -> Any:
    import ray.data

    # Without a decoder, which would only look at the names of these files.
    return ray.data.read_webdataset(str(files.tars), decoder=False)


def _ray_binary_files(files: Files) -> Any:
    import ray.data

    return ray.data.read_binary_files(str(files.plain))


def _ray_parquet(files: Files) -> Any:
    import ray.data

    return ray.data.read_parquet(str(files.parquet))


_RAY: Mapping[str, tuple[Callable[[Files], Any], str]] = {
    OURS_RECORDS: (_ray_records, COLUMN),
    OURS_ARCHIVE: (_ray_archive, COLUMN),
    WEBDATASET: (_ray_webdataset, "bin"),
    BINARY_FILES: (_ray_binary_files, "bytes"),
    PARQUET: (_ray_parquet, COLUMN),
}


class Spark(Engine):
    """Spark in one Java process, with two threads that run tasks."""

    contestants = (OURS_RECORDS, OURS_ARCHIVE, BINARY_FILE, PARQUET)

    def __init__(self) -> None:
        os.environ.update(
            SPARK_LOCAL_IP="127.0.0.1", SPARK_LOCAL_HOSTNAME="localhost",
            PYSPARK_PYTHON=sys.executable,
        )  # fmt: skip
        from pyspark.sql import SparkSession

        from ffrecord.cluster import spark

        builder: Any = SparkSession.builder
        self._session = (
            builder.master(f"local[{CORES}]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        spark.register(self._session)

    def read(self, contestant: str, files: Files) -> Counted:
        frame = self._frame(contestant, files)
        (row,) = frame.selectExpr("count(1)", f"sum(length({COLUMN}))").collect()
        return row[0], row[1]

    def _frame(self, contestant: str, files: Files) -> Any:
        read = self._session.read
        if contestant == PARQUET:
            return read.parquet(str(files.parquet))
        if contestant == BINARY_FILE:
            return (
                read.format("binaryFile")
                .option("recursiveFileLookup", "true")
                .load(str(files.plain))
            )
        path = files.records if contestant == OURS_RECORDS else files.archive
        return read.format("ffrecord").load(str(path))

    def stop(self) -> None:
        self._session.stop()


ENGINES: Mapping[str, type[Engine]] = {"Ray": Ray, "Spark": Spark}

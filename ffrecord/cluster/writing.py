"""Sinks: what the workers of a cluster write, one shard in each task, and one commit.

A sink is a picklable value. The driver calls `begin`, sends the returned sink to the workers,
collects the receipts that `write` returns there, and passes them to `commit`. Rows never pass
through the driver.

A task may be killed, repeated, or run twice at once: each attempt writes a shard under its own name
in the hidden work folder beside the target (see `ffrecord.plan.work`). The receipts that the
engine hands to `commit` say which attempts count. The target appears when it is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ffrecord.aliases import Path
from ffrecord.plan.work import Receipt

Batches: TypeAlias = "Iterable[pa.Table | pa.RecordBatch]"


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a commit has published."""

    target: str
    shards: int
    rows: int
    bytes: int
    """Size of the shards' files."""


class Sink(ABC):
    """A target to write. Begin it on the driver, write on workers, and commit on the driver."""

    target: str

    @abstractmethod
    def begin(self) -> Sink:
        """Make the work folder; return the sink for the workers.

        Raises:
            FileExistsError: the target exists. Nothing is ever overwritten.
        """

    @abstractmethod
    def write(self, task: int, batches: Batches) -> Receipt:
        """Write the rows of a task as a shard, on a worker; return its receipt.

        `task` is a number of 0 or more that differs for every task. Shards are in the order of
        these numbers. A task without rows writes nothing. If the rows raise an error, nothing
        stays.
        """

    @abstractmethod
    def commit(self, receipts: Iterable[Receipt]) -> WriteReport:
        """Publish the shards of these receipts, one for each task. May be repeated."""

    @abstractmethod
    def abort(self) -> None:
        """Remove the work folder with all attempts. Does nothing after a commit."""


def records_sink(target: Path, column: str = "content") -> Sink:
    """Return a sink for a folder of record files, `PART_00000.ffr` and so on.

    Args:
        target: the new folder.
        column: the column of the records: binary or string, without nulls.
    """
    raise NotImplementedError


def folder_sink(
    target: Path,
    path: str = "path",
    content: str = "content",
    mode: str | None = "mode",
    mtime: str | None = "mtime",
) -> Sink:
    """Return a sink for a packed folder, in shards.

    Args:
        target: the new folder of shards.
        path: the column of the paths in the archive: strings such as "train/1.jpg", each only once.
        content: the column of the contents: binary or string, without nulls.
        mode: the column of the permissions, an integer. If there is no such column, or for a null,
            files have mode 644.
        mtime: the column of the times of modification, a timestamp (UTC if it has no zone). If
            there is no such column, or for a null, the time is 1970.
    """
    raise NotImplementedError


def dataset_sink(target: Path, spec: Mapping[str, str] | None = None) -> Sink:
    """Return a sink for a dataset in shards.

    Args:
        target: the new folder.
        spec: the type of each field, as for `DatasetWriter`. By default the types follow from the
            Arrow types of the columns. Only the columns in `spec` are written.
    """
    raise NotImplementedError

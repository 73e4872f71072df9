"""Sources: what the workers of a cluster read, cut into tasks that return Arrow batches.

`records`, `folder` and `dataset` describe what there is to read. A source and its tasks are small
picklable values without open files. A worker opens the files that its task needs, and compares them
with the facts that the source has seen: a file that was replaced since raises ChangedError.

Every returned byte is verified. The records of a batch are one contiguous range of a file wherever
that is possible: they are read as one block, and the Arrow arrays use the memory of that block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ffrecord.aliases import Path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

TASK_BYTES = 64 << 20
"""Size of a task, unless the caller says how many there are to be."""


class ReadTask(ABC):
    """The rows of one task: a contiguous run. A small picklable value."""

    rows: int
    bytes: int
    """Bytes to read from disk."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in large batches, in order, while the next batch is read."""


class Source(ABC):
    """Rows to read, with the columns `schema`. A picklable value; all methods return new values."""

    schema: pa.Schema
    """The selected columns."""
    rows: int
    bytes: int
    """Bytes of the selected columns on disk."""

    @abstractmethod
    def select(self, columns: Sequence[str]) -> Source:
        """Return the same rows with these columns only. The content of others is never read."""

    @abstractmethod
    def where(self, column: str, op: str, value: Any) -> Source | None:
        """Return the rows that meet a condition; None if only the engine can decide it.

        Args:
            column: a column of the whole source, selected or not.
            op: `==`, `<`, `<=`, `>`, `>=`, `in` (`value` is a collection) or `startswith`.
            value: what to compare with.
        """

    @abstractmethod
    def tasks(self, count: int | None = None) -> list[ReadTask]:
        """Return tasks that together have all rows in order, about equal in bytes.

        At most `count` tasks; by default, as many as have 64 MiB each. No task is empty.
        """


def records(
    paths: Path | Sequence[Path],
    columns: Sequence[str] | None = None,
    **remote: Unpack[RemoteOptions],
) -> Source:
    """Return the records of files: columns `number` (int64) and `content` (binary).

    Args:
        paths: a path, a list of paths, a folder of `*.ffr`, or URLs, as for `FileReader`.
        columns: the columns to read; all by default.
        remote: options for URLs, as for `FileReader`. They are pickled with the tasks.
    """
    raise NotImplementedError


def folder(
    archive: Path | Sequence[Path],
    pattern: str = "**",
    columns: Sequence[str] | None = None,
    **remote: Unpack[RemoteOptions],
) -> Source:
    """Return the regular files of a packed folder whose paths match a pattern.

    The columns are `path` (string), `size` (int64), `mode` (int32), `mtime` (timestamp in
    nanoseconds, UTC) and `content` (binary). Rows are in the order of the archive. Symlinks are left
    out, as in the iteration over a `PackedFolder`; hard links of a file are a row each.

    Args:
        archive: a file, a folder of shards, a list of shards, or URLs, as for `PackedFolder`.
        pattern: as for `PackedFolder.glob`: `**` matches any number of folders.
        columns: the columns to read; all by default.
        remote: options for URLs, as for `FileReader`.
    """
    raise NotImplementedError


def dataset(
    directory: Path, fields: Sequence[str] | None = None, **remote: Unpack[RemoteOptions]
) -> Source:
    """Return the datapoints of a dataset, plain or in shards, with a column for each field.

    `int`, `float`, `bool`, `utf8` and `bytes` are int64, double, bool, string and binary; `json` is
    a string. All other types are binary, with the bytes that the type's decoder takes. Sequences
    are lists. Compressed values are decompressed. A column's metadata has the type of the field.

    Args:
        directory: the folder of a dataset, or its URL.
        fields: the fields to read; all by default.
        remote: options for URLs, as for `FileReader`.
    """
    raise NotImplementedError

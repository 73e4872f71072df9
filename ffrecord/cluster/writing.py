"""Sinks: what the workers of a cluster write, one shard in each task, and one commit.

A sink is a picklable value. The driver calls `begin`, sends the returned sink to the workers,
collects the receipts that `write` returns there, and passes them to `commit`. Rows never pass
through the driver.

A task may be killed, repeated, or run twice at once: each attempt writes a shard under its own name
in the hidden work folder beside the target (see `ffrecord.plan.work`). The receipts that the
engine hands to `commit` say which attempts count. The target appears when it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping

from ffrecord.aliases import Path
from ffrecord.archive.names import absolute
from ffrecord.cluster.columns import Batches
from ffrecord.cluster.dataset_sink import DatasetSink
from ffrecord.cluster.folder_sink import FolderSink
from ffrecord.cluster.records_sink import RecordsSink
from ffrecord.cluster.sink import Sink, WriteReport
from ffrecord.dataset.codecs import Encoder
from ffrecord.plan.work import Receipt

__all__ = [
    "Batches",
    "Receipt",
    "Sink",
    "WriteReport",
    "dataset_sink",
    "folder_sink",
    "records_sink",
]


def records_sink(target: Path, column: str = "content") -> Sink:
    """Return a sink for a folder of record files, `PART_00000.ffr` and so on.

    Args:
        target: the new folder.
        column: the column of the records: binary or string, without nulls.
    """
    return RecordsSink(absolute(target), column=column)


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
    return FolderSink(absolute(target), path=path, content=content, mode=mode, mtime=mtime)


def dataset_sink(
    target: Path,
    spec: Mapping[str, str] | None = None,
    encoders: Mapping[str, Encoder] | None = None,
) -> Sink:
    """Return a sink for a dataset in shards.

    Args:
        target: the new folder.
        spec: the type of each field, as for `DatasetWriter`. By default the types follow from the
            Arrow types of the columns. Only the columns in `spec` are written.
        encoders: a function for each type name, as for `DatasetWriter`. They are pickled.
    """
    return DatasetSink(absolute(target), spec=spec, encoders=encoders)

"""Sources: what the workers of a cluster read, cut into tasks that return Arrow batches.

`records`, `folder` and `dataset` describe what there is to read. A source and its tasks are small
picklable values without open files. A worker opens the files that its task needs, and compares them
with the facts that the source has seen: a file that was replaced since raises ChangedError.

Every returned byte is verified. The records of a batch are one contiguous range of a file wherever
that is possible: they are read as one block, and the Arrow arrays use the memory of that block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ffrecord.aliases import Path
from ffrecord.cluster.dataset import DatasetSource
from ffrecord.cluster.files import record_files
from ffrecord.cluster.folder import EVERYTHING, FolderSource
from ffrecord.cluster.records import RecordsSource
from ffrecord.cluster.source import ReadTask, Source
from ffrecord.records.reader import FileReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

__all__ = ["ReadTask", "Source", "dataset", "folder", "records"]


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
    with FileReader(paths, **remote) as reader:
        files = tuple(record_files(reader))
        source: Source = RecordsSource(reader.fnames[0], files, 0, reader.n)
    return source if columns is None else source.select(columns)


def folder(
    archive: Path | Sequence[Path],
    pattern: str = EVERYTHING,
    columns: Sequence[str] | None = None,
    **remote: Unpack[RemoteOptions],
) -> Source:
    """Return the regular files of a packed folder whose paths match a pattern.

    The columns are `path` (string), `size` (int64), `mode` (int32), `mtime` (timestamp in
    nanoseconds, UTC) and `content` (binary). `mode` has the permissions only. Rows are in the order
    of the archive. Symlinks are left out, as in the iteration over a `PackedFolder`. Each hard link
    of a file is a row.

    Args:
        archive: a file, a folder of shards, a list of shards, or URLs, as for `PackedFolder`.
        pattern: as for `PackedFolder.glob`: `**` matches any number of folders.
        columns: the columns to read; all by default.
        remote: options for URLs, as for `FileReader`.
    """
    source = FolderSource.of(archive, pattern, dict(remote))
    return source if columns is None else source.select(columns)


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
    source = DatasetSource.of(directory, remote)
    return source if fields is None else source.select(fields)

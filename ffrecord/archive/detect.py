"""Decide whether record files are a packed folder or plain records.

The last record of a packed folder is its index. A plain record can resemble an index: it can begin
with the magic of the original's index, or end with the magic of ours. `convert`, `ffrecord info`
and `ffrecord verify` accept both kinds of file, so all three decide with `open_if_packed`.
"""

from __future__ import annotations

import numpy as np

from ffrecord.archive.archive import Archive
from ffrecord.archive.index import legacy
from ffrecord.disk.source import Recheck
from ffrecord.errors import (
    FFRecordError,
    IndexChecksumError,
    IndexStructureError,
    NotPackedFolderError,
    SampleChecksumError,
)
from ffrecord.format import index as index_layout
from ffrecord.records.reader import FileReader, table_of
from ffrecord.text import Advised, for_shell


def open_if_packed(reader: FileReader, advice: str) -> Archive | None:
    """Open the reader's files as a packed folder; return None if they are plain records.

    Args:
        reader: the reader of the files. It must verify checksums (`check_data=True`).
        advice: the next step for a user whose file contains plain records. It is added to the
            message if the last record can be either a damaged index or a plain record.

    Raises:
        IndexStructureError: The last record is a wrong index, or may be one.
        IndexChecksumError: The last record is a damaged index, or may be one.
        SampleChecksumError: The last record begins like the original's index and is damaged.
    """
    try:
        return Archive(reader)
    except NotPackedFolderError:
        return None
    except (IndexStructureError, IndexChecksumError) as error:
        if not _last_is_intact(reader) or _image_is_intact(reader):
            raise
        if _only_begins_like_an_index(reader):
            return None
        raise type(error)(_with_advice(error, advice)) from error


def _last_is_intact(reader: FileReader) -> bool:
    """Return True if the last record matches its checksum, so that it is as it was written."""
    try:
        for _ in reader.stream(reader.n - 1):
            pass
    except SampleChecksumError:
        return False
    return True


def _image_is_intact(reader: FileReader) -> bool:
    """Return True if the last record ends with our index, and the index matches its checksum.

    Such a record is an index for certain. Its error has another reason, for example a missing
    shard.
    """
    table, record = table_of(reader), reader.n - 1
    size = reader.record_size(record)
    end = np.empty(min(size, index_layout.TRAILER.size), np.uint8)
    table.read_unchecked(record, size - len(end), end)
    try:
        trailer = index_layout.parse_trailer(reader.fnames[-1], end.tobytes(), size)
    except IndexStructureError:
        return False
    if trailer is None:
        return False
    file, start = table.locate(record)
    stop = start + size - len(end)
    computed = Recheck(table.require_open()[file]).checksum(stop - trailer.length, stop)
    return computed == trailer.crc


def _only_begins_like_an_index(reader: FileReader) -> bool:
    """Return True if the last record begins like the original's index, but no index follows.

    The caller has checked that the record is intact, so damage is not the reason. Two cases cannot
    be decided and return False: a record that ends like our index, perhaps of a later version, and
    a record that is too long to be parsed in memory.
    """
    number = reader.n - 1
    if reader.record_size(number) > legacy.most_bytes(number):
        return False
    record = reader.read_one(number).tobytes()
    if record.endswith(index_layout.MAGIC):
        return False
    magic = len(index_layout.LEGACY_MAGIC)
    try:
        legacy.parse(reader.fnames[-1], record, magic, legacy.most_entries(number))
    except IndexStructureError:
        return True
    return False


def _with_advice(error: FFRecordError, advice: str) -> Advised:
    """Return the message of an index error, followed by the advice, for Python and for a shell."""
    between = "; the file is treated as a damaged packed folder; if it contains plain records, "
    return Advised(
        "", f"{error}{between}{advice}", f"{for_shell(error)}{between}{for_shell(advice)}"
    )

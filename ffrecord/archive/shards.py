"""The files of one archive: its shards compared with what its index says of them.

The last file, sorted by name, is the one with the index. Errors say which file is in the way or
missing and, if some of the files are archives by themselves, which those are.
"""

from __future__ import annotations

import os

from ffrecord.archive.index.build import Tree
from ffrecord.archive.index.check import WaitFor
from ffrecord.archive.names import to_text
from ffrecord.errors import IndexStructureError
from ffrecord.format import index as index_layout
from ffrecord.records.reader import FileReader, table_of
from ffrecord.text import Advised

MOST_CLAIMED = 1 << 17
"""More shards than a process may have open files. One that is missing is named, so all are looked
at."""

SHOWN = 3  # archives, of those that could be meant


def compare(reader: FileReader, tables: index_layout.Image, wait_for: WaitFor) -> None:
    """Raise IndexStructureError unless the files before the last are the shards that its index
    names, in that order: others in their place are found here, not as wrong data."""
    path = reader.fnames[-1]
    if len(tables.shards) > MOST_CLAIMED:
        raise IndexStructureError(
            f"{path}: its index claims {len(tables.shards)} shards; the most is {MOST_CLAIMED}"
        )
    wait_for("large", None)
    found = [
        (os.fsencode(os.path.basename(name)), len(reader.get_checksums(file)),
         reader.header_crc(file))
        for file, name in enumerate(reader.fnames[:-1])
    ]  # fmt: skip
    due = [
        (tables.texts[text : text + min(length, index_layout.LONGEST_NAME)].tobytes(), records, crc)
        for records, text, length, crc in tables.shards.tolist()
    ]
    if found == due:
        return
    if not due:
        raise IndexStructureError(no_archive(reader))
    names = [name for name, *_ in found]
    for shard in due:
        if shard not in found:
            what = "another file than the one" if shard[0] in names else "missing, a shard"
            name = to_text(shard[0])
            raise IndexStructureError(f"{path}: {name} is {what} that it was packed with")
    for shard in found:
        if shard not in due:
            raise IndexStructureError(_beside(path, os.fsdecode(shard[0])))
    raise IndexStructureError(f"{path}: its shards are not in the order of the packing")


def names_own_records(reader: FileReader, tree: Tree) -> bool:
    """Whether an index of the original's, which knows no shards, is that of its own file alone.
    If there are files before it, their records are not what its names mean."""
    if len(reader.fnames) == 1:
        return False
    own = len(reader.get_checksums(-1)) - 1
    files = filter(tree.is_file, range(len(tree.mode)))
    return max((tree.record[each] for each in files), default=-1) == own - 1


def no_archive(reader: FileReader) -> str:
    """Say why files that have no index, or more records than it names, are not an archive; and if
    one of them is an archive, what to do about that."""
    names, path = reader.fnames, reader.fnames[-1]
    archives = [file for file in range(len(names)) if _ends_with_index(reader, file)]
    if len(names) == 1 or not archives:
        how = "FileReader is", "`ffrecord info` and `cat --record N` are"
        return Advised(f"{path}: not a packed folder: it has no index; ", *how, " for records")
    for file in archives:
        is_index = os.path.basename(names[file]) == index_layout.INDEX_NAME
        if is_index and len(reader.get_checksums(file)) == 1 and names[file] != path:
            # It sorts behind the index of the shards.
            return _beside(names[file], os.path.basename(path))
    shown = ", ".join(names[file] for file in archives[:SHOWN])
    more = f" and {len(archives) - SHOWN:,} more" if len(archives) > SHOWN else ""
    return (
        f"{os.path.dirname(path) or os.curdir}: its {len(names):,} record files are not the shards "
        f"of one packed folder; name a file that is a packed folder by itself: {shown}{more}"
    )


def _ends_with_index(reader: FileReader, file: int) -> bool:
    """Whether the last record of a file is an index."""
    begin, end = [0, 0, *reader.get_offsets(file).tolist()][-2:]
    source = table_of(reader).require_open()[file]
    return end > begin and index_layout.is_index(
        end - begin, lambda at, length: source.read_bytes(begin + at, length)
    )


def _beside(index: str, stray: str) -> str:
    return f"{index}: {stray} lies beside it and is none of its shards: move it elsewhere"

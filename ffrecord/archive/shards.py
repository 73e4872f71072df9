"""Check that the files of an archive are the shards that its index names.

The file with the index sorts last. Errors name the file that is missing or does not belong to the
archive. If some of the files are complete archives, errors name those.
"""

from __future__ import annotations

import os

from ffrecord.archive.index.build import Tree
from ffrecord.archive.index.check import WaitFor
from ffrecord.archive.names import to_text
from ffrecord.errors import IndexStructureError
from ffrecord.format import index as index_layout
from ffrecord.format.records import PART_NAME
from ffrecord.records.reader import FileReader, table_of
from ffrecord.text import Advised

MOST_CLAIMED = 1 << 17
"""Largest number of shards that an index may name. `pack_folder` writes at most 100,000. A limit is
needed because the search for a missing shard compares all of them."""

SHOWN = 3  # archives named in a message


def compare(reader: FileReader, tables: index_layout.Image, wait_for: WaitFor) -> None:
    """Raise `IndexStructureError` unless the files are the shards that the index names, in order.

    So a wrong file is an error now, instead of wrong data later.
    """
    path = reader.fnames[-1]
    if len(tables.shards) > MOST_CLAIMED:
        raise IndexStructureError(
            f"{path}: its index claims {len(tables.shards)} shards, but at most {MOST_CLAIMED} are "
            f"possible; {index_layout.WAY_OUT}"
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
            shown = to_text(shard[0])
            folder = os.path.dirname(path)
            if not found and os.path.exists(os.path.join(folder, shown)):
                raise IndexStructureError(
                    f"{path}: has the index of a packed folder, but not its files; pass its "
                    f"folder: {folder or os.curdir}"
                )
            what = "is not the shard that was packed" if shard[0] in names else "is missing"
            raise IndexStructureError(f"{path}: {shown} {what}; copy all shards again")
    for shard in found:
        if shard not in due:
            raise IndexStructureError(_beside(path, os.fsdecode(shard[0])))
    raise IndexStructureError(
        f"{path}: its shards are not in the order of packing; pass their folder instead of a list"
    )


def names_own_records(reader: FileReader, tree: Tree) -> bool:
    """Return True if an index of the original FFRecord refers only to records in the same file.

    The original's index does not list shards. If other files come before such an index, its record
    numbers would lead to their records instead.
    """
    if len(reader.fnames) == 1:
        return False
    own = len(reader.get_checksums(-1)) - 1
    files = filter(tree.is_file, range(len(tree.mode)))
    return max((tree.record[each] for each in files), default=-1) == own - 1


def no_archive(reader: FileReader) -> str:
    """Return the message for files without an index, or with more records than the index names.

    If some of the files are archives, the message names them.
    """
    names, path = reader.fnames, reader.fnames[-1]
    archives = [file for file in range(len(names)) if _ends_with_index(reader, file)]
    folder = os.path.dirname(path)
    is_part = len(names) == 1 and PART_NAME.fullmatch(os.path.basename(path)) is not None
    if is_part and os.path.exists(os.path.join(folder, index_layout.INDEX_NAME)):
        return f"{path}: one shard of a packed folder; pass its folder: {folder or os.curdir}"
    if len(names) == 1 or not archives:
        how = "FileReader", "`ffrecord info` or `ffrecord cat --record N`"
        before = f"{path}: not a packed folder: it has no index; to read records use "
        return Advised(before, *how)
    for file in archives:
        is_index = os.path.basename(names[file]) == index_layout.INDEX_NAME
        if is_index and len(reader.get_checksums(file)) == 1 and names[file] != path:
            # A stray file sorts behind the index of the shards.
            return _beside(names[file], os.path.basename(path))
    shown = ", ".join(names[file] for file in archives[:SHOWN])
    more = f" and {len(archives) - SHOWN:,} more" if len(archives) > SHOWN else ""
    return (
        f"{os.path.dirname(path) or os.curdir}: its {len(names):,} record files are not the shards "
        f"of one packed folder; pass a file that is a packed folder by itself: {shown}{more}"
    )


def _ends_with_index(reader: FileReader, file: int) -> bool:
    """Return True if the last record of a file is an index."""
    begin, end = [0, 0, *reader.get_offsets(file).tolist()][-2:]
    source = table_of(reader).require_open()[file]
    return end > begin and index_layout.is_index(
        end - begin, lambda at, length: source.read_bytes(begin + at, length)
    )


def _beside(index: str, stray: str) -> str:
    return f"{index}: {stray} in the same folder is not one of its shards; move it elsewhere"

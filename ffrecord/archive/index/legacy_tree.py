"""The tree of the entries that `legacy_scan` found in an index of the original FFRecord.

As in the scan, nothing here raises an error. If a name or number is wrong, `arrange` returns None,
and `legacy` then interprets the pickle and finds the right message.
"""

from __future__ import annotations

import stat
from array import array
from itertools import islice
from operator import lt
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints, Mask
from ffrecord.archive.index.build import Tree
from ffrecord.archive.index.legacy_scan import ROOT, Entries
from ffrecord.format.index import DEEPEST, LONGEST_NAME

FILE_MODE = stat.S_IFREG | 0o444
FOLDER_MODE = stat.S_IFDIR | 0o555
AT_A_TIME = 1 << 13
"""Number of names that are Python objects at once. A small number reuses the same memory, because
fresh memory costs more than copying the names."""

_NOT_NAMES = frozenset([b".", b".."])


def arrange(entries: Entries, record_sizes: Ints, owned: tuple[int, int, int]) -> Tree | None:
    """Return the tree of some entries, or None if anything is wrong with them.

    Args:
        entries: the entries, in the order of their paths.
        record_sizes: the sizes of all records that can hold files.
        owned: owner, group and time of all files and folders.
    """
    levels = _levels(entries)
    if levels is None or (entries.record[~entries.is_folder] >= len(record_sizes)).any():
        return None
    # Of two entries at the same depth, the one with the smaller path comes first in both orders.
    order = np.argsort(levels, kind="stable")
    begin, length, parent = entries.name[order], entries.length[order], entries.parent[order]
    names = _joined_names(entries.data, begin, length, parent)
    if names is None or not _are_names(names, length):
        return None
    tree = Tree()
    tree.names.bytes = names
    _fill(tree.names.ends, np.cumsum(length))
    _fill(tree.inode, np.arange(1, len(order) + 1))  # the root is 0
    inodes = np.zeros(len(order) + 1, np.int64)  # of the entries in their old order, and of ROOT
    inodes[order] = np.arange(1, len(order) + 1)
    _fill(tree.parent, inodes[parent])
    _fill_inodes(tree, entries.is_folder[order], entries.record[order], record_sizes, owned)
    return tree


def _levels(entries: Entries) -> npt.NDArray[np.uint16] | None:
    """Return the depth of the folder that contains each entry; None if a folder is too deep."""
    folders = entries.is_folder.nonzero()[0]
    depth = {ROOT: 0}
    for folder, parent in zip(folders.tolist(), entries.parent[folders].tolist(), strict=True):
        depth[folder] = depth[parent] + 1
    if max(depth.values()) > DEEPEST:
        return None
    levels = np.zeros(len(entries.parent) + 1, np.uint16)  # of folders; the last is ROOT's
    levels[folders] = list(depth.values())[1:]
    return levels[entries.parent]


def _joined_names(data: bytes, begin: Ints, length: Ints, parent: Ints) -> bytearray | None:
    """Return all names end to end; None if names of the same folder are not in order, or equal."""
    joined = bytearray()
    for start in range(0, len(begin), AT_A_TIME):
        first = max(0, start - 1)  # the name before, to compare with
        rows = slice(first, start + AT_A_TIME)
        ends = (begin[rows] + length[rows]).tolist()
        names = [data[a:b] for a, b in zip(begin[rows].tolist(), ends, strict=True)]
        are_siblings = parent[rows][1:] == parent[rows][:-1]
        in_order = np.fromiter(map(lt, names, islice(names, 1, None)), bool, len(are_siblings))
        if not (in_order | ~are_siblings).all() or not _NOT_NAMES.isdisjoint(names):
            return None
        joined += b"".join(names[start - first :])
    return joined


def _are_names(raw: bytearray, length: Ints) -> bool:
    """Return True if all names are valid, and the same bytes in a pickle and on a disk.

    That is so for UTF-8. A name that is not UTF-8 has surrogates in a pickle.
    """
    if not ((length > 0) & (length <= LONGEST_NAME)).all() or b"/" in raw or b"\0" in raw:
        return False
    return raw.isascii() or _are_utf8(raw, length)


def _are_utf8(raw: bytearray, length: Ints) -> bool:
    """Return True if each of some joined texts is valid UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    begin = np.cumsum(length) - length
    first = np.frombuffer(raw, np.uint8)[begin]
    return not ((first & 0xC0) == 0x80).any()  # no text begins within a character


def _fill_inodes(
    tree: Tree, is_folder: Mask, record: Ints, record_sizes: Ints, owned: tuple[int, int, int]
) -> None:
    """Fill in the columns of the root and of the inodes of all entries."""
    files = (~is_folder).nonzero()[0] + 1
    mode = np.full(len(is_folder) + 1, FOLDER_MODE)
    mode[files] = FILE_MODE
    records, lengths = np.zeros((2, len(mode)), np.int64)
    records[files] = record[files - 1]
    lengths[files] = record_sizes[records[files]]
    values = (mode, *(np.full(len(mode), value) for value in owned), lengths, records)
    for column, value in zip(tree.columns, values, strict=True):
        _fill(column, value)


def _fill(column: array[int], values: npt.NDArray[Any]) -> None:
    column.frombytes(values.astype(column.typecode).tobytes())

"""Names that programs for the original FFRecord import from `ffrecord.package`.

`dump_structure` and `dump_files` are the original's two steps of packing. A program that calls them
must write the index itself:

    structure = OrderedDict()
    n = dump_structure(folder, structure, 0)
    with FileWriter("packed.ffr", n + 1) as writer:
        dump_files(writer, folder, structure, 0, False, n)
        writer.write_one(MAGIC_BYTES + pickle.dumps(structure))

`pack_folder` also keeps symlinks, hard links, permissions, times and checksums of blocks.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from ffrecord.archive.folder import PackedFolder
from ffrecord.archive.pack import pack_folder, print_file
from ffrecord.format.index import LEGACY_MAGIC as MAGIC_BYTES
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter

__all__ = [
    "MAGIC_BYTES", "FileReader", "FileWriter", "PackedFolder", "dump_files", "dump_structure",
    "pack_folder",
]  # fmt: skip


def dump_structure(folder: Path, structure: OrderedDict[str, Any], counter: int) -> int:
    """Fill `structure` with the names in a folder, and number its files from `counter` on.

    Each file name maps to the file's number, each folder name to an `OrderedDict` of the names in
    that folder. Symlinks are followed. Return the number that the next file would get.
    """
    unfinished = [(structure, _sorted_entries(folder))]
    while unfinished:
        names, entries = unfinished[-1]
        entry = next(entries, None)
        if entry is None:
            unfinished.pop()
        elif entry.is_dir():
            names[entry.name] = OrderedDict()
            unfinished.append((names[entry.name], _sorted_entries(entry)))
        else:
            names[entry.name] = counter
            counter += 1
    return counter


def dump_files(
    writer: FileWriter,
    prefix: Path,
    structure: OrderedDict[str, Any],
    counter: int,
    verbose: bool,
    n: int,
) -> int:
    """Write the files that `dump_structure` has numbered, each as one record.

    `prefix` is the folder, `counter` is the number of its first file, and `n` is the number of
    all files. With `verbose`, print each file's number and path. Return the number that the next
    file would get.
    """
    for path, number in _numbered(os.fspath(prefix), structure):
        if number != counter:
            raise ValueError(
                f"{path}: has number {number} in the structure, but number {counter} comes next; "
                "pass the same structure and counter as to dump_structure"
            )
        with open(path, "rb") as file:
            writer.write_one(file)
        if verbose:
            print_file(number, n, path)
        counter += 1
    return counter


def _sorted_entries(folder: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return iter(sorted(entries, key=attrgetter("name")))


def _numbered(prefix: str, structure: OrderedDict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the paths and numbers of all files, depth first."""
    unfinished = [(prefix, iter(structure.items()))]
    while unfinished:
        folder, items = unfinished[-1]
        item = next(items, None)
        if item is None:
            unfinished.pop()
            continue
        path = os.path.join(folder, item[0])
        if isinstance(item[1], dict):
            unfinished.append((path, iter(item[1].items())))
        else:
            yield path, item[1]

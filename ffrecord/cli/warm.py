"""`ffrecord warm PATH [NAME…]`: read a file, or a part of a packed folder, into the page cache.

Later reads by any program find the bytes in memory. Checksums are not compared: `verify` does that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.index.resolve import resolve
from ffrecord.archive.names import json_facts, to_bytes
from ffrecord.archive.walk import records_below
from ffrecord.cli.common import errors_naming, refuse_datasets, shows_progress
from ffrecord.dataset import folders
from ffrecord.disk import warming
from ffrecord.disk.source import SourceSet
from ffrecord.progress import bar
from ffrecord.records.opening import paths
from ffrecord.records.reader import FileReader, table_of
from ffrecord.terminal import complain, printable


def run(options: argparse.Namespace) -> int:
    if options.path:
        refuse_datasets(options.file)
        with Archive.open(options.file) as archive:
            table = table_of(archive.reader)
            ranges = table.ranges(_records(archive, options))
            return _warm(options, table.require_files(), ranges)
    with FileReader(_files(options.file)) as reader:
        sources = table_of(reader).require_files()
        return _warm(options, sources, warming.whole_files(sources))


def _files(path: str) -> list[str]:
    """Return all record files of a path."""
    files: list[str] = []
    for part in folders.parts(path):
        if folders.is_dataset(part):
            folders.check(part)
        files += paths(part)
    return files


def _records(archive: Archive, options: argparse.Namespace) -> Ints:
    """Return the records of the named files and folders, in order, each once."""
    found = []
    for name in options.path:
        with errors_naming(options.file, archive.index, name, options):
            inode = resolve(archive.index, to_bytes(name))
        found.append(records_below(archive.index, inode))
    return np.unique(np.concatenate(found))


def _warm(options: argparse.Namespace, sources: SourceSet, ranges: Sequence[warming.Range]) -> int:
    excess = warming.excess(ranges)
    if excess is not None:
        advice = "name a part, such as one folder of a packed folder or one file of a dataset"
        complain(f"{options.file}: {excess}; {advice}", warning=True)
    size, shown = warming.total(ranges), shows_progress(options.no_progress)
    with bar(
        shown=shown, total=size, unit="B", unit_scale=True, desc="warming", leave=False
    ) as drawn:
        for count in warming.warm(ranges):
            drawn.update(count)
    if options.json:
        facts = {"bytes": size, "cached_bytes": warming.cached(sources, ranges)}
        print(json.dumps({**json_facts("file", options.file), **facts}, indent=2))
    else:
        print(printable(f"{options.file}: {warming.summary(sources, ranges)}"))
    return 0

"""Facts about packed folders and record files: counts, sizes and a histogram, ready for JSON."""

from __future__ import annotations

import stat
from typing import Any

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.counts import count_index, kinds_of
from ffrecord.archive.names import json_facts, to_text
from ffrecord.format.padding import UNALIGNED
from ffrecord.records.reader import FileReader, table_of

LARGEST = 5  # files that are listed by name


def describe_folder(archive: Archive) -> dict[str, Any]:
    """Return the facts about a packed folder, ready for JSON."""
    index, reader = archive.index, archive.reader
    counts = count_index(index)
    files = (kinds_of(index) == stat.S_IFREG).nonzero()[0]
    sizes = index.tables.inodes["length"][files].astype(np.int64)
    largest = files[np.argsort(-sizes, kind="stable")[:LARGEST]]
    return {
        "kind": "packed folder",
        "shards": len(index.tables.shards),
        "alignment": archive.alignment if sizes.any() else UNALIGNED,  # no file has any bytes
        "files": counts.files,
        "folders": counts.folders,
        "symlinks": counts.symlinks,
        "hard_links": counts.hard_links,
        "names": len(index.tables.entries),
        "archive_bytes": table_of(reader).file_bytes,
        "data_bytes": counts.bytes,
        "index_bytes": reader.record_size(reader.n - 1),
        "fingerprint": reader.fingerprint,
        **_spread("file", sizes),
        "largest": [
            {**json_facts("path", to_text(index.inode_path(inode))),
             "bytes": index.status(inode).size}
            for inode in largest.tolist()
        ],
    }  # fmt: skip


def describe(reader: FileReader) -> dict[str, Any]:
    """Return the facts about record files, ready for JSON."""
    sizes = reader.record_sizes()
    return {
        "kind": "unfinished records" if reader.unfinished else "records",
        "files": len(reader.fnames),
        "records": reader.n,
        "file_bytes": table_of(reader).file_bytes,
        "data_bytes": int(sizes.sum()),
        "fingerprint": reader.fingerprint,
        **_spread("record", sizes),
    }


def _spread(what: str, sizes: Ints) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if len(sizes):
        facts[f"{what}_bytes"] = {
            "smallest": int(sizes.min()),
            "median": int(np.median(sizes)),
            "mean": int(sizes.mean()),
            "largest": int(sizes.max()),
        }
    return {**facts, "histogram": histogram(sizes, what)}


def histogram(sizes: Ints, what: str = "record") -> list[dict[str, int]]:
    """Count records, or files, by size, in bins from one power of two to the next."""
    if not len(sizes):
        return []
    # frexp's exponent is the number of bits: 0 for 0, 1 for 1, 2 for 2 and 3, …
    bits = np.frexp(sizes.astype(np.float64))[1]
    counts = np.bincount(bits)
    lowest = int(bits.min())
    return [
        {"from": (1 << b) >> 1, "below": 1 << b, f"{what}s": int(counts[b])}
        for b in range(lowest, len(counts))
    ]

"""`ffrecord info FILE`: describe a record file, a packed folder or a typed dataset.

`ffrecord info --system` describes the machine instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
from typing import Any

import numpy as np

from ffrecord.aliases import Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.counts import count_index, kinds_of
from ffrecord.archive.detect import open_if_packed
from ffrecord.archive.names import json_facts, to_text
from ffrecord.cli import datasets
from ffrecord.cli.common import READ_RECORDS
from ffrecord.cli.quoting import quoted
from ffrecord.format.padding import UNALIGNED
from ffrecord.records.reader import FileReader, table_of
from ffrecord.text import counted, human

LARGEST = 5  # files that are listed by name
EIGHTHS = " ▏▎▍▌▋▊▉█"  # ends of a bar, in eighths of a character


def run(options: argparse.Namespace) -> int:
    if (options.file is None) == (options.system is None):
        options.parser.error("name one FILE, or use --system, with or without a PATH")
    if options.system is not None:
        from ffrecord.cli import system  # slow: it imports modules of the mount

        system.show(options.system, as_json=options.json)
        return 0
    what, facts = _describe(options.file, unfinished=options.unfinished)
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        _print(what, facts)
    return 0


def _describe(path: str, *, unfinished: bool) -> tuple[str, dict[str, Any]]:
    """Return the word for the things that have sizes (file, record or value), and the facts."""
    if not unfinished:
        shards = datasets.parts(path)
        if all(map(datasets.is_dataset, shards)):
            return "value", datasets.describe(path, shards)
    with FileReader(path, unfinished=unfinished) as reader:
        if reader.unfinished:
            return "record", describe(reader)
        archive = open_if_packed(reader, READ_RECORDS)
        if archive is None:
            return "record", describe(reader)
        return "file", describe_folder(archive)


def _print(what: str, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if name == "shards" and not value:
            continue  # not sharded
        if isinstance(value, (str, int)):
            print(f"{name.replace('_', ' '):<17}{_shown(name, value)}")
        elif name == f"{what}_bytes":
            for key, size in value.items():
                print(f"{key + ' ' + what:<17}{human(size)}")
    if facts.get("fields"):
        print("\nfields")
        print("\n".join(field_lines(facts["fields"])))
    if facts.get("largest"):
        print("\nlargest files")
        for each in facts["largest"]:
            print(f"{human(each['bytes']):>10}  {quoted(each['path'])}")
    if facts.get("histogram"):
        print(f"\n{what} sizes")
        print("\n".join(histogram_lines(facts["histogram"])))


def _shown(name: str, value: str | int) -> str:
    if isinstance(value, str):
        return value
    if name == "alignment":
        return "none" if value == UNALIGNED else both_sizes(value)
    return both_sizes(value) if "bytes" in name else f"{value:,}"


def both_sizes(size: int) -> str:
    """Return `1.2 MB (1,234,567 bytes)`."""
    return human(size) if size < 1000 else f"{human(size)} ({size:,} bytes)"


def field_lines(fields: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each field: name, type, number of values and size, in columns."""
    rows = [
        (name, fact["type"], counted(fact["values"], "value"), human(fact["data_bytes"]))
        for name, fact in fields.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
        f"{row[3]:>{widths[3]}}"
        for row in rows
    ]


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
        "alignment": archive.alignment,
        "files": counts.files,
        "folders": counts.folders,
        "symlinks": counts.symlinks,
        "hard_links": counts.hard_links,
        "names": len(index.tables.entries),
        "archive_bytes": sum(os.path.getsize(name) for name in reader.fnames),
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


def histogram_lines(bins: list[dict[str, int]]) -> list[str]:
    """Return a line for each bin that is not empty."""
    width = max(10, min(60, shutil.get_terminal_size().columns - 40))
    counts = [count for each in bins for key, count in each.items() if key not in ("from", "below")]
    return [
        f"{human(each['from']):>10} – {human(each['below']):<10} "
        f"{count:>10,} {bar(count / max(counts), width)}"
        for each, count in zip(bins, counts, strict=True)
        if count
    ]


def bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    if share and not eighths:
        eighths = 1
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()

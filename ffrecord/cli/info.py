"""`ffrecord info FILE`: what is in a record file or a packed folder."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.archive import Archive
from ffrecord.errors import NotPackedFolderError
from ffrecord.names import to_text
from ffrecord.reader import FileReader
from ffrecord.terminal import human, printable

Ints: TypeAlias = npt.NDArray[np.int64]

LARGEST = 5
EIGHTHS = " ▏▎▍▌▋▊▉█"


def add_command(commands: Any) -> None:
    parser = commands.add_parser("info", help="counts, sizes, a histogram, the fingerprint")
    parser.add_argument("file", help="a record file or packed folder, or a folder of shards")
    parser.add_argument("--json", action="store_true", help="for scripts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with FileReader(options.file) as reader:
        try:
            what, facts = "file", describe_folder(Archive(reader))
        except NotPackedFolderError:
            what, facts = "record", describe(reader)
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    _print(what, facts)
    return 0


def _print(what: str, facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        if name == f"{what}_bytes":
            for key, size in value.items():
                print(f"{key + ' ' + what:<17}{human(size)}")
        elif name not in ("histogram", "largest"):
            print(f"{name.replace('_', ' '):<17}{human(value) if 'bytes' in name else value}")
    if facts.get("largest"):
        print("\nlargest files")
        for each in facts["largest"]:
            print(f"{human(each['bytes']):>10}  {printable(each['path'])}")
    if facts["histogram"]:
        print(f"\n{what} sizes")
        print("\n".join(histogram_lines(facts["histogram"])))


def describe_folder(archive: Archive) -> dict[str, Any]:
    """The facts about a packed folder, ready for JSON."""
    index, reader = archive.index, archive.reader
    rows = index.tables.inodes
    kinds = index.tables.attributes["mode"][rows["attributes"]] & np.uint32(0o170000)
    files = (kinds == stat.S_IFREG).nonzero()[0]
    sizes = rows["length"][files].astype(np.int64)
    largest = files[np.argsort(-sizes, kind="stable")[:LARGEST]]
    return {
        "shards": len(index.tables.shards),
        "files": len(files),
        "folders": int((kinds == stat.S_IFDIR).sum()) - 1,
        "symlinks": int((kinds == stat.S_IFLNK).sum()),
        "names": len(index.tables.entries),
        "archive_bytes": sum(os.path.getsize(name) for name in reader.fnames),
        "data_bytes": int(sizes.sum()),
        "index_bytes": reader.record_size(reader.n - 1),
        "fingerprint": reader.fingerprint,
        **_spread("file", sizes),
        "largest": [
            {"path": to_text(index.inode_path(inode)), "bytes": index.status(inode).size}
            for inode in largest.tolist()
        ],
    }


def describe(reader: FileReader) -> dict[str, Any]:
    """The facts about record files, ready for JSON."""
    sizes = reader.record_sizes()
    return {
        "files": len(reader.fnames),
        "records": reader.n,
        "file_bytes": sum(os.path.getsize(name) for name in reader.fnames),
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
    """Records, or files, counted by size, in bins from one power of two to the next."""
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
    width = max(10, min(60, shutil.get_terminal_size().columns - 40))
    counts = [count for each in bins for key, count in each.items() if key not in ("from", "below")]
    return [
        f"{human(each['from']):>10} – {human(each['below']):<10} "
        f"{count:>10,} {bar(count / max(counts), width)}"
        for each, count in zip(bins, counts, strict=True)
    ]


def bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    if share and not eighths:
        eighths = 1
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()

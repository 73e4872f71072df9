"""`ffrecord info FILE`: what is in a record file."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.cli.terminal import human
from ffrecord.reader import FileReader

Ints: TypeAlias = npt.NDArray[np.int64]

EIGHTHS = " ▏▎▍▌▋▊▉█"


def add_command(commands: Any) -> None:
    parser = commands.add_parser("info", help="count, sizes, a histogram, the fingerprint")
    parser.add_argument("file", help="a record file, or a folder of them")
    parser.add_argument("--json", action="store_true", help="for scripts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with FileReader(options.file) as reader:
        facts, sizes = describe(reader)
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    for name, value in facts.items():
        if name == "record_bytes":
            for key, size in value.items():
                print(f"{key + ' record':<17}{human(size)}")
        elif name == "histogram":
            continue
        else:
            print(f"{name.replace('_', ' '):<17}{human(value) if 'bytes' in name else value}")
    if len(sizes):
        print("\nrecord sizes")
        print("\n".join(histogram_lines(facts["histogram"])))
    return 0


def describe(reader: FileReader) -> tuple[dict[str, Any], Ints]:
    """The facts about a file, ready for JSON, and the size of each record."""
    sizes = reader.record_sizes()
    facts: dict[str, Any] = {
        "files": len(reader.fnames),
        "records": reader.n,
        "file_bytes": sum(os.path.getsize(name) for name in reader.fnames),
        "data_bytes": int(sizes.sum()),
        "fingerprint": reader.fingerprint,
    }
    if len(sizes):
        facts["record_bytes"] = {
            "smallest": int(sizes.min()),
            "median": int(np.median(sizes)),
            "mean": int(sizes.mean()),
            "largest": int(sizes.max()),
        }
    facts["histogram"] = histogram(sizes)
    return facts, sizes


def histogram(sizes: Ints) -> list[dict[str, int]]:
    """Records counted by size, in bins from one power of two to the next."""
    if not len(sizes):
        return []
    # frexp's exponent is the number of bits: 0 for 0, 1 for 1, 2 for 2 and 3, …
    bits = np.frexp(sizes.astype(np.float64))[1]
    counts = np.bincount(bits)
    lowest = int(bits.min())
    return [
        {"from": (1 << b) >> 1, "below": 1 << b, "records": int(counts[b])}
        for b in range(lowest, len(counts))
    ]


def histogram_lines(bins: list[dict[str, int]]) -> list[str]:
    width = max(10, min(60, shutil.get_terminal_size().columns - 40))
    most = max(each["records"] for each in bins)
    return [
        f"{human(each['from']):>10} – {human(each['below']):<10} "
        f"{each['records']:>10,} {bar(each['records'] / most, width)}"
        for each in bins
    ]


def bar(share: float, width: int) -> str:
    eighths = round(share * width * 8)
    if share and not eighths:
        eighths = 1
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()

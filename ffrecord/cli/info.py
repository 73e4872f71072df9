"""`ffrecord info FILE`: describe a record file, a packed folder or a typed dataset.

`ffrecord info --system` describes the machine instead.
"""

from __future__ import annotations

import argparse
import json
import shutil
from typing import Any

from ffrecord.archive.detect import open_if_packed
from ffrecord.archive.facts import describe, describe_folder
from ffrecord.cli.common import READ_RECORDS
from ffrecord.cli.quoting import quoted
from ffrecord.dataset import folders
from ffrecord.format.padding import UNALIGNED
from ffrecord.records.reader import FileReader
from ffrecord.text import counted, human

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
        shards = folders.parts(path)
        if all(map(folders.is_dataset, shards)):
            return "value", folders.describe(path, shards)
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

"""`ffrecord info --system [PATH]`: show the features of this machine that FFRecord uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from ffrecord.archive.names import json_facts
from ffrecord.cli.machine import Facts, facts, missing
from ffrecord.terminal import printable
from ffrecord.text import human


def show(path: str, *, as_json: bool) -> None:
    """Print the facts about the machine, then a line for each missing feature."""
    found = facts(path)
    lacking = missing(found)
    if as_json:
        listed = [asdict(each) for each in lacking]
        print(json.dumps({**found, **json_facts("path", path), "missing": listed}, indent=2))
        return
    for name, value in _lines(found, path):
        print(f"{name:<17}{printable(value)}")
    if lacking:
        print("\nmissing")
    for each in lacking:
        print(f"  {each.what}: {each.cost}; {each.remedy}")


def _lines(found: Facts, path: str) -> Iterator[tuple[str, str]]:
    yield "ffrecord", f"{found['ffrecord']}, Python {found['python']}"
    yield "kernel", found["kernel"]
    yield "processors", f"{found['processors']:,}"
    cached = _size(found["page_cache_bytes"])
    yield "memory", f"{_size(found['memory_bytes'])}, {cached} of it page cache"
    yield "huge pages", found["huge_pages"] or "no"
    most = _count(found["open_files_most"])
    yield "open files", f"{_count(found['open_files'])}, at most {most}"
    locked = found["locked_memory_bytes"]
    yield "locked memory", "no limit" if locked is None else human(locked)
    yield "AIO", _aio(found)
    yield "FUSE", _fuse(found)
    yield "file system", f"{found['file_system'] or 'not known'} (path: {path})"
    yield "O_DIRECT", _direct(found["direct_bytes"])
    yield "cachestat", {True: "yes", False: "no", None: "not known"}[found["cachestat"]]
    yield "read-ahead", _size(found["read_ahead_bytes"])


def _size(size: int | None) -> str:
    return "not known" if size is None else human(size)


def _count(count: int | None) -> str:
    return "no limit" if count is None else f"{count:,}"


def _aio(found: Facts) -> str:
    if not found["libaio"]:
        return "no libaio"
    used, most = found["aio_requests"], found["aio_requests_most"]
    in_use = "" if None in (used, most) else f"; {used:,} of {most:,} requests in use"
    return ("libaio" if found["aio_context"] else "libaio, but no AIO contexts") + in_use


def _fuse(found: Facts) -> str:
    having = [
        "/dev/fuse" if found["fuse_device"] else "no /dev/fuse",
        found["fusermount"] or "no fusermount3",
        found["fuse_overlayfs"] or "no fuse-overlayfs",
        *(found["fuse_packages"] or ["no mfusepy (only -o backend=fusepy needs it)"]),
    ]
    return ", ".join(having)


def _direct(block: int | None) -> str:
    if block is None:
        return "not known; name a file that is not empty, or a folder that you can write to"
    return f"yes, in blocks of {block:,} bytes" if block else "no"

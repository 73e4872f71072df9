"""What was packed, extracted or converted, in the same words after each of them."""

from __future__ import annotations

from ffrecord.contents import Contents
from ffrecord.sizes import human
from ffrecord.wording import counted


def tally(contents: Contents, shards: int = 0) -> str:
    """`3 files, 1 folder, 12.0 kB`: of what there is, but how many files there are in any case."""
    counts = {
        "file": contents.files, "folder": contents.folders, "symlink": contents.symlinks,
        "hard link": contents.hard_links, "shard": shards,
    }  # fmt: skip
    there = [counted(count, kind) for kind, count in counts.items() if count or kind == "file"]
    return ", ".join([*there, human(contents.bytes)])

"""Facts about a whole archive, record file or dataset, for the overview."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import quote

from ffrecord.archive.archive import Archive
from ffrecord.archive.facts import describe, describe_folder
from ffrecord.archive.listing import Entries
from ffrecord.archive.names import to_bytes
from ffrecord.archive.walk import file_entries
from ffrecord.records.reader import FileReader
from ffrecord.view.kinds import extension
from ffrecord.view.listings import shown

STEP = 1 << 16  # names that are looked at between two other requests
MOST_KINDS = 12  # extensions with a bar of their own
OTHERS = "others"
WITHOUT = "no extension"


def of_folder(archive: Archive) -> dict[str, Any]:
    """Return the facts about a packed folder."""
    facts = describe_folder(archive)
    for each in facts["largest"]:
        each["name"] = shown(each["path"])
        each["ref"] = quote(to_bytes(each.pop("path")))
        each.pop("path_base64", None)
    return {**facts, "kinds": _kinds(archive)}


def of_records(reader: FileReader) -> dict[str, Any]:
    """Return the facts about record files."""
    return describe(reader)


def _kinds(archive: Archive) -> list[dict[str, Any]]:
    """Count files, and add up their sizes, by extension."""
    index, entries = archive.index, file_entries(archive.index)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for start in range(0, len(entries), STEP):
        some = Entries(index, entries[start : start + STEP], entries[start : start + STEP])
        lengths = index.tables.inodes["length"][some.inodes].tolist()
        for name, size in zip(some.names(), lengths, strict=True):
            kind = extension(name)
            counts[kind] += 1
            sizes[kind] += size
    top = [kind for kind, _ in sizes.most_common(MOST_KINDS)]
    found = [{"kind": shown(kind) or WITHOUT, "files": counts[kind], "bytes": sizes[kind]}
             for kind in top]  # fmt: skip
    rest = [kind for kind in counts if kind not in top]
    if rest:
        found.append({"kind": OTHERS, "files": sum(counts[kind] for kind in rest),
                      "bytes": sum(sizes[kind] for kind in rest)})  # fmt: skip
    return found

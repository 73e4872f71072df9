"""Typed datasets for the commands: which folders are some, and what is in their fields."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from ffrecord.dataset.columns import parse_types
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import shards_among
from ffrecord.dataset.spec import SPEC_NAME, file_name, load, split_type
from ffrecord.errors import DatasetError, NotPackedFolderError
from ffrecord.records.reader import FileReader


def is_dataset(path: str) -> bool:
    return os.path.isfile(os.path.join(path, SPEC_NAME))


def parts(path: str) -> list[str]:
    """The shards of a sharded dataset, each of which is a dataset; else the path itself.

    Both of a folder that has record files beside them.
    """
    names: list[str] = []
    with contextlib.suppress(OSError):  # what cannot be listed is told of when its turn comes
        names = os.listdir(path) if not is_dataset(path) else []
    shards = [os.path.join(path, name) for name in shards_among(names)]
    if not any(map(is_dataset, shards)):  # one that is none then is a broken one
        return [path]
    return [path, *shards] if any(name.endswith(".ffr") for name in names) else shards


def refuse(path: str) -> None:
    """An error if that is a dataset, whose files would be taken for an archive's shards."""
    if any(map(is_dataset, parts(path))):
        raise NotPackedFolderError(
            f"{path}: is a typed dataset, not a packed folder; `ffrecord info` shows its fields"
        )


def refuse_records(path: str) -> None:
    """An error if that is a dataset, whose records are in more than one file."""
    shards = [part for part in parts(path) if is_dataset(part)]
    if shards:
        files = [os.path.join(shards[0], file_name(name)) for name in load(shards[0]).spec]
        such = f", such as {files[0]}" if files else ""
        raise NotPackedFolderError(
            f"{path}: is a typed dataset, with a file of records for each field: name one{such}"
        )


def check(path: str) -> None:
    """Whether its spec and its files belong together. Values are not decoded."""
    try:
        DatasetReader(path, _any_decoders(load(path).spec)).close()
    except FileNotFoundError as error:
        raise DatasetError(f"{error.filename}: this file of the dataset is missing") from None


def describe(path: str, shards: Sequence[str]) -> dict[str, Any]:
    """The facts about a dataset, of one or more shards that are alike, ready for JSON."""
    fields: dict[str, dict[str, Any]] = {}
    datapoints = size = 0
    for shard in shards:
        check(shard)
        manifest = load(shard)
        datapoints += manifest.length
        for name, type_ in parse_types(shard, manifest.spec, _any_decoders(manifest.spec)).items():
            fact = fields.setdefault(name, {"type": type_.text, "values": 0, "data_bytes": 0})
            if fact["type"] != type_.text:
                raise DatasetError(
                    f"{shard}: {name} is of type {type_.text}, in other shards {fact['type']}"
                )
            file = os.path.join(shard, file_name(name))
            size += os.path.getsize(file)
            # Behind the values: a dictionary of the compression's, and where sequences begin.
            trained = bool(type_.compression and type_.compression.dictionary)
            with FileReader(file) as reader:
                values = reader.n - trained - type_.sequence
                fact["values"] += values
                fact["data_bytes"] += int(reader.record_sizes()[:values].sum())
    return {
        "kind": "dataset",
        "shards": len(shards) if list(shards) != [path] else 0,
        "datapoints": datapoints,
        "file_bytes": size,
        "data_bytes": sum(fact["data_bytes"] for fact in fields.values()),
        "fields": fields,
    }


def _any_decoders(spec: dict[str, str]) -> dict[str, Any]:
    """Return a decoder for every type: a user's own have none here."""
    return dict.fromkeys((split_type(text)[0] for text in spec.values()), bytes)

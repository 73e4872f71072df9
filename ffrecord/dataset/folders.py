"""Dataset folders and URLs: recognise them, check them, and describe their fields.

No value is decoded, so types of a user's own need no decoder here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ffrecord.dataset.columns import parse_types
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.remote import entries, has_spec, load_remote, remote_dataset
from ffrecord.dataset.sharded import shards_among
from ffrecord.dataset.spec import SPEC_NAME, Manifest, file_name, load, split_type
from ffrecord.errors import DatasetError
from ffrecord.records.reader import FileReader, table_of
from ffrecord.remote.urls import is_url, joined, shown

if TYPE_CHECKING:
    from ffrecord.remote.options import RemoteOptions


def is_dataset(path: str, remote: RemoteOptions | None = None) -> bool:
    """Return True for a folder with a spec: one dataset, or one shard of a dataset."""
    if is_url(path):
        return has_spec(path, remote)
    return os.path.isfile(os.path.join(path, SPEC_NAME))


def parts(path: str, remote: RemoteOptions | None = None) -> list[str]:
    """Return the shards of a sharded dataset; each is a dataset. Otherwise return `[path]`.

    For a folder that holds both shards and record files, return the folder and its shards.
    """
    names: list[str] = []
    with contextlib.suppress(OSError):  # reported when the path itself is opened
        if not is_dataset(path, remote):
            names = entries(path, remote) if is_url(path) else os.listdir(path)
    shards = [joined(path, name) for name in shards_among(names)]
    # If some are datasets, the others are broken shards.
    if not any(is_dataset(shard, remote) for shard in shards):
        return [path]
    return [path, *shards] if any(name.endswith(".ffr") for name in names) else shards


def files(path: str) -> list[str]:
    """Return the record files of a dataset."""
    return [joined(path, file_name(name)) for name in manifest_of(path).spec]


def manifest_of(path: str) -> Manifest:
    """Read and check the spec of a dataset."""
    return load_remote(remote_dataset(path, {})) if is_url(path) else load(path)


def check(path: str) -> None:
    """Raise `DatasetError` unless the spec and the files belong together. Decode no values."""
    try:
        DatasetReader(path, any_decoders(manifest_of(path).spec)).close()
    except FileNotFoundError as error:
        raise DatasetError(
            f"{error.filename}: this file of the dataset is missing; restore it, or write the "
            "dataset again"
        ) from None


def describe(path: str, shards: Sequence[str]) -> dict[str, Any]:
    """Return the facts about a dataset, ready for JSON. All shards must have the same fields."""
    fields: dict[str, dict[str, Any]] = {}
    datapoints = size = 0
    for shard in shards:
        check(shard)
        manifest = manifest_of(shard)
        datapoints += manifest.length
        for name, type_ in parse_types(shard, manifest.spec, any_decoders(manifest.spec)).items():
            fact = fields.setdefault(name, {"type": type_.text, "values": 0, "data_bytes": 0})
            if fact["type"] != type_.text:
                raise DatasetError(
                    f"{shown(shard)}: field {name} has the type {type_.text}, but {fact['type']} "
                    "in earlier shards; keep shards of different datasets in different folders"
                )
            # Two records may follow the values: the dictionary of the compression, and the bounds
            # of the sequences.
            trained = bool(type_.compression and type_.compression.dictionary)
            with FileReader(joined(shard, file_name(name))) as reader:
                size += table_of(reader).file_bytes
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


def any_decoders(spec: dict[str, str]) -> dict[str, Any]:
    """Return a decoder for every type, because a user's own types have no decoder here."""
    return dict.fromkeys((split_type(text)[0] for text in spec.values()), bytes)

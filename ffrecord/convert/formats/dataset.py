"""Typed datasets: read as rows, and written from rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ffrecord.convert.field_types import codecs_for
from ffrecord.convert.shapes import ConvertOptions, Rows, Written
from ffrecord.dataset import DatasetReader, DatasetWriter, ShardedDatasetReader, codecs
from ffrecord.dataset.remote import entries, has_spec, load_remote, remote_dataset
from ffrecord.dataset.sharded import shards_among
from ffrecord.dataset.spec import SPEC_NAME, load
from ffrecord.remote import urls


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Rows]:
    """Read a dataset, or all shards of a sharded one."""
    if urls.is_url(path):
        shards = [] if has_spec(path) else shards_among(entries(path))
        sharded = bool(shards)
    else:
        shards = shards_among(os.listdir(path))
        sharded = bool(shards) and not os.path.exists(os.path.join(path, SPEC_NAME))
    first = urls.joined(path, shards[0]) if sharded else path
    spec = (load_remote(remote_dataset(first, {})) if urls.is_url(path) else load(first)).spec
    decoders = codecs_for(spec, codecs.decoders, bytes)
    if sharded:
        with ShardedDatasetReader(path, decoders) as joined:
            yield Rows(joined.spec, iter(joined), len(joined))
    else:
        with DatasetReader(path, decoders) as reader:
            yield Rows(reader.spec, iter(reader), len(reader))


def count(path: str) -> int:
    with DatasetReader(path, codecs_for(load(path).spec, codecs.decoders, bytes)) as reader:
        return len(reader)


def write(path: str, rows: Rows, options: ConvertOptions) -> Written:
    encoders = codecs_for(rows.spec, codecs.encoders, codecs.encode_bytes)
    with DatasetWriter(path, rows.spec, encoders) as writer:
        for row in rows.items:
            writer.append(row)
    return Written(len(writer))

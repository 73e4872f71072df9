"""Record files: read as records, and written from records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ffrecord.convert.shapes import ConvertOptions, Records, Written
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[Records]:
    with FileReader(path) as reader:
        yield Records(iter(reader), reader.n)


def count(path: str) -> int:
    with FileReader(path) as reader:
        return reader.n


def write(path: str, records: Records, options: ConvertOptions) -> Written:
    with FileWriter(path, records.count) as writer:
        writer.write(records.items)
    return Written(writer.count)

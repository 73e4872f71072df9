"""`refs.bag` of granular before 0.22: the records of each field that belong to a datapoint.

A record is a MessagePack list with one item per field, in the order of the spec. The item is the
number of the field's record. For a sequence it is `[first, count]`: the number of its first record
and the number of its records, or `[]` if the sequence is empty. Datapoints refer to records in
increasing order, so that each field is read from front to back.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ffrecord.convert.formats.bag import BagFile
from ffrecord.dataset import optional
from ffrecord.dataset.codecs import decode_msgpack
from ffrecord.dataset.optional import reason
from ffrecord.dataset.spec import SEQUENCE
from ffrecord.errors import DamagedSourceError

NAME = "refs"


def path_in(folder: str) -> str:
    return os.path.join(folder, f"{NAME}.bag")


def is_there(folder: str, spec: Mapping[str, Any]) -> bool:
    """Return True if a dataset has refs. Since 0.22, `refs.bag` may hold a field named refs."""
    return NAME not in spec and os.path.exists(path_in(folder))


def count(folder: str) -> int:
    with BagFile(path_in(folder)) as bag:
        return len(bag)


def counts(folder: str, spec: Mapping[str, str]) -> Iterator[list[int]]:
    """Yield the number of records of each field, for each datapoint."""
    path = path_in(folder)
    sequences = [type_.endswith(SEQUENCE) for type_ in spec.values()]
    due = [0] * len(spec)
    with BagFile(path) as bag:
        for number, record in enumerate(bag.records()):
            try:
                spans = _spans(record, sequences)
            except Exception as error:
                what = f"not a list of references: {reason(error)}"
                raise DamagedSourceError(path, what, number) from error
            for field, begin in enumerate(begin for begin, _ in spans):
                if begin not in (due[field], None):
                    what = (
                        f"field {list(spec)[field]!r} refers to record {begin}, but the next one "
                        f"is {due[field]}"
                    )
                    raise DamagedSourceError(path, what, number)
            taken = [length for _, length in spans]
            due = [sum(pair) for pair in zip(due, taken, strict=True)]
            yield taken


def _spans(record: bytes, sequences: list[bool]) -> list[tuple[int | None, int]]:
    """Return the first record and the number of records of each field; None and 0 if empty."""
    refs = decode_msgpack(memoryview(record))
    if not isinstance(refs, list) or len(refs) != len(sequences):
        raise ValueError(f"expected a list of {len(sequences)} items, one for each field")
    return [_span(*pair) for pair in zip(refs, sequences, strict=True)]


def _span(ref: Any, sequence: bool) -> tuple[int | None, int]:
    if sequence and ref == []:
        return None, 0
    begin, length = ref if sequence else (ref, 1)
    if type(begin) is not int or type(length) is not int or begin < 0 or length < 0:
        raise ValueError(f"{str(ref)[:50]} is not a reference")
    return begin, length


def encode(begins: Iterable[int], counts: Iterable[int | None]) -> bytes:
    """Return a record of `refs.bag`. `counts` has None for a field that is not a sequence."""
    refs: list[Any] = []
    for begin, length in zip(begins, counts, strict=True):
        refs.append(begin if length is None else [begin, length] if length else [])
    packed: bytes = optional.load("msgpack").packb(refs)
    return packed

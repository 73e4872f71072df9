"""Types of fields, where rows go from one format to another.

Values travel decoded, but for those that would lose by it or that nobody has to look into: images,
JSON, msgpack and types with a codec of the user's own. Those travel as the bytes that are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ffrecord.dataset import codecs
from ffrecord.dataset.spec import split_type
from ffrecord.errors import ConversionError

PASSED_ON = frozenset({"jpg", "png", "json", "msgpack"})
DECODED = frozenset(codecs.decoders) - PASSED_ON


def check_type(field: str, text: str) -> None:
    """Refuse a type for a field that datasets have no codec for."""
    name, _ = split_type(text)
    if name not in codecs.decoders:
        known = ", ".join(codecs.decoders)
        raise ConversionError(f"field {field!r}: there is no type {name!r}; there are {known}")


def single_type(field: str, text: str, why: str) -> str:
    """Return a type's name; an error if it is of a sequence. `why` says who has no sequences."""
    name, sequence = split_type(text)
    if sequence:
        raise ConversionError(f"field {field!r} is a sequence, {text}: {why}")
    return name


def decode(name: str, data: Any) -> Any:
    """Return the value of the bytes that are stored for it. Raises what a decoder raises."""
    if name not in DECODED:
        return bytes(data)
    return codecs.decoders[name](memoryview(data))


def encode(name: str, value: Any) -> bytes:
    """Return the bytes that are stored for a value."""
    if name not in DECODED:
        return codecs.encode_bytes(value)
    encoded: bytes = codecs.encoders[name](value)
    return encoded


def codecs_for(
    spec: Mapping[str, str], known: Mapping[str, Callable[[Any], Any]], same: Callable[[Any], Any]
) -> dict[str, Callable[[Any], Any]]:
    """Return codecs for a dataset's types: `known` ones where it is decoded, else `same`."""
    names = {split_type(text)[0] for text in spec.values()}
    return {name: known[name] if name in DECODED else same for name in names}

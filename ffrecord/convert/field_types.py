"""Types of fields while rows are converted from one format to another.

Most values travel decoded. Images, JSON, msgpack and types with the user's own codec travel as
their stored bytes: decoding could lose information, and no conversion needs their content.
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
    """Raise ConversionError if datasets have no codec for a field's type."""
    name, _ = split_type(text)
    if name not in codecs.decoders:
        known = ", ".join(codecs.decoders)
        raise ConversionError(f"field {field!r}: unknown type {name!r}; choose one of {known}")


def single_type(field: str, text: str, why: str) -> str:
    """Return a type's name; raise ConversionError with the reason `why` if it is a sequence."""
    name, sequence = split_type(text)
    if sequence:
        raise ConversionError(
            f"field {field!r} has the type {text}, a sequence, but {why}; convert to a dataset, or "
            "choose another field"
        )
    return name


def decode(name: str, data: Any) -> Any:
    """Return the value for its stored bytes. Exceptions of the decoder pass through."""
    if name not in DECODED:
        return bytes(data)
    return codecs.decoders[name](memoryview(data))


def encode(name: str, value: Any) -> bytes:
    """Return the stored bytes of a value."""
    if name not in DECODED:
        return codecs.encode_bytes(value)
    encoded: bytes = codecs.encoders[name](value)
    return encoded


def codecs_for(
    spec: Mapping[str, str], known: Mapping[str, Callable[[Any], Any]], same: Callable[[Any], Any]
) -> dict[str, Callable[[Any], Any]]:
    """Return a codec for each type: from `known` if its values are decoded, otherwise `same`."""
    names = {split_type(text)[0] for text in spec.values()}
    return {name: known[name] if name in DECODED else same for name in names}

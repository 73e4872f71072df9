"""Values of every type, for hypothesis and by hand, and a comparison of values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

TEXT = st.text(max_size=40)
BYTES = st.binary(max_size=200)
INTS = st.integers() | st.integers(-(1 << 600), 1 << 600)
FLOATS = st.floats()
BOOLS = st.booleans()


def dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    scalars = (
        hnp.scalar_dtypes()
        | hnp.byte_string_dtypes(min_len=1)
        | hnp.unicode_string_dtypes(min_len=1)
    )
    return scalars | hnp.array_dtypes(scalars, max_size=3, allow_subarrays=True)


ARRAYS = hnp.arrays(dtypes(), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))

JSON = st.recursive(
    st.none() | BOOLS | st.integers() | FLOATS | TEXT,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(TEXT, below, max_size=4),
    max_leaves=12,
)
MSGPACK = st.recursive(
    st.none() | BOOLS | st.integers(-(1 << 63), (1 << 64) - 1) | FLOATS | TEXT | BYTES,
    lambda below: (
        st.lists(below, max_size=4) | st.dictionaries(TEXT | st.integers(0, 9), below, max_size=4)
    ),
    max_leaves=12,
)
TREES = st.recursive(
    st.none()
    | BOOLS
    | INTS
    | FLOATS
    | TEXT
    | BYTES
    | ARRAYS
    | ARRAYS.map(lambda a: a.flat[0] if a.size else 0),
    lambda below: (
        st.lists(below, max_size=4) | st.dictionaries(TEXT | st.integers(0, 9), below, max_size=4)
    ),
    max_leaves=8,
)
PNGS = hnp.arrays(
    np.uint8,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9).flatmap(
        lambda shape: st.sampled_from([shape, (*shape, 2), (*shape, 3), (*shape, 4)])
    ),
)

LOSSLESS: dict[str, st.SearchStrategy[Any]] = {
    "bytes": BYTES, "utf8": TEXT, "int": INTS, "float": FLOATS, "bool": BOOLS, "json": JSON,
    "msgpack": MSGPACK, "array": ARRAYS, "tree": TREES, "png": PNGS,
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Compare values with their types, dtypes and shapes. nan equals nan, 0.0 differs from -0.0."""
    if isinstance(one, (np.ndarray, np.generic)):
        return (
            type(one) is type(other)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def frames(count: int, size: int = 1000) -> list[bytes]:
    """Return elements that differ from one another."""
    return [i.to_bytes(4, "little") * (size // 4) for i in range(count)]


def flip(path: Path, at: int) -> None:
    """Damage one byte of a file; a negative `at` counts from its end."""
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)

"""Previews of arrays: `.npy` files, members of `.npz` files, and values of datasets.

Nothing is unpickled. No more memory is used than `MOST_BYTES`: a larger array is shown by its first
part, and the preview says so.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.view.pictures import array_png, floats, scale_of

MOST_BYTES = 64 << 20
MOST_MEMBERS = 1000  # of an .npz file that are listed
MOST_ENTRIES = 100_000  # of an .npz file that are looked at
MOST_VALUES = 1000  # numbers that a plot or a table of values has
MOST_COUNTED = 4_000_000  # values in the statistics: 32 MB as floats
BINS = 40
MOST_CLASSES = 31
"""Slices of bytes up to this value, such as masks, are made brighter: they would look black."""
_ENTRY = b"PK\x01\x02"  # begins an entry of a ZIP file's directory
_UNPACKED_IN_PARTS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compressions that NumPy writes. With bzip2 and LZMA, zipfile would unpack the whole member at
once, however few bytes are asked for: gigabytes from some kilobytes."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An array, or its first part. `shape` is the shape of the whole array."""

    values: npt.NDArray[Any]
    shape: tuple[int, ...]
    is_cut_off: bool = False
    """Whether the file ends before the array does."""

    @property
    def is_whole(self) -> bool:
        return self.values.shape == self.shape


def load_npy(data: Any) -> Loaded:
    """Return the array of a `.npy` file, of which `data` is a part from the start on."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise ValueError(f"version {version[0]}.{version[1]} of the format is unknown")
        shape, fortran, dtype = read(stream)
    except Exception as error:  # NumPy raises many kinds for a damaged header
        raise ValueError(f"not a valid .npy file: {error}") from None
    if dtype.hasobject:
        raise ValueError("the array holds pickled Python objects, which are never loaded")
    loaded = _shaped(stream.getbuffer()[stream.tell() :], shape, dtype, fortran)
    is_cut_off = not loaded.is_whole and stream.getbuffer().nbytes < MOST_BYTES
    return replace(loaded, is_cut_off=is_cut_off)


def _shaped(raw: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any], fortran: bool) -> Loaded:
    if any(side < 0 for side in shape) or dtype.itemsize == 0:
        raise ValueError(f"not a valid .npy file: shape {shape} of {dtype}")
    count = 1
    for side in shape:
        count *= side
    there = len(raw) // dtype.itemsize
    if there >= count:
        values = np.frombuffer(raw, dtype, count)
        return Loaded(values.reshape(shape, order="F" if fortran else "C"), shape)
    if fortran or not shape:
        return Loaded(np.frombuffer(raw, dtype, there), shape)
    row = count // shape[0]
    rows = there // row
    if not rows:
        return Loaded(np.frombuffer(raw, dtype, there), shape)
    return Loaded(np.frombuffer(raw, dtype, rows * row).reshape(rows, *shape[1:]), shape)


def npz_members(data: Any) -> list[dict[str, Any]]:
    """Return the names and the sizes of the arrays in an `.npz` file."""
    try:
        with _opened(data) as opened:
            return [
                {"name": each.filename.removesuffix(".npy"), "bytes": each.file_size}
                for each in opened.infolist()[:MOST_MEMBERS]
            ]
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ValueError(f"not a valid .npz file: {error}") from None


def _opened(data: Any) -> zipfile.ZipFile:
    raw = bytes(data)
    # zipfile makes an object of half a kilobyte for each entry, which takes 46 bytes in the file.
    if raw.count(_ENTRY) > MOST_ENTRIES:
        raise ValueError(f"it lists more than {MOST_ENTRIES:,} arrays")
    return zipfile.ZipFile(io.BytesIO(raw))


def load_member(data: Any, number: int) -> Loaded:
    """Return an array of an `.npz` file, unpacked only as far as `MOST_BYTES`."""
    try:
        with _opened(data) as opened:
            member = opened.infolist()[number]
            if member.compress_type not in _UNPACKED_IN_PARTS:
                raise ValueError("NumPy does not write arrays with this compression")
            with opened.open(member) as stream:
                raw = stream.read(MOST_BYTES)
    except IndexError:
        raise ValueError(f"the file has no array number {number}") from None
    except Exception as error:  # zipfile and zlib raise many kinds for a damaged file
        raise ValueError(f"not a valid .npz file: {error}") from None
    return load_npy(raw)


def describe(loaded: Loaded) -> dict[str, Any]:
    """Return shape, type, statistics and a histogram of an array."""
    values = loaded.values
    facts: dict[str, Any] = {
        "shape": list(loaded.shape), "dtype": str(values.dtype), "whole": loaded.is_whole,
        "loaded": list(values.shape), "cut_off": loaded.is_cut_off,
    }  # fmt: skip
    if values.dtype.kind in "biuf" and values.size:
        step = -(-values.size // MOST_COUNTED)
        numbers = floats(values.ravel()[::step])
        finite = numbers[np.isfinite(numbers)]
        facts["sampled"] = step > 1
        facts["not_finite"] = int(numbers.size - finite.size)
        if finite.size:
            facts.update(_statistics(finite))
    facts["picture"] = picture_shape(values) is not None
    facts["slices"] = list(values.shape[: _outer(values)]) if facts["picture"] else []
    if values.ndim == 1 and values.dtype.kind in "biuf":
        step = -(-len(values) // MOST_VALUES) or 1
        facts["plot"] = [_plain(value) for value in values[::step]]
    if not facts["picture"]:
        facts["values"] = texts_of(values.ravel()[:100])
    return facts


def texts_of(values: npt.NDArray[Any]) -> list[str]:
    """Return values as text, or as hexadecimal digits if one has a letter that does not exist."""
    try:
        return [str(value)[:200] for value in values.tolist()]
    except Exception:  # numpy lets Python fail in several ways
        raw, size = values.tobytes(), values.itemsize
        return [raw[at : at + size].hex()[:200] for at in range(0, len(raw), size)]


def _statistics(finite: npt.NDArray[np.float64]) -> dict[str, Any]:
    scale = scale_of(finite)
    part = finite / scale
    return {
        "statistics": {
            "minimum": float(finite.min()), "maximum": float(finite.max()),
            "mean": float(part.mean()) * scale, "deviation": float(part.std()) * scale,
            "zeros": int((finite == 0).sum()),
        },
        "histogram": [
            {"from": low, "to": high, "count": count}
            for low, high, count in histogram(finite, BINS)
        ],
    }  # fmt: skip


def histogram(finite: npt.NDArray[np.float64], bins: int) -> list[tuple[float, float, int]]:
    """Return the ends and the count of each bin.

    There is one bin if the numbers are equal, or so close that floats cannot be the ends of bins.
    """
    scale = scale_of(finite)
    part = finite / scale
    counts, edges = np.array([finite.size]), np.array([part.min(), part.max()])
    if part.min() < part.max():
        with contextlib.suppress(ValueError):
            counts, edges = np.histogram(part, bins)
    edges = edges * scale
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True))


def picture_shape(values: npt.NDArray[Any]) -> tuple[int, ...] | None:
    """Return the shape of one slice that can be a picture; None if there is none."""
    if values.dtype.kind not in "biuf" or values.ndim < 2 or not values.size:
        return None
    inner = values.shape[_outer(values) :]
    return inner if min(inner[:2]) >= 2 else None


def slice_png(loaded: Loaded, at: list[int]) -> bytes:
    """Return one slice of an array as a PNG."""
    values = loaded.values
    if picture_shape(values) is None:
        raise ValueError("the array cannot be shown as a picture")
    outer = _outer(values)
    chosen = values
    for axis in range(outer):
        chosen = chosen[max(0, min(at[axis] if axis < len(at) else 0, chosen.shape[0] - 1))]
    if values.dtype in (np.bool_, np.uint8):
        most = int(values.max())
        brighter = 255 // most if 0 < most <= MOST_CLASSES else 1
        chosen = chosen.astype(np.uint8) * np.uint8(brighter)
    if chosen.ndim == 3 and chosen.shape[2] == 1:
        chosen = chosen[:, :, 0]
    return array_png(chosen)


def _outer(values: npt.NDArray[Any]) -> int:
    """Return the number of axes before a picture. A last axis of 1, 3 or 4 holds colours."""
    return values.ndim - (3 if values.ndim > 2 and values.shape[-1] in (1, 3, 4) else 2)


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None

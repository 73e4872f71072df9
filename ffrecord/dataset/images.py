"""Images as records: JPEG and PNG files, converted from and to uint8 arrays with Pillow.

A grey image has the shape (height, width). Others have (height, width, channels): 3 channels for
RGB and, in PNG only, 2 for grey with alpha and 4 for RGBA.
"""

from __future__ import annotations

import io
import os
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.dataset import optional
from ffrecord.dataset.optional import raising
from ffrecord.errors import DecodeError, EncodeError

Pixels: TypeAlias = npt.NDArray[np.uint8]

JPEG_QUALITY = 95
# Limit for the size that a file claims: Pillow allocates the memory before it reads the data.
MOST_PIXELS = 1 << 28

_CHANNELS = {"jpg": (1, 3), "png": (1, 2, 3, 4)}
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# Pillow's modes in files of other programs, and the modes that they are converted to.
_GIVEN_AS = {"1": "L", "P": "RGBA", "PA": "RGBA", "CMYK": "RGB", "YCCK": "RGB"}


@raising(EncodeError)
def encode_jpg(value: Any) -> bytes:
    """Return the pixels as a JPEG file, at quality 95. JPEG is lossy."""
    return _save(value, "jpg", format="JPEG", quality=JPEG_QUALITY)


@raising(EncodeError)
def encode_png(value: Any) -> bytes:
    return _save(value, "png", format="PNG")


@raising(DecodeError)
def decode_jpg(buffer: memoryview) -> Pixels:
    # Not Image.open: it tries every format, and its size limit is a process-wide warning.
    optional.load("PIL")
    return _load(optional.load("PIL.JpegImagePlugin").JpegImageFile, buffer)


@raising(DecodeError)
def decode_png(buffer: memoryview) -> Pixels:
    optional.load("PIL")
    return _load(optional.load("PIL.PngImagePlugin").PngImageFile, buffer)


def _save(value: Any, kind: str, **how: Any) -> bytes:
    if isinstance(value, (str, bytes, bytearray, memoryview, os.PathLike)):
        raise TypeError(
            f"an image must be an array of uint8, not {type(value).__name__}; decode it first, or "
            "store the bytes of the file in a field of type bytes"
        )
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8:
        raise TypeError(f"an image must be an array of uint8, not {pixels.dtype}")
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim not in (2, 3) or channels not in _CHANNELS[kind] or pixels.shape[2:] == (1,):
        raise ValueError(
            f"the shape is {pixels.shape}; for {kind} it must be (height, width) or (height, "
            f"width, channels) with {' or '.join(str(n) for n in _CHANNELS[kind][1:])} channels"
        )
    height, width = pixels.shape[:2]
    if not 0 < height * width <= MOST_PIXELS:
        raise ValueError(
            f"the image has {height} × {width} pixels; it must have 1 to {MOST_PIXELS}"
        )
    size, mode = (width, height), _MODES[channels]
    image = optional.load("PIL.Image").frombytes(mode, size, pixels.tobytes())
    stream = io.BytesIO()
    image.save(stream, **how)
    return stream.getvalue()


def _load(reader: Any, buffer: memoryview) -> Pixels:
    with reader(io.BytesIO(buffer)) as image:
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise ValueError(f"it claims {width} × {height} pixels; the limit is {MOST_PIXELS}")
        if image.mode not in _MODES.values() and image.mode not in _GIVEN_AS:
            raise ValueError(f"its pixels do not have 8 bits per channel (mode {image.mode})")
        image.load()
        return np.array(image.convert(_GIVEN_AS.get(image.mode, image.mode)))

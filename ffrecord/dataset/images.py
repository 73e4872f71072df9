"""Images as records: JPEG and PNG files, from and to uint8 arrays, by Pillow.

A grey image has the shape (height, width), others (height, width, channels): 3 for RGB and, in PNG
only, 2 for grey with alpha and 4 for RGBA.
"""

from __future__ import annotations

import io
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ffrecord.dataset import optional
from ffrecord.dataset.optional import raising
from ffrecord.errors import DecodeError, EncodeError

Pixels: TypeAlias = npt.NDArray[np.uint8]

JPEG_QUALITY = 95
# What a file may claim to be when it is decoded: memory is taken for it before its data is seen.
MOST_PIXELS = 1 << 28

_CHANNELS = {"jpg": (1, 3), "png": (1, 2, 3, 4)}
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
# What other writers' files may hold, and what it is given as.
_GIVEN_AS = {"1": "L", "P": "RGBA", "PA": "RGBA", "CMYK": "RGB", "YCCK": "RGB"}


@raising(EncodeError)
def encode_jpg(value: Any) -> bytes:
    """Lossy, at quality 95."""
    return _save(value, "jpg", format="JPEG", quality=JPEG_QUALITY)


@raising(EncodeError)
def encode_png(value: Any) -> bytes:
    return _save(value, "png", format="PNG")


@raising(DecodeError)
def decode_jpg(buffer: memoryview) -> Pixels:
    # Not Image.open: it tries every format it knows, and its limit is a process-wide warning.
    optional.load("PIL")
    return _load(optional.load("PIL.JpegImagePlugin").JpegImageFile, buffer)


@raising(DecodeError)
def decode_png(buffer: memoryview) -> Pixels:
    optional.load("PIL")
    return _load(optional.load("PIL.PngImagePlugin").PngImageFile, buffer)


def _save(value: Any, kind: str, **how: Any) -> bytes:
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8:
        raise TypeError(f"an image is an array of uint8, not {pixels.dtype}")
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim not in (2, 3) or channels not in _CHANNELS[kind] or pixels.shape[2:] == (1,):
        raise ValueError(
            f"an image in {kind} has the shape (height, width) or (height, width, channels) with "
            f"{' or '.join(str(n) for n in _CHANNELS[kind][1:])} channels, not {pixels.shape}"
        )
    height, width = pixels.shape[:2]
    if not 0 < height * width <= MOST_PIXELS:
        raise ValueError(f"an image has 1 to {MOST_PIXELS} pixels, not {height} × {width}")
    size, mode = (width, height), _MODES[channels]
    image = optional.load("PIL.Image").frombytes(mode, size, pixels.tobytes())
    stream = io.BytesIO()
    image.save(stream, **how)
    return stream.getvalue()


def _load(reader: Any, buffer: memoryview) -> Pixels:
    with reader(io.BytesIO(buffer)) as image:
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise ValueError(f"{width} × {height} are more than {MOST_PIXELS} pixels")
        if image.mode not in _MODES.values() and image.mode not in _GIVEN_AS:
            raise ValueError(f"its pixels are not of 8 bits but {image.mode}")
        image.load()
        return np.array(image.convert(_GIVEN_AS.get(image.mode, image.mode)))

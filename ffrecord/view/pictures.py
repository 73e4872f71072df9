"""Pictures made with Pillow: thumbnails, and previews of formats that browsers do not show.

Pictures may be hostile. Pillow reads only the formats in `FORMATS`, no picture is decoded before
its size is known to be small enough, and large ones are decoded one at a time.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.dataset import optional

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "AVIF", "TIFF", "PPM")
MOST_PIXELS = 64_000_000  # 200 MB in memory, for one picture at a time
LARGE = 8_000_000  # pixels from which pictures are decoded one at a time
LARGEST_PREVIEW = 2048  # pixels of the longer side of a converted picture
SMALL_BYTES = 16 << 10  # of a picture that is its own thumbnail
PASSED_ON = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
MOST_EXACT = 1e100  # larger numbers are divided before they are squared
PLAIN = ("RGB", "L", "RGBA", "LA", "P")
_one_at_a_time = threading.Lock()


class TooLarge(ValueError):  # noqa: N818 - a reason, for people
    """The picture has more pixels than are decoded here."""


def size_of(data: Any) -> dict[str, Any]:
    """Return the format, the size and the mode of a picture. Raise ValueError if it is none."""
    with _opened(data) as picture:
        frames = getattr(picture, "n_frames", 1)
        return {
            "format": picture.format, "width": picture.width, "height": picture.height,
            "mode": picture.mode, "frames": frames,
        }  # fmt: skip


def thumbnail(data: Any, side: int) -> tuple[str, bytes]:
    """Return a picture of at most `side` pixels on each side: its media type and its bytes."""
    with _opened(data) as picture:
        small = max(picture.size) <= 2 * side and len(data) <= SMALL_BYTES
        if small and picture.format in PASSED_ON and picture.mode in PLAIN:
            return PASSED_ON[picture.format], bytes(data)
        picture.draft("RGB", (side, side))  # JPEG: decode only as much as is needed
        return _small(picture, side)


def converted(data: Any, frame: int = 0) -> tuple[str, bytes]:
    """Return a picture, or one frame of it, in a format that browsers show."""
    with _opened(data) as picture:
        if frame:
            picture.seek(min(frame, getattr(picture, "n_frames", 1) - 1))
        return _small(picture, LARGEST_PREVIEW, lossless=True)


def array_png(values: npt.NDArray[Any]) -> bytes:
    """Return a PNG of a grey (H×W) or coloured (H×W×3) array. The values are scaled to 0 … 255."""
    image = optional.load("PIL.Image")
    out = io.BytesIO()
    small = values[:: -(-values.shape[0] // 1024) or 1, :: -(-values.shape[1] // 1024) or 1]
    image.fromarray(scaled(small)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def scaled(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Map values to 0 … 255, from the lowest to the highest. NaN and infinity become 0."""
    if values.dtype == np.uint8:
        return values
    numbers = floats(values)
    finite = np.isfinite(numbers)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    numbers = np.where(finite, numbers, 0) / scale_of(numbers[finite])
    low, high = numbers[finite].min(), numbers[finite].max()
    span = high - low or 1.0
    part = np.where(finite, (numbers - low) / span, 0).clip(0, 1)
    return (part * 255 + 0.5).astype(np.uint8)


def floats(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values as floats of 8 bytes. Larger numbers become infinite."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64)


def scale_of(numbers: npt.NDArray[np.float64]) -> float:
    """Return a divisor of finite numbers with which their sums and squares are finite, too."""
    most = float(np.abs(numbers).max())
    return most if most > MOST_EXACT else 1.0


@contextmanager
def _opened(data: Any) -> Iterator[Any]:
    """Open a picture. Errors in the block become ValueError: Pillow raises many kinds."""
    image = optional.load("PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large pictures, which are refused below
            picture = image.open(io.BytesIO(data), formats=FORMATS)
        with picture:
            yield picture
    except TooLarge:
        raise
    except image.DecompressionBombError:
        raise TooLarge("the picture is too large to be decoded") from None
    except Exception as error:
        raise ValueError(_reason(error)) from None


def _small(picture: Any, side: int, *, lossless: bool = False) -> tuple[str, bytes]:
    pixels = picture.width * picture.height
    if pixels > MOST_PIXELS:
        raise TooLarge(
            f"the picture is too large to be decoded: {picture.width:,} × {picture.height:,} "
            f"pixels, more than {MOST_PIXELS // 1_000_000} million"
        )
    with _one_at_a_time if pixels > LARGE else nullcontext():
        picture = _plain(picture)
        picture.thumbnail((side, side))
    out = io.BytesIO()
    if lossless or picture.mode in ("RGBA", "LA"):
        picture.save(out, "PNG", compress_level=1)
        return "image/png", out.getvalue()
    picture.save(out, "JPEG", quality=80)
    return "image/jpeg", out.getvalue()


def _plain(picture: Any) -> Any:
    """Return a picture with 8 bits a channel. 16 bits and floats are scaled to their range."""
    if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
        image = optional.load("PIL.Image")
        return image.fromarray(scaled(np.asarray(picture)))
    if picture.mode in ("RGB", "L", "RGBA", "LA"):
        return picture
    if picture.mode in ("P", "PA") or "transparency" in picture.info:
        return picture.convert("RGBA")
    return picture.convert("RGB")


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "not a picture in a known format"
    return f"the picture cannot be decoded: {optional.reason(error)}"

"""Pictures made with Pillow: thumbnails, and previews of formats that browsers do not show.

Pictures may be hostile. Pillow reads only the formats in `FORMATS`, no picture is decoded before
its size is known to be small enough, and large ones are decoded one at a time.
"""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ffrecord.dataset import optional

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "AVIF", "TIFF", "PPM")
MOST_PIXELS = 64_000_000  # 200 MB in memory, for one picture at a time
LARGE = 8_000_000  # pixels from which pictures are decoded one at a time
MOST_FRAMES = 1000  # of a TIFF: Pillow compares each with all before it, which may take hours
LARGEST_PREVIEW = 2048  # pixels of the longer side of a converted picture
SCALED_AT_ONCE = 1 << 20  # values; all of a picture as floats would take several times its memory
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
        return {
            "format": picture.format, "width": picture.width, "height": picture.height,
            "mode": picture.mode, "frames": _frames(picture),
        }  # fmt: skip


def thumbnail(data: Any, side: int) -> tuple[str, bytes]:
    """Return a picture of at most `side` pixels on each side: its media type and its bytes."""
    with _opened(data) as picture:
        small = max(picture.size) <= 2 * side and len(data) <= SMALL_BYTES
        if small and picture.format in PASSED_ON and picture.mode in PLAIN:
            return PASSED_ON[picture.format], bytes(data)
        has_scans = _has_scans(picture, data)
        if has_scans or picture.format != "JPEG":
            _refuse_large(picture)
        is_large = has_scans and _pixels(picture) > LARGE
        picture.draft("RGB", (side, side))  # JPEG: decode only as much as is needed
        return _small(picture, side, is_large=is_large)


def converted(data: Any, frame: int = 0) -> tuple[str, bytes]:
    """Return a picture, or one frame of it, in a format that browsers show."""
    with _opened(data) as picture:
        if frame:
            _refuse_large(picture)  # GIF: all frames before are decoded
            picture.seek(min(frame, _frames(picture) - 1))
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
    out = np.zeros(values.shape, np.uint8)
    step = max(1, SCALED_AT_ONCE * len(values) // max(1, values.size))
    parts = [slice(row, row + step) for row in range(0, len(values), step)]
    finite = [found for part in parts if (found := _range(values[part])) is not None]
    if not finite:
        return out
    low, high = min(each[0] for each in finite), max(each[1] for each in finite)
    scale = scale_of(np.array([low, high]))
    low, high = low / scale, high / scale
    span = high - low or 1.0
    for part in parts:
        numbers = floats(values[part])
        is_finite = np.isfinite(numbers)
        share = (np.where(is_finite, numbers, 0) / scale - low) / span
        out[part] = (np.where(is_finite, share.clip(0, 1), 0) * 255 + 0.5).astype(np.uint8)
    return out


def _range(values: npt.NDArray[Any]) -> tuple[Any, Any] | None:
    """Return the lowest and the highest finite value; None if there is none."""
    numbers = floats(values)
    numbers = numbers[np.isfinite(numbers)]
    return (numbers.min(), numbers.max()) if numbers.size else None


def floats(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return values as floats of 8 bytes. Larger numbers become infinite."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64)


def scale_of(numbers: npt.NDArray[np.float64]) -> float:
    """Return a divisor of finite numbers with which their sums and squares are finite, too."""
    most = float(np.abs(numbers).max())
    return most if most > MOST_EXACT else 1.0


@contextlib.contextmanager
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


def _has_scans(picture: Any, data: Any) -> bool:
    """Return True for a JPEG of several scans.

    Even for a small draft, libjpeg then keeps the coefficients of the whole picture, up to 8 bytes
    for each pixel. Such a JPEG is progressive, or its first scan has not all components.
    """
    if picture.format != "JPEG" or "progressive" in picture.info:
        return "progressive" in picture.info
    end = picture.fp.tell()  # Pillow has read the header of the first scan, of 6 + 2n bytes
    return any(
        bytes(data[max(0, end - 8 - 2 * count) :][:5]) == b"\xff\xda\0%c%c" % (6 + 2 * count, count)
        for count in range(1, picture.layers)
    )


def _pixels(picture: Any) -> int:
    return int(picture.width * picture.height)


def _refuse_large(picture: Any) -> None:
    if _pixels(picture) > MOST_PIXELS:
        raise TooLarge(
            f"the picture is too large to be decoded: {picture.width:,} × {picture.height:,} "
            f"pixels, more than {MOST_PIXELS // 1_000_000} million"
        )


def _frames(picture: Any) -> int:
    """Return the number of frames before damage. Count at most `MOST_FRAMES` of a TIFF."""
    frames = 1
    with contextlib.suppress(Exception):  # also EOFError behind the last one
        if picture.format != "TIFF":
            return int(getattr(picture, "n_frames", 1))
        for frame in range(1, MOST_FRAMES):
            picture.seek(frame)
            frames += 1
    return frames


def _small(
    picture: Any, side: int, *, lossless: bool = False, is_large: bool = False
) -> tuple[str, bytes]:
    _refuse_large(picture)
    with _one_at_a_time if is_large or _pixels(picture) > LARGE else contextlib.nullcontext():
        picture = _plain(picture)
        picture.thumbnail((side, side))
    out = io.BytesIO()  # a picture that was small enough is decoded only now
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

"""The samples that every contestant of `dataset` stores: five fields of mixed size.

Sample i depends only on i, so that a child process can check its samples without a second copy of
the data. A digest over decoded values shows whether two contestants returned the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Sample: TypeAlias = dict[str, Any]

SEED = 20260501
LABELS = 100
"""Number of classes; granular's `int` does not accept 128."""
WORDS = ("a", "the", "of", "with", "bicycle", "café", "grass", "in front", "two", "behind", "river")
CAPTION_WORDS = 19
FEATURES = 512
NONZERO = 64
JPEG_BYTES = 20_000
JPEG_SIGMA = 0.35
SIDE = 224
REGIONS = 24

FIELDS = ("label", "caption", "features", "jpeg", "mask")
SMALL_FIELD = "label"

RECIPE = "1"
"""Part of the `done` marker. Raise it when the values change; then all files are made again."""


@dataclass(frozen=True, slots=True)
class SampleSet:
    """`count` samples. A smaller set has the first samples of a larger one."""

    count: int

    def __iter__(self) -> Iterator[Sample]:
        return map(sample, range(self.count))

    def folder(self, root: Path, layout: str) -> Path:
        """Return the folder of one layout (a contestant's format) of this set."""
        return root / f"dataset-x{self.count}" / layout


def sample(index: int) -> Sample:
    """Return a sample of about 74 kB: class, sentence, sparse features, photo, and mask."""
    random = np.random.default_rng([SEED, index])
    return {
        "label": int(random.integers(LABELS)),
        "caption": " ".join(random.choice(WORDS, CAPTION_WORDS).tolist()),
        "features": _features(random),
        # Random bytes stand for a JPEG, which cannot be compressed again.
        "jpeg": random.bytes(int(random.lognormal(np.log(JPEG_BYTES), JPEG_SIGMA))),
        "mask": _mask(random),
    }


def digest(samples: Iterable[Mapping[str, Any]], crc: int = 0) -> int:
    """Return a checksum over the values and their types."""
    for each in samples:
        for name in FIELDS:
            if name in each:
                value = each[name]
                crc = zlib.crc32(_described(value).encode(), crc)
                crc = zlib.crc32(_content(value), crc)
    return crc


def _features(random: np.random.Generator) -> npt.NDArray[np.float32]:
    features = np.zeros(FEATURES, np.float32)
    features[random.integers(FEATURES, size=NONZERO)] = random.standard_normal(NONZERO)
    return features


def _mask(random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return regions of one class each over a gradient; every third region mixes classes."""
    mask = np.empty((SIDE, SIDE), np.uint8)
    mask[:] = np.arange(SIDE) // 8
    corners = random.integers(0, SIDE - 16, (REGIONS, 2)).tolist()
    sizes = random.integers(16, 64, (REGIONS, 2)).tolist()
    classes = random.integers(32, 250, REGIONS).tolist()
    for place, ((y, x), (height, width)) in enumerate(zip(corners, sizes, strict=True)):
        region = mask[y : y + height, x : x + width]
        region[:] = classes[place]
        if place % 3 == 0:
            region += random.integers(0, 4, region.shape, np.uint8)
    return mask


def _described(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} {value.dtype} {value.shape}" if isinstance(value, np.ndarray) else kind


def _content(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return value if isinstance(value, bytes) else str(value).encode()

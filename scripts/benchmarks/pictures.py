"""Folders of JPEG files with generated pictures.

The pixels are noise: few pixels make a file of the wanted size, and no format can compress it
further. Sizes are about log-normal, as in `datasets`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ffrecord.format.checksum import crc32

from . import datasets

RECIPE = "1"
"""Raise the number when the bytes change; then all files are made again."""

QUALITY = 90
BYTES_PER_PIXEL = 0.905
"""Bytes that noise takes as a JPEG of that quality."""


@dataclass(frozen=True, slots=True)
class PictureSet:
    """`count` pictures of about `mean` bytes, `per_class` of them in each folder."""

    mean: int
    count: int
    per_class: int

    def path(self, number: int) -> str:
        """Return the path of a picture below the top. Paths sort in the order of the numbers."""
        return f"{self.label(number):04d}/{number:06d}.jpg"

    def label(self, number: int) -> int:
        """Return the class of a picture."""
        return number // self.per_class

    def labels(self) -> list[int]:
        """Return the class of every picture."""
        return [self.label(number) for number in range(self.count)]

    def place(self, root: Path) -> Path:
        """Return the folder of everything that is made from this set."""
        return root / f"pictures-{self.count}x{self.mean}"

    def top(self, root: Path) -> Path:
        """Return the folder of the classes."""
        return self.place(root) / "folder" / "pictures"

    def checksums(self, root: Path) -> npt.NDArray[np.int64]:
        """Return the CRC-32 of every file, computed before it was written."""
        checksums: npt.NDArray[np.int64] = np.load(self._checksums(root))
        return checksums

    def files(self, root: Path) -> Iterator[bytes]:
        """Yield the contents of all files in order."""
        return ((self.top(root) / self.path(number)).read_bytes() for number in range(self.count))

    def payload(self, root: Path) -> int:
        """Return the bytes of all files."""
        return sum(file.stat().st_size for file in self.top(root).glob("*/*.jpg"))

    def write(self, root: Path) -> None:
        """Write the files."""
        checksums = np.empty(self.count, np.int64)
        for number, data in enumerate(self._made()):
            file = self.top(root) / self.path(number)
            if number % self.per_class == 0:
                file.parent.mkdir(parents=True)
            file.write_bytes(data)
            checksums[number] = crc32(data)
        np.save(self._checksums(root), checksums)

    def _made(self) -> Iterator[bytes]:
        from PIL import Image

        generator = np.random.default_rng([datasets.SEED, self.mean])
        for length in datasets.RecordSet("pictures", self.mean, self.count).lengths().tolist():
            side = max(8, round((length / BYTES_PER_PIXEL) ** 0.5))
            pixels = generator.integers(0, 256, (side, side, 3), np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
            yield file.getvalue()

    def _checksums(self, root: Path) -> Path:
        return self.top(root).parent / "checksums.npy"

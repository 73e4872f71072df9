"""Folders of files to pack, and their creation on disk.

Sizes are log-normal and bytes are random, as in `datasets`: no contestant gains by compressing or
by finding duplicates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import datasets

RECIPE = "1"
"""Raise the number when the bytes change; then all files are made again."""

PIECE = 16 << 20
"""Bytes of a file that are drawn at once."""


@dataclass(frozen=True, slots=True)
class FileTree:
    """`count` files of `mean` bytes on average, `per_folder` of them in each folder."""

    name: str
    mean: int
    count: int
    per_folder: int

    @property
    def payload(self) -> int:
        return int(self.sizes().sum())

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the size of every file: log-normal, `mean` × `count` in total before rounding."""
        drawn = datasets.RecordSet(self.name, self.mean, self.count).lengths()
        sizes: npt.NDArray[np.int64] = drawn * (self.mean * self.count) // drawn.sum()
        return sizes

    def path(self, number: int) -> str:
        """Return the path of a file below the top."""
        return f"{number // self.per_folder:03d}/{number:06d}.bin"

    def place(self, root: Path) -> Path:
        """Return the folder of the tree and its marker."""
        return root / f"tree-{self.count}x{self.mean}"

    def top(self, root: Path) -> Path:
        """Return the folder to pack."""
        return self.place(root) / "files"


def create(root: str, name: str, mean: int, count: int, per_folder: int) -> None:
    """Write a tree unless it exists; called in a fresh process."""
    tree = FileTree(name, mean, count, per_folder)
    place, top = tree.place(Path(root)), tree.top(Path(root))
    datasets.make_once(place, f"{RECIPE}/{per_folder}", lambda: _write(tree, top))


def _write(tree: FileTree, top: Path) -> None:
    generator = np.random.default_rng([datasets.SEED, tree.mean, tree.count])
    for number, size in enumerate(tree.sizes().tolist()):
        path = top / tree.path(number)
        if number % tree.per_folder == 0:
            path.parent.mkdir(parents=True)
        with open(path, "wb") as file:
            for begin in range(0, size, PIECE):
                file.write(generator.bytes(min(PIECE, size - begin)))

"""Type aliases that many modules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import os

    import numpy as np
    import numpy.typing as npt

# Strings: a command that reads no records need not import numpy (0.1 s).
Path: TypeAlias = "str | os.PathLike[str]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"
Crcs: TypeAlias = "npt.NDArray[np.uint32]"

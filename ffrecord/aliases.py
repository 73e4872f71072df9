"""Types that many modules share: aliases, and the base of all that is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import os

    import numpy as np
    import numpy.typing as npt

# Strings: a command that reads no records need not import numpy (0.1 s).
Path: TypeAlias = "str | os.PathLike[str]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

Self = TypeVar("Self", bound="Closing")  # typing has it from Python 3.11 on


class Closing:
    """Base of what is closed at the end of a `with` block, or given up if the block fails."""

    def close(self) -> None:
        raise NotImplementedError

    def _give_up(self) -> None:
        self.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, *exc: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self._give_up()

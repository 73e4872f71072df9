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
    """Base of what is closed at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Finishing(Closing):
    """Base of writers: closing one finishes its work, unless the `with` block fails."""

    def _give_up(self) -> None:
        raise NotImplementedError

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:  # type: ignore[override]
        if exc_type is None:
            self.close()
        else:
            self._give_up()

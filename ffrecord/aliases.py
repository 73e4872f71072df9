"""Types that many modules share: type aliases, and base classes of objects with `close`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import os

    import numpy as np
    import numpy.typing as npt

# Quoted, so that a command that reads no records need not import numpy (0.1 s).
Path: TypeAlias = "str | os.PathLike[str]"
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

Self = TypeVar("Self", bound="Closing")  # in `typing` since Python 3.11


class Closing:
    """Base of objects that a `with` block closes when it ends."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Finishing(Closing):
    """Base of writers: a `with` block calls `close` at its end, or `_give_up` after a failure."""

    def _give_up(self) -> None:
        raise NotImplementedError

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:  # type: ignore[override]
        if exc_type is None:
            self.close()
        else:
            self._give_up()

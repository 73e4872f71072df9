"""Optional packages, and their failures as our errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

from ffrecord.errors import FFRecordError, MissingPackageError

# module -> what pip calls the package that has it
PIP_NAMES = {
    "msgpack": "msgpack", "PIL": "pillow", "zstandard": "zstandard", "lz4": "lz4",
    "crc32c": "crc32c", "cramjam": "cramjam", "h5py": "h5py",
}  # fmt: skip


@cache
def load(module: str) -> Any:
    """An optional module, or an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = PIP_NAMES[module.split(".")[0]]
        raise MissingPackageError(
            f"the package {package} is needed for this and is not installed: pip install {package}"
        ) from error


Function = TypeVar("Function", bound=Callable[..., Any])


def raising(ours: type[FFRecordError]) -> Callable[[Function], Function]:
    """Make a function raise `ours` for everything but what is an error of ours already."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def guarded(value: Any) -> Any:
            try:
                return function(value)
            except FFRecordError:
                raise
            except Exception as error:
                raise ours(reason(error)) from error

        return guarded  # type: ignore[return-value]

    return decorate


def reason(error: Exception) -> str:
    """Its words, or its class if it has none."""
    return str(error) or type(error).__name__

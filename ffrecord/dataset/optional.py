"""Import of optional packages, and conversion of their exceptions into our errors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

from ffrecord.errors import FFRecordError, MissingPackageError

# module -> the name of its package for pip
PIP_NAMES = {
    "msgpack": "msgpack", "PIL": "pillow", "zstandard": "zstandard", "lz4": "lz4",
    "crc32c": "crc32c", "cramjam": "cramjam", "h5py": "h5py",
}  # fmt: skip

CONVERSIONS = ("crc32c", "cramjam", "h5py")
"""Modules of the extra `convert`. A format may need several, so the pip command installs all."""


@cache
def load(module: str) -> Any:
    """Import an optional module; if it is missing, raise an error with the pip command."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = PIP_NAMES[module.split(".")[0]]
        install = "'ffrecord[convert]'" if package in CONVERSIONS else package
        raise MissingPackageError(
            f"this needs the package {package}, which is not installed; run: pip install {install}"
        ) from error


Function = TypeVar("Function", bound=Callable[..., Any])


def raising(ours: type[FFRecordError]) -> Callable[[Function], Function]:
    """Decorate a function: exceptions become `ours`, unless they are FFRecordErrors already."""

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
    """Return the error's message, or the name of its class if the message is empty."""
    return str(error) or type(error).__name__

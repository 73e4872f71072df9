"""Packages that only some types need: asked for by name when they are used and missing."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from ffrecord.errors import MissingPackageError

# module -> what pip calls the package that has it
PIP_NAMES = {
    "msgpack": "msgpack",
    "PIL": "pillow",
    "zstandard": "zstandard",
    "lz4": "lz4",
    "crc32c": "crc32c",
    "cramjam": "cramjam",
    "h5py": "h5py",
}


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

"""Packed folders as an fsspec file system, so that pandas, dask, pyarrow and zarr open their files.

The URL `ffr://inner/path::photos.ffr` is the file `inner/path` in the archive `photos.ffr`. fsspec
finds this package by its entry point, so no import is needed. Importing this package without fsspec
raises `MissingPackageError`.
"""

from __future__ import annotations

from ffrecord.errors import MissingPackageError

try:
    import fsspec  # noqa: F401 - first, so that a missing fsspec is reported in plain words
except ModuleNotFoundError as error:
    if error.name != "fsspec":
        raise
    raise MissingPackageError(
        "ffrecord.fsspec needs fsspec, which is not installed; run: pip install 'ffrecord[fsspec]'"
    ) from error

from ffrecord.fsspec.filesystem import PackedFolderFileSystem

__all__ = ["PackedFolderFileSystem"]

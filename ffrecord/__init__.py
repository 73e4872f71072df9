"""FFRecord: CRC-checked binary records in one file, with random access in batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# isort: off
from ffrecord.errors import (
    AppendError, BadRecordWarning, BusyError, CacheWarning, ChangedError, ChangedWarning,
    ClosedError, ConversionError, CountError, DamagedSourceError, DatasetError, DecodeError,
    EncodeError, FFRecordError, HeaderChecksumError, IndexChecksumError, IndexStructureError,
    LegacyFileWarning,
    MissingFolderError, MissingPackageError, MissingShardWarning, NoRoomError, NotFFRecordError,
    NotPackedFolderError, PlanError, ReadFailedError, RemoteError, RemoteShuffleWarning,
    ReplacedLoaderWarning, SampleChecksumError, SkippedWarning, SpecError, StateError,
    StructureError, TimedOutError, TruncatedError, UnclosedWarning, UnfinishedError,
    UploadError, UrlError, WriteFailedError,
)  # fmt: skip
from ffrecord.version import __version__
# isort: on

if TYPE_CHECKING:
    # isort: off
    from ffrecord import fileio as fileio
    from ffrecord import package as package
    from ffrecord import torch as torch
    from ffrecord import utils as utils
    from ffrecord import view as view
    from ffrecord.archive.folder import PackedFolder
    from ffrecord.archive.pack import PackReport, pack_folder, packing_bar
    from ffrecord.dataset import (
        DatasetReader, DatasetWriter, Interleave, Mix, ShardedDatasetReader, ShardedDatasetWriter,
        Transform, decoders, encoders, view_decoder, write_dataset,
    )  # fmt: skip
    from ffrecord.fileio import checkFsAlign
    from ffrecord.records.reader import FileReader
    from ffrecord.records.salvage import SalvageReport, salvage_file
    from ffrecord.records.writer import FileWriter

__all__ = [
    "AppendError", "BadRecordWarning", "BusyError", "CacheWarning", "ChangedError",
    "ChangedWarning", "ClosedError", "ConversionError", "CountError", "DamagedSourceError",
    "DatasetError", "DatasetReader", "DatasetWriter", "DecodeError", "EncodeError", "FFRecordError",
    "FileReader", "FileWriter", "HeaderChecksumError", "IndexChecksumError",
    "IndexStructureError", "Interleave", "LegacyFileWarning", "MissingFolderError",
    "MissingPackageError", "MissingShardWarning", "Mix", "NoRoomError", "NotFFRecordError",
    "NotPackedFolderError", "PackReport", "PackedFolder", "PlanError", "ReadFailedError",
    "RemoteError", "RemoteShuffleWarning", "ReplacedLoaderWarning", "SalvageReport",
    "SampleChecksumError",
    "ShardedDatasetReader", "ShardedDatasetWriter", "SkippedWarning", "SpecError", "StateError",
    "StructureError", "TimedOutError", "Transform", "TruncatedError", "UnclosedWarning",
    "UnfinishedError", "UploadError", "UrlError", "WriteFailedError", "__version__", "checkFsAlign",
    "decoders", "encoders", "pack_folder", "packing_bar", "salvage_file", "view_decoder",
    "write_dataset",
]  # fmt: skip

# These names are loaded on first use. A command or a worker process that needs one part does not
# wait for the imports of the others (numpy takes 0.1 s).
_NAMES = {
    "archive.folder": ("PackedFolder",),
    "archive.pack": ("PackReport", "pack_folder", "packing_bar"),
    "dataset": (
        "DatasetReader", "DatasetWriter", "Interleave", "Mix", "ShardedDatasetReader",
        "ShardedDatasetWriter", "Transform", "decoders", "encoders", "view_decoder",
        "write_dataset",
    ),
    "fileio": ("checkFsAlign",),
    "records.reader": ("FileReader",),
    "records.salvage": ("SalvageReport", "salvage_file"),
    "records.writer": ("FileWriter",),
}  # fmt: skip
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

# The original FFRecord loads these three modules with the package, so `ffrecord.utils.dump` must
# work after `import ffrecord`.
_MODULES = ("fileio", "package", "utils")
_ROOMS = ("view",)  # `ffrecord.view.show` needs no import of its own either


def __getattr__(name: str) -> Any:
    if name in (*_MODULES, *_ROOMS):
        return importlib.import_module(f"ffrecord.{name}")
    if name == "torch":
        return _torch()
    if name not in _WHERE:
        raise AttributeError(f"module 'ffrecord' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ffrecord.{_WHERE[name]}"), name)
    globals()[name] = found
    return found


def _torch() -> Any:
    """Load `ffrecord.torch`, which the original's examples use without importing it.

    Raises `AttributeError` if PyTorch is missing, so that `hasattr` returns False.
    """
    try:
        return importlib.import_module("ffrecord.torch")
    except MissingPackageError as error:
        raise AttributeError(f"module 'ffrecord' has no attribute 'torch': {error}") from error


def __dir__() -> list[str]:
    # `torch` is left out: with it, help() and inspect.getmembers() would load PyTorch.
    return sorted({*globals(), *_WHERE, *_MODULES})

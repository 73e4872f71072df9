"""FFRecord: CRC-checked binary records in one file, with random access in batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ffrecord.errors import (
    AppendError,
    BadRecordWarning,
    BusyError,
    ChangedError,
    ChangedWarning,
    ClosedError,
    ConversionError,
    CountError,
    DamagedSourceError,
    DatasetError,
    DecodeError,
    EncodeError,
    FFRecordError,
    HeaderChecksumError,
    IndexChecksumError,
    IndexStructureError,
    LegacyFileWarning,
    MissingPackageError,
    MissingShardWarning,
    NoRoomError,
    NotFFRecordError,
    NotPackedFolderError,
    ReadFailedError,
    ReplacedLoaderWarning,
    SampleChecksumError,
    SkippedWarning,
    SpecError,
    StateError,
    StructureError,
    TruncatedError,
    UnfinishedError,
    WriteFailedError,
)
from ffrecord.version import __version__

if TYPE_CHECKING:
    from ffrecord.dataset import (
        DatasetReader,
        DatasetWriter,
        Interleave,
        Mix,
        ShardedDatasetReader,
        ShardedDatasetWriter,
        Transform,
        decoders,
        encoders,
        write_dataset,
    )
    from ffrecord.fileio import checkFsAlign
    from ffrecord.folder import PackedFolder
    from ffrecord.pack import PackReport, pack_folder
    from ffrecord.reader import FileReader
    from ffrecord.salvage import SalvageReport, salvage_file
    from ffrecord.writer import FileWriter

__all__ = [
    "AppendError",
    "BadRecordWarning",
    "BusyError",
    "ChangedError",
    "ChangedWarning",
    "ClosedError",
    "ConversionError",
    "CountError",
    "DamagedSourceError",
    "DatasetError",
    "DatasetReader",
    "DatasetWriter",
    "DecodeError",
    "EncodeError",
    "FFRecordError",
    "FileReader",
    "FileWriter",
    "HeaderChecksumError",
    "IndexChecksumError",
    "IndexStructureError",
    "Interleave",
    "LegacyFileWarning",
    "MissingPackageError",
    "MissingShardWarning",
    "Mix",
    "NoRoomError",
    "NotFFRecordError",
    "NotPackedFolderError",
    "PackReport",
    "PackedFolder",
    "ReadFailedError",
    "ReplacedLoaderWarning",
    "SalvageReport",
    "SampleChecksumError",
    "ShardedDatasetReader",
    "ShardedDatasetWriter",
    "SkippedWarning",
    "SpecError",
    "StateError",
    "StructureError",
    "Transform",
    "TruncatedError",
    "UnfinishedError",
    "WriteFailedError",
    "__version__",
    "checkFsAlign",
    "decoders",
    "encoders",
    "pack_folder",
    "salvage_file",
    "write_dataset",
]

# Loaded when they are first asked for: a command that needs one part, or a worker process that is
# started for it, does not wait for the others and what they import (numpy takes 0.1 s).
_WHERE = {
    "DatasetReader": "dataset",
    "DatasetWriter": "dataset",
    "Interleave": "dataset",
    "Mix": "dataset",
    "ShardedDatasetReader": "dataset",
    "ShardedDatasetWriter": "dataset",
    "Transform": "dataset",
    "decoders": "dataset",
    "encoders": "dataset",
    "write_dataset": "dataset",
    "FileReader": "reader",
    "FileWriter": "writer",
    "PackReport": "pack",
    "PackedFolder": "folder",
    "SalvageReport": "salvage",
    "checkFsAlign": "fileio",
    "pack_folder": "pack",
    "salvage_file": "salvage",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ffrecord' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ffrecord.{_WHERE[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})

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
    CountError,
    FFRecordError,
    HeaderChecksumError,
    IndexChecksumError,
    IndexStructureError,
    LegacyFileWarning,
    NoRoomError,
    NotFFRecordError,
    NotPackedFolderError,
    ReadFailedError,
    SampleChecksumError,
    SkippedWarning,
    StateError,
    StructureError,
    TruncatedError,
    UnfinishedError,
)
from ffrecord.version import __version__

if TYPE_CHECKING:
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
    "CountError",
    "FFRecordError",
    "FileReader",
    "FileWriter",
    "HeaderChecksumError",
    "IndexChecksumError",
    "IndexStructureError",
    "LegacyFileWarning",
    "NoRoomError",
    "NotFFRecordError",
    "NotPackedFolderError",
    "PackReport",
    "PackedFolder",
    "ReadFailedError",
    "SalvageReport",
    "SampleChecksumError",
    "SkippedWarning",
    "StateError",
    "StructureError",
    "TruncatedError",
    "UnfinishedError",
    "__version__",
    "checkFsAlign",
    "pack_folder",
    "salvage_file",
]

# Loaded when they are first asked for: a command that needs one part, or a worker process that is
# started for it, does not wait for the others and what they import (numpy takes 0.1 s).
_WHERE = {
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

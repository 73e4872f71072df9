"""FFRecord: CRC-checked binary records in one file, with random access in batches."""

from ffrecord.errors import (
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
    StructureError,
    TruncatedError,
    UnfinishedError,
)
from ffrecord.fileio import checkFsAlign
from ffrecord.folder import PackedFolder
from ffrecord.pack import PackReport, pack_folder
from ffrecord.reader import FileReader
from ffrecord.version import __version__
from ffrecord.writer import FileWriter

__all__ = [
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
    "SampleChecksumError",
    "SkippedWarning",
    "StructureError",
    "TruncatedError",
    "UnfinishedError",
    "__version__",
    "checkFsAlign",
    "pack_folder",
]

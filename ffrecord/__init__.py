"""FFRecord: CRC-checked binary records in one file, with random access in batches."""

from ffrecord.errors import (
    ClosedError,
    CountError,
    FFRecordError,
    HeaderChecksumError,
    LegacyFileWarning,
    NoRoomError,
    NotFFRecordError,
    ReadFailedError,
    SampleChecksumError,
    StructureError,
    TruncatedError,
    UnfinishedError,
)
from ffrecord.fileio import checkFsAlign
from ffrecord.reader import FileReader
from ffrecord.version import __version__
from ffrecord.writer import FileWriter

__all__ = [
    "ClosedError",
    "CountError",
    "FFRecordError",
    "FileReader",
    "FileWriter",
    "HeaderChecksumError",
    "LegacyFileWarning",
    "NoRoomError",
    "NotFFRecordError",
    "ReadFailedError",
    "SampleChecksumError",
    "StructureError",
    "TruncatedError",
    "UnfinishedError",
    "__version__",
    "checkFsAlign",
]

"""Every way a record file, a packed folder or a dataset can be wrong, one class each.

All are `FFRecordError`, which is a `RuntimeError` because that is what the original FFRecord
raised. A message names the file and, where there is one, the record and both checksums.
`exit_code` is what the command line exits with; docs/commands.md lists them.
"""

from __future__ import annotations

import errno
import os
from typing import Any


class FFRecordError(RuntimeError):
    """Something is wrong with a record file, or with how it is used."""

    exit_code = 1


class NotFFRecordError(FFRecordError):
    """The file is something else: a folder, a device, text, a picture."""

    exit_code = 3


class TruncatedError(FFRecordError):
    """The file ends before its header says it may."""

    exit_code = 4


class StructureError(FFRecordError):
    """The header's checksum holds, but its offsets make no sense."""

    exit_code = 5


class HeaderChecksumError(FFRecordError):
    """The header's bytes are not the ones that were written."""

    exit_code = 6


class SampleChecksumError(FFRecordError):
    """A record's bytes are not the ones that were written."""

    exit_code = 7
    name: str | None = None
    """In a packed folder, the file's name as it was asked for."""

    def __init__(
        self, path: str, record: int, stored: int, computed: int,
        *, part: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(path, record, stored, computed)
        self.path = path
        self.record = record
        self.stored = stored
        self.computed = computed
        self.part = part
        """The bytes of the record, from and up to, that the checksums are of; None: all of it."""

    def __str__(self) -> str:
        name = "" if self.name is None else f" ({self.name})"
        whose = "its checksum"
        if self.part is not None:
            begin, end = self.part
            whose = f"bytes {begin} to {end - 1} of it: their checksum"
        return (
            f"{self.path}: record {self.record} is damaged{name}: {whose} is "
            f"{self.computed:#010x}, the file says {self.stored:#010x}"
        )


class UnfinishedError(FFRecordError):
    """The writer never closed this file: its header is still zeros, or it has no journal."""

    exit_code = 8


class ClosedError(FFRecordError):
    """A reader or writer was used after it was closed."""

    exit_code = 9


class CountError(FFRecordError):
    """More or fewer records than a writer was opened for, or samples than records."""

    exit_code = 10


class _SystemCallError(OSError):
    """Base of the errors that are the operating system's too, with errno, strerror and filename.

    It comes before `FFRecordError` among the bases: OSError's `__init__` sets those three.
    """

    def __init__(self, path: str, code: int, why: str | None = None) -> None:
        super().__init__(code, os.strerror(code) if why is None else why, path)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.errno, self.strerror, self.filename
        return _unpickled, (type(self), *arguments), self.__dict__

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def _unpickled(kind: type[_SystemCallError], *arguments: Any) -> _SystemCallError:
    error = kind.__new__(kind)  # not its __init__, which takes other arguments in each class
    OSError.__init__(error, *arguments)
    return error


class NoRoomError(_SystemCallError, FFRecordError):
    """The disk, the quota or the file system's largest file size is used up."""

    exit_code = 11
    ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

    def __str__(self) -> str:
        return f"{self.filename}: no room to write: {self.strerror}"


class ReadFailedError(_SystemCallError, FFRecordError):
    """The operating system could not read what the header says is there."""

    exit_code = 12
    name: str | None = None
    """In a packed folder, the file's name as it was asked for."""

    def __init__(self, path: str, code: int, offset: int) -> None:
        super().__init__(path, code)
        self.offset = offset

    def __str__(self) -> str:
        name = "" if self.name is None else f"{self.name} "
        return f"{self.filename}: reading {name}at byte {self.offset} failed: {self.strerror}"


class WriteFailedError(_SystemCallError, FFRecordError):
    """The operating system could not write a file, or not say that it is on the disk."""

    exit_code = 22

    def __str__(self) -> str:
        return f"{self.filename}: writing failed: {self.strerror}"


class MissingFolderError(_SystemCallError, FileNotFoundError, FFRecordError):
    """There is no folder to put a new file or folder into."""

    exit_code = 23

    def __init__(self, path: str) -> None:
        super().__init__(os.path.dirname(path), errno.ENOENT)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: cannot be made: there is no folder {self.filename}; make it first"


class NotPackedFolderError(FFRecordError, ValueError):
    """The records are not a packed folder: there is no index among them."""

    exit_code = 14


class IndexChecksumError(FFRecordError):
    """The index of a packed folder is not the one that was written."""

    exit_code = 15


class IndexStructureError(FFRecordError):
    """The index of a packed folder contradicts itself, or asks for what no folder has."""

    exit_code = 16


class ChangedError(FFRecordError):
    """A file changed, or went away: while it was packed, appended to, or read before its end, or
    after it was opened and before another process was to open it."""

    exit_code = 17


class StateError(FFRecordError, ValueError):
    """A saved state of a loader or a sampler does not fit what it is loaded into."""

    exit_code = 19


class AppendError(FFRecordError):
    """Records cannot be added to this file without making something else of it."""

    exit_code = 20


class BusyError(FFRecordError):
    """Another writer is at work on this file or folder."""

    exit_code = 21


class TimedOutError(_SystemCallError, TimeoutError, FFRecordError):
    """Within the time limit no record was added to a file that is followed."""

    exit_code = 24

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, errno.ETIMEDOUT, what)


class DamagedSourceError(FFRecordError):
    """A file of another format is damaged, ends too early, or was made to harm."""

    exit_code = 35

    def __init__(
        self, path: str, what: str, record: int | None = None, offset: int | None = None
    ) -> None:
        super().__init__(path, what, record, offset)
        self.path = path
        self.what = what
        self.record = record
        self.offset = offset

    def __str__(self) -> str:
        where = "" if self.record is None else f": record {self.record}"
        if self.offset is not None:
            where += f"{' ' if where else ': '}at byte {self.offset}"
        return f"{self.path}{where}: {self.what}"


class ConversionError(FFRecordError, ValueError):
    """A conversion would lose something, or the other format cannot hold it."""

    exit_code = 36


class BadRecordWarning(UserWarning):
    """A record could not be read or decoded, and was left out as asked."""


class ReplacedLoaderWarning(UserWarning):
    """Another package made a torch DataLoader from one of ours, without its options."""


class DatasetError(FFRecordError, ValueError):
    """A folder is not a dataset, or its files do not belong together."""

    exit_code = 25


class SpecError(FFRecordError, ValueError):
    """A spec names a field that cannot be one, or a type without an encoder or decoder."""

    exit_code = 26


class EncodeError(FFRecordError, ValueError):
    """A value is not what its field's type can hold."""

    exit_code = 27


class DecodeError(FFRecordError, ValueError):
    """A record's bytes are not what its field's type makes of a value."""

    exit_code = 28


class MissingPackageError(FFRecordError, ImportError):
    """A type or a compression needs a package that is not installed."""

    exit_code = 29


class MissingShardWarning(UserWarning):
    """Shard numbers have a gap: one is missing, or its writer had fewer than others."""


class ChangedWarning(UserWarning):
    """As `ChangedError`, where such files were to be packed as they were found."""


class SkippedWarning(UserWarning):
    """A packed folder holds sockets, fifos or devices, which an archive does not keep."""


class LegacyFileWarning(UserWarning):
    """The file is from before header checksums: its header cannot be verified."""

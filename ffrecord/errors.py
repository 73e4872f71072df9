"""Errors and warnings of the library: one class for each way that a file or its use can be wrong.

Every error is an `FFRecordError`, which is a `RuntimeError` because the original FFRecord raised
that. A message names the file and, if known, the record and both checksums. `exit_code` is the
exit code of the command line; docs/commands.md lists all of them.
"""

from __future__ import annotations

import errno
import os
from typing import Any


class FFRecordError(RuntimeError):
    """A record file is wrong, or is used in a wrong way. Base class of all errors."""

    exit_code = 1
    advice = ""
    """Next step that a command prints after this error. Lists of errors leave it out, because it
    would be the same in every line."""


class NotFFRecordError(FFRecordError):
    """The file is not a record file, but for example a folder, a device, text or a picture."""

    exit_code = 3


class TruncatedError(FFRecordError):
    """The file is shorter than its header says: its end is missing."""

    exit_code = 4


class StructureError(FFRecordError):
    """The offsets in the header, or the entries in the journal, contradict each other."""

    exit_code = 5


class HeaderChecksumError(FFRecordError):
    """The header is damaged: its checksum does not match its bytes."""

    exit_code = 6


class SampleChecksumError(FFRecordError):
    """A record is damaged: its checksum does not match its bytes."""

    exit_code = 7
    advice = (
        "copy the file again, or save the undamaged records with `ffrecord salvage`; `ffrecord "
        "verify` lists the damaged ones"
    )
    name: str | None = None
    """Name of the file in a packed folder, as the caller gave it; None for other records."""

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
        """Range of the record's bytes that the checksums cover: begin and end; None for all."""
        # Python 3.11 and newer print notes below a traceback; `str(error)` does not contain them.
        self.__notes__ = [f'{self.advice}; on_error="skip" leaves them out of loops and loaders']

    def __str__(self) -> str:
        name = "" if self.name is None else f" ({self.name})"
        whose = "its checksum"
        if self.part is not None:
            begin, end = self.part
            whose = f"the checksum of its bytes {begin} to {end - 1}"
        return (
            f"{self.path}: record {self.record} is damaged{name}: {whose} is "
            f"{self.computed:#010x}, the file says {self.stored:#010x}"
        )


class UnfinishedError(FFRecordError):
    """The file was never finished: its header is still zeros, or its journal is missing.

    Or a folder in a store was not committed: the tasks of a plan write it.
    """

    exit_code = 8


class ClosedError(FFRecordError):
    """A reader or writer was used after it was closed."""

    exit_code = 9


class CountError(FFRecordError):
    """The number of records or samples differs from the number that was announced."""

    exit_code = 10


class _SystemCallError(OSError):
    """Base of the errors that come from the operating system: errno, strerror and filename.

    This class must precede `FFRecordError` in the list of bases, because OSError's `__init__` sets
    these three attributes.
    """

    def __init__(self, path: str, code: int, why: str | None = None) -> None:
        super().__init__(code, os.strerror(code) if why is None else why, path)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.errno, self.strerror, self.filename
        return _unpickled, (type(self), *arguments), self.__dict__

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def _unpickled(kind: type[_SystemCallError], *arguments: Any) -> _SystemCallError:
    error = kind.__new__(kind)  # without __init__, whose arguments differ from class to class
    OSError.__init__(error, *arguments)
    return error


class NoRoomError(_SystemCallError, FFRecordError):
    """The disk is full, a quota is used up, or the file is too large for the file system."""

    exit_code = 11
    ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

    def __str__(self) -> str:
        advice = "free some space or write to another disk"
        return f"{self.filename}: no room to write: {self.strerror}; {advice}"


class ReadFailedError(_SystemCallError, FFRecordError):
    """The operating system could not read a part of the file."""

    exit_code = 12
    name: str | None = None
    """Name of the file in a packed folder, as the caller gave it; None for other records."""

    def __init__(self, path: str, code: int, offset: int) -> None:
        super().__init__(path, code)
        self.offset = offset

    def __str__(self) -> str:
        name = "" if self.name is None else f"{self.name} "
        return f"{self.filename}: reading {name}at byte {self.offset} failed: {self.strerror}"


class RemoteError(ReadFailedError):
    """A file could not be read over the network, after all attempts that were worth making."""

    exit_code = 37
    advice = "check the URL and the server, or try again later"

    def __init__(
        self, url: str, what: str, span: tuple[int, int] | None, status: int | None, attempts: int
    ) -> None:
        super().__init__(url, errno.EIO, 0 if span is None else max(0, span[0]))
        self.what = what
        self.span = span
        """Bytes that were asked for: begin and end, or -n and 0 for the last n; None for a list."""
        self.status = status
        """Status of HTTP in the last answer; None if there was no answer."""
        self.attempts = attempts

    def __str__(self) -> str:
        if self.span is None:
            part = "it"
        elif self.span[0] < 0:
            part = f"its last {-self.span[0]} bytes"
        else:
            part = f"bytes {self.span[0]} to {self.span[1] - 1}"
        name = "" if self.name is None else f" ({self.name})"
        times = "" if self.attempts == 1 else f" {self.attempts} times"
        return f"{self.filename}: reading {part}{name} failed{times}: {self.what}"


class UrlError(FFRecordError, ValueError):
    """A URL cannot be used: unknown protocol, wrong options, or a local file is needed."""

    exit_code = 38


class WriteFailedError(_SystemCallError, FFRecordError):
    """The operating system could not write the file, or could not confirm that it is on disk."""

    exit_code = 22

    def __str__(self) -> str:
        return f"{self.filename}: writing failed: {self.strerror}"


class UploadError(WriteFailedError):
    """A file could not be written over the network. Nothing of it is visible there."""

    exit_code = 40
    advice = "check the URL, the server and your rights, or try again later"

    def __init__(self, url: str, what: str, status: int | None, attempts: int) -> None:
        super().__init__(url, errno.EIO)
        self.what = what
        self.status = status
        """Status of HTTP in the last answer; None if there was no answer."""
        self.attempts = attempts

    def __str__(self) -> str:
        times = "" if self.attempts == 1 else f" {self.attempts} times"
        return f"{self.filename}: writing failed{times}: {self.what}"


class MissingFolderError(_SystemCallError, FileNotFoundError, FFRecordError):
    """The parent folder of a new file or folder does not exist."""

    exit_code = 23

    def __init__(self, path: str) -> None:
        super().__init__(os.path.dirname(path), errno.ENOENT)
        self.path = path

    def __str__(self) -> str:
        missing = f"the folder {self.filename} does not exist; create it first"
        return f"{self.path}: cannot be created: {missing}"


class NotPackedFolderError(FFRecordError, ValueError):
    """The file is not a packed folder: its last record is not an index."""

    exit_code = 14


class IndexChecksumError(FFRecordError):
    """The index of a packed folder is damaged: its checksum does not match its bytes."""

    exit_code = 15


class IndexStructureError(FFRecordError):
    """The index of a packed folder contradicts itself, or contains impossible values."""

    exit_code = 16


class ChangedError(FFRecordError):
    """A file changed or disappeared while it was packed, appended to, read or passed on.

    A file is passed on when another process opens it again, for example a spawned worker.
    """

    exit_code = 17


class StateError(FFRecordError, ValueError):
    """A saved state does not fit the loader or sampler that it is loaded into."""

    exit_code = 19


class AppendError(FFRecordError):
    """Records cannot be added to this file, or datapoints to this dataset."""

    exit_code = 20


class BusyError(FFRecordError):
    """Another writer is using this file or folder."""

    exit_code = 21


class TimedOutError(_SystemCallError, TimeoutError, FFRecordError):
    """No record was added to a followed file within the time limit."""

    exit_code = 24

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, errno.ETIMEDOUT, what)


class DamagedSourceError(FFRecordError):
    """A file of another format is damaged, truncated or malicious."""

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
    """The data cannot be converted: the other format cannot hold it, or would lose a part."""

    exit_code = 36


class PlanError(FFRecordError):
    """A plan is damaged or has ended, or some of its tasks have not been run."""

    exit_code = 41


class BadRecordWarning(UserWarning):
    """A record could not be read or decoded, and was skipped as requested."""


class ReplacedLoaderWarning(UserWarning):
    """Another package replaced our loader by a torch DataLoader without our options."""


class RemoteShuffleWarning(UserWarning):
    """Remote files are read in random order, which costs many requests or bytes."""


class UnclosedWarning(UserWarning):
    """A writer was never closed, so its file or dataset does not exist under its name.

    Not a `ResourceWarning`: Python does not show those by default, and data is lost here.
    """


class CacheWarning(UserWarning):
    """A cache of remote objects cannot be used, or not as expected. Reading goes on without it."""


class DatasetError(FFRecordError, ValueError):
    """The folder is not a dataset, or its files do not belong together."""

    exit_code = 25


class SpecError(FFRecordError, ValueError):
    """A spec has an invalid field name, or a type without an encoder or decoder."""

    exit_code = 26


class EncodeError(FFRecordError, ValueError):
    """A value does not fit the type of its field."""

    exit_code = 27


class DecodeError(FFRecordError, ValueError):
    """A record's bytes are not a valid value of its field's type."""

    exit_code = 28


class MissingPackageError(FFRecordError, ImportError):
    """A feature needs a Python package that is not installed."""

    exit_code = 29


class MissingShardWarning(UserWarning):
    """The shard numbers have a gap: a shard is missing, or one writer wrote fewer shards."""


class ChangedWarning(UserWarning):
    """A file changed while it was packed, and was packed as found because the caller allowed it."""


class SkippedWarning(UserWarning):
    """The folder contains sockets, fifos or devices, which an archive cannot keep."""


class LegacyFileWarning(UserWarning):
    """The file was written before header checksums existed: its header cannot be verified."""

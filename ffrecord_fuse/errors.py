"""What stops a mount before a file is served. `exit_code` is what the command line exits with."""

from __future__ import annotations

from ffrecord.errors import FFRecordError


class OptionError(FFRecordError, ValueError):
    """A word after `-o` that is not offered, or has a value that makes no sense."""

    exit_code = 2  # as for any command line that is wrong


class MountError(FFRecordError, OSError):
    """Mounting or unmounting is not possible there. `errno` says which way, the text what to do."""

    exit_code = 18

    def __init__(self, mountpoint: str, code: int, why: str) -> None:
        OSError.__init__(self, code, why, mountpoint)  # RuntimeError's would stop there

    def __reduce__(self) -> tuple[type[MountError], tuple[str, int, str]]:
        return type(self), (self.filename, self.errno, self.strerror)  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

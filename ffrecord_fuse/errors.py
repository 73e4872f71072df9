"""Errors that stop a mount before a file is served. The command exits with `exit_code`."""

from __future__ import annotations

from ffrecord.errors import FFRecordError, _SystemCallError


class OptionError(FFRecordError, ValueError):
    """A word after `-o` that is not offered, or has a value that makes no sense."""

    exit_code = 2  # as for any command line that is wrong


class MountError(_SystemCallError, FFRecordError):
    """Mounting or unmounting is not possible there. `errno` says which way, the text what to do."""

    exit_code = 18

"""Errors of mounting and unmounting. The command exits with their `exit_code`."""

from __future__ import annotations

from ffrecord.errors import FFRecordError, _SystemCallError


class OptionError(FFRecordError, ValueError):
    """An unknown option after `-o`, or an option with an invalid value."""

    exit_code = 2  # the same as for any wrong command line


class MountError(_SystemCallError, FFRecordError):
    """Mounting or unmounting failed. `errno` has the reason, the message says what to do."""

    exit_code = 18

"""What all commands share: exit codes, and text that is safe to print."""

from __future__ import annotations

EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_SYSTEM = 13
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a tool that dies of SIGPIPE


def printable(shown: object) -> str:
    """File names may hold anything; a terminal should see one line and no control characters."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(shown)
    )


def counted(count: int, what: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def human(size: int) -> str:
    """1234567 as `1.2 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")

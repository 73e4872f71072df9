"""Modes in which files and archives are read."""

from __future__ import annotations

MODES = ["auto", "aio", "buffered", "mmap"]
COPYING = ["auto", "aio", "buffered"]
"""Modes whose results may be written to."""

"""Names that programs for the original FFRecord import from `ffrecord.utils`."""

from __future__ import annotations

from ffrecord.records.dump import dump
from ffrecord.records.writer import FileWriter

__all__ = ["FileWriter", "dump"]

"""The module by which users of the original FFRecord import `dump`."""

from __future__ import annotations

from ffrecord.records.dump import dump
from ffrecord.records.writer import FileWriter

__all__ = ["FileWriter", "dump"]

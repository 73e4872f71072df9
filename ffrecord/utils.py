"""The module by which users of the original FFRecord import `dump`."""

from __future__ import annotations

from ffrecord.dumping import dump
from ffrecord.writer import FileWriter

__all__ = ["FileWriter", "dump"]

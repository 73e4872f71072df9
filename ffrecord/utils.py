"""The module by which users of the original FFRecord import `dump`."""

from __future__ import annotations

from ffrecord.dumping import dump

__all__ = ["dump"]

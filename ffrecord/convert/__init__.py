"""Conversions between our formats and others: `convert`, and `FORMATS` by name.

docs/converting.md lists how data is converted, what is lost, and the bytes of the other formats.
"""

from __future__ import annotations

from ffrecord.convert.conversion import convert
from ffrecord.convert.registry import FORMATS
from ffrecord.convert.reports import ConversionReport

__all__ = ["FORMATS", "ConversionReport", "convert"]

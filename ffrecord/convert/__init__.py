"""Conversions between our formats and others: `convert`, and the formats by name.

docs/converting.md says what becomes what, what is lost, and has the bytes of the other formats.
"""

from __future__ import annotations

from ffrecord.convert.conversion import ConversionReport, convert
from ffrecord.convert.registry import FORMATS

__all__ = ["FORMATS", "ConversionReport", "convert"]

"""How long a test waits for what takes a moment."""

from __future__ import annotations

PATIENCE = 600.0
"""Seconds. A machine may be as slow and as busy as it likes: only what hangs takes as long."""

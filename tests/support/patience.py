"""The time limit of tests for events that normally take a moment."""

from __future__ import annotations

PATIENCE = 600.0
"""Seconds. Even a slow and busy machine is faster; only a hanging test takes as long."""

"""Packed folders: packed, opened by name, extracted, checked."""

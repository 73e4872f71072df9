"""Bytes to values and back: record files, indexes, journals, checksums. Pure: no I/O."""

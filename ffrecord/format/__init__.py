"""Convert between bytes and values: record files, indexes, journals, checksums. No I/O."""

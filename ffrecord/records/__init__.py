"""Record files: read, written, appended to, resumed, salvaged."""

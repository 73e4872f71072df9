"""The second back end: serves the same file system through mfusepy or fusepy."""

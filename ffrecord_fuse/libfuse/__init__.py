"""The second back end: the same file system through mfusepy or fusepy."""

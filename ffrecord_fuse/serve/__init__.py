"""A worker: takes requests, reads and verifies file contents, replies, and keeps the log."""

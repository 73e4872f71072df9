"""One worker: takes requests, reads and verifies, answers, reports."""

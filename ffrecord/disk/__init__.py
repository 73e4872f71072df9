"""Local bytes, fast: open files, planned reads, Linux AIO, the page cache, memory for batches."""

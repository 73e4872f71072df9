"""Fast reads of local files: open files, planned reads, Linux AIO, page cache, batch memory."""

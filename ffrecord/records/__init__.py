"""Read, write, append to, resume, follow and salvage record files."""

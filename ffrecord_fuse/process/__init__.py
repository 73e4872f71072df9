"""Start, watch, restart and end the daemon and its workers."""

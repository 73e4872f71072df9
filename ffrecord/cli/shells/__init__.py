"""Scripts of `ffrecord completion`, one module for each shell."""

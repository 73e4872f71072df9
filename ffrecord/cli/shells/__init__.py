"""The scripts of `ffrecord completion`, one module a shell."""

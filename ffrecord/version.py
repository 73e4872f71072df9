"""The version, where both the build and the command line can read it without importing numpy."""

__version__ = "0.1.0"

"""Version of the package, in a module that the build and the CLI read without importing numpy."""

__version__ = "0.2.0"

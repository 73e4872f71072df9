"""Fuzzers: feed every parser of the package with malformed input. `scripts/fuzz` runs them."""

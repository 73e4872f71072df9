"""Programs run by hand: setup, tests, benchmarks, the soak."""

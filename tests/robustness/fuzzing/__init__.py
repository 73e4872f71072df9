"""Every parser of the package, fed with what no writer writes. `scripts/fuzz` runs it for long."""

"""One module for each format that `ffrecord.convert` reads or writes."""

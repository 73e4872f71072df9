"""The index of a packed folder: build it, check it, look up names in it.

These modules do no I/O: they take bytes, and return values or raise errors of this library.
`format.index` defines the bytes. `check` checks them before use. `lookup` has the class `Index`,
which uses `pathrows`. `resolve` follows paths and symlinks. `build` makes an index from a `Tree`,
whose columns are in `columns`. `legacy` reads and writes the pickled index of the original
FFRecord; `legacy_scan` and `legacy_tree` read it faster, if it looks as the original writes it.
docs/format.md is the specification.
"""

from ffrecord.archive.index.lookup import ROOT, Index, Status

__all__ = ["ROOT", "Index", "Status"]

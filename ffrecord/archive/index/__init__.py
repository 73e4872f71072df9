"""The directory index of a packed folder: its bytes, its checks, and looking things up in it.

Pure: bytes in, answers or one of our errors out. `format.index` has the bytes, `check` what must
hold before they are used, `lookup` the `Index` (by way of `pathrows`), `resolve` follows paths and
symlinks in it. `build` makes one from a `Tree` (of `columns`), and `legacy` reads and writes the
pickled index of the original FFRecord. docs/format.md is the specification.
"""

from ffrecord.archive.index.lookup import ROOT, Index, Status

__all__ = ["ROOT", "Index", "Status"]

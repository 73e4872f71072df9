"""What a reader opens: which files, and their headers, read and checked in every way."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ffrecord import checksum, layout
from ffrecord.engine import Source
from ffrecord.errors import LegacyFileWarning, NotFFRecordError

Path: TypeAlias = "str | os.PathLike[str]"


def paths(fname: Path | Sequence[Path]) -> list[str]:
    if isinstance(fname, (str, os.PathLike)):
        path = os.fsdecode(fname)
        if not os.path.isdir(path):
            return [path]
        # As a shell's *.ffr: without hidden files, such as those that macOS leaves behind.
        names = sorted(n for n in os.listdir(path) if n.endswith(".ffr") and n[0] != ".")
        if not names:
            raise FileNotFoundError(f"{path}: no *.ffr file in this folder")
        return [os.path.join(path, name) for name in names]
    if not isinstance(fname, (list, tuple)):
        raise TypeError(
            f"fname must be a path or a list or tuple of paths, not {type(fname).__name__}"
        )
    if not fname:
        raise ValueError("fname is an empty list: at least one file is needed")
    return [os.fsdecode(path) for path in fname]


def refuse_other_kinds(path: str, due: str = "an FFRecord file") -> None:
    """Before opening: opening a fifo would wait for its other end."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise NotFFRecordError(f"{path}: not {due} but {kind}")


def read_header(source: Source, check: bool) -> layout.Header:
    size = os.fstat(source.fd).st_size
    prefix = np.empty(min(size, layout.PREFIX.size), np.uint8)
    source.read_into(prefix, 0)
    n = layout.parse_prefix(source.path, prefix.tobytes(), size)
    raw = layout.header_memory(n)
    header = raw[: layout.header_size(n)]
    source.read_into(header, 0)
    crc = checksum.crc32(header[layout.CRC_SIZE :]) if check else None
    return layout.parse(source.path, raw, size, crc)


def warn_if_legacy(path: str, header: layout.Header, stacklevel: int) -> None:
    if header.legacy:
        warnings.warn(
            f"{path}: written before FFRecord had header checksums, its header cannot be "
            "verified; write it again to have it checked",
            LegacyFileWarning,
            stacklevel=stacklevel,
        )

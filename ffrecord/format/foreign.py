"""Names of common formats that are not FFRecord's, recognised by their first bytes. No I/O.

A damaged record file must not be taken for another format. Its first four bytes are a checksum, so
they equal one of these marks about once in 5 million files. And a file is compared with the marks
only after its header turned out to be wrong.
"""

from __future__ import annotations

START = 512
"""Bytes at the start of a file that are enough for `recognised`: the mark of a tar is at 257."""

SHORTEST = 12  # bytes; a shorter file is reported as truncated

_CONVERT = "`ffrecord convert` converts it"
_PACK = "pack the folder it is in with `ffrecord pack`"
_UNPACK = "unpack it into a folder, then pack that with `ffrecord pack`"
_PROGRAM = (
    "a program or library",
    "pass a file that FileWriter, pack_folder or `ffrecord pack` has written",
)

# (position, mark, name of the format, next step)
_MARKS = (
    (257, b"ustar", "a tar archive", _CONVERT),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", _CONVERT),
    (0, b"\x1f\x8b\x08", "a gzip file",
     "`ffrecord convert` converts it if it is a compressed tar"),
    (0, b"PK\x03\x04", "a zip archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file", "decompress it first"),
    (0, b"\xfd7zXZ\x00", "an xz file", "decompress it first"),
    (0, b"BZh", "a bzip2 file", "decompress it first"),
    (0, b"hsqs", "a squashfs image", _UNPACK),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", _PACK),
    (0, b"\xff\xd8\xff", "a JPEG image", _PACK),
    (0, b"GIF8", "a GIF image", _PACK),
    (0, b"PAR1", "a Parquet file", "write its rows with ffrecord.DatasetWriter"),
    (0, b"ARROW1", "an Arrow file", "write its rows with ffrecord.DatasetWriter"),
    (0, b"SQLite format 3\x00", "an SQLite database", "write its rows with ffrecord.DatasetWriter"),
    (0, b"\x93NUMPY", "a numpy file", "write its arrays with ffrecord.FileWriter"),
    (0, b"%PDF-", "a PDF file", _PACK),
    (0, b"\x7fELF", *_PROGRAM),
    (0, b"MZ\x90\x00", *_PROGRAM),
    (0, b"\xcf\xfa\xed\xfe", *_PROGRAM),
    (0, b"\xce\xfa\xed\xfe", *_PROGRAM),
)  # fmt: skip


def recognised(start: bytes) -> str | None:
    """Return the name of another format and the next step; None if the format is unknown.

    Args:
        start: the first `START` bytes of the file, or all bytes of a shorter file.
    """
    if len(start) < SHORTEST:
        return None
    for at, mark, name, step in _MARKS:
        if start.startswith(mark, at):
            return f"{name}; {step}"
    return f"a text file; {_PACK}" if _is_text(start) else None


def _is_text(start: bytes) -> bool:
    """Return True for UTF-8 text. The header of a record file has zeros in its first 12 bytes."""
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # otherwise a character may continue after `start`
            return False
        text = start[: error.start].decode()
    return all(character.isprintable() or character in "\t\n\r\f" for character in text)

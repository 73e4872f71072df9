"""Find and open record files, and check their headers.

`FileReader` and datasets both use this module. `open_files` keeps the headers in memory.
`open_streamed` verifies the headers and leaves them on disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ffrecord.aliases import Path
from ffrecord.disk.source import Recheck, Source, SourceSet
from ffrecord.errors import (
    FFRecordError,
    HeaderChecksumError,
    LegacyFileWarning,
    NotFFRecordError,
    StructureError,
    TruncatedError,
    UrlError,
)
from ffrecord.format import checksum, foreign
from ffrecord.format import records as record_layout
from ffrecord.records.batch import Sources
from ffrecord.records.table import KeptTable, StreamedTable, first_of
from ffrecord.text import Advised, counted, parse_size, path_text

if TYPE_CHECKING:  # loaded with the first URL
    from ffrecord.remote.files import RemoteFiles
    from ffrecord.remote.options import RemoteOptions
    from ffrecord.remote.source import RemoteSource, RemoteSources

Head = TypeVar("Head")

MODES = ("auto", "aio", "buffered", "mmap")
AT_ONCE = 1 << 20
"""Most records of a header that is read without a check for holes: 12 MiB. For longer headers, the
number of offsets checked at a time."""

MOST_AHEAD = 128 << 20
"""Bytes of a header that are asked for over the network before its content is checked."""

MOST_EXPLAINED = 1 << 30
"""Bytes of the longest header or index whose checksum is computed after its content was found to be
wrong. The checksum tells damage from forgery. 1 GiB takes a second. A forged sparse file may claim
a header that takes hours."""


def check_mode(mode: str) -> None:
    """Raise ValueError unless `mode` is one of `MODES`."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")


def memory_limit(memory: int | str | None) -> int | None:
    """Return `memory` in bytes; None stands for a share of the available memory."""
    if memory is None:
        return None
    return 0 if memory in (0, "0") else parse_size(memory)


def paths(fname: Path | Sequence[Path]) -> list[str]:
    """Return the paths that `fname` names: a file, the files in a folder, or a list of files."""
    if isinstance(fname, (str, os.PathLike)):
        path = path_text(fname)
        if not os.path.isdir(path):
            return [path]
        # Like *.ffr in a shell: without hidden files, which macOS leaves behind.
        names = sorted(n for n in os.listdir(path) if n.endswith(".ffr") and n[0] != ".")
        if not names:
            why = "no *.ffr file in this folder; `ffrecord pack` makes one from a folder's files"
            raise FileNotFoundError(errno.ENOENT, why, path)
        return [os.path.join(path, name) for name in names]
    if not isinstance(fname, (list, tuple)):
        raise TypeError(
            f"fname must be a path or a list or tuple of paths, not {type(fname).__name__}"
        )
    if not fname:
        raise ValueError("fname is an empty list; pass at least one path")
    return [path_text(path) for path in fname]


def remote_files(
    fname: Any, remote: RemoteOptions, mode: str, unfinished: bool = False
) -> RemoteFiles:
    """Return the files that URLs name. Only some ways of reading work over the network."""
    from ffrecord.remote import files  # needed for URLs only

    found = files.remote_files(fname, remote)
    if mode == "mmap" or unfinished:
        what = "unfinished=True" if unfinished else 'mode="mmap"'
        raise UrlError(f"{found.names[0]}: {what} needs a local file, not a URL; leave it out")
    return found


def refuse_remote_options(remote: RemoteOptions) -> None:
    """Raise an error if options for URLs came with a local path."""
    from ffrecord.remote.options import refuse_for_paths  # needed only here

    refuse_for_paths(remote)


def one_path(fname: Path | Sequence[Path]) -> list[str]:
    """Return the path of a file that need not exist yet, as a list."""
    if not isinstance(fname, (str, os.PathLike)):
        raise TypeError(f"with unfinished=True, fname must be one path, not {type(fname).__name__}")
    return [path_text(fname)]


def refuse_other_kinds(path: str, due: str = "an FFRecord file") -> None:
    """Raise NotFFRecordError unless `path` is a regular file.

    Called before opening, because opening a fifo waits for its other end.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        refuse_unfinished(path)
        raise
    if not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            raise NotFFRecordError(f"{path}: is a folder, not {due}; name the files in it instead")
        raise NotFFRecordError(f"{path}: is not a regular file, so it is not {due}")


def refuse_unfinished(path: str) -> None:
    """Raise an error with better advice for a missing file that has an unfinished version."""
    from ffrecord.format.journal import partial_path  # needed only here

    unfinished = partial_path(os.path.realpath(path) if os.path.islink(path) else path)
    if os.path.exists(unfinished):
        what = "not finished: its writer is still running or was interrupted; "
        python = "pass unfinished=True to read the records flushed so far; to keep them, run the "
        python += f"writer again, or call salvage_file({unfinished!r}, out)"
        shell = "`ffrecord info --unfinished` shows the records flushed so far; to keep them, run "
        shell += f"the writer again, or `ffrecord salvage {shlex.quote(unfinished)} OUT`"
        raise FileNotFoundError(errno.ENOENT, Advised(what, python, shell), path) from None


def open_files(
    paths: Sequence[str], mode: str, check: bool, memory: int | None = None
) -> KeptTable:
    """Open finished files and keep their headers in memory. `check` verifies the headers."""
    sources, headers = _opened(paths, mode, partial(read_header, check=check), memory)
    return KeptTable.of(sources, headers, _name_of(paths), mode, check)


def open_streamed(paths: Sequence[str], mode: str, check: bool) -> StreamedTable:
    """Open finished files and leave their headers on disk. `check` verifies the headers."""
    sources, prefixes = _opened(paths, mode, partial(_verify_header, check=check))
    return _streamed(sources, prefixes, paths, mode, check)


def _streamed(
    sources: Sources, prefixes: list[tuple[int, int, int]], paths: Sequence[str], mode: str,
    check: bool,
) -> StreamedTable:  # fmt: skip
    crcs, counts, sizes = map(list, zip(*prefixes, strict=True))
    first = first_of(counts)
    return StreamedTable(
        sources, _name_of(paths), mode, check, int(first[-1]), first, crcs, np.array(sizes)
    )


def open_remote(files: RemoteFiles, check: bool) -> tuple[RemoteFiles, KeptTable]:
    """Open files over the network and keep their headers in memory.

    The files that are returned differ from `files` if these name a folder.
    """
    from ffrecord.remote.files import open_files as connect  # needed for URLs only

    files, sources = connect(files)
    headers = _remote_heads(sources, partial(read_header, check=check))
    return files, KeptTable.of(sources, headers, _name_of(files.names), "auto", check)


def open_remote_streamed(files: RemoteFiles, check: bool) -> StreamedTable:
    """Open files over the network and leave their headers there."""
    sources = files.open()
    prefixes = _remote_heads(sources, partial(_verify_header, check=check))
    return _streamed(sources, prefixes, files.names, "auto", check)


def _remote_heads(sources: RemoteSources, head: Callable[[RemoteSource], Head]) -> list[Head]:
    """Return the result of `head` for each file. All headers are on their way at once."""
    for source in sources:
        _ask_for_header(source)
    heads = []
    for source in sources:
        try:
            heads.append(head(source))
        except FFRecordError:  # perhaps only the transfer was wrong
            source.distrust()
            heads.append(head(source))
            source.trust()
        source.forget_first()
    return heads


def _ask_for_header(source: RemoteSource) -> None:
    prefix = source.read_bytes(0, min(source.size(), record_layout.PREFIX.size))
    with contextlib.suppress(FFRecordError):  # reported when the header is read
        n = record_layout.parse_prefix(source.path, prefix, source.size())
        source.will_need(0, min(record_layout.header_size(n), MOST_AHEAD))


def _opened(
    paths: Sequence[str], mode: str, head: Callable[[Source], Head], memory: int | None = None
) -> tuple[SourceSet, list[Head]]:
    """Open files for a mode of reading, and return them with the result of `head` for each."""
    for path in paths:
        refuse_other_kinds(path)
    sources = sources_for(paths, mode)
    heads = [head(source) for source in sources.each]
    if mode == "mmap":
        sources.map_all()
    elif mode == "auto":
        sources.ask_about_the_cache()
        sources.use_pieces(memory)
    return sources, heads


def sources_for(paths: Sequence[str], mode: str) -> SourceSet:
    """Open files for a mode of reading."""
    return SourceSet(paths, direct=mode in ("auto", "aio"))


def _name_of(paths: Sequence[str]) -> str:
    more = len(paths) - 1
    return paths[0] + (f" and {counted(more, 'more file')}" if more else "")


def read_header(source: Source | RemoteSource, check: bool) -> record_layout.Header:
    """Read and validate a header. `check` compares its checksum too."""
    with _naming_other_formats(source):
        crc, n, size = _read_prefix(source)
        if n > AT_ONCE:
            _refuse_holes(source, crc, n, check)
        raw = record_layout.header_memory(n)
        header = raw[: record_layout.header_size(n)]
        source.read_into(header, 0)
        computed = checksum.crc32(header[record_layout.CRC_SIZE :]) if check else None
        return record_layout.parse(source.path, raw, size, computed)


def _verify_header(source: Source | RemoteSource, check: bool) -> tuple[int, int, int]:
    """Return the header's checksum, the number of records and the file's size.

    `check` compares the checksum. The header is never in memory as a whole.
    """
    with _naming_other_formats(source):
        crc, n, size = _read_prefix(source)
        if check:
            _compare_checksum(source, crc, n)
    return crc, n, size


def _read_prefix(source: Source | RemoteSource) -> tuple[int, int, int]:
    """Return the checksum and number of records that a header states, and the file's size."""
    size = source.size()
    prefix = source.read_bytes(0, min(size, record_layout.PREFIX.size))
    n = record_layout.parse_prefix(source.path, prefix, size)
    return int.from_bytes(prefix[: record_layout.CRC_SIZE], "little"), n, size


def _compare_checksum(source: Source | RemoteSource, stored: int, n: int) -> None:
    """Compare the checksum of a header on disk, piece by piece."""
    computed = Recheck(source).checksum(record_layout.CRC_SIZE, record_layout.header_size(n))
    record_layout.compare_checksum(source.path, stored, computed)


@contextlib.contextmanager
def _naming_other_formats(source: Source | RemoteSource) -> Iterator[None]:
    """Report a file of a well-known format as such: its first bytes may look like a header."""
    try:
        yield
    except (HeaderChecksumError, NotFFRecordError, StructureError, TruncatedError):
        refuse_other_formats(source)
        raise


def refuse_other_formats(source: Source | RemoteSource) -> None:
    """Raise NotFFRecordError if the file begins like a file of a well-known format."""
    size = source.size()
    found = foreign.recognised(bytes(source.read_bytes(0, min(size, foreign.START))))
    if found is not None:
        raise NotFFRecordError(f"{source.path}: not an FFRecord file, but {found}") from None


def _refuse_holes(source: Source | RemoteSource, crc: int, n: int, check: bool) -> None:
    """Check the order of the offsets, some at a time, before allocating memory for a large header.

    A sparse file can claim any number of records at no cost. But a hole reads as zeros, and offsets
    must not decrease.
    """
    path, begin = source.path, record_layout.PREFIX.size + record_layout.CHECKSUM.itemsize * n
    memory = np.empty(AT_ONCE + 1, record_layout.OFFSET)
    before = 0  # 1 if memory starts with the last offset of the previous step
    try:
        for first in range(0, n, AT_ONCE):
            some = memory[: before + min(AT_ONCE, n - first)]
            at = begin + record_layout.OFFSET.itemsize * first
            source.read_into(some[before:].view(np.uint8), at)
            record_layout.check_order(path, some, first - before, record_layout.header_size(n))
            memory[0], before = some[-1], 1
    except StructureError:
        # If the checksum is wrong too, report a damaged header instead.
        if check and record_layout.header_size(n) <= MOST_EXPLAINED:
            _compare_checksum(source, crc, n)
        raise


def warn_if_legacy(path: str, header_crc: int, stacklevel: int) -> None:
    """Warn if a header has no checksum."""
    if not header_crc:
        warnings.warn(
            f"{path}: the header has no checksum (old FFRecord versions wrote none), so it cannot "
            "be verified; write the file again to add one",
            LegacyFileWarning,
            stacklevel=stacklevel,
        )

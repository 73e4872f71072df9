"""tar files: entries with modes, times, owners, links and user.* attributes, in PAX headers.

Python's tarfile reads and writes them. It ends silently at the first invalid header; here that is
an error. Members are dropped after use, so a tar with any number of files takes no more memory than
one of its headers.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from typing import Any

from ffrecord.aliases import Closing
from ffrecord.archive.counts import Counts, count_name
from ffrecord.archive.index.unordered import split_path
from ffrecord.archive.names import to_bytes, to_text
from ffrecord.convert.files import STEP, PieceReader, open_new, open_to_read
from ffrecord.convert.formats.webdataset import split_key
from ffrecord.convert.shapes import ConvertOptions, FileEntry, NamedFiles, Written
from ffrecord.errors import ConversionError, DamagedSourceError, FFRecordError
from ffrecord.records.opening import refuse_other_kinds

XATTR = "SCHILY.xattr."
SECOND = 10**9
_NAMES: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}
COMPRESSED = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".xz": "xz"}
SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
_KINDS = {
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.LNKTYPE: stat.S_IFREG,
}
_LEFT_OUT = {
    tarfile.FIFOTYPE: "fifo",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
}
_BAD_DATA = (
    tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError,
    LookupError,  # the header of a sparse file is cut off
    RecursionError,  # a long chain of extended headers
)  # fmt: skip


def begins(start: bytes) -> bool:
    return start[257:262] == b"ustar"


# ---- reading -------------------------------------------------------------------------------


@contextmanager
def read(path: str, options: ConvertOptions) -> Iterator[NamedFiles]:
    """Read a tar, or all tars in a folder, in the order of their names."""
    yield NamedFiles(entry for each in tars(path) for entry in _entries(each, options))


def count(path: str) -> Counts:
    """Return the number of entries of each kind, from the headers."""
    total = Counts()
    for each in tars(path):
        with _opened(each, headers_only=True) as archive:
            for member in _members(each, archive):
                if not member.isdir() or _below(member.name):  # the top folder does not count
                    kind = _KINDS.get(member.type, stat.S_IFREG)
                    count_name(total, kind, member.size, is_hard_link=member.islnk())
    return total


def tars(path: str) -> list[str]:
    """Return the tars in a folder, sorted; for a tar, return its path alone."""
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.endswith(SUFFIXES))
    if not names:
        raise ConversionError(
            f"{path}: there is no tar in this folder; tars end in {', '.join(SUFFIXES)}"
        )
    return [os.path.join(path, name) for name in names]


class _StrictTarInfo(tarfile.TarInfo):
    """A header class that raises an error for a damaged or missing header.

    tarfile takes such a header for the end of the tar.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Any:
        at = archive.offset
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # a block of zeros, the regular end
                raise
            what = f"the tar is damaged or cut off: {error}"
            raise DamagedSourceError(str(archive.name), what, offset=at) from None


@contextmanager
def _opened(path: str, *, headers_only: bool = False) -> Iterator[tarfile.TarFile]:
    """Open a tar for one pass.

    A compressed tar is read to its end afterwards, because the checksum comes last.
    """
    refuse_other_kinds(path, "a tar")
    with open_to_read(path) as raw:
        unpack = _unpacking(raw.read(6))
        raw.seek(0)
        stream = raw if unpack is None else unpack(raw)
        mode = "r:" if headers_only and unpack is None else "r|"
        with _damage_of(path):
            archive = tarfile.open(path, mode, stream, tarinfo=_StrictTarInfo, **_NAMES)  # type: ignore[call-overload]  # noqa: SIM115
        with archive:
            yield archive
        with _damage_of(path):
            while unpack is not None and stream.read(STEP):
                pass


def _unpacking(start: bytes) -> Callable[[Any], Any] | None:
    """Return a function that unpacks a file with this start, or None if it is not compressed.

    tarfile's own unpacking does not verify checksums.
    """
    if start.startswith(b"\x1f\x8b"):
        return lambda raw: gzip.GzipFile(fileobj=raw)
    if start.startswith(b"BZh"):
        return bz2.BZ2File
    return lzma.LZMAFile if start == b"\xfd7zXZ\x00" else None


@contextmanager
def _damage_of(path: str, number: int | None = None, offset: int | None = None) -> Iterator[None]:
    try:
        yield
    except FFRecordError:
        raise
    except _BAD_DATA as error:
        raise DamagedSourceError(path, f"the tar is damaged: {error}", number, offset) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise DamagedSourceError(path, f"the tar is damaged: {error}", number, offset) from error


def _members(path: str, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    number = 0
    while True:
        with _damage_of(path, number, archive.offset):
            member = archive.next()
        if member is None:
            return
        archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them
        if member.size < 0 or member.issparse():
            what = "has a negative size"
            if member.issparse():
                what = "is a sparse file, which is not supported; make the tar without --sparse"
            raise DamagedSourceError(path, f"{member.name!r} {what}", number, member.offset)
        yield member
        number += 1


def _entries(path: str, options: ConvertOptions) -> Iterator[FileEntry]:
    with _opened(path) as archive:
        for number, member in enumerate(_members(path, archive)):
            if member.type in _LEFT_OUT:
                options.skipped[_LEFT_OUT[member.type]] += 1
                continue
            with _damage_of(path, number, member.offset):
                entry = _entry(path, archive, member, number)
            yield entry


def _entry(path: str, archive: tarfile.TarFile, member: tarfile.TarInfo, number: int) -> FileEntry:
    kind = _KINDS.get(member.type, stat.S_IFREG)
    if kind == stat.S_IFREG and not (member.isreg() or member.islnk()):
        raise ValueError(f"{member.name!r} has the unknown type {member.type!r}")
    hard_link = _below(member.linkname) if member.islnk() else b""
    if member.islnk() and not hard_link:
        raise ValueError(f"{member.name!r} is a hard link to the top folder")
    return FileEntry(
        _below(member.name), kind | stat.S_IMODE(member.mode), member.uid, member.gid,
        _mtime_ns(member),
        size=member.size if member.isreg() else 0,
        target=to_bytes(member.linkname) if member.issym() else b"",
        hard_link=hard_link,
        xattrs=_xattrs(member),
        content=lambda: _content(path, archive, member, number),
    )  # fmt: skip


def _below(name: str) -> bytes:
    """Return a member's path below the top folder, without "./" and slashes at its end."""
    path = to_bytes(name).rstrip(b"/")
    while path.startswith(b"./"):
        path = path[2:].lstrip(b"/")
    path = b"" if path == b"." else path
    split_path(path)
    return path


def _mtime_ns(member: tarfile.TarInfo) -> int:
    """Return the time in nanoseconds, from the header's text: a float would round it."""
    try:
        nanoseconds = Decimal(member.pax_headers.get("mtime", str(member.mtime))) * SECOND
        return int(min(max(nanoseconds, Decimal(-(2**63))), Decimal(2**63)))
    except (ArithmeticError, ValueError):
        raise ValueError(f"{member.name!r} has an invalid time") from None


def _xattrs(member: tarfile.TarInfo) -> tuple[tuple[bytes, bytes], ...]:
    """Return the user.* attributes. Others need privileges that no tar should get."""
    return tuple(
        (to_bytes(key.removeprefix(XATTR)), to_bytes(value))
        for key, value in sorted(member.pax_headers.items())
        if key.startswith(XATTR + "user.")
    )


def _content(
    path: str, archive: tarfile.TarFile, member: tarfile.TarInfo, number: int
) -> Iterator[bytes]:
    left = member.size
    with _damage_of(path, number, member.offset):
        file = archive.extractfile(member)
    while left:
        with _damage_of(path, number, member.offset):
            piece = file.read(min(left, STEP)) if file is not None else b""
            if not piece:
                raise ValueError(f"{member.name!r} is cut off: {left} bytes are missing")
        left -= len(piece)
        yield piece


# ---- writing -------------------------------------------------------------------------------


def write(path: str, files: NamedFiles, options: ConvertOptions) -> Written:
    """Write one tar; with a shard size, a folder of 000000.tar, 000001.tar and so on.

    The files of a sample stay in one shard.
    """
    if options.shard_size is None:
        with _Tar(path) as tar:
            for entry in files.items:
                tar.add(entry)
        return Written(tar.names)
    os.mkdir(path)
    return Written(_write_shards(path, files, options.shard_size))


def _write_shards(folder: str, files: NamedFiles, largest: int) -> int:
    names = shards = size = 0
    key: bytes | None = None
    inside: set[bytes] = set()  # the files of this shard
    tar = _Tar(_shard(folder, shards))
    try:
        for entry in files.items:
            if not entry.is_folder:
                before, key = key, split_key(entry.path)[0]
                if size and key != before and size + entry.size > largest:
                    tar.close()
                    names, shards, size = names + tar.names, shards + 1, 0
                    inside.clear()
                    tar = _Tar(_shard(folder, shards))
                if entry.hard_link and entry.hard_link not in inside:
                    raise ConversionError(
                        f"{to_text(entry.path)!r}: a hard link to a file in another shard, which a "
                        "tar cannot express; write one tar instead of shards"
                    )
                inside.add(entry.path)
                size += entry.size + tarfile.BLOCKSIZE
            tar.add(entry)
    finally:
        tar.close()
    return names + tar.names


def _shard(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number:06}.tar")


class _Tar(Closing):
    """Writer of one tar."""

    def __init__(self, path: str) -> None:
        self.names = 0
        how = COMPRESSED.get(os.path.splitext(path)[1], "")
        with ExitStack() as opened:
            file = opened.enter_context(open_new(path))
            self._tar: tarfile.TarFile = tarfile.open(  # noqa: SIM115 - closed by close()
                path, f"x:{how}", file, format=tarfile.PAX_FORMAT, **_NAMES
            )  # type: ignore[call-overload]
            opened.callback(self._tar.close)
            self._opened = opened.pop_all()

    def add(self, entry: FileEntry) -> None:
        split_path(entry.path)
        self.names += not entry.is_folder
        content = PieceReader(entry.content() if entry.is_file else ())
        self._tar.addfile(_member(entry), content)  # type: ignore[arg-type]
        if content.read(1):  # also exhausts the content, which is checked at its end
            raise ConversionError(
                f"{to_text(entry.path)!r}: has more bytes than the {entry.size} in its entry"
            )
        self._tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them

    def close(self) -> None:
        self._opened.close()


def _member(entry: FileEntry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(to_text(entry.path or b"."))
    member.mode = stat.S_IMODE(entry.mode)
    member.uid, member.gid = entry.uid, entry.gid
    member.size = entry.size if entry.is_file else 0
    seconds, nanoseconds = divmod(entry.mtime_ns, SECOND)
    member.mtime = seconds
    headers = {XATTR + to_text(name): to_text(value) for name, value in entry.xattrs}
    if nanoseconds or seconds < 0:
        headers["mtime"] = f"{Decimal(entry.mtime_ns).scaleb(-9):f}"
    member.pax_headers = headers
    if entry.is_folder:
        member.type = tarfile.DIRTYPE
    elif entry.hard_link or entry.is_symlink:
        member.type = tarfile.LNKTYPE if entry.hard_link else tarfile.SYMTYPE
        member.linkname = to_text(entry.hard_link or entry.target)
    return member

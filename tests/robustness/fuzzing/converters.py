"""Targets: files of other formats, as `ffrecord convert` reads them."""

from __future__ import annotations

import gzip
import io
import lzma
import stat
import struct
import tarfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from types import ModuleType

from ffrecord.convert.formats import bag, granular, hdf5_heap, recordio, snappy, tar, tfrecord
from ffrecord.convert.shapes import ConvertOptions
from ffrecord.errors import FFRecordError
from tests.convert import foreign
from tests.robustness.fuzzing.indexes import joined, split
from tests.robustness.fuzzing.scratch import Scratch, folder
from tests.robustness.fuzzing.target import Target

RECORDS = [b"one", b"", b"three" * 9]


def _reader(module: ModuleType) -> Callable[[bytes], list[bytes]]:
    """Return a function that reads records from bytes with a module, and checks their count."""
    scratch = Scratch(folder() / "source")

    def read(data: bytes) -> list[bytes]:
        path = scratch.fill(data)
        with module.read(path, ConvertOptions()) as found:
            got = [bytes(each) for each in found.items]
        assert module.count(path) == len(got)
        return got

    return read


# ---- records ---------------------------------------------------------------------------------


def tfrecords() -> Target:
    read = _reader(tfrecord)

    def run(data: bytes) -> str:
        got = read(data)
        assert foreign.tfrecord(got) == data
        return "records" if got else "nothing"

    return Target("tfrecord", run, (foreign.tfrecord(RECORDS), foreign.tfrecord([b""])), _sealed_tf)


def _sealed_tf(data: bytes) -> bytes:
    changed, at = bytearray(data), 0
    while at + 12 <= len(changed):
        struct.pack_into("<I", changed, at + 8, foreign.masked(bytes(changed[at : at + 8])))
        (length,) = struct.unpack_from("<Q", changed, at)
        end = at + 12 + length
        if end + 4 > len(changed):
            break
        struct.pack_into("<I", changed, end, foreign.masked(bytes(changed[at + 12 : end])))
        at = end + 4
    return bytes(changed)


def _recordio(name: str, dialect: str, chunk: Callable[[list[bytes], str], bytes]) -> Target:
    read = _reader(recordio)

    def run(data: bytes) -> str:
        got = read(data)
        expected = None
        # Our reader also accepts skippable chunks and several gzip members.
        with suppress(Exception):
            expected = foreign.read_recordio(data, dialect)
        if expected is None:
            return "records that the other reader refuses"
        assert got == expected
        return "records" if got else "nothing"

    def seal(data: bytes) -> bytes:
        changed, at = bytearray(data), 0
        while at + 20 <= len(changed):
            *_, third, fourth = struct.unpack_from("<4I", changed, at + 4)
            length = fourth if dialect == "python" else third
            body = bytes(changed[at + 20 : at + 20 + length])
            crc = foreign.crc32c(body) if dialect == "python" else zlib.crc32(body)
            struct.pack_into("<I", changed, at + (8 if dialect == "python" else 4), crc)
            at += 20 + length
        return bytes(changed)

    seeds = tuple(chunk(RECORDS, codec) for codec in foreign.CODECS)
    tokens = (struct.pack("<I", foreign.MAGIC), b"\xff\x06\x00\x00sNaPpY")
    return Target(name, run, (*seeds, seeds[0] + seeds[2]), seal, tokens)


def recordio_python() -> Target:
    return _recordio("recordio", "python", foreign.python_chunk)


def recordio_go() -> Target:
    return _recordio("recordio-go", "go", foreign.go_chunk)


def snappy_data() -> Target:
    """Fuzz snappy blocks; frames if the first byte is odd."""

    def run(data: bytes) -> str:
        if data[:1] and data[0] & 1:
            got = b"".join(snappy.unpack_frames(data[1:]))
            if any(kind not in (0, 1) for kind in _frame_kinds(data[1:])):
                return "frames with others between them"
            assert not data[1:] or got == foreign.unsnap_frames(data[1:])
            return "frames"
        got = snappy.unpack_block(data[1:])
        assert got == foreign.unsnap_block(data[1:])
        return "a block"

    plain = b"".join(RECORDS) * 30
    seeds = [b"\0" + foreign.snappy_block(plain), b"\0" + snappy.pack_block(plain)]
    seeds += [b"\1" + foreign.snappy_frames(plain), b"\1" + snappy.pack_frames(plain)]
    return Target("snappy", run, tuple(seeds), _sealed_frames, errors=(ValueError,))


def _frame_kinds(data: bytes) -> list[int]:
    found, at = [], 10
    while at < len(data):
        found.append(data[at])
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "little")
    return found


def _sealed_frames(data: bytes) -> bytes:
    changed, at = bytearray(data), 11
    while data[:1] and data[0] & 1 and at + 8 <= len(changed):
        length = int.from_bytes(changed[at + 1 : at + 4], "little")
        body = bytes(changed[at + 8 : at + 4 + length])
        with suppress(Exception):
            plain = foreign.unsnap_block(body) if changed[at] == 0 else body
            struct.pack_into("<I", changed, at + 4, foreign.masked(plain))
        at += 4 + length
    return bytes(changed)


# ---- bags ------------------------------------------------------------------------------------


def bags() -> Target:
    read = _reader(bag)

    def run(data: bytes) -> str:
        got = read(data)
        ends = struct.pack(f"<{len(got)}Q", *accumulate(map(len, got)))
        whole = b"".join(got)
        assert data in (whole + ends, whole + bytes(8) + ends, b""), (
            "the bag does not account for all bytes"
        )
        return "records" if got else "nothing"

    seeds = tuple(foreign.single_bag(RECORDS, version) for version in (0, 1))
    return Target("bag", run, (*seeds, foreign.single_bag([], 1), b""))


GRANULAR = ["spec.json", "a.bag", "b.bag"]


def granular_datasets() -> Target:
    top = folder()
    scratches = {name: Scratch(top / name) for name in GRANULAR}
    rows = [b"\5\0\0\0\0\0\0\0", b"\xff" * 8]
    arrays = [b"\x93\xa3<i2\x91\x02\xc4\x04\1\2\3\4", b"\x93\xa2|u1\x90\xc4\1\7"]
    trees = [b"\x81\xa1a\x94\xa1_\xa2|u1\x91\1\xc4\1\7", b"\x90"]
    seeds = tuple(
        joined(dict(zip(GRANULAR, (spec, *(foreign.single_bag(b, 1) for b in bags)), strict=True)))
        for spec, *bags in (
            (b'{"a": "u64", "b": "array"}', rows, arrays),
            (b'{"a": "int", "b": "tree"}', rows, trees),
            (b'{"a": "utf8", "b": "bytes"}', [b"x", b"y"], RECORDS[:2]),
        )
    )

    def run(data: bytes) -> str:
        for name, content in split(data, GRANULAR).items():
            scratches[name].fill(content)
        with granular.read(str(top), ConvertOptions()) as found:
            got = list(found.items)
            assert len(got) == found.count
        assert all(row.keys() == found.spec.keys() for row in got)
        return "rows" if got else "nothing"

    tokens = (b'"array"', b'"tree"', b'"utf8"', b"|O", b"\xa1_", b"\xc4", b"null")
    errors = (FFRecordError, FileNotFoundError)  # a spec may name a field without a file
    return Target("granular", run, seeds, tokens=tokens, errors=errors)


# ---- HDF5's heaps ----------------------------------------------------------------------------


def heaps() -> Target:
    """Fuzz HDF5 heaps: the HDF5 library must be able to walk through every accepted heap."""
    scratch = Scratch(folder() / "file.h5")
    objects = struct.pack("<HH4xQ", 1, 1, 5) + b"hello\0\0\0" + struct.pack("<HH4xQ", 0, 0, 56)
    heap = (b"GCOL\1\0\0\0" + struct.pack("<Q", 96) + objects).ljust(96, b"\0")

    def run(data: bytes) -> str:
        hdf5_heap.check_heaps(scratch.fill(data))
        begin = data.find(hdf5_heap.SIGNATURE)
        if begin < 0 or len(data) - begin < 16:
            return "no heap"
        (size,) = struct.unpack_from("<Q", data, begin + 8)
        assert begin + size <= len(data)
        at, steps = begin + 16, 0
        while begin + size - at >= 16:
            index, _, length = struct.unpack_from("<HH4xQ", data, at)
            at += length if index == 0 else 16 + -(-length // 8) * 8
            steps += 1
            assert at <= begin + size
            assert steps <= size
        return "heaps"

    return Target("hdf5heap", run, (b"before" + heap + heap, heap), tokens=(heap[:8], heap[16:32]))


# ---- tars ------------------------------------------------------------------------------------


def a_tar(flavour: int, compression: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}", format=flavour) as file:  # type: ignore[call-overload]
        for name, content in (("a/b", b"1" * 600), ("x" * 120, b"2"), ("é", b"")):
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = len(content), 1.5, 1 << 30
            info.pax_headers = {"SCHILY.xattr.user.a": "b"}
            file.addfile(info, io.BytesIO(content))
        for name, kind in (("symlink", tarfile.SYMTYPE), ("hard link", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a/b"
            file.addfile(info)
    return out.getvalue()


def with_checksums(data: bytes) -> bytes:
    """Return a tar with correct header checksums, so that other damage reaches deeper code."""
    changed = bytearray(data)
    for at in range(0, len(changed) - 511, 512):
        if changed[at + 257 : at + 262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


def _small_tar() -> bytes:
    """Return a tar of one file, without the padding blocks at its end."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.USTAR_FORMAT) as file:
        info = tarfile.TarInfo("folder/name")
        info.size = 5
        file.addfile(info, io.BytesIO(b"hello"))
    return out.getvalue()[:2048]


def tars() -> Target:
    scratch = Scratch(folder() / "source.tar")

    def run(data: bytes) -> str:
        path = scratch.fill(data)
        entries = 0
        with tar.read(path, ConvertOptions()) as found:
            for entry in found.items:
                entries += 1
                assert not {b"", b".", b".."} & set(entry.path.split(b"/")) or not entry.path
                assert stat.S_IFMT(entry.mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
                content = b"".join(entry.content()) if entry.is_file else b""
                assert len(content) == (entry.size if entry.is_file else 0)
                assert content in data or data[:2] in (b"\x1f\x8b", b"\xfd7", b"BZ")
        return "entries" if entries else "nothing"

    pax, gnu = (a_tar(each)[:8192] for each in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    seeds = (pax, gnu, _small_tar(), gzip.compress(gnu), lzma.compress(gnu))
    tokens = (
        b"../",
        b"/",
        b"00000000000\0",
        b"77777777777\0",
        b"\x80" + b"\xff" * 11,
        b"30 mtime=1e999\n",
    )
    return Target("tar", run, seeds, with_checksums, tokens)  # fmt: skip

"""Errors through the public API: their attributes, and inputs of many kinds.

tests/docs/test_errors_page.py raises every class once, and compares its whole message.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import pickle
import random
import re
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import ffrecord
from ffrecord import (
    CountError,
    DamagedSourceError,
    FFRecordError,
    FileReader,
    FileWriter,
    HeaderChecksumError,
    MissingFolderError,
    NoRoomError,
    NotFFRecordError,
    ReadFailedError,
    SampleChecksumError,
    TimedOutError,
    TruncatedError,
    WriteFailedError,
    salvage_file,
)
from ffrecord.disk import aio
from ffrecord.format import records as record_layout
from ffrecord.text import Advised, for_shell
from ffrecord_fuse.errors import MountError
from tests.support import archives, handmade

MODES = ["auto", "aio", "buffered", "mmap"]
SMALL = [b"first", b"", b"the third record", b"\x00" * 7, b"last"]
CLASSES = [
    value
    for name, value in vars(ffrecord).items()
    if isinstance(value, type) and issubclass(value, FFRecordError)
]


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    return handmade.write_records(tmp_path / "small.ffr", SMALL)


def read_all(path: Path, mode: str = "auto") -> list[bytes]:
    with FileReader(path, mode=mode) as reader:
        return handmade.as_bytes(reader.read(range(reader.n)))


# ---- classes -----------------------------------------------------------------------------------


def test_ffrecord_error_is_a_runtime_error_and_the_parent_of_all() -> None:
    assert issubclass(FFRecordError, RuntimeError)
    assert len(CLASSES) == 32
    codes = [cls.exit_code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert 0 not in codes


@pytest.mark.parametrize(
    "content",
    [b"\x89PNG\r\n\x1a\n" + bytes(range(100)), b"Some text that is long enough.\n", b"\xff" * 64],
    ids=["png", "text", "ones"],
)
def test_not_ffrecord_error_for_files_of_other_kinds(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(NotFFRecordError, match="other: not an FFRecord file"):
        FileReader(path)


@pytest.mark.parametrize("name", [".", "a", "./long enough to be no count", "long" * 100])
def test_not_ffrecord_error_for_a_tar_with_any_first_name(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "files.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo(name))
    expected = (
        r"files\.tar: not an FFRecord file, but a tar archive; `ffrecord convert` converts it"
    )
    with pytest.raises(NotFFRecordError, match=expected):
        FileReader(tmp_path / "files.tar")
    with pytest.raises(NotFFRecordError, match=expected):
        salvage_file(tmp_path / "files.tar", tmp_path / "rest.ffr")


def a_zip() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("name", b"content")
    return made.getvalue()


OTHER_FORMATS = {
    "tar.gz": (gzip.compress(bytes(1000)), "a gzip file"),
    "tar.bz2": (bz2.compress(bytes(1000)), "a bzip2 file"),
    "tar.xz": (lzma.compress(bytes(1000)), "an xz file"),
    "tar.zst": (b"\x28\xb5\x2f\xfd" + bytes(100), "a zstd file"),
    "zip": (a_zip(), "a zip archive"),
    "h5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file; `ffrecord convert` converts it"),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
    "jpg": (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(100), "a JPEG image"),
    "parquet": (b"PAR1" + bytes(100) + b"PAR1", "a Parquet file"),
    "sqlite": (b"SQLite format 3\x00" + bytes(100), "an SQLite database"),
    "exe": (b"MZ\x90\x00\x03" + bytes(100), "a program or library"),
    "csv": ("number,name\r\n1,ça va\r\n".encode() * 100, "a text file"),
    "long text": (("a" + "\u20ac" * 1000).encode(), "a text file"),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_not_ffrecord_error_names_a_well_known_format(name: str, tmp_path: Path) -> None:
    content, format_name = OTHER_FORMATS[name]
    path = tmp_path / "other"
    path.write_bytes(content)
    for use in (FileReader, lambda path: salvage_file(path, tmp_path / "rest.ffr")):
        with pytest.raises(NotFFRecordError, match=f"other: not an .*, but {format_name}") as error:
            use(path)
        assert not re.search(r"\d{9}", str(error.value).replace(str(path), ""))


def test_a_damaged_count_is_told_from_another_format_and_can_be_salvaged(small_file: Path) -> None:
    archives.flip(small_file, 10)
    with pytest.raises(NotFFRecordError, match=r"or its header is damaged: .*salvage_file saves"):
        FileReader(small_file)
    rest = small_file.with_name("rest.ffr")
    salvage_file(small_file, rest)
    assert read_all(rest) == SMALL


@pytest.mark.parametrize("content", [b"", b"text\n", struct.pack("<Iq", 1, 1000)])
def test_truncated_error_for_a_file_that_may_be_another_one(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(content)
    with pytest.raises(TruncatedError, match=r"or not an .*; copy it again, or pass another file$"):
        FileReader(path)


def test_not_ffrecord_error_for_fifos_devices_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/null", "/dev/zero"):
        with pytest.raises(NotFFRecordError, match=f"{path}: .* not a regular file"):
            FileReader(path)
    with pytest.raises(NotFFRecordError, match="a folder"):
        FileReader([str(tmp_path)])


def test_truncated_error_names_the_file_and_its_size(small_file: Path) -> None:
    os.truncate(small_file, 50)
    with pytest.raises(TruncatedError, match=r"small\.ffr: .* needs 72 bytes, but the file has 50"):
        FileReader(small_file)


def test_header_checksum_error_names_both_checksums(small_file: Path) -> None:
    data = bytearray(small_file.read_bytes())
    stored = struct.unpack("<I", data[:4])[0]
    data[12] ^= 0x40
    small_file.write_bytes(data)
    computed = zlib.crc32(data[4:72])
    with pytest.raises(HeaderChecksumError, match=rf"small\.ffr.*{computed:#010x}.*{stored:#010x}"):
        FileReader(small_file)
    FileReader(small_file, check_data=False).close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["read", "read_one", "async", "iterate", "range"])
def test_sample_checksum_error_names_the_record_and_both_checksums(
    how: str, mode: str, small_file: Path
) -> None:
    data = bytearray(small_file.read_bytes())
    at = data.index(b"third")
    data[at : at + 5] = b"THIRD"
    small_file.write_bytes(data)
    with FileReader(small_file, mode=mode) as reader:
        ways: dict[str, Callable[[], object]] = {
            "read": lambda: reader.read([4, 3, 2, 1]),
            "read_one": lambda: reader.read_one(2),
            "async": lambda: reader.read_async([0, 2]).result(),
            "iterate": lambda: list(reader),
            "range": lambda: reader.read_range(1, 4),
        }
        with pytest.raises(SampleChecksumError) as caught:
            ways[how]()
        error = caught.value
        stored, computed = zlib.crc32(SMALL[2]), zlib.crc32(b"the THIRD record")
        assert (error.path, error.record) == (str(small_file), 2)
        assert (error.stored, error.computed) == (stored, computed)
        for part in (str(small_file), "record 2", f"{stored:#010x}", f"{computed:#010x}"):
            assert part in str(error)
        assert handmade.as_bytes(reader.read([0, 1, 3, 4])) == [*SMALL[:2], *SMALL[3:]]
    with FileReader(small_file, check_data=False, mode=mode) as reader:
        assert reader.read_one(2).tobytes() == b"the THIRD record"


@pytest.mark.parametrize("mode", MODES)
def test_sample_checksum_error_names_the_file_and_the_record_in_it(
    mode: str, tmp_path: Path
) -> None:
    paths = [handmade.write_records(tmp_path / f"{i}.ffr", SMALL) for i in range(3)]
    data = bytearray(paths[1].read_bytes())
    data[-1] ^= 1
    paths[1].write_bytes(data)
    with FileReader([str(p) for p in paths], mode=mode) as reader:
        for indices in ([9], [8, 9], list(range(15))):
            with pytest.raises(SampleChecksumError) as caught:
                reader.read(indices)
            assert (caught.value.path, caught.value.record) == (str(paths[1]), 4)


@pytest.mark.parametrize("mode", MODES)
def test_sample_checksum_error_for_an_empty_record_with_a_checksum(
    mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "empty.ffr"
    path.write_bytes(handmade.sealed(3, [0, 5, 0], [48, 48, 48]))
    with FileReader(path, mode=mode) as reader:
        assert handmade.as_bytes(reader.read([0, 2, 0])) == [b""] * 3
        for indices in ([1], [0, 1, 2], [1] * 5):
            with pytest.raises(SampleChecksumError, match="record 1"):
                reader.read(indices)


@pytest.mark.parametrize("how", ["write", "dump", "pack", "pack shards", "write dataset"])
def test_missing_folder_error_is_a_file_not_found_error_and_a_runtime_error(
    how: str, tmp_path: Path
) -> None:
    target = tmp_path / "no" / "new.ffr"
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: FileWriter(target, 1),
        "dump": lambda: ffrecord.utils.dump([b"x"], target, 1),
        "pack": lambda: ffrecord.pack_folder(tmp_path, target),
        "pack shards": lambda: ffrecord.pack_folder(tmp_path, target, shard_size="1MB"),
        "write dataset": lambda: ffrecord.DatasetWriter(target, {"x": "int"}),
    }
    with pytest.raises(MissingFolderError) as caught:
        calls[how]()
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / "no")
    assert str(caught.value) == (
        f"{target}: cannot be created: the folder {tmp_path}/no does not exist; create it first"
    )


NO_ROOM = "no room to write: {}; free some space or write to another disk"


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        *((code, NoRoomError, NO_ROOM) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
        (errno.EIO, WriteFailedError, "writing failed: {}"),
    ],
)
def test_an_error_of_writing_names_the_file_and_the_cause(
    code: int, kind: type[OSError], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    writer = FileWriter(tmp_path / "w.ffr", 1)
    writer.write_one(b"x")
    with pytest.raises(kind) as caught:
        writer.close()
    assert os.listdir(tmp_path) == []
    assert str(caught.value) == f"{tmp_path / 'w.ffr'}: {said.format(os.strerror(code))}"
    assert caught.value.errno == code
    assert caught.value.filename == str(tmp_path / "w.ffr")


def test_read_failed_error_names_the_byte_and_the_cause(
    small_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with FileReader(small_file) as reader:
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(ReadFailedError) as caught:
            reader.read_one(2)
    assert isinstance(caught.value, OSError)
    assert caught.value.offset == 77
    assert caught.value.errno == errno.EIO
    assert str(caught.value) == f"{small_file}: reading at byte 77 failed: Input/output error"


# ---- pickling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        *(cls("file: message") for cls in CLASSES if cls.__init__ is FFRecordError.__init__),
        SampleChecksumError("file", 3, 0x1234, 0x5678),
        SampleChecksumError("file", 3, 0x1234, 0x5678, part=(7, 9)),
        NoRoomError("file", errno.ENOSPC),
        MissingFolderError("folder/file"),
        ReadFailedError("file", errno.EIO, 4096),
        WriteFailedError("file", errno.EIO),
        TimedOutError("file", "no record was added"),
        MountError("file", errno.EBUSY, "in use"),
        DamagedSourceError("file", "wrong checksum", 3, 4096),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled(error: FFRecordError) -> None:
    """Errors in worker processes are pickled."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)
    assert "file" in str(again)


# ---- advice ------------------------------------------------------------------------------------

ADVISED: dict[str, Callable[[str], Exception]] = {
    "ours": CountError,
    "the system's": lambda advice: FileExistsError(errno.EEXIST, advice, "file"),
    "the system's, raised again": lambda advice: OSError(
        errno.EEXIST, FileExistsError(errno.EEXIST, advice).strerror, "file"
    ),
    "Python's": ValueError,
}


@pytest.mark.parametrize("make", ADVISED.values(), ids=ADVISED)
def test_advice_for_python_and_for_a_shell_survives_pickling(
    make: Callable[[str], Exception],
) -> None:
    error = make(Advised("exists; ", "overwrite=True", "--force", " replaces it"))
    plain = make("exists; overwrite=True replaces it")
    shell = make("exists; --force replaces it")
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert type(each) is type(plain)
        assert (str(each), each.args) == (str(plain), plain.args)
        assert for_shell(each) == str(shell)
        assert for_shell(plain) == str(plain)


# ---- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_truncation_at_every_length_is_noticed(mode: str, small_file: Path) -> None:
    data = small_file.read_bytes()
    for length in range(len(data)):
        small_file.write_bytes(data[:length])
        with pytest.raises(FFRecordError):
            read_all(small_file, mode)
    small_file.write_bytes(data)
    assert read_all(small_file, mode) == SMALL


@pytest.mark.parametrize("mode", ["auto", "mmap"])
def test_every_flipped_bit_of_the_header_is_noticed(mode: str, small_file: Path) -> None:
    data = small_file.read_bytes()
    for bit in range(8 * (12 + 12 * len(SMALL))):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        small_file.write_bytes(flipped)
        with pytest.raises(FFRecordError, match=r"small\.ffr"):
            FileReader(small_file, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_every_flipped_bit_of_a_record_is_noticed_in_that_record_alone(
    mode: str, small_file: Path
) -> None:
    data = small_file.read_bytes()
    owner = [number for number, record in enumerate(SMALL) for _ in record]
    for bit in range(8 * len(owner)):
        flipped = bytearray(data)
        flipped[72 + bit // 8] ^= 1 << bit % 8
        small_file.write_bytes(flipped)
        damaged = owner[bit // 8]
        others = [number for number in range(len(SMALL)) if number != damaged]
        with FileReader(small_file, mode=mode) as reader:
            with pytest.raises(SampleChecksumError) as caught:
                reader.read(range(len(SMALL)))
            assert caught.value.record == damaged
            assert handmade.as_bytes(reader.read(others)) == [SMALL[i] for i in others]
            found = reader.find_damaged(0, len(SMALL))
            assert [number for number, _error in found] == [damaged]


def test_random_garbage_raises_one_of_our_errors(tmp_path: Path) -> None:
    generator = random.Random(3)
    path = tmp_path / "garbage"
    for _ in range(500):
        size = generator.randrange(200)
        n = generator.choice([0, 1, 2, 5, 2**40, -1, generator.randrange(-(2**63), 2**63)])
        path.write_bytes(
            struct.pack("<Iq", generator.getrandbits(32), n) + generator.randbytes(size)
        )
        with pytest.raises(FFRecordError):
            read_all(path)


# ---- memory and open files ---------------------------------------------------------------------


@pytest.mark.parametrize("n", [10**6, 10**9, record_layout.MAX_RECORDS, 2**62])
@pytest.mark.parametrize("size", [12, 100, 5000])
def test_a_huge_count_in_a_small_file_allocates_nothing(size: int, n: int, tmp_path: Path) -> None:
    path = tmp_path / "huge.ffr"
    path.write_bytes(struct.pack("<Iq", 1, n) + bytes(size - 12))
    tracemalloc.start()
    try:
        with pytest.raises(FFRecordError):
            FileReader(path)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 << 10


def test_a_read_beyond_a_file_cut_while_open_is_an_error_not_a_hang(
    small_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("auto", "aio", "buffered"):
        handmade.write_records(small_file, SMALL)
        with FileReader(small_file, mode=mode) as reader:
            os.truncate(small_file, 80)
            with pytest.raises(TruncatedError, match="truncated while it was open"):
                reader.read(range(5))
            monkeypatch.setattr(aio, "_lib", None)
            with pytest.raises(TruncatedError, match=r"byte 80"):
                reader.read(range(5))
            monkeypatch.undo()


def test_sources_of_files_that_fail_to_open_are_closed(tmp_path: Path) -> None:
    good = handmade.write_records(tmp_path / "good.ffr", SMALL)
    bad = tmp_path / "bad.ffr"
    bad.write_bytes(b"short")
    before = handmade.open_descriptors()
    for _ in range(5):
        with pytest.raises(TruncatedError):
            FileReader([str(good), str(bad)])
        with pytest.raises(FileNotFoundError):
            FileReader([str(good), str(tmp_path / "missing.ffr")])
    assert handmade.open_descriptors() == before

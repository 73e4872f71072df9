"""`FileReader` and its files: opening, header data, checking, closing and pickling."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import random
import re
import resource
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    ChangedError,
    ClosedError,
    DatasetReader,
    DatasetWriter,
    FFRecordError,
    FileReader,
    FileWriter,
    HeaderChecksumError,
    LegacyFileWarning,
    NotFFRecordError,
    PackedFolder,
    SampleChecksumError,
    ShardedDatasetReader,
    ShardedDatasetWriter,
    TruncatedError,
    pack_folder,
    salvage_file,
)
from ffrecord.convert import convert
from ffrecord.records.reader import table_of
from ffrecord.records.table import Table
from ffrecord.utils import dump
from tests.support import handmade
from tests.support.modes import COPYING

# ---- opening -------------------------------------------------------------------------------


class FsPath:
    """A path that is neither str nor Path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return self._path


@pytest.mark.parametrize("kind", [str, Path, FsPath])
def test_a_file_is_named_by_any_kind_of_path(kind: Any, sample_file: Path) -> None:
    with FileReader(kind(str(sample_file))) as reader:
        assert reader.fnames == [str(sample_file)]
        assert reader.n == len(reader) == 73
        assert reader.check_data is True
        assert reader.mode == "auto"


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_files_are_read_as_one(
    kind: Any, mode: str, three_files: tuple[list[str], list[bytes]]
) -> None:
    paths, records = three_files
    with FileReader(kind([Path(paths[0]), *paths[1:]]), mode=mode) as reader:
        assert reader.fnames == paths
        assert len(reader) == len(records) == 10
        assert handmade.as_bytes(reader.read(range(10))) == records
        backwards = list(range(9, -1, -1)) * 2
        assert handmade.as_bytes(reader.read(backwards)) == [records[i] for i in backwards]
        assert [reader.read_one(i).tobytes() for i in range(10)] == records


def test_files_are_read_in_the_given_order(three_files: tuple[list[str], list[bytes]]) -> None:
    paths, records = three_files
    with FileReader(paths[::-1]) as reader:
        assert handmade.as_bytes(reader) == records[4:] + records[:4]


def test_one_file_may_be_given_twice(mode: str, sample_file: Path) -> None:
    with FileReader([sample_file, sample_file], mode=mode) as reader:
        assert reader.n == 146
        assert reader.read_one(5).tobytes() == reader.read_one(78).tobytes()


def test_a_folder_is_read_as_its_sorted_ffr_files(
    three_files: tuple[list[str], list[bytes]],
) -> None:
    paths, records = three_files
    folder = Path(paths[0]).parent
    (folder / "notes.txt").write_text("not a record file")
    (folder / "old.ffr.bak").write_text("not a record file")
    (folder / ".new.ffr.0123.tmp").write_text("not a record file")
    for kind in (str, Path):
        with FileReader(kind(folder)) as reader:
            assert reader.fnames == paths
            assert handmade.as_bytes(reader) == records


def test_a_folder_without_record_files_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        FileReader(tmp_path)


def test_many_files_are_read_as_one(mode: str, tmp_path: Path) -> None:
    records = handmade.random_records(range(0, 3000, 10))
    for i in range(100):
        handmade.write_records(tmp_path / f"{i:03}.ffr", records[3 * i : 3 * i + 3])
    with FileReader(tmp_path, mode=mode) as reader:
        order = random.Random(1).sample(range(300), 300)
        assert handmade.as_bytes(reader.read(order)) == [records[i] for i in order]
        assert handmade.as_bytes(reader) == records


def test_an_empty_list_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="at least one path"):
        FileReader([])


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", {"a": 1}, iter(["a"])])
def test_an_argument_that_is_no_path_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="path"):
        FileReader(wrong)


def test_an_unknown_mode_is_a_value_error_that_lists_the_modes(sample_file: Path) -> None:
    with pytest.raises(ValueError, match="auto, aio, buffered, mmap, not 'fast'"):
        FileReader(sample_file, mode="fast")


def test_a_missing_file_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.ffr"):
        FileReader(tmp_path / "missing.ffr")
    with pytest.raises(FileNotFoundError, match=r"missing\.ffr"):
        FileReader([tmp_path / "missing.ffr"])


def test_a_broken_symlink_raises_file_not_found(tmp_path: Path) -> None:
    (tmp_path / "link.ffr").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"link\.ffr"):
        FileReader(tmp_path / "link.ffr")


def test_a_symlink_is_followed(sample_file: Path, sample_records: list[bytes]) -> None:
    link = sample_file.with_name("link")
    link.symlink_to(sample_file)
    with FileReader(link) as reader:
        assert handmade.as_bytes(reader) == sample_records


def test_a_file_without_read_permission_raises_permission_error(sample_file: Path) -> None:
    """Open the file in a child process without root's rights, because root may read every file."""
    sample_file.chmod(0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            FileReader(sample_file)
        except PermissionError as error:
            code = 0 if str(sample_file) in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kind", ["fifo", "folder in a list", "device", "socket"])
def test_special_files_are_refused_without_waiting(kind: str, tmp_path: Path, mode: str) -> None:
    path = str(tmp_path / "x")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder in a list":
        os.mkdir(path)
    elif kind == "device":
        path = "/dev/null"
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as listener:
            here = os.getcwd()
            os.chdir(tmp_path)  # the path of a socket must be short
            try:
                listener.bind("x")
            finally:
                os.chdir(here)
    with pytest.raises(NotFFRecordError, match=path):
        FileReader([path], mode=mode)


def test_a_file_in_memory_is_read(mode: str, sample_records: list[bytes]) -> None:
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("there is no /dev/shm")
    path = shm / f"ffrecord-test-{os.getpid()}.ffr"
    try:
        handmade.write_records(path, sample_records)
        with FileReader(path, mode=mode) as reader:
            assert handmade.as_bytes(reader.read(range(73))) == sample_records
            assert handmade.as_bytes(reader.read_async(range(73)).result()) == sample_records
    finally:
        path.unlink(missing_ok=True)


# ---- data from the headers -----------------------------------------------------------------


def test_offsets_and_checksums_match_the_header(
    three_files: tuple[list[str], list[bytes]], mode: str
) -> None:
    paths, _records = three_files
    with FileReader(paths, mode=mode) as reader:
        for number, path in enumerate(paths):
            data = Path(path).read_bytes()
            (n,) = struct.unpack_from("<q", data, 4)
            checksums = struct.unpack_from(f"<{n}I", data, 12)
            offsets = struct.unpack_from(f"<{n}q", data, 12 + 4 * n)
            for index in (number, number - len(paths)):
                assert reader.get_checksums(index).tolist() == list(checksums)
                assert reader.get_offsets(index).tolist() == [*offsets, len(data)]
        for index in (3, -4):
            said = f"{paths[0]} and 2 more files: file {index} is out of range: the reader has 3 "
            for method in (reader.get_offsets, reader.get_checksums, reader.header_crc):
                with pytest.raises(IndexError, match=f"{re.escape(said)}files, numbers 0 to 2"):
                    method(index)


def test_loc_returns_offsets_and_sizes(three_files: tuple[list[str], list[bytes]]) -> None:
    """Old versions of the original have this method, for one file."""
    paths, records = three_files
    contents = [Path(path).read_bytes() for path in paths]
    with FileReader(paths) as reader:
        number = [file for file in range(3) for _ in reader.get_checksums(file)]
        indices = [*range(len(records))][::-1]
        places = zip(indices, *reader.loc(indices), strict=True)
        assert [contents[number[k]][at : at + size] for k, at, size in places] == records[::-1]
        assert reader.loc([]) == ([], [])


@pytest.mark.parametrize(
    "way",
    [
        FileReader, FileWriter, PackedFolder, DatasetReader, ShardedDatasetReader,
        lambda path: FileReader([path]),
        lambda path: FileReader(path, unfinished=True),
        lambda path: FileWriter(path, append=True),
        lambda path: DatasetWriter(path, {"n": "int"}),
        lambda path: ShardedDatasetWriter(path, {"n": "int"}),
        lambda path: pack_folder(path, "x.ffr"),
        lambda path: pack_folder(".", path),
        lambda path: dump([b"1", b"2"], path, 1),
        lambda path: dump([b"1", b"2"], path, 2),
        lambda path: salvage_file(path, "x.ffr"),
        lambda path: salvage_file("a.ffr", path),
        lambda path: convert(path, "x.tar"),
        lambda path: convert("a.ffr", path),
    ],
)  # fmt: skip
def test_an_empty_path_is_named_as_such(
    way: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would mean the current folder, but is probably a shell variable that is not set."""
    monkeypatch.chdir(tmp_path)
    handmade.write_records(tmp_path / "a.ffr", [b"1"])
    with pytest.raises(FileNotFoundError, match="the path is empty; pass the name"):
        way("")
    assert os.listdir(tmp_path) == ["a.ffr"]


def test_callers_cannot_change_the_offsets_and_checksums_of_a_reader(
    sample_file: Path, sample_records: list[bytes]
) -> None:
    with FileReader(sample_file) as reader:
        for array in (reader.get_offsets(0), reader.get_checksums(0)):
            try:
                array[:] = 0
            except ValueError:
                assert not array.flags.writeable
        assert handmade.as_bytes(reader.read(range(73))) == sample_records


def test_the_fingerprint_is_the_sha256_of_the_headers(
    three_files: tuple[list[str], list[bytes]], mode: str
) -> None:
    paths, _records = three_files
    digest = hashlib.sha256()
    for path, n in zip(paths, (4, 0, 6), strict=True):
        digest.update(Path(path).read_bytes()[: 12 + 12 * n])
    with FileReader(paths, mode=mode) as reader:
        assert reader.fingerprint == digest.hexdigest()
    assert reader.fingerprint == digest.hexdigest()
    with FileReader(paths[::-1]) as other:
        assert other.fingerprint != digest.hexdigest()


def test_the_fingerprint_of_a_legacy_file_is_the_sha256_of_its_header(sample_file: Path) -> None:
    data = bytes(4) + sample_file.read_bytes()[4:]
    sample_file.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LegacyFileWarning)
        reader = FileReader(sample_file)
    assert reader.fingerprint == hashlib.sha256(data[: 12 + 12 * 73]).hexdigest()
    reader.close()


# ---- checking ------------------------------------------------------------------------------


def test_validate_is_silent_about_a_good_file(reader: FileReader) -> None:
    reader.validate()


def test_validate_finds_damage_that_came_after_opening(sample_file: Path, mode: str) -> None:
    for check_data in (True, False):
        with FileReader(sample_file, check_data=check_data, mode=mode) as reader:
            with sample_file.open("r+b") as file:
                file.seek(20)
                byte = file.read(1)[0]
                file.seek(20)
                file.write(bytes([byte ^ 1]))
                file.flush()
                with pytest.raises(HeaderChecksumError, match="sample"):
                    reader.validate()
                file.seek(20)
                file.write(bytes([byte]))
                file.flush()
            reader.validate()


@pytest.mark.parametrize("mode", COPYING, indirect=True)
def test_a_file_truncated_while_open_is_an_error(
    sample_file: Path, sample_records: list[bytes], mode: str
) -> None:
    size = sample_file.stat().st_size
    data = sample_file.read_bytes()
    for cut in (1, 5000, size // 2, size - 1000):
        sample_file.write_bytes(data)
        with FileReader(sample_file, mode=mode) as reader:
            os.truncate(sample_file, size - cut)
            for read in (
                lambda r: r.read(range(73)),
                lambda r: r.read_one(72),
                lambda r: r.read_async(range(73)).result(),
                list,
            ):
                with pytest.raises((TruncatedError, SampleChecksumError), match="sample"):
                    read(reader)
            ends = reader.get_offsets(0)[1:].tolist()
            intact = [i for i, end in enumerate(ends) if end <= size - cut]
            got = handmade.as_bytes(reader.read(intact))
            assert got == [sample_records[i] for i in intact]


def test_a_file_truncated_while_open_is_an_error_without_checksums_too(sample_file: Path) -> None:
    for mode in COPYING:
        with FileReader(sample_file, check_data=False, mode=mode) as reader:
            size = sample_file.stat().st_size
            os.truncate(sample_file, size - 1)
            with pytest.raises(TruncatedError, match="sample"):
                reader.read(range(73))
            os.truncate(sample_file, size)


def test_unchecked_reading_returns_damaged_bytes(sample_file: Path, mode: str) -> None:
    data = bytearray(sample_file.read_bytes())
    data[-1] ^= 0xFF
    sample_file.write_bytes(data)
    with FileReader(sample_file, check_data=False, mode=mode) as reader:
        assert reader.check_data is False
        expected = bytes(data[reader.get_offsets(0)[72] :])
        assert reader.read_one(72).tobytes() == expected
        assert reader.read([1, 72, 2])[1].tobytes() == expected


def test_find_damaged_lists_every_damaged_record(sample_file: Path, mode: str) -> None:
    data = bytearray(sample_file.read_bytes())
    with FileReader(sample_file) as reader:
        offsets = reader.get_offsets(0).tolist()
    for damaged in (3, 9, 72):
        data[offsets[damaged]] ^= 0x10
    sample_file.write_bytes(data)
    with FileReader(sample_file, mode=mode) as reader:
        found = reader.find_damaged(0, 73)
        assert [number for number, _error in found] == [3, 9, 72]
        assert all(isinstance(error, SampleChecksumError) for _number, error in found)
        assert reader.find_damaged(10, 72) == []


# ---- closing and pickling ------------------------------------------------------------------


def test_a_closed_reader_raises_closed_error(sample_file: Path, mode: str) -> None:
    reader = FileReader(sample_file, mode=mode)
    reader.close()
    reader.close()
    uses: list[Callable[[FileReader], object]] = [
        lambda r: r.read([0]),
        lambda r: r.read(range(73)),
        lambda r: r.read([]),
        lambda r: r.read_one(0),
        lambda r: r[0],
        lambda r: r[0:3],
        lambda r: r.read_range(0, 3),
        lambda r: r.read_async([0]),
        lambda r: next(iter(r)),
        lambda r: r.validate(),
        lambda r: r.find_damaged(0, 3),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match=str(sample_file)):
            use(reader)
    assert len(reader) == 73
    assert "closed" in repr(reader)


def test_leaving_a_with_block_closes_the_reader(sample_file: Path, mode: str) -> None:
    before = handmade.open_descriptors()
    with FileReader(sample_file, mode=mode) as reader:
        assert handmade.open_descriptors() > before
        assert "73 records" in repr(reader)
    with pytest.raises(ClosedError):
        reader.read([0])
    assert handmade.open_descriptors() == before


def test_a_dropped_reader_closes_its_files(sample_file: Path, mode: str) -> None:
    before = handmade.open_descriptors()
    reader = FileReader(sample_file, mode=mode)
    reader.read(range(73))
    del reader
    assert handmade.open_descriptors() == before


@pytest.mark.parametrize("when", ["before the batch", "after the batch"])
def test_a_reader_closed_by_another_thread_returns_right_records_or_raises_closed_error(
    when: str, sample_file: Path, sample_records: list[bytes], mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Close the reader just before or just after its batch is made."""
    batch = Table.batch
    opened: list[FileReader] = []

    def closed_meanwhile(self: Table, records: Any) -> Any:
        if when == "before the batch":
            opened[-1].close()
        made = batch(self, records)
        opened[-1].close()
        return made

    monkeypatch.setattr(Table, "batch", closed_meanwhile)
    reads: list[Callable[[FileReader], Any]] = [
        lambda r: r.read(range(73)),
        lambda r: r.read_async(range(73)).result(),
    ]
    for read in reads:
        opened.append(FileReader(sample_file, mode=mode))
        try:
            got = handmade.as_bytes(read(opened[-1]))
        except ClosedError:
            continue
        assert got == sample_records


def test_a_reader_whose_file_was_replaced_is_not_pickled(tmp_path: Path) -> None:
    """Another process would open the new file and read different records."""
    path = handmade.write_records(tmp_path / "a.ffr", [b"one", b"two"])
    dumped = pickle.dumps(FileReader(path))
    with FileReader([path, path]) as reader:
        other = handmade.write_records(tmp_path / "b.ffr", [b"one", b"other"])
        os.replace(other, path)
        assert reader.read_one(1).tobytes() == b"two"
        with pytest.raises(ChangedError, match=rf"{re.escape(str(path))}: replaced since"):
            pickle.dumps(reader)
        with pytest.raises(ChangedError, match=re.escape(str(path))):
            pickle.loads(dumped)
        # A copy of the old file has the same records.
        os.replace(handmade.write_records(tmp_path / "c.ffr", [b"one", b"two"]), path)
        assert pickle.loads(pickle.dumps(reader))[1].tobytes() == b"two"
        path.unlink()
        with pytest.raises(ChangedError, match=re.escape(str(path))):
            pickle.dumps(reader)


def test_getitems_returns_a_batch_of_records(tmp_path: Path) -> None:
    """The loaders of torch call `__getitems__` if it exists."""
    with FileReader(handmade.write_records(tmp_path / "a.ffr", [b"0", b"11", b"2"])) as reader:
        assert [r.tobytes() for r in reader.__getitems__([2, 0, 1, -1])] == [
            b"2",
            b"0",
            b"11",
            b"2",
        ]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_reader_opens_the_same_files_the_same_way(
    protocol: int, three_files: tuple[list[str], list[bytes]], mode: str
) -> None:
    paths, records = three_files
    with FileReader(paths, check_data=False, mode=mode) as reader:
        dumped = pickle.dumps(reader, protocol)
    assert len(dumped) < 1000
    with pickle.loads(dumped) as again:
        assert again.fnames == paths
        assert again.check_data is False
        assert again.mode == mode
        assert handmade.as_bytes(again) == records


class Named(FileReader):
    """A reader with an attribute and an argument of its own."""

    def __init__(self, fname: Path, name: str) -> None:
        super().__init__(fname)
        self.name = name


@pytest.mark.parametrize("again", [copy.copy, lambda reader: pickle.loads(pickle.dumps(reader))])
def test_attributes_of_subclasses_survive(
    again: Callable[[Named], Named], tmp_path: Path, sample_file: Path, sample_records: list[bytes]
) -> None:
    with Named(sample_file, "mine") as reader:
        # The file is opened once more if it has been replaced, even by its copy.
        os.replace(handmade.write_records(tmp_path / "copy", sample_records), sample_file)
        other = again(reader)
    assert isinstance(other, Named)
    assert other.name == "mine"
    assert handmade.as_bytes(other) == sample_records


@pytest.mark.parametrize("make", [pickle.dumps, copy.deepcopy])
def test_pending_reads_and_open_files_cannot_be_pickled_or_copied(
    sample_file: Path, sample_records: list[bytes], make: Callable[[object], object], mode: str
) -> None:
    """A copy would have the same descriptors, and would close them while the reader uses them."""
    with FileReader(sample_file, mode=mode) as reader:
        pending = reader.read_async([1, 2, 3, 4])
        # If reads are in flight, ctypes raises the error.
        with pytest.raises((TypeError, ValueError), match="pickled"):
            make(pending)
        with pytest.raises(TypeError, match=r"sample\.ffr: an open file cannot be pickled"):
            make(table_of(reader).require_open().each)
        assert handmade.as_bytes(pending.result()) == sample_records[1:5]
        assert handmade.as_bytes(reader.read([5, 6, 7])) == sample_records[5:8]


def test_unpickling_a_reader_of_a_missing_file_raises_file_not_found(sample_file: Path) -> None:
    with FileReader(sample_file) as reader:
        dumped = pickle.dumps(reader)
    sample_file.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(dumped)


def test_failing_to_open_causes_no_errors_in_destructors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    (tmp_path / "bad.ffr").write_bytes(b"\x01" * 30)
    for wrong in (tmp_path / "bad.ffr", tmp_path / "missing.ffr", tmp_path / "missing" / "x"):
        with pytest.raises((FFRecordError, OSError)):
            FileReader(wrong)
    assert complaints == []


def test_more_shards_can_be_open_than_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    """Open 600 shards in a process that starts with a soft limit of 1024 open files."""
    for i in range(600):
        (tmp_path / f"{i:03d}.ffr").write_bytes(handmade.record_bytes([b"%d" % i]))
    script = (
        "import resource, sys\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))\n"
        "from ffrecord import FileReader\n"
        "for mode in ('auto', 'mmap', 'buffered'):\n"
        "    records = FileReader(sys.argv[1], mode=mode).read(range(600))\n"
        "    assert [bytes(r) for r in records] == [b'%d' % i for i in range(600)]\n"
    )
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1500:
        pytest.skip("the hard limit of open files is too low")
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=600)


def test_files_open_without_direct_reads_if_descriptors_run_out(tmp_path: Path) -> None:
    """Open more files than half of the hard limit of open files."""
    for i in range(60):
        (tmp_path / f"{i:03d}.ffr").write_bytes(handmade.record_bytes([b"%d" % i]))
    script = (
        "import os, resource, sys\n"
        "from ffrecord import FileReader\n"
        "from ffrecord.records.reader import table_of\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "for mode in ('auto', 'aio', 'buffered'):\n"
        "    with FileReader(sys.argv[1], mode=mode) as reader:\n"
        "        records = reader.read(range(60))\n"
        "        assert [bytes(r) for r in records] == [b'%d' % i for i in range(60)]\n"
        "        assert bytes(reader[59]) == b'59'\n"
        "        sources = table_of(reader).sources\n"
        "        assert not sources.direct and not (sources.direct_fds >= 0).any()\n"
        "        assert reader.stats() == {} and reader.mode == mode\n"
        "    del sources, reader, records\n"
        "    assert len(os.listdir('/proc/self/fd')) < 10\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=600)

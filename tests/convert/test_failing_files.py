"""Sources that cannot be read, targets that cannot be written, and bags that fail half way.

`tests/robustness/faults` makes every system call fail. These tests need no compiler.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import NoRoomError, ReadFailedError, WriteFailedError
from ffrecord.convert import convert
from ffrecord.convert import files as convert_files
from ffrecord.dataset import DatasetWriter
from tests.convert import foreign
from tests.support import handmade, trees

RECORDS = handmade.random_records([5000, 0, 70_000], seed=3)
OLD = handmade.random_records([5, 0, 700], seed=4)


def failing(call: Callable[..., Any], number: int, code: int) -> Callable[..., Any]:
    """Return the call, wrapped so that it fails once."""
    left = iter(range(number + 1))

    def called(*args: Any, **kwargs: Any) -> Any:
        if next(left, None) == number:
            raise OSError(code, os.strerror(code))
        return call(*args, **kwargs)

    return called


def make_source(folder: Path, kind: str) -> Path:
    """Write a source. A conversion reads its first bytes, then all of it."""
    path = folder / f"source.{kind}"
    if kind == "tfrecord":
        path.write_bytes(foreign.tfrecord(RECORDS))
    elif kind == "bag":
        path.write_bytes(foreign.single_bag(RECORDS, 1))
    elif kind == "recordio":
        path.write_bytes(foreign.python_chunk(RECORDS))
    else:
        trees.plain_tree(path, {f"{n}": record for n, record in enumerate(RECORDS)})
    return path


@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN])
@pytest.mark.parametrize("kind", ["tfrecord", "bag", "recordio", "folder"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_read_error_names_the_source_and_is_not_called_damage(
    kind: str, code: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path, kind)
    monkeypatch.setattr(os, "readv", failing(os.readv, number, code))
    with pytest.raises(ReadFailedError) as caught:
        convert(source, tmp_path / "target.ffr", target_format="records", drop_names=True)
    assert caught.value.errno == code
    assert str(caught.value.filename).startswith(str(source))
    assert os.listdir(tmp_path) == [source.name]


@pytest.mark.parametrize("kind", ["tfrecord", "bag", "recordio", "folder"])
def test_short_reads_and_writes_make_no_difference(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(tmp_path, kind)
    read, write = os.readv, os.write
    monkeypatch.setattr(os, "readv", lambda fd, parts: read(fd, [memoryview(parts[0])[:777]]))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:777]))
    convert(source, tmp_path / "target.tfrecord", target_format="tfrecord", drop_names=True)
    assert (tmp_path / "target.tfrecord").read_bytes() == foreign.tfrecord(RECORDS)


@pytest.mark.parametrize("code", [errno.EIO, errno.EAGAIN, errno.ENOSPC])
@pytest.mark.parametrize(
    "name", ["out.tfrecord", "out.recordio", "out.bag", "out.tar", "out.tar.gz", "out.tar.xz"]
)
def test_a_write_error_names_the_target_and_leaves_nothing(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = handmade.write_records(tmp_path / "source.ffr", RECORDS)
    monkeypatch.setattr(convert_files, "GATHERED", 4096)
    monkeypatch.setattr(os, "write", failing(os.write, 0, code))
    with pytest.raises(OSError, match=r"no room|writing failed") as caught:
        convert(source, tmp_path / name)
    assert type(caught.value) is (NoRoomError if code == errno.ENOSPC else WriteFailedError)
    assert (caught.value.filename, caught.value.errno) == (str(tmp_path / name), code)
    assert os.listdir(tmp_path) == ["source.ffr"]


@pytest.mark.parametrize(
    ("naming", "number"), [("rename", 0), ("rename", 1), ("rename", 2), ("rename", 3), ("link", 0),
                           ("link", 1)],
)  # fmt: skip
def test_a_bag_stays_unchanged_if_one_of_its_files_cannot_be_renamed(
    naming: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that replace others are renamed, new files are linked."""
    source = handmade.write_records(tmp_path / "source.ffr", RECORDS)
    target = tmp_path / "out.bag"
    force = naming == "rename"
    if force:
        target.write_bytes(b"".join(OLD))
        target.with_suffix(".idx").write_bytes(foreign.limits(OLD))
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, naming, failing(getattr(os, naming), number, errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            convert(source, target, target_format="bag", force=force)
    assert contents(tmp_path) == before
    convert(source, target, target_format="bag", force=force)
    bag = {"out.bag": b"".join(RECORDS), "out.idx": foreign.limits(RECORDS)}
    assert contents(tmp_path) == before | bag


@pytest.mark.parametrize("number", [0, 1])
def test_a_bag_keeps_its_index_if_a_single_bag_cannot_replace_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = handmade.write_records(tmp_path / "source.ffr", RECORDS)
    target = tmp_path / "out.bag"
    target.write_bytes(b"".join(OLD))
    target.with_suffix(".idx").write_bytes(foreign.limits(OLD))
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing(os.rename, number, errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            convert(source, target, target_format="bag-single", force=True)
    assert contents(tmp_path) == before
    convert(source, target, target_format="bag-single", force=True)
    assert contents(tmp_path) == {
        "source.ffr": before["source.ffr"],
        "out.bag": foreign.single_bag(RECORDS, 1),
    }


FULL_DISK = """
import resource, sys
from ffrecord import cli
sys.dont_write_bytecode = True  # the limit would cut off .pyc files, which later tests read
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(cli.main(["convert", "--no-progress", *sys.argv[2:]]))
"""


@pytest.mark.parametrize("limit", [500, 30_000, 150_000])
def test_a_full_disk_does_not_crash_hdf5(limit: int, tmp_path: Path) -> None:
    """The HDF5 library crashes after a failed write. The process must end without a signal."""
    with DatasetWriter(tmp_path / "rows", {"name": "utf8", "data": "bytes"}) as writer:
        for number in range(20):
            writer.append({"name": f"row {number}", "data": trees.content(10_000, number)})
    arguments = [str(limit), str(tmp_path / "rows"), str(tmp_path / "out.h5")]
    with handmade.python(FULL_DISK, *arguments) as process:
        _, said = process.communicate(timeout=600)
    assert process.returncode == NoRoomError.exit_code
    advice = "free some space or write to another disk"
    assert said == f"ffrecord: {tmp_path / 'out.h5'}: no room to write: File too large; {advice}\n"
    assert os.listdir(tmp_path) == ["rows"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}

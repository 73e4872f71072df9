"""Common behaviour of all conversions: formats are detected, items are counted and streamed, and
the target appears complete or not at all."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from ffrecord import (
    ConversionError,
    CountError,
    DatasetReader,
    DatasetWriter,
    FFRecordError,
    FileReader,
    FileWriter,
    NoRoomError,
    NotFFRecordError,
    pack_folder,
)
from ffrecord.convert import FORMATS, convert, publish, registry, reshape
from ffrecord.convert.formats import tar
from ffrecord.convert.shapes import ConvertOptions, Records, Written
from tests.support import handmade, trees, users

RECORDS = handmade.random_records([0, 1, 100, 5000])
ROOT = Path(__file__).parents[2]


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return handmade.write_records(tmp_path / "ours.ffr", RECORDS)


def read_all(path: Path) -> list[bytes]:
    with FileReader(path) as reader:
        return handmade.as_bytes(reader)


# ---- detection of formats ------------------------------------------------------------------


@pytest.fixture
def one_of_each(tmp_path: Path) -> dict[str, Path]:
    """Return the same few samples in every format, under names without a suffix."""
    files = {"a.bin": b"1" * 100, "b.bin": b"2" * 100}
    top = trees.plain_tree(tmp_path / "start", files)
    (tmp_path / "each").mkdir()
    found = {}
    for name in FORMATS:
        path = tmp_path / "each" / name
        convert(top, path, target_format=name, drop_names=True)
        found[name] = path
    return found


def test_the_format_of_a_source_is_detected_by_its_content(one_of_each: dict[str, Path]) -> None:
    """Bags are left out: they have no magic. RecordIO's dialects are detected as one format."""
    for name, path in one_of_each.items():
        if name not in ("bag", "bag-single"):
            assert registry.find(str(path)).name == name.removesuffix("-go"), name


def test_a_bag_is_detected_by_its_name_and_an_unknown_name_is_an_error(
    one_of_each: dict[str, Path],
) -> None:
    path = one_of_each["bag-single"]
    with pytest.raises(ConversionError, match=rf"{path}.*source_format"):
        registry.find(str(path))
    os.rename(path, path.with_suffix(".bag"))
    assert registry.find(str(path.with_suffix(".bag"))).name == "bag"


def items_in(name: str, path: Path) -> int:
    found = FORMATS[name].count(str(path))
    return found if isinstance(found, int) else found.names


def test_every_format_converts_to_every_other_one(
    one_of_each: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "to").mkdir()
    for source, target in itertools.product(FORMATS, FORMATS):
        place = tmp_path / "to" / f"{source} {target}"
        field = None
        if FORMATS[source].shape.__name__ == "Rows" and FORMATS[target].shape is Records:
            field = "bin"
        report = convert(
            one_of_each[source], place, source_format=source, target_format=target,
            drop_names=True, field=field,
        )  # fmt: skip
        assert (report.source_format, report.target_format) == (source, target)
        assert items_in(target, place) == report.written
        contents = place.read_bytes() if place.is_file() else b"".join(
            path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()
        )  # fmt: skip
        if target not in ("recordio", "recordio-go"):  # compressed
            assert b"1" * 100 in contents, (source, target)
            assert b"2" * 100 in contents, (source, target)
    assert len(os.listdir(tmp_path / "to")) >= len(FORMATS) ** 2


@pytest.mark.parametrize(
    ("name", "shape", "due"),
    [
        ("x.ffr", "records", "records"),
        ("x.ffr", "folder", "packed"),
        ("x.ffr", "dataset", "records"),
        ("x.tar", "folder", "tar"),
        ("x.tar.gz", "records", "tar"),
        ("x.tfrecord", "records", "tfrecord"),
        ("x.recordio", "records", "recordio"),
        ("x.bag", "records", "bag"),
        ("x.h5", "dataset", "hdf5"),
        ("x.hdf5", "records", "hdf5"),
        ("x", "records", "folder"),
        ("x", "folder", "folder"),
        ("x", "dataset", "dataset"),
    ],
)
def test_the_format_of_a_target_is_chosen_by_its_name(name: str, shape: str, due: str) -> None:
    assert registry.find_target(name, FORMATS[shape].shape).name == due


def test_undetected_and_unknown_formats_are_errors(ours: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Some text that is long enough to be read as a header.\n")
    for options, why in (
        ({"src": tmp_path / "text", "dst": tmp_path / "x.ffr"}, "source_format"),
        ({"src": ours, "dst": tmp_path / "x.zip"}, "target_format"),
        ({"src": ours, "dst": tmp_path / "x", "target_format": "zip"}, "unknown format 'zip'"),
        ({"src": ours, "dst": tmp_path / "x", "source_format": "zip"}, "unknown format 'zip'"),
        (
            {"src": ours, "dst": tmp_path / "x.bag", "shard_size": 10},
            "shard_size is for tar and for packing a folder",
        ),
        ({"src": ours, "dst": tmp_path / "x.ffr", "align": 512}, "align is for packed folders"),
    ):
        with pytest.raises(ConversionError, match=why):
            convert(**options)
    assert sorted(os.listdir(tmp_path)) == ["ours.ffr", "text"]


def test_sources_that_are_not_files_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in FORMATS:
        with pytest.raises((FFRecordError, OSError)):
            convert(tmp_path / "nothing", tmp_path / "x", source_format=name, target_format="bag")
        with pytest.raises((NotFFRecordError, FFRecordError, OSError)):
            convert(tmp_path / "fifo", tmp_path / "x", source_format=name, target_format="bag")
    with pytest.raises(NotFFRecordError, match="not a regular file"):
        convert(tmp_path / "fifo", tmp_path / "x.ffr")
    assert os.listdir(tmp_path) == ["fifo"]


# ---- existing targets ----------------------------------------------------------------------


def test_an_existing_file_is_replaced_only_with_force(ours: Path, tmp_path: Path) -> None:
    for name in ("x.tfrecord", "x.ffr", "x.bag", "x.h5", "x.tar"):
        (tmp_path / name).write_bytes(b"precious")
        with pytest.raises(FileExistsError, match="force=True"):
            convert(ours, tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"precious"
        os.chmod(tmp_path / name, 0o600)
        if os.geteuid() == 0:
            os.chown(tmp_path / name, 1234, 2345)
        old = os.stat(tmp_path / name)
        convert(ours, tmp_path / name, force=True)
        assert items_in(registry.find(str(tmp_path / name)).name, tmp_path / name) == 4
        new = os.stat(tmp_path / name)
        assert (new.st_mode, new.st_uid, new.st_gid) == (old.st_mode, old.st_uid, old.st_gid)


def test_an_existing_folder_is_never_replaced(ours: Path, tmp_path: Path) -> None:
    trees.plain_tree(tmp_path / "mine", {"precious": b"1"})
    for name in ("folder", "dataset", "granular", "tar", "records"):
        with pytest.raises(OSError, match="folder") as caught:
            convert(ours, tmp_path / "mine", target_format=name, force=True)
        assert caught.value.errno in (errno.EEXIST, errno.EISDIR)
    assert os.listdir(tmp_path / "mine") == ["precious"]
    (tmp_path / "empty").mkdir()
    convert(ours, tmp_path / "empty")
    assert len(os.listdir(tmp_path / "empty")) == 4


def test_an_existing_index_of_a_bag_is_replaced_only_with_force(ours: Path, tmp_path: Path) -> None:
    (tmp_path / "x.idx").write_bytes(b"precious")
    for name in ("bag", "bag-single"):
        with pytest.raises(FileExistsError, match=r"x\.idx"):
            convert(ours, tmp_path / "x.bag", target_format=name)
    convert(ours, tmp_path / "x.bag", target_format="bag-single", force=True)
    assert sorted(os.listdir(tmp_path)) == ["ours.ffr", "x.bag"]


def test_a_symlink_is_followed_to_the_file_that_is_replaced(ours: Path, tmp_path: Path) -> None:
    (tmp_path / "real.tfrecord").write_bytes(b"old")
    (tmp_path / "link.tfrecord").symlink_to("real.tfrecord")
    convert(ours, tmp_path / "link.tfrecord", force=True)
    assert (tmp_path / "link.tfrecord").is_symlink()
    assert registry.FORMATS["tfrecord"].count(str(tmp_path / "real.tfrecord")) == 4


def test_a_file_may_be_replaced_by_its_own_conversion(ours: Path) -> None:
    convert(ours, ours, force=True, target_format="tfrecord")
    assert FORMATS["tfrecord"].count(str(ours)) == 4


@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_not_converted_onto_itself_in_the_same_format(force: bool, ours: Path) -> None:
    before = ours.read_bytes()
    with pytest.raises(ConversionError, match="already has the target's format"):
        convert(ours, ours, force=force)
    assert ours.read_bytes() == before


def test_a_target_inside_its_source_is_refused(tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "tree", {"a": b"1"})
    (tmp_path / "alias").symlink_to(top)
    for target in (top / "x.tar", tmp_path / "alias" / "x.tar"):
        with pytest.raises(ConversionError, match="inside"):
            convert(top, target)
    assert os.listdir(top) == ["a"]


def test_a_target_in_a_missing_folder_is_an_error_at_once(ours: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        convert(ours, tmp_path / "no" / "x.tfrecord")


# ---- all or nothing ------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_source_leaves_nothing(name: str, tmp_path: Path) -> None:
    ours = handmade.write_records(tmp_path / "ours.ffr", RECORDS)
    data = bytearray(ours.read_bytes())
    data[-1] ^= 1
    ours.write_bytes(data)
    with pytest.raises(FFRecordError, match="record 3"):
        convert(ours, tmp_path / "x", target_format=name)
    assert os.listdir(tmp_path) == ["ours.ffr"]


@pytest.mark.parametrize("name", ["tfrecord", "tar", "dataset", "folder"])
def test_a_full_disk_raises_our_error_and_leaves_nothing(
    name: str, ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    monkeypatch.setattr(os, "link", full)
    with pytest.raises(NoRoomError):
        convert(ours, tmp_path / "x", target_format=name)
    assert os.listdir(tmp_path) == ["ours.ffr"]


@pytest.mark.parametrize("lost", ["before writing", "from the file", "from the report"])
def test_different_counts_are_an_error_and_leave_nothing(
    lost: str, ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the counts alone reveals a writer that loses a record."""
    real = FORMATS["tfrecord"]

    def write(path: str, records: Records, options: ConvertOptions) -> Written:
        if lost == "before writing":
            records.items = itertools.islice(records.items, 1, None)
            next(iter(records.items))
        written = real.write(path, records, options)
        if lost == "from the file":
            os.truncate(path, os.path.getsize(path) - 5016)
        return Written(written.items - (lost == "from the report"))

    broken = registry.Format("tfrecord", Records, real.read, write, real.count)
    monkeypatch.setitem(registry.FORMATS, "tfrecord", broken)
    with pytest.raises(CountError, match=str(tmp_path / "x")):
        convert(ours, tmp_path / "x", target_format="tfrecord")
    assert os.listdir(tmp_path) == ["ours.ffr"]


def test_a_source_with_fewer_items_than_it_says_is_an_error(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileReader, "__iter__", lambda self: iter(RECORDS[:3]))
    with pytest.raises(CountError):
        convert(ours, tmp_path / "x.tfrecord")
    assert os.listdir(tmp_path) == ["ours.ffr"]


# ---- several sources -----------------------------------------------------------------------


def test_several_sources_are_read_one_after_the_other(tmp_path: Path) -> None:
    paths = [handmade.write_records(tmp_path / f"{k}.ffr", [b"%d" % k, b"x"]) for k in range(3)]
    report = convert(paths, tmp_path / "all.tfrecord")
    convert(tmp_path / "all.tfrecord", tmp_path / "all.ffr")
    assert read_all(tmp_path / "all.ffr") == [b"0", b"x", b"1", b"x", b"2", b"x"]
    assert (report.read, report.written) == (6, 6)
    with pytest.raises(ValueError, match="empty list"):
        convert([], tmp_path / "none.ffr")


def test_several_datasets_must_have_the_same_fields(tmp_path: Path) -> None:
    for name, spec in (("a", {"n": "int"}), ("b", {"n": "int"}), ("c", {"m": "int"})):
        with DatasetWriter(tmp_path / name, spec) as writer:
            writer.append(dict.fromkeys(spec, 1))
    assert convert([tmp_path / "a", tmp_path / "b"], tmp_path / "x.h5").written == 2
    with pytest.raises(ConversionError, match=r"c: its fields"):
        convert([tmp_path / "a", tmp_path / "c"], tmp_path / "y.h5")
    assert not (tmp_path / "y.h5").exists()


# ---- memory --------------------------------------------------------------------------------

BIG = 48 << 20
BOUND = 24 << 20


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a source twice as large as the memory that a conversion may use."""
    path = tmp_path_factory.mktemp("big") / "big.ffr"
    block = np.random.default_rng(0).integers(0, 255, 64 << 10, np.uint8)
    with FileWriter(path, BIG // len(block)) as writer:
        for _ in range(BIG // len(block)):
            writer.write_one(block)
    return path


def peak_of(convert_it: Any) -> int:
    """Return the peak memory of arrays and Python objects. Other memory is a few fixed buffers."""
    tracemalloc.start()
    try:
        convert_it()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", FORMATS)
def test_memory_does_not_grow_with_the_data(name: str, big: Path, tmp_path: Path) -> None:
    there = peak_of(lambda: convert(big, tmp_path / "x", target_format=name))
    back = peak_of(lambda: convert(
        tmp_path / "x", tmp_path / "back.ffr", source_format=name, target_format="records",
        drop_names=True,
    ))  # fmt: skip
    assert there < BOUND
    assert back < BOUND
    assert (tmp_path / "back.ffr").stat().st_size >= BIG


def tar_peaks(path: Path, count: int) -> tuple[int, int]:
    """Return the peak memory of writing a tar with this many members, and of reading it."""

    def read() -> None:
        with tar.read(str(path), ConvertOptions()) as files:
            assert sum(1 for _ in files.items) == count

    files = reshape.to_files(Records(itertools.repeat(b"x", count), count), ConvertOptions())
    return peak_of(lambda: tar.write(str(path), files, ConvertOptions())), peak_of(read)


def test_memory_does_not_grow_with_the_members_of_a_tar(tmp_path: Path) -> None:
    """Python's tarfile by itself keeps about a kilobyte per member."""
    tar_peaks(tmp_path / "first.tar", 10)  # imports must not count in the peaks below
    few, many = tar_peaks(tmp_path / "few.tar", 10), tar_peaks(tmp_path / "many.tar", 3000)
    assert many[0] - few[0] < 300_000
    assert many[1] - few[1] < 300_000


def test_one_large_file_is_streamed_through_tar_and_folder(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(BIG)
    (tmp_path / "tree").mkdir()
    os.rename(tmp_path / "sparse", tmp_path / "tree" / "large")
    for source, target in (("tree", "t.tar"), ("t.tar", "p.ffr"), ("p.ffr", "t.tar.gz"),
                           ("t.tar.gz", "out")):  # fmt: skip
        peak = peak_of(lambda s=source, t=target: convert(tmp_path / s, tmp_path / t))
        assert peak < BOUND, (source, target)
    assert trees.differences(tmp_path / "tree", tmp_path / "out") == []


def test_the_resident_memory_stays_small(big: Path, tmp_path: Path) -> None:
    """Convert 200 MB there and back; the process must grow by less than a quarter of that.

    Resident memory includes allocations that Python does not see.
    """
    code = textwrap.dedent("""
        import os, shutil, sys
        from ffrecord.convert import convert
        from scripts.benchmarks.memory import peak

        def there_and_back(sources, name):
            convert(sources, "there", target_format=name)
            convert("there", "back", source_format=name, target_format="records", drop_names=True)
            for path in ("there", "back", "there.idx"):
                if os.path.isdir(path):
                    shutil.rmtree(path)
                elif os.path.exists(path):
                    os.unlink(path)

        for name in sys.argv[2:]:
            there_and_back(sys.argv[1], name)
        before = peak()
        for name in sys.argv[2:]:
            there_and_back([sys.argv[1]] * 4, name)
        print(peak() - before)
    """)
    run = subprocess.run(
        [sys.executable, "-c", code, str(big), "recordio", "bag", "hdf5", "dataset"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < BIG, run.stderr


# ---- without root --------------------------------------------------------------------------


def test_an_ordinary_user_can_create_read_only_folders(tmp_path: Path) -> None:
    """If the conversion fails in the end, nothing is left behind."""
    with users.reachable(tmp_path):
        out = users.run(
            """
            os.chdir(sys.argv[1])
            os.makedirs("tree/locked/inside")
            open("tree/locked/inside/file", "w").close()
            for path in ("tree/locked/inside", "tree/locked", "tree"):
                os.chmod(path, 0o555)
            convert("tree", "t.tar")
            convert("t.tar", "out")
            print(oct(os.stat("out").st_mode), os.listdir("out/locked/inside"))
            real = formats.FORMATS["folder"]
            formats.FORMATS["folder"] = dataclasses.replace(real, count=lambda path: 0)
            try:
                convert("t.tar", "wrong", target_format="folder")
            except ffrecord.CountError:
                print(sorted(os.listdir(".")))
            """.replace("\n            ", "\n"),
            tmp_path,
            imports="import dataclasses\nfrom ffrecord.convert import convert\n"
            "from ffrecord.convert import registry as formats\n",
        )
    assert out.splitlines() == ["0o40555 ['file']", "['out', 't.tar', 'tree']"]


def test_read_only_leftovers_of_a_killed_conversion_are_removed(ours: Path, tmp_path: Path) -> None:
    left = tmp_path / ".x.converting" / "x" / "locked"
    trees.plain_tree(left, {"inside/file": b"1"})
    (left / "link").symlink_to(ours.parent)
    left.chmod(0o500)
    convert(ours, tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == ["ours.ffr", "x"]


# ---- other sources and targets ------------------------------------------------------------


def test_sources_of_different_formats_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"content")
    pack_folder(folder, tmp_path / "packed.ffr")
    with FileWriter(tmp_path / "records.ffr") as writer:
        writer.write_one(b"one")
    sources = [tmp_path / "records.ffr", tmp_path / "packed.ffr"]
    with pytest.raises(ConversionError, match=r"packed\.ffr: has the format packed, .* records"):
        convert(sources, tmp_path / "out.ffr")
    assert not (tmp_path / "out.ffr").exists()


def test_a_file_that_appears_during_the_conversion_is_not_replaced(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.tfrecord"
    real = publish._make_durable

    def slow(path: str) -> None:
        real(path)
        target.write_bytes(b"precious")

    monkeypatch.setattr(publish, "_make_durable", slow)
    with pytest.raises(FileExistsError):
        convert(ours, target)
    assert target.read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["ours.ffr", "x.tfrecord"]


@pytest.mark.parametrize(
    ("text", "what"),
    [("uft8", "unknown type 'uft8'"), ("utf8+zstd:99", r"unknown type 'utf8\+zstd:99'")],
)
def test_an_unknown_type_is_refused(text: str, what: str, ours: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=what):
        convert(ours, tmp_path / "out", target_format="dataset", types={"data": text})


def test_records_become_a_compressed_field(ours: Path, tmp_path: Path) -> None:
    convert(ours, tmp_path / "out", target_format="dataset", types={"data": "bytes+zstd"})
    with DatasetReader(tmp_path / "out") as reader, FileReader(ours) as records:
        assert reader.spec == {"data": "bytes+zstd"}
        assert [row["data"] for row in reader] == [record.tobytes() for record in records]


def test_zero_rows_round_trip_through_hdf5(tmp_path: Path) -> None:
    for name, rows in (("none", []), ("empty", [{"x": np.zeros((0, 3))}] * 2)):
        with DatasetWriter(tmp_path / name, {"x": "array"}) as writer:
            for row in rows:
                writer.append(row)
        convert(tmp_path / name, tmp_path / f"{name}.h5")
        report = convert(tmp_path / f"{name}.h5", tmp_path / f"{name} again")
        assert report.written == len(rows)


def test_an_hdf5_table_round_trips(tmp_path: Path) -> None:
    table = np.array([(1, b"one"), (2, b"two")], [("a", "i4"), ("name", "S8")])
    with h5py.File(tmp_path / "table.h5", "w") as file:
        file.create_dataset("t", data=table)
    convert(tmp_path / "table.h5", tmp_path / "rows")
    with DatasetReader(tmp_path / "rows") as reader:
        assert [row["t"].tolist() for row in reader] == table.tolist()


def test_an_error_without_a_message_is_named_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(name: str, data: bytes) -> None:
        raise ValueError

    monkeypatch.setattr("ffrecord.convert.field_types.decode", decode)
    rows = reshape.to_rows(Records([b"x"]), ConvertOptions(types={"data": "utf8"}))
    with pytest.raises(ConversionError, match=r"^record 0 .* as utf8: ValueError$"):
        list(rows.items)

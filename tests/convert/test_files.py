"""Folders, tars and packed folders: attributes that are kept, and hostile or damaged tars."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    ChangedError,
    ConversionError,
    DamagedSourceError,
    FFRecordError,
    FileReader,
    PackedFolder,
    SkippedWarning,
    pack_folder,
)
from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit
from ffrecord.convert import convert
from ffrecord.convert.formats import folder, tar
from ffrecord.convert.shapes import ConvertOptions
from tests.support import handmade, trees


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.rich_tree(tmp_path_factory.mktemp("rich") / "tree")


@pytest.fixture(scope="module")
def rich_packed(rich: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "rich.ffr"
    with pytest.warns(SkippedWarning):
        pack_folder(rich, path)
    return path


@pytest.fixture(scope="module")
def rich_tar(rich_packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tar") / "rich.tar"
    convert(rich_packed, path)
    return path


def extracted(archive: Path, place: Path) -> Path:
    with PackedFolder(archive) as packed:
        packed.extract(place)
    return place


def differences(rich: Path, other: Path) -> list[str]:
    """Return differences between two trees, except sockets and fifos, which are never packed."""
    return [line for line in trees.differences(rich, other) if "special/" not in line]


# ---- round trips ---------------------------------------------------------------------------


def test_a_folder_round_trips_through_a_tar_and_an_archive(
    rich: Path, rich_tar: Path, tmp_path: Path
) -> None:
    convert(rich_tar, tmp_path / "again.ffr")
    assert differences(rich, extracted(tmp_path / "again.ffr", tmp_path / "out")) == []


def test_a_tar_becomes_a_folder_with_all_attributes(
    rich: Path, rich_tar: Path, tmp_path: Path
) -> None:
    report = convert(rich_tar, tmp_path / "out")
    assert differences(rich, tmp_path / "out") == []
    names = sum(not os.path.isdir(p) or os.path.islink(p) for p in all_paths(tmp_path / "out"))
    assert report.read == report.written == names


def test_a_folder_and_its_archive_become_the_same_tar(
    rich: Path, rich_tar: Path, tmp_path: Path
) -> None:
    with pytest.warns(SkippedWarning, match="1 fifo, 1 socket"):
        report = convert(rich, tmp_path / "rich.tar")
    assert (tmp_path / "rich.tar").read_bytes() == rich_tar.read_bytes()
    assert report.skipped == {"fifo": 1, "socket": 1}


def test_an_archive_round_trips_through_a_folder(
    rich: Path, rich_packed: Path, tmp_path: Path
) -> None:
    report = convert(rich_packed, tmp_path / "out")
    assert differences(rich, tmp_path / "out") == []
    again = convert(tmp_path / "out", tmp_path / "again.ffr")
    assert (tmp_path / "again.ffr").read_bytes() == rich_packed.read_bytes()
    assert report.written == again.read == again.written


def test_gnu_tar_reads_our_tars_and_we_read_its_tars(
    rich: Path, rich_tar: Path, tmp_path: Path
) -> None:
    (tmp_path / "gnu").mkdir()
    subprocess.run(
        ["tar", "-xpf", rich_tar, "--xattrs", "--xattrs-include=user.*", "-C", tmp_path / "gnu"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert differences(rich, tmp_path / "gnu") == []
    subprocess.run(
        ["tar", "-cf", tmp_path / "gnu.tar", "--format=posix", "--xattrs", "-C", tmp_path / "gnu",
         "."],
        check=True, capture_output=True,
    )  # fmt: skip
    convert(tmp_path / "gnu.tar", tmp_path / "back")
    assert differences(rich, tmp_path / "back") == []


@pytest.mark.parametrize("how", ["gnu", "ustar", "v7"])
def test_other_tar_formats_are_read(how: str, tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "tree", {"a": b"1", "b/c": b"2" * 5000, "b/d/e": b""})
    (top / "link").symlink_to("b/c")
    subprocess.run(
        ["tar", "-cf", tmp_path / "t.tar", f"--format={how}", "-C", top, "."], check=True
    )
    convert(tmp_path / "t.tar", tmp_path / "out")
    assert {p.relative_to(tmp_path / "out").as_posix(): p.read_bytes()
            for p in (tmp_path / "out").rglob("*") if p.is_file()} == {
        "a": b"1", "b/c": b"2" * 5000, "b/d/e": b"", "link": b"2" * 5000
    }  # fmt: skip
    assert os.readlink(tmp_path / "out/link") == "b/c"


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"])
def test_compressed_tars_are_written_and_read(suffix: str, tmp_path: Path) -> None:
    trees.plain_tree(tmp_path / "tree", {"a": b"1" * 100_000, "b/c": b"2"})
    convert(tmp_path / "tree", tmp_path / f"t{suffix}")
    assert os.path.getsize(tmp_path / f"t{suffix}") < 50_000
    convert(tmp_path / f"t{suffix}", tmp_path / "out")
    assert trees.differences(tmp_path / "tree", tmp_path / "out") == []


def all_paths(top: Path) -> list[str]:
    return [os.path.join(at, name) for at, folders, files in os.walk(top)
            for name in folders + files]  # fmt: skip


@pytest.mark.parametrize("how", ["longer", "shorter", "other bytes", "gone"])
def test_a_file_that_changes_during_the_conversion_is_an_error(how: str, tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "tree", {"a": b"1" * 1000})
    with folder.read(str(top), ConvertOptions()) as files:
        if how == "gone":
            (top / "a").unlink()
        else:
            changed = {"longer": b"1" * 1001, "shorter": b"1", "other bytes": b"2" * 1000}
            (top / "a").write_bytes(changed[how])
        with pytest.raises((ChangedError, FileNotFoundError)):
            tar.write(str(tmp_path / "x.tar"), files, ConvertOptions())


# ---- unusual tars --------------------------------------------------------------------------


def member(name: str, content: bytes = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info, content


def make_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        for info, content in members:
            file.addfile(info, io.BytesIO(content))
    return path


def test_a_later_member_of_the_same_name_replaces_an_earlier_one(tmp_path: Path) -> None:
    made = make_tar(
        tmp_path / "t.tar", member("a", b"old"), member("b", b"b"), member("./a", b"new")
    )
    report = convert(made, tmp_path / "out.ffr")
    with PackedFolder(tmp_path / "out.ffr") as packed:
        assert packed.read_one("a").tobytes() == b"new"
        assert sorted(packed) == ["a", "b"]
    assert (report.read, report.written, report.replaced) == (3, 2, 1)


def test_folders_missing_in_the_tar_are_created(tmp_path: Path) -> None:
    made = make_tar(tmp_path / "t.tar", member("x/y/z", b"deep", mtime=1234))
    convert(made, tmp_path / "out.ffr")
    with PackedFolder(tmp_path / "out.ffr") as packed:
        assert packed.read_one("x/y/z").tobytes() == b"deep"
        for name in ("", "x", "x/y"):
            assert stat.S_IMODE(packed.stat(name).st_mode) == 0o755
            assert packed.stat(name).st_mtime_ns == 1234 * 10**9


def test_devices_and_fifos_are_skipped_and_counted(tmp_path: Path) -> None:
    made = make_tar(tmp_path / "t.tar", member("f", type=tarfile.FIFOTYPE), member("a", b"1"),
                   member("c", type=tarfile.CHRTYPE, devmajor=1, devminor=3))  # fmt: skip
    with pytest.warns(SkippedWarning, match="1 character device, 1 fifo"):
        report = convert(made, tmp_path / "out.ffr")
    assert report.skipped == {"fifo": 1, "character device": 1}
    assert (report.read, report.written) == (1, 1)


def test_a_hard_link_to_a_symlink_is_another_name_for_it(tmp_path: Path) -> None:
    made = make_tar(tmp_path / "t.tar", member("s", type=tarfile.SYMTYPE, linkname="nowhere"),
                   member("h", type=tarfile.LNKTYPE, linkname="./s"))  # fmt: skip
    convert(made, tmp_path / "out")
    assert os.readlink(tmp_path / "out/h") == "nowhere"


OUTSIDE = "outside.txt"
EVIL: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "an absolute name": [member("/tmp/x/" + OUTSIDE, b"evil")],
    "dots at the front": [member("../" + OUTSIDE, b"evil")],
    "dots inside": [member("a/../../" + OUTSIDE, b"evil")],
    "dots as a folder": [member("..", type=tarfile.DIRTYPE)],
    "an empty name inside": [member("a//b", b"evil")],
    "a file below a symlink": [
        member("up", type=tarfile.SYMTYPE, linkname=".."), member("up/" + OUTSIDE, b"evil")
    ],
    "a folder in place of a symlink": [
        member("up", type=tarfile.SYMTYPE, linkname=".."), member("up", type=tarfile.DIRTYPE),
        member("up/" + OUTSIDE, b"evil"),
    ],
    "a hard link to outside": [member("h", type=tarfile.LNKTYPE, linkname="../" + OUTSIDE)],
    "a hard link to an absolute path": [
        member("h", type=tarfile.LNKTYPE, linkname="/etc/passwd")
    ],
    "a hard link to the top": [member("h", type=tarfile.LNKTYPE, linkname=".")],
    "a hard link to nothing": [member("h", type=tarfile.LNKTYPE, linkname="later")],
    "a hard link to a folder": [
        member("d", type=tarfile.DIRTYPE), member("h", type=tarfile.LNKTYPE, linkname="d")
    ],
    "a file that is also a folder": [member("a/b", b"1"), member("a", b"2")],
    "a name that is too long": [member("x" * 256, b"1")],
    "a symlink without a target": [member("s", type=tarfile.SYMTYPE, linkname="")],
    "a symlink with too long a target": [member("s", type=tarfile.SYMTYPE, linkname="x/" * 3000)],
    "a file as the top": [member(".", b"1")],
    "an owner beyond 32 bits": [member("a", b"1", uid=1 << 40)],
    "an attribute beyond the limits": [
        member("a", b"1", pax_headers={"SCHILY.xattr.user." + "x" * 300: "1"})
    ],
    "an invalid time": [member("a", b"1", pax_headers={"mtime": "nan"})],
    "an unknown type": [member("a", type=b"Z")],
    "a sparse file": [
        member("a", b"", pax_headers={"GNU.sparse.major": "0", "GNU.sparse.minor": "1",
                                      "GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 60)})
    ],
}  # fmt: skip


@pytest.mark.parametrize("target", ["out", "out.ffr"])
@pytest.mark.parametrize("case", EVIL)
def test_no_tar_can_write_outside_of_the_target(case: str, target: str, tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    made = make_tar(inside / "t.tar", *EVIL[case])
    with pytest.raises((ConversionError, DamagedSourceError)):
        convert(made, inside / target)
    assert os.listdir(inside) == ["t.tar"]
    assert os.listdir(tmp_path) == ["in"]


def test_symlinks_to_the_outside_are_kept_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    made = make_tar(tmp_path / "t.tar", member("s", type=tarfile.SYMTYPE, linkname="../victim"))
    convert(made, tmp_path / "out")
    assert os.readlink(tmp_path / "out/s") == "../victim"
    assert os.listdir(tmp_path / "victim") == []


# ---- damage --------------------------------------------------------------------------------


@pytest.fixture
def small_tar(tmp_path: Path) -> Path:
    return make_tar(tmp_path / "s.tar", member("a", b"1" * 700), member("b", b"2" * 100),
                    member("x" * 150, b"3"))  # fmt: skip


def test_a_tar_cut_off_anywhere_is_an_error(small_tar: Path, tmp_path: Path) -> None:
    """Python's tarfile by itself would end silently at a missing or truncated header."""
    whole = small_tar.read_bytes()
    end = whole.rindex(b"3") // 512 * 512 + 512
    for length in [1, 511, 512, 513, *range(1024, end + 1, 256)]:
        small_tar.write_bytes(whole[:length])
        with pytest.raises(DamagedSourceError, match=r"s\.tar"):
            convert(small_tar, tmp_path / "out.ffr")
    assert os.listdir(tmp_path) == ["s.tar"]


def test_every_damaged_header_is_an_error(small_tar: Path, tmp_path: Path) -> None:
    whole = small_tar.read_bytes()
    headers = [at for at in range(0, len(whole), 512) if whole[at + 257 : at + 262] == b"ustar"]
    assert len(headers) == 4  # including the extended header of the long name
    for at in headers:
        for byte in (0, 100, 124, 148, 156, 257):
            damaged = bytearray(whole)
            damaged[at + byte] ^= 0x55
            small_tar.write_bytes(damaged)
            with pytest.raises(FFRecordError):
                convert(small_tar, tmp_path / "out.ffr")
    assert os.listdir(tmp_path) == ["s.tar"]


def spoiled(info: tarfile.TarInfo, change: Callable[[bytearray], None]) -> bytes:
    """Return a header with changed bytes and the right checksum."""
    raw = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    change(raw)
    raw[148:156] = b"        "
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def huge(raw: bytearray) -> None:
    raw[124:136] = b"\x80" + (1 << 60).to_bytes(11, "big")


def negative(raw: bytearray) -> None:
    raw[124:136] = b"\xff" * 12


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
@pytest.mark.parametrize("change", [huge, negative], ids=["huge", "negative"])
def test_an_impossible_size_is_an_error(
    change: Callable[[bytearray], None], kind: bytes, tmp_path: Path
) -> None:
    info = tarfile.TarInfo("a")
    info.type = kind
    (tmp_path / "t.tar").write_bytes(spoiled(info, change) + b"x" * 2048)
    with pytest.raises(DamagedSourceError, match=r"t\.tar"):
        convert(tmp_path / "t.tar", tmp_path / "out.ffr")
    assert os.listdir(tmp_path) == ["t.tar"]


def test_an_endless_chain_of_extended_headers_is_an_error(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    (tmp_path / "t.tar").write_bytes(
        (info.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")) * 3000
    )
    with pytest.raises(DamagedSourceError, match=r"t\.tar"):
        convert(tmp_path / "t.tar", tmp_path / "out.ffr")


def test_a_damaged_compressed_tar_is_an_error(tmp_path: Path) -> None:
    trees.plain_tree(tmp_path / "tree", {"a": trees.content(50_000), "b": b"2"})
    for suffix in (".tar.gz", ".tar.bz2", ".tar.xz"):
        convert(tmp_path / "tree", tmp_path / f"t{suffix}")
        whole = (tmp_path / f"t{suffix}").read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for bad in (whole[: len(whole) // 2], bytes(flipped), whole[:20]):
            (tmp_path / f"t{suffix}").write_bytes(bad)
            with pytest.raises(DamagedSourceError, match=rf"t{suffix}"):
                convert(tmp_path / f"t{suffix}", tmp_path / "out.ffr")


# ---- to records and in shards --------------------------------------------------------------


def test_files_become_records_only_with_drop_names(tmp_path: Path) -> None:
    files = {"b": b"2", "a/x": b"1", "c": b""}
    top = trees.plain_tree(tmp_path / "tree", files)
    with pytest.raises(ConversionError, match="drop_names=True"):
        convert(top, tmp_path / "out.tfrecord")
    report = convert(top, tmp_path / "out.tfrecord", drop_names=True)
    convert(tmp_path / "out.tfrecord", tmp_path / "out.ffr")
    with FileReader(tmp_path / "out.ffr") as reader:
        assert handmade.as_bytes(reader) == [b"1", b"2", b""]  # in path order
    assert (report.read, report.written) == (3, 3)


@pytest.mark.parametrize("shard_size", [None, 1000])
def test_padding_is_lost_if_aligned_files_become_records(
    shard_size: int | None, tmp_path: Path
) -> None:
    files = {f"{size:04}": trees.content(size) for size in (0, 1, 511, 512, 513, 3000)}
    pack_folder(
        trees.plain_tree(tmp_path / "tree", files), tmp_path / "a", shard_size=shard_size, align=512
    )
    report = convert(tmp_path / "a", tmp_path / "out.ffr", target_format="records", drop_names=True)
    with FileReader(tmp_path / "out.ffr") as reader:
        assert handmade.as_bytes(reader) == [files[name] for name in sorted(files)]
    assert (report.read, report.written) == (6, 6)


@pytest.mark.parametrize("source", ["packed", "shards", "aligned", "tar", "folder"])
@pytest.mark.filterwarnings("ignore::ffrecord.SkippedWarning")
def test_any_source_becomes_an_aligned_archive(
    source: str, rich: Path, rich_packed: Path, rich_tar: Path, tmp_path: Path
) -> None:
    made = {"packed": rich_packed, "tar": rich_tar, "folder": rich}.get(source)
    if made is None:
        made = tmp_path / source
        options: dict[str, Any] = {"shards": {"shard_size": 300_000}, "aligned": {"align": 512}}
        pack_folder(rich, made, **options[source])
    report = convert(made, tmp_path / "out.ffr", align=512)
    assert report.source_contents == report.target_contents
    with Archive.open(tmp_path / "out.ffr") as archive:
        assert archive.alignment == 512
        audit(archive)
    assert differences(rich, extracted(tmp_path / "out.ffr", tmp_path / "copy")) == []


def test_records_become_numbered_files(tmp_path: Path) -> None:
    records = handmade.random_records([0, 1, 5000])
    ours = handmade.write_records(tmp_path / "r.ffr", records)
    os.utime(ours, ns=(0, 1_234_567_890_123_456_789))
    convert(ours, tmp_path / "out")
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found == {f"{number:06}.bin": record for number, record in enumerate(records)}
    assert os.stat(tmp_path / "out/000001.bin").st_mtime_ns == 1_234_567_890_123_456_789
    convert(ours, tmp_path / "pictures", types={"data": "jpg"})
    assert sorted(os.listdir(tmp_path / "pictures"))[2] == "000002.jpg"


def test_tar_shards_have_all_files_and_never_split_a_sample(tmp_path: Path) -> None:
    files = {f"{k:03}.{part}": trees.content(900, k) for k in range(40) for part in ("bin", "txt")}
    top = trees.plain_tree(tmp_path / "tree", files)
    convert(top, tmp_path / "shards", target_format="tar", shard_size="10kB")
    found: dict[str, bytes] = {}
    for name in sorted(os.listdir(tmp_path / "shards")):
        with tarfile.open(tmp_path / "shards" / name) as file:
            here = {m.name: file.extractfile(m).read() for m in file if m.isreg()}  # type: ignore[union-attr]
        assert sum(map(len, here.values())) <= 10_000
        keys = {each.partition(".")[0] for each in here}
        assert not keys & {each.partition(".")[0] for each in found}
        found |= here
    assert found == files
    convert(tmp_path / "shards", tmp_path / "back", source_format="tar")
    assert trees.differences(top, tmp_path / "back") == []


def test_a_hard_link_to_another_shard_is_an_error(tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "tree", {"a.bin": b"1" * 9000, "b.bin": b"2" * 9000})
    os.link(top / "a.bin", top / "c.bin")
    with pytest.raises(ConversionError, match="another shard"):
        convert(top, tmp_path / "shards", target_format="tar", shard_size=10_000)
    assert os.listdir(tmp_path) == ["tree"]


def test_several_tars_become_one_archive(tmp_path: Path) -> None:
    first = make_tar(tmp_path / "1.tar", member("a", b"1"), member("x", b"old"))
    second = make_tar(tmp_path / "2.tar", member("b", b"2"), member("x", b"new"))
    with pytest.warns(SkippedWarning, match="1 more source: 1 file of these replaced earlier ones"):
        report = convert([first, second], tmp_path / "out.ffr")
    with PackedFolder(tmp_path / "out.ffr") as packed:
        assert {name: packed.read_one(name).tobytes() for name in packed} == {
            "a": b"1", "b": b"2", "x": b"new"
        }  # fmt: skip
    assert (report.read, report.written, report.replaced) == (4, 3, 1)


def test_a_folder_of_only_tars_is_read_as_their_contents(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for i in range(6):
        (source / f"{i}.bin").write_bytes(bytes([i]) * 1000)
    convert(source, tmp_path / "shards", target_format="webdataset", shard_size=2500)
    assert len(list((tmp_path / "shards").iterdir())) > 1
    report = convert(tmp_path / "shards", tmp_path / "rows", target_format="dataset")
    assert (report.source_format, report.written) == ("tar", 6)

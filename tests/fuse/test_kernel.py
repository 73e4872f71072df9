"""The kernel back end without a mount: images of real trees, probes, labels of mounts."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ffrecord.archive.archive import Archive
from ffrecord.disk import libc, pagecache
from ffrecord.errors import TruncatedError
from ffrecord.format import erofs
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Ownership
from ffrecord_fuse.kernel import mount as kernel
from ffrecord_fuse.kernel import probe
from ffrecord_fuse.kernel.image import Devices, Image
from ffrecord_fuse.kernel.mount import Mounted, in_page_cache, refuse_options
from ffrecord_fuse.kernel.probe import Refused
from ffrecord_fuse.mounting.mounttable import MountEntry, label
from ffrecord_fuse.mounting.options import Options, parse
from ffrecord_fuse.mounting.overlay import Place
from ffrecord_fuse.process import kernel_mount
from ffrecord_fuse.process.kernel_mount import ByKernel
from ffrecord_fuse.serve.report import Log
from tests.support import archives, trees
from tests.support.erofs_image import IN_IMAGE, Checker, Node
from tests.support.patience import PATIENCE

# ---- images ------------------------------------------------------------------------------------


def image_of(archive: Path, layout: erofs.Layout, out: Path, own: Ownership | None = None) -> Image:
    with Archive.open(archive) as opened:
        image = Image(opened, layout, own or Ownership())
        fd = os.open(out, os.O_RDWR | os.O_CREAT)
        try:
            image.write(fd)
        finally:
            os.close(fd)
    return image


def content(node: Node, image: bytes, devices: list[bytes]) -> bytes:
    places = [image if device == IN_IMAGE else devices[device] for device, _, _ in node.pieces]
    spans = zip(places, node.pieces, strict=True)
    return b"".join(place[offset : offset + length] for place, (_, offset, length) in spans)


@pytest.mark.parametrize("form", ["file", "shards", "aligned", "aligned shards"])
def test_an_image_has_every_name_attribute_and_byte_of_the_tree(form: str, tmp_path: Path) -> None:
    tree = trees.rich_tree(tmp_path / "tree")
    layout = erofs.CHUNKS if "aligned" in form else erofs.EXTENTS
    options = {"align": 512} if layout is erofs.CHUNKS else {}
    archives.pack(
        tree, tmp_path / "a", **options, **({"shard_size": 1 << 20} if "shards" in form else {})
    )
    files = sorted((tmp_path / "a").iterdir()) if "shards" in form else [tmp_path / "a"]
    devices = [path.read_bytes() for path in files]
    image_of(tmp_path / "a", layout, tmp_path / "image")
    raw = (tmp_path / "image").read_bytes()
    found = Checker(raw, [len(each) for each in devices]).tree()
    due = {p: f for p, f in trees.snapshot(tree).items() if f.kind in trees.KEPT}
    assert {path or b"." for path in found} == due.keys()
    for path, file in due.items():
        node = found[b"" if path == b"." else path]
        assert (node.mode & 0o7777, node.uid, node.gid) == (file.mode, file.uid, file.gid)
        assert node.mtime_ns == file.mtime_ns
        assert node.xattrs == {name.encode(): value for name, value in file.xattrs}
        if file.kind == "file":
            assert content(node, raw, devices) == file.content
            assert node.links == file.links
        elif file.kind == "symlink":
            assert node.target == file.target


def test_only_an_archive_in_the_page_cache_is_read_through_it(tmp_path: Path) -> None:
    size = 1 << 22
    (tmp_path / "a").write_bytes(bytes(size))
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        if pagecache.cached_bytes(fd, 0, size) != size:
            pytest.skip("the kernel does not tell what is cached")
        assert in_page_cache(Devices((fd,), (size,)))
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert not in_page_cache(Devices((fd,), (size,)))
    finally:
        os.close(fd)


def test_an_archive_that_shrinks_meanwhile_gets_no_image(tmp_path: Path) -> None:
    archives.pack(trees.plain_tree(tmp_path / "tree", {"a": b"x" * 9000}), tmp_path / "a.ffr")
    with Archive.open(tmp_path / "a.ffr") as opened:
        os.truncate(tmp_path / "a.ffr", 5000)
        with pytest.raises(TruncatedError, match="truncated while it was open"):
            Image(opened, erofs.EXTENTS, Ownership())


def fsck(archive: Path, image: Path, *options: str) -> None:
    """Check an image with fsck.erofs. Skip the test if its version does not know the layout."""
    done = subprocess.run(
        ["fsck.erofs", f"--device={archive}", *options, image],
        capture_output=True, text=True, errors="replace", check=False, timeout=PATIENCE,
    )  # fmt: skip
    if "blksize 512 isn't supported" in done.stderr:
        pytest.skip("this version of fsck.erofs knows only blocks of 4096 bytes")
    assert done.returncode == 0, done.stderr


needs_fsck = pytest.mark.skipif(
    shutil.which("fsck.erofs") is None, reason="erofs-utils is not installed"
)


@needs_fsck
def test_fsck_finds_no_error(tmp_path: Path) -> None:
    """No file of this tree has content.

    fsck.erofs 1.8.6 does not know extents, and 1.9.4 looks for them in the image instead of the
    device.
    """
    tree = trees.rich_tree(tmp_path / "tree")
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
            path.write_bytes(b"")
    for number in range(3000):
        (tree / "many" / f"more {number}").touch()
    (tree / "links/longest").symlink_to("x/" * 2000)
    archives.pack(tree, tmp_path / "a.ffr")
    image_of(tmp_path / "a.ffr", erofs.EXTENTS, tmp_path / "image")
    fsck(tmp_path / "a.ffr", tmp_path / "image")


@needs_fsck
def test_fsck_extracts_the_tree_of_an_aligned_archive(tmp_path: Path) -> None:
    tree = trees.rich_tree(tmp_path / "tree")
    archives.pack(tree, tmp_path / "a.ffr", align=512)
    image_of(tmp_path / "a.ffr", erofs.CHUNKS, tmp_path / "image")
    out = tmp_path / "out"
    fsck(tmp_path / "a.ffr", tmp_path / "image", f"--extract={out}", "--no-preserve-owner")
    assert contents(out) == contents(tree)


def contents(top: Path) -> dict[Path, Path | bytes | None]:
    """Return the targets of symlinks, the bytes of files, and None for folders."""
    found: dict[Path, Path | bytes | None] = {}
    for path in top.rglob("*"):
        name = path.relative_to(top)
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_file():
            found[name] = path.read_bytes()
        elif path.is_dir():
            found[name] = None
    return found


@pytest.mark.parametrize("layout", [erofs.EXTENTS, erofs.CHUNKS], ids=lambda each: each.name)
def test_the_tiny_image_of_the_probe_is_valid_but_for_one_file(layout: erofs.Layout) -> None:
    size = 2 * 4096 + 100
    checker = Checker(probe.tiny_image(layout, size), [size])
    names = [name for name, _, _ in checker.entries(checker.node(checker.root))]
    assert names == [b".", b"..", probe.BEYOND, probe.WITHIN]
    numbers = {name: number for name, number, _ in checker.entries(checker.node(checker.root))}
    assert checker.node(numbers[probe.WITHIN]).pieces == [(0, layout.block, probe.CONTENT)]
    with pytest.raises(AssertionError):  # it reaches into the device's incomplete block
        checker.node(numbers[probe.BEYOND])


# ---- probes ------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    archives.pack(trees.plain_tree(tmp_path / "tree", {"a": b"x" * 5000}), tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pretend to be root of a kernel with all features; return the folder of the features."""
    features = tmp_path / "features"
    features.mkdir()
    for name in ("48bit", "chunked_file", "device_table"):
        (features / name).touch()
    monkeypatch.setattr(probe, "FEATURES", str(features))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(libc, "fsopen", lambda kind: os.open("/dev/null", os.O_RDONLY))
    release(monkeypatch, "6.18.44")
    return features


def release(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    names = ("Linux", "host", version, "#1", "x86_64")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(names))


def chosen(archive: Path) -> erofs.Layout:
    with Archive.open(archive) as opened:
        return probe.choose(opened)


def test_the_layout_follows_from_the_alignment(archive: Path, able: Path, tmp_path: Path) -> None:
    assert chosen(archive) is erofs.EXTENTS
    archives.pack(tmp_path / "tree", tmp_path / "aligned.ffr", align=512)
    assert chosen(tmp_path / "aligned.ffr") is erofs.CHUNKS
    (able / "chunked_file").unlink()
    assert chosen(tmp_path / "aligned.ffr") is erofs.EXTENTS


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("6.11.99", False), ("6.12", True), ("6.12.0-rc1", True), ("6.12.71-generic", True),
        ("6.12.72", False), ("6.13.0", True), ("6.17.13", True), ("6.18.10", True),
        ("6.18.11-amd64", False), ("6.19.0", True), ("6.19", True), ("6.19.1", False),
        ("7.0.0", False), ("nonsense", False),
    ],
)  # fmt: skip
def test_kernels_that_use_freed_memory_are_refused(
    version: str, refused: bool, archive: Path, able: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, version)
    if refused:
        with pytest.raises(Refused, match=f"Linux {version} has CVE-2026-23224, a use after"):
            chosen(archive)
    else:
        assert chosen(archive) is erofs.EXTENTS


def test_without_a_feature_the_reason_says_how_to_do_without(archive: Path, able: Path) -> None:
    (able / "48bit").unlink()
    with pytest.raises(Refused, match=r"lacks 48bit .*`ffrecord convert --align 512` aligns this"):
        chosen(archive)


def test_only_root_can_use_the_kernel(
    archive: Path, able: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Refused, match="only root can mount without FUSE"):
        chosen(archive)


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENODEV, "this kernel has no EROFS"), (errno.EPERM, "this root has no right")],
)
def test_a_kernel_that_cannot_mount_erofs_is_refused(
    code: int, says: str, archive: Path, able: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(kind: str) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(libc, "fsopen", fails)
    with pytest.raises(Refused, match=says) as refused:
        chosen(archive)
    assert refused.value.errno == code


def test_a_disk_with_large_sectors_is_refused(
    archive: Path, able: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A disk with sectors of 4096 bytes serves extents; one with larger sectors serves nothing."""
    right = os.preadv
    sector = 4096

    def refuses(fd: int, memory: list[memoryview], offset: int) -> int:
        if offset % sector or len(memory[0]) % sector:
            raise OSError(errno.EINVAL, "unaligned")
        return right(fd, memory, offset)

    archives.pack(tmp_path / "tree", tmp_path / "aligned.ffr", align=512)
    with Archive.open(archive) as one, Archive.open(tmp_path / "aligned.ffr") as other:
        monkeypatch.setattr(os, "preadv", refuses)
        assert probe.choose(one) is probe.choose(other) is erofs.EXTENTS
        sector = 8192
        with pytest.raises(Refused, match="its disk refuses O_DIRECT reads of 4096 bytes"):
            probe.choose(one)


def test_the_url_of_an_archive_leads_out_of_no_folder(archive: Path) -> None:
    with Archive.open(archive) as opened, pytest.raises(Refused, match=r"`\.\.` in its path"):
        kernel.mount(opened, "https://host/../../../../x", "/mnt", Options(), 0)


def test_a_mount_that_cannot_be_finished_is_undone(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone = list[str]()
    monkeypatch.setattr(kernel_mount, "unmount_quietly", undone.append)
    done = Mounted(erofs.EXTENTS.name, False, None, None)
    monkeypatch.setattr(kernel, "mount", lambda *_: done)
    place, log = Place(str(tmp_path), Options()), Log(str(tmp_path / "log"))
    with Archive.open(archive) as opened:
        mount = ByKernel(opened, str(archive), place, 0, log, None, undone.append)
        with pytest.raises(MountError, match="nothing is mounted here"):
            mount.serve(foreground=False)
    assert undone == [str(tmp_path)]


def test_without_a_suitable_folder_all_tried_ones_are_named(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_works", lambda layout, folder: False)
    with pytest.raises(Refused, match=rf"none of .*{archive.parent} is suitable; set TMPDIR"):
        probe.image_file(erofs.EXTENTS, str(archive))


def test_a_kernel_that_makes_mistakes_leaves_no_open_file(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon of the back end that is tried next would keep it."""

    def makes_mistakes(layout: erofs.Layout, folder: str) -> bool:
        raise Refused(errno.EIO, "wrong bytes")

    monkeypatch.setattr(probe, "_works", makes_mistakes)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Refused, match="wrong bytes"):
        probe.image_file(erofs.EXTENTS, str(archive))
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("words", "mountpoint", "says"),
    [
        ("verify=first", "/mnt", "verify=first"),
        ("verify=always", "/mnt", "verify=always"),
        ("warm", "/mnt", "warm"),
        ("", "/dev/fd/7", "descriptor"),
    ],
)
def test_options_that_need_a_daemon_are_refused(words: str, mountpoint: str, says: str) -> None:
    with pytest.raises(Refused, match=f"only a FUSE back end .*{says}"):
        refuse_options(mountpoint, parse(words))
    refuse_options("/mnt", parse("verify=before,noexec,uid=5"))


# ---- the mount table ---------------------------------------------------------------------------


def entry(source: str, kind: str = "erofs") -> MountEntry:
    return MountEntry("/mnt", kind, source, 0, 50, ("ro",), ("ro",))


@pytest.mark.parametrize("verified", [None, "verified", "verity"])
@pytest.mark.parametrize("path", ["/data/a.ffr", "/a b\\,:/ffrecord:x", "/" + "long/" * 100 + "é"])
def test_the_source_of_a_mount_tells_its_archive(path: str, verified: str | None) -> None:
    source = label(path, verified)
    assert len(source.encode()) <= 255
    found = entry(source)
    assert found.is_kernel
    assert found.verified == verified
    assert found.archive == (path if len(path) < 200 else found.archive)
    assert found.archive is not None
    assert path.endswith(found.archive.removeprefix("/…"))


@pytest.mark.parametrize("source", ["/dev/loop0", "ffrecord", "ffrecord:", "ffrecord+x:/a", "x:/a"])
def test_other_erofs_mounts_are_not_ours(source: str) -> None:
    assert not entry(source).is_kernel
    assert entry(source).archive is None
    assert entry("ffrecord:/a", "ext4").archive is None


# ---- the process that watches a mount ----------------------------------------------------------


def test_the_watching_process_does_not_load_numpy() -> None:
    """It stays as long as the mount. Threads of numpy would also receive signals meant for it."""
    look = "import ffrecord_fuse.process.watch, sys; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout == "False\n"

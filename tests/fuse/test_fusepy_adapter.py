"""The libfuse back end alone; tests/fuse/mounted tests both back ends."""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ffrecord.archive.archive import Archive
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.libfuse import binding, fusepy_adapter
from ffrecord_fuse.mounting import mount as mounting
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.process.daemon import serve
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.report import ERRORS, Counters
from tests.support import archives, handmade, handshake, trees
from tests.support.handshake import LIMIT, needs_fuse, needs_root

ROOT = Path(__file__).parents[2]
FILES = {"one": b"1", "two": b"2" * 300_000, "sub/three": b"3" * 70_000}

needs_mfusepy = pytest.mark.skipif(
    importlib.util.find_spec("mfusepy") is None or ctypes.util.find_library("fuse3") is None,
    reason="mfusepy or libfuse 3 is not installed",
)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    trees.plain_tree(tmp_path / "tree", FILES)
    archives.pack(tmp_path / "tree", tmp_path / "packed.ffr")
    return tmp_path / "packed.ffr"


class Daemon:
    """A mount in the foreground of its own process, which ends if the test hangs."""

    def __init__(self, archive: Path, folder: str, *arguments: str, **spawn: Any) -> None:
        self.log = archive.with_suffix(".log")
        command = [sys.executable, "-m", "ffrecord", "mount", str(archive), folder, "-f"]
        command += ["--backend", "fusepy", "--log", str(self.log), *arguments]
        self.process = subprocess.Popen(command, cwd=ROOT, **spawn)
        self._alarm = threading.Timer(LIMIT, self.process.kill)
        self._alarm.start()
        while not (self.log.exists() and " mounted /" in self.log.read_text()):
            assert self.process.poll() is None, "the daemon ended without mounting"
            time.sleep(0.01)

    def wait(self) -> int:
        return self.process.wait(LIMIT)

    def stop(self) -> None:
        self._alarm.cancel()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Return a function that mounts on the folder mnt."""
    folder = tmp_path / "mnt"
    folder.mkdir()
    started: list[Daemon] = []

    def start(archive: Path, *arguments: str, **spawn: Any) -> Daemon:
        started.append(Daemon(archive, str(folder), *arguments, **spawn))
        return started[-1]

    yield start
    for each in started:
        each.stop()
    handshake.detach(str(folder))


def stats(mount: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads(os.getxattr(mount, "user.ffrecord.stats"))
    return found


# ---- mounted ---------------------------------------------------------------------------------

LIBRARIES = {
    "mfusepy, libfuse 3": ("mfusepy", "fuse3"),
    "mfusepy, libfuse 2": ("mfusepy", "fuse"),
    "fusepy": ("fuse", "fuse"),
}


@needs_fuse
@needs_root
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_mount_equals_the_packed_folder(
    tmp_path: Path, daemon: Callable[..., Daemon], library: str
) -> None:
    package, name = LIBRARIES[library]
    path = ctypes.util.find_library(name)
    if path is None or importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} or lib{name} is not installed")
    trees.rich_tree(tmp_path / "tree")
    archives.pack(tmp_path / "tree", tmp_path / "packed.ffr")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    if package != "mfusepy":
        (hidden / "mfusepy.py").write_text("raise ImportError")
    known = os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "FUSE_LIBRARY_PATH": path, "PYTHONPATH": known}
    daemon(tmp_path / "packed.ffr", env=environment)
    assert trees.differences(tmp_path / "tree", tmp_path / "mnt") == []
    with Archive.open(tmp_path / "packed.ffr") as opened:
        assert_numbers_equal_the_index(tmp_path / "mnt", Filesystem(opened))


def assert_numbers_equal_the_index(top: Path, filesystem: Filesystem) -> None:
    """Check the inode numbers of lstat and of listings, and the kinds in listings."""

    def walk(folder: bytes, inode: int) -> None:
        assert os.lstat(folder).st_ino == inode + 1
        with os.scandir(folder) as entries:
            for entry in entries:
                child = filesystem.lookup(inode, entry.name)
                status = os.lstat(entry.path)
                assert entry.inode() == status.st_ino == child + 1
                assert entry.is_symlink() == os.path.islink(entry.path)
                assert status.st_nlink == filesystem.attributes(child).links
                if entry.is_dir(follow_symlinks=False):
                    walk(entry.path, child)

    walk(os.fsencode(top), 0)


@needs_fuse
@needs_root
@needs_mfusepy
def test_the_kernel_does_not_ask_again_for_cached_answers(
    tmp_path: Path, archive: Path, daemon: Callable[..., Daemon]
) -> None:
    daemon(archive)
    mount = tmp_path / "mnt"

    def use() -> None:
        assert (mount / "sub/three").read_bytes() == FILES["sub/three"]
        assert (mount / "two").stat().st_size == 300_000
        assert not (mount / "missing").exists()

    use()
    before = stats(mount)
    use()
    assert stats(mount) == before
    assert before["reads"] > 0


@needs_fuse
@needs_root
@needs_mfusepy
def test_a_signal_unmounts_even_if_a_file_is_open(
    tmp_path: Path, archive: Path, daemon: Callable[..., Daemon]
) -> None:
    running = daemon(archive)
    fd = os.open(tmp_path / "mnt/one", os.O_RDONLY)
    try:
        running.process.terminate()
        assert running.wait() == 0
        assert handshake.mount_line(str(tmp_path / "mnt")) is None
    finally:
        with contextlib.suppress(OSError):  # the daemon has ended
            os.close(fd)
    assert "unmounted /" in running.log.read_text()


@needs_fuse
@needs_root
@needs_mfusepy
def test_a_mount_that_was_passed_in_is_served(tmp_path: Path, archive: Path) -> None:
    folder = tmp_path / "passed in"
    folder.mkdir()
    fd = mounting.mount("elsewhere", str(folder), Options())
    try:
        log = str(tmp_path / "log")
        command = [sys.executable, "-m", "ffrecord", "mount", str(archive), f"/dev/fd/{fd}"]
        command += ["--backend", "fusepy", "--log", log]
        subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT, pass_fds=[fd])
        assert (folder / "one").read_bytes() == FILES["one"]
    finally:
        os.close(fd)
        handshake.detach(str(folder))


# ---- mounts that fail ------------------------------------------------------------------------


def test_without_a_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in binding.PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MountError, match=r"^/mnt: .*pip install 'ffrecord\[fuse\]'"):
        binding.load("/mnt")


@needs_mfusepy
def test_without_libfuse_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "libnowhere.so")
    monkeypatch.delitem(sys.modules, "mfusepy", raising=False)
    with pytest.raises(MountError, match=r"^/mnt: mfusepy finds no usable libfuse .*install"):
        binding.load("/mnt")


def test_another_package_called_fuse_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    monkeypatch.setitem(sys.modules, "fuse", types.ModuleType("fuse"))
    with pytest.raises(MountError, match="is installed"):
        binding.load("/mnt")


@needs_mfusepy
def test_libfuse_3_is_preferred_to_libfuse_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSE_LIBRARY_PATH", raising=False)
    monkeypatch.delitem(sys.modules, "mfusepy", raising=False)
    assert binding.load("/mnt").fuse_version_major == 3
    assert "FUSE_LIBRARY_PATH" not in os.environ


class Refusing:
    """A fake binding: its libfuse writes a message to standard error and does not mount."""

    Operations = object

    @staticmethod
    def FUSE(*arguments: object, **settings: object) -> None:  # noqa: N802
        os.write(2, b"fusermount3: option allow_other only allowed if 'user_allow_other' is set\n")
        raise RuntimeError(1)


@needs_fuse
@pytest.mark.parametrize("foreground", [True, False])
def test_the_message_of_libfuse_becomes_the_error(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, foreground: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(binding, "load", lambda mountpoint: Refusing)
    folder = tmp_path / "mnt"
    folder.mkdir()
    options = Options(backend="fusepy", log=str(tmp_path / "log"))
    before = handmade.open_descriptors()
    with pytest.raises(MountError, match="add that line as root, or leave the option out"):
        serve(str(archive), str(folder), options, foreground=foreground)
    assert capfd.readouterr().err == ""
    assert handmade.open_descriptors() <= before + LOG_AND_ARCHIVE


LOG_AND_ARCHIVE = 3  # descriptors that the caught error keeps alive


def test_a_folder_that_is_not_empty_is_refused_before_libfuse_is_asked(
    tmp_path: Path, archive: Path
) -> None:
    with pytest.raises(MountError, match="is not empty"):
        serve(str(archive), str(tmp_path / "tree"), Options(backend="fusepy"))


def test_a_failing_callback_fails_its_request_and_is_logged(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    counts = Counters().row(0)
    with Archive.open(archive) as opened:
        filesystem = Filesystem(opened)
        callbacks = fusepy_adapter.Callbacks(
            filesystem, CheckedContent(opened), counts, lines.append, lambda: None
        )

        def fail(inode: int) -> None:
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr(filesystem, "attributes", fail)
        with pytest.raises(OSError, match="failed") as caught:
            callbacks.getattr("/one")
        assert caught.value.errno == errno.EIO
        assert lines == ["getattr failed: ZeroDivisionError('a defect')"]
        assert counts[ERRORS] == 1
        with pytest.raises(FileNotFoundError):
            callbacks.getattr("/missing")
        with pytest.raises(OSError, match="read-only"):
            callbacks.unlink("/one")
        assert len(lines) == 1

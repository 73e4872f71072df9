"""Mount with the command, as users do, and leave nothing behind.

A daemon is found by its command line, which contains the mountpoint. Every mountpoint is a folder
of one test, so only processes that the test has started are found.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

import ffrecord_fuse
from ffrecord.disk import pagecache
from ffrecord.format import erofs
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.kernel import probe
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import find
from tests.support import handmade, patience

ROOT = Path(ffrecord_fuse.__file__).parent.parent
FUSE = ("native", "fusepy")
BACKENDS = (*FUSE, "kernel")
FORMS = ("file", "shards", "original")
PATIENCE = patience.PATIENCE

WHOLE = pytest.mark.parametrize(
    "mounted", [("file", backend) for backend in BACKENDS], indirect=True, scope="session",
    ids=BACKENDS,
)  # fmt: skip
"""Parameters for tests that need only one form of archive."""
FORMS_BY_FUSE = pytest.mark.parametrize(
    "mounted", [(form, backend) for backend in FUSE for form in FORMS], indirect=True,
    scope="session", ids="-".join,
)  # fmt: skip
"""Parameters for tests of a daemon with every form of archive."""
WHOLE_BY_FUSE = pytest.mark.parametrize(
    "mounted", [("file", backend) for backend in FUSE], indirect=True, scope="session", ids=FUSE
)
"""Parameters for tests of a daemon that need only one form of archive."""
BY_FUSE = pytest.mark.parametrize("backend", FUSE, indirect=True)
"""Parameters for tests of a daemon: when the kernel serves, there is none."""

_live: set[str] = set()


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mount, with its archive and the folder that was packed."""

    path: Path
    archive: Path
    source: Path
    form: str
    backend: str
    log: Path

    def stats(self) -> dict[str, int]:
        return stats(self.path)


def stats(mountpoint: Path) -> dict[str, int]:
    """Return the counters of a mount."""
    found: dict[str, int] = json.loads(os.getxattr(mountpoint, "user.ffrecord.stats"))
    return found


# ---- available back ends -----------------------------------------------------------------------


def why_not() -> str | None:
    """Return the reason why mounting is impossible; None if it is possible."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    return None


def why_no_backend(name: str) -> str | None:
    """Return the reason why a back end cannot be tested; None if it can."""
    if name == "native":
        return None
    if name == "kernel":
        return why_no_kernel()
    try:
        importlib.import_module("ffrecord_fuse.libfuse.fusepy_adapter")
    except ImportError as error:
        return f"the fusepy back end is not available: {error}"
    for library in ("mfusepy", "fuse"):
        # OSError: libfuse is missing.
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module(library)
            return None
    return "neither mfusepy nor fusepy is installed"


@cache
def why_no_kernel() -> str | None:
    """Return the reason why the kernel cannot serve archives here; None if it can."""
    try:
        probe.require_kernel(erofs.EXTENTS)
        os.close(probe.image_file(erofs.EXTENTS, tempfile.gettempdir()))
    except probe.Refused as refused:
        return f"the kernel back end is not available: {refused}"
    return None


def require(backend: str) -> None:
    """Skip the test if a back end cannot be tested."""
    why = why_no_backend(backend)
    if why is not None:
        pytest.skip(why)


# ---- commands ----------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Return an environment in which commands import this checkout."""
    known = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": known}


def python(module: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE …`. Return when all processes, even daemons, have closed the output."""
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], env=environment(),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `ffrecord …`."""
    return python("ffrecord", *arguments)


def output(*arguments: str | Path | bytes, cwd: Path | None = None) -> bytes:
    """Return the output of a program, which must succeed."""
    done = subprocess.run(
        arguments, cwd=cwd, capture_output=True, check=False, timeout=PATIENCE,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


# ---- mounts ------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(
    archive: Path | str,
    mountpoint: Path,
    options: str = "",
    *,
    backend: str = "native",
    log: Path | None = None,
    open_to_all: bool = True,
) -> Iterator[Path]:
    """Mount an archive with the command while the block runs.

    Without allow_other, a mount of the kernel shows the root folder with another mode, to keep
    other users out. So such mounts get allow_other, unless `open_to_all` is False.
    """
    mountpoint.mkdir(exist_ok=True)
    arguments: list[str | Path] = ["mount", archive, mountpoint, "--backend", backend]
    if backend == "kernel" and open_to_all and "allow_root" not in options:
        options = f"allow_other,{options}"
    if options:
        arguments += ["-o", options]
    arguments += ["--log", log or mountpoint.with_name(f"{mountpoint.name}.log")]
    with released(mountpoint):
        done = command(*arguments)
        assert done.returncode == 0, done.stderr
        yield mountpoint


@contextlib.contextmanager
def released(mountpoint: Path) -> Iterator[None]:
    """Unmount at the end of the block, and check that the processes of the mount have ended."""
    _live.add(str(mountpoint))
    try:
        yield
    finally:
        with contextlib.suppress(MountError):
            while find(str(mountpoint)) is not None:
                unmount(str(mountpoint), lazy=True)
        ended = wait_until_ended(mountpoint)
        kill(mountpoint)
        _live.discard(str(mountpoint))
    assert ended, f"the daemon of {mountpoint} did not end when it was unmounted"


def uncache(archive: Path) -> None:
    """Remove a file from the page cache, so that the kernel will read past it. Or skip the test."""
    handmade.evict(archive)
    with open(archive, "rb") as file:
        if pagecache.cached_bytes(file.fileno(), 0, archive.stat().st_size):
            pytest.skip("the file system keeps its files in memory")


def is_mounted(mountpoint: Path) -> bool:
    return find(str(mountpoint)) is not None


def processes(mountpoint: Path | str) -> list[int]:
    """Return the processes that have the mountpoint among their arguments."""
    wanted = os.fsencode(mountpoint)
    found = []
    for name in os.listdir("/proc"):
        # Ignore a process that has ended meanwhile.
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                arguments = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
                if wanted in arguments:
                    found.append(int(name))
    return found


def wait_until_ended(mountpoint: Path) -> bool:
    return wait_until(lambda: not processes(mountpoint))


def wait_until(is_so: Callable[[], bool]) -> bool:
    """Wait until `is_so` returns True. Return False if it is still False after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def kill(mountpoint: Path | str) -> None:
    for pid in processes(mountpoint):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ---- time --------------------------------------------------------------------------------------


class OutOfTimeError(Exception):
    """A test took longer than its time limit."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the main thread if the block takes longer.

    A signal cannot interrupt a thread that waits for a FUSE daemon. So the daemons are killed
    first, and waiting threads get ENOTCONN.
    """

    def expired(signo: int, frame: FrameType | None) -> None:
        raise OutOfTimeError(f"the test took longer than {seconds:.0f} seconds")

    def end() -> None:
        for mountpoint in list(_live):
            kill(mountpoint)
        signal.pthread_kill(main.ident or 0, signal.SIGALRM)

    main = threading.main_thread()
    before = signal.signal(signal.SIGALRM, expired)
    watchdog = threading.Timer(seconds, end)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        watchdog.join()
        signal.signal(signal.SIGALRM, before)


# ---- errors ------------------------------------------------------------------------------------


@contextlib.contextmanager
def fails_with(code: int) -> Iterator[None]:
    """Check that the block raises an OSError with this errno."""
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno says more than the text
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code], repr(caught.value)

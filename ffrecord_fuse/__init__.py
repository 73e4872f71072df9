"""Mount packed folders as directories: `with mount("packed.ffr") as path: …`.

A separate daemon process serves the mount, or the kernel itself. Failures raise `MountError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ffrecord.remote.options import cache_folder
from ffrecord.remote.urls import is_upath, is_url, shown
from ffrecord_fuse.errors import MountError, OptionError
from ffrecord_fuse.mounting.lifeline import Lifeline
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import find
from ffrecord_fuse.mounting.options import escape

__all__ = ["MountError", "OptionError", "mount"]


@contextlib.contextmanager
def mount(
    archive: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str] | None = None,
    *,
    options: str = "",
    workers: int | None = None,
    backend: str = "native",
    subdir: str | None = None,
    log: str | os.PathLike[str] | None = None,
    overlay: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
) -> Iterator[str]:
    """Mount an archive while the `with` block runs, and yield the mountpoint's path.

    The mount belongs to the process that calls this function. If that process is killed in the
    block, the mount ends too. A forked child can read the mount. It neither keeps the mount alive
    nor ends it.

    Args:
        archive: a packed folder, or the folder of its shards: a path, a URL or a UPath.
        mountpoint: an empty folder. By default, a temporary folder is created.
        options: the text after `-o` on the command line, such as `"verify=always"`.
        workers: the number of processes that serve the mount.
        backend: `"native"`, `"fusepy"`, `"kernel"` or `"auto"`.
        subdir: the folder of the archive to mount. The default is the whole archive.
        log: the log file. The default is syslog.
        overlay: a folder that keeps changes. Files in the mount can then be changed.
        storage_options: options of the object store, for a URL: text, numbers and dicts of them.
        cache: a folder that keeps what is read from a URL.
        cache_size: the most bytes of this folder, such as `"100GB"`.

    Raises:
        MountError: if mounting or unmounting fails.
    """
    words = [options, f"backend={backend}"]
    if workers is not None:
        words.append(f"workers={workers}")
    if subdir is not None:
        words.append(f"subdir={escape(subdir)}")
    if log is not None:
        words.append(f"log={escape(os.path.abspath(log))}")
    if overlay is not None:
        words.append(f"overlay={escape(os.path.abspath(overlay))}")
    if cache is not None:
        words.append(f"cache={escape(cache_folder(cache))}")
    if cache_size is not None:
        words.append(f"cache_size={cache_size}")
    source, secret = _source(archive, storage_options)
    # In errors: a temporary folder would tell the user nothing.
    named = source if mountpoint is None else os.path.abspath(mountpoint)
    folder = ""
    if mountpoint is None:
        # The daemon creates the folder, and removes it if this program is killed.
        mountpoint = folder = f"{tempfile.gettempdir()}/ffrecord-{secrets.token_hex(8)}"
    path = os.path.abspath(mountpoint)
    maker = os.getpid()
    with contextlib.ExitStack() as undo:
        lifeline = Lifeline()
        undo.callback(lifeline.close)
        arguments = [source, path, "-o", ",".join(filter(None, words))]
        _start(arguments, named, lifeline, folder, secret)
        undo.callback(_unmount, path, folder, maker)
        yield path


def _source(archive: Any, storage_options: Mapping[str, Any] | None) -> tuple[str, bytes]:
    """Return the archive's name for the command line, and the part that stays secret, as JSON."""
    if is_upath(archive):
        storage_options = {**archive.storage_options, **(storage_options or {})}
        archive = str(archive)
    if not is_url(archive):
        if storage_options:
            raise ValueError("storage_options is for URLs, but the path is local; leave it out")
        return os.path.abspath(archive), b""
    try:
        import json  # needed for URLs only

        secret = json.dumps({"url": archive, "storage_options": storage_options})
    except TypeError:
        raise TypeError(
            "storage_options of a mount go to another process; they must be text, numbers, and "
            "lists or dicts of them"
        ) from None
    return shown(archive), secret.encode()


# `python -m` would import from the current folder first, which may contain a numpy.py.
_COMMAND = """
import sys
sys.path[:] = filter(None, sys.path)
from ffrecord_fuse.cli import main
from ffrecord_fuse.mounting.lifeline import Caller
descriptors, folder, *arguments = sys.argv[1:]
caller = Caller([int(fd) for fd in descriptors.split()], folder or None)
secret = sys.stdin.read()
if secret:
    import json
    secret = json.loads(secret)
sys.exit(main(arguments, caller, secret or None))
"""


def _start(
    arguments: list[str], named: str, lifeline: Lifeline, folder: str, secret: bytes
) -> None:
    """Run the mount command in a new process. A fork would inherit locks that threads hold.

    Standard input has the `secret`: arguments and variables of a process can be seen by others.
    Errors name the path `named`, or the mountpoint if the message is about the mountpoint.
    """
    descriptors = " ".join(map(str, lifeline.descriptors))
    command = [sys.executable, "-c", _COMMAND, descriptors, folder, *arguments]
    here = str(Path(__file__).parent.parent)
    known = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    # The command runs in its own session, so that a signal to this process group does not end the
    # command before it undoes the mount. The lifeline tells the command if this process dies.
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": known}, pass_fds=lifeline.descriptors,
        start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        lifeline.handed_over()
        said = os.fsdecode(running.communicate(secret)[1])
    if running.returncode:
        why = said.strip().rpartition("\n")[2].removeprefix("ffrecord-fuse: ")
        mountpoint = arguments[1]
        if why.startswith(f"{mountpoint}: "):
            named = mountpoint
        why = why.removeprefix(f"{named}: ")
        silent = (
            f"mounting failed with exit code {running.returncode} and no message; "
            "run `ffrecord mount -f` in a shell to see why"
        )
        raise MountError(named, errno.EIO, why or silent)


def _unmount(mountpoint: str, folder: str, maker: int) -> None:
    """Unmount, and remove the temporary folder. In a forked child this does nothing."""
    if os.getpid() != maker:
        return
    if find(mountpoint) is not None:  # not unmounted in the block or by another program
        try:
            unmount(mountpoint)
        except MountError as error:
            if error.errno != errno.EBUSY:
                raise
            unmount(mountpoint, lazy=True)
    if folder:
        with contextlib.suppress(OSError):  # the daemon may have removed the folder
            os.rmdir(folder)

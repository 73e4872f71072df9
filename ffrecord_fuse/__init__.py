"""Packed archives as directories, through FUSE: `with mount("packed.ffr") as path: …`."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
    log: str | os.PathLike[str] | None = None,
) -> Iterator[str]:
    """Mount an archive for as long as the block runs; gives the path of the folder.

    The mount belongs to the process that makes it, and ends with that process if it is killed in
    the block. A child that is forked in the block may use the mount, and neither keeps nor ends it.

    Args:
        archive: a packed folder, or the folder of its shards.
        mountpoint: an empty folder; a temporary one if left out.
        options: as after `-o` on the command line.
        workers: processes that serve it.
        backend: "native" or "fusepy".
        log: a file to log to; syslog if left out.
    """
    words = [options, f"backend={backend}"]
    if workers is not None:
        words.append(f"workers={workers}")
    if log is not None:
        words.append(f"log={escape(os.path.abspath(log))}")
    named = mountpoint or archive  # in errors: nobody knows a folder that was made for this
    folder = ""
    if mountpoint is None:
        # The daemon makes it, and removes it when this program is killed.
        mountpoint = folder = f"{tempfile.gettempdir()}/ffrecord-{secrets.token_hex(8)}"
    path = os.path.abspath(mountpoint)
    maker = os.getpid()
    with contextlib.ExitStack() as undo:
        lifeline = Lifeline()
        undo.callback(lifeline.close)
        arguments = [os.path.abspath(archive), path, "-o", ",".join(filter(None, words))]
        _start(arguments, os.path.abspath(named), lifeline, folder)
        undo.callback(_unmount, path, folder, maker)
        yield path


# Not -m, which looks for modules in the current folder first: there may be a numpy.py in it.
_COMMAND = """
import sys
sys.path[:] = filter(None, sys.path)
from ffrecord_fuse.cli import main
from ffrecord_fuse.mounting.lifeline import Caller
descriptors, folder, *arguments = sys.argv[1:]
caller = Caller([int(fd) for fd in descriptors.split()], folder or None)
sys.exit(main(arguments, caller))
"""


def _start(arguments: list[str], named: str, lifeline: Lifeline, folder: str) -> None:
    """Run the command in a process of its own: a fork of this one would take its threads' locks
    along. Errors are those of the path `named`, unless they are of the mount point."""
    descriptors = " ".join(map(str, lifeline.descriptors))
    command = [sys.executable, "-c", _COMMAND, descriptors, folder, *arguments]
    here = str(Path(__file__).parent.parent)
    known = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    # In a session of its own: a signal to all processes of this one's group would end it before
    # it can undo what it has done. It is not killed either: it finds out that nobody waits.
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": known}, pass_fds=lifeline.descriptors,
        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        lifeline.handed_over()
        said = running.communicate()[1]
    if running.returncode:
        why = said.strip().rpartition("\n")[2].removeprefix("ffrecord-fuse: ")
        mountpoint = arguments[1]
        if why.startswith(f"{mountpoint}: "):
            named = mountpoint
        why = why.removeprefix(f"{named}: ")
        raise MountError(named, errno.EIO, why or f"exit code {running.returncode}")


def _unmount(mountpoint: str, folder: str, maker: int) -> None:
    """Unmount, and remove the folder that was made for it; nothing of that in a forked child."""
    if os.getpid() != maker:
        return
    if find(mountpoint) is not None:  # else somebody has, in the block or from outside
        try:
            unmount(mountpoint)
        except MountError as error:
            if error.errno != errno.EBUSY:
                raise
            unmount(mountpoint, lazy=True)
    if folder:
        with contextlib.suppress(OSError):  # the daemon may have removed it
            os.rmdir(folder)

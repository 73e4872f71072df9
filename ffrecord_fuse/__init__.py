"""Packed archives as directories, through FUSE: `with mount("packed.ffr") as path: …`."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ffrecord_fuse.errors import MountError, OptionError
from ffrecord_fuse.mounting import unmount
from ffrecord_fuse.mounttable import find
from ffrecord_fuse.options import escape

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
    with contextlib.ExitStack() as undo:
        named = mountpoint or archive  # in errors: nobody knows a folder that was made here
        if mountpoint is None:
            mountpoint = tempfile.mkdtemp(prefix="ffrecord-")
            undo.callback(os.rmdir, mountpoint)
        path = os.path.abspath(mountpoint)
        options = ",".join(filter(None, words))
        _start(os.path.abspath(archive), path, options, os.path.abspath(named))
        undo.callback(_unmount, path)
        yield path


# Not -m, which looks for modules in the current folder first: there may be a numpy.py in it.
_COMMAND = """
import sys
sys.path[:] = filter(None, sys.path)
from ffrecord_fuse.cli import main
sys.exit(main())
"""


def _start(archive: str, mountpoint: str, options: str, named: str) -> None:
    """In a process of its own: a fork of this one would take its threads' locks along. Errors are
    those of the path `named`, unless they are of the mount point."""
    command = [sys.executable, "-c", _COMMAND, archive, mountpoint, "-o", options]
    here = str(Path(__file__).parent.parent)
    known = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": known}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2].removeprefix("ffrecord-fuse: ")
        if why.startswith(f"{mountpoint}: "):
            named = mountpoint
        why = why.removeprefix(f"{named}: ")
        raise MountError(named, errno.EIO, why or f"exit code {done.returncode}")


def _unmount(mountpoint: str) -> None:
    if find(mountpoint) is None:  # somebody else has, in the block or from outside
        return
    try:
        unmount(mountpoint)
    except MountError as error:
        if error.errno != errno.EBUSY:
            raise
        unmount(mountpoint, lazy=True)

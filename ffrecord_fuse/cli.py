"""The command `ffrecord-fuse ARCHIVE MOUNTPOINT -o OPTIONS`.

mount(8) runs it for `mount -t fuse.ffrecord-fuse photos.ffr /mnt/photos` and for lines of fstab.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ffrecord.command import run_command
from ffrecord.errors import FFRecordError
from ffrecord.remote.urls import is_url, shown
from ffrecord.terminal import Parser, note
from ffrecord.text import Advised, for_shell
from ffrecord.version import __version__
from ffrecord_fuse.mounting.mount import has_flags
from ffrecord_fuse.mounting.mounttable import find, places_of, resolve
from ffrecord_fuse.mounting.options import BACKENDS, Options, escape, parse

if TYPE_CHECKING:
    from ffrecord_fuse.mounting.lifeline import Caller

PROGRAM = "ffrecord-fuse"
EXAMPLES = """examples:
  ffrecord-fuse photos.ffr mounted
  mount -t fuse.ffrecord-fuse photos.ffr mounted -o noexec,workers=2
  ffrecord-fuse s3://bucket/photos.ffr mounted"""


def main(
    arguments: Sequence[str] | None = None, caller: Caller | None = None,
    secret: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Run the command line and return the exit code. The mount ends with the `caller`, if given.

    `secret` has what a caller does not show in the list of processes: `url`, the whole URL of the
    archive, and `storage_options` for it.
    """
    told = for_shell if caller is None else str  # a caller is a Python program, not a shell
    return run_command(lambda: _run(_parse(arguments), caller, secret or {}), PROGRAM, told)


def _run(given: argparse.Namespace, caller: Caller | None, secret: Mapping[str, Any]) -> int:
    given.archive = secret.get("url", given.archive)
    with contextlib.nullcontext() if caller is None else caller.folder():
        return run(
            given, caller, program=PROGRAM, by_mount8=caller is None,
            storage_options=secret.get("storage_options"),
        )  # fmt: skip


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog=PROGRAM, epilog=EXAMPLES,
        description="Mount a packed folder as a directory, read-only or with an overlay.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("-V", "--version", action="version", version=f"{PROGRAM} {__version__}")
    add_arguments(parser)
    return parser.parse_args(arguments)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `ffrecord mount` and `ffrecord-fuse` share."""
    parser.add_argument("archive", metavar="ARCHIVE",
        help="a packed folder, or the folder of its shards; a path or a URL")  # fmt: skip
    parser.add_argument("mountpoint", metavar="MOUNTPOINT",
        help="an empty folder, or /dev/fd/N if another program mounted /dev/fuse and passed on its "
        "descriptor N",
    )  # fmt: skip
    parser.add_argument("-f", "--foreground", action="store_true",
        help="stay in the foreground and log to standard error")  # fmt: skip
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="OPTIONS",
        help="allow_other, allow_root, uid=N, gid=N, umask=M, verify=first|always|off|before, "
        "workers=N, spin=µs, idle=poll|halt, log=FILE, memory=SIZE, subdir=FOLDER, "
        "overlay=FOLDER, "
        "backend=native|fusepy|kernel|auto, warm, options of mount(8) such as noexec, and for URLs "
        "requests=N, deadline=SECONDS, cache=FOLDER, cache_size=SIZE",
    )  # fmt: skip
    parser.add_argument("--workers", metavar="N",
        help="number of processes that serve the mount (default: half of the cores, at most 4; "
        "for a URL 1)",
    )  # fmt: skip
    parser.add_argument("--backend", choices=BACKENDS,
        help="native (the default); kernel, which is faster, needs root and verifies nothing; "
        "auto, which is kernel if possible and otherwise native; or fusepy, which uses libfuse",
    )  # fmt: skip
    parser.add_argument("--subdir", metavar="FOLDER",
        help="mount only this folder of the archive")  # fmt: skip
    parser.add_argument("--overlay", metavar="FOLDER",
        help="let programs change files in the mount; this folder keeps the changes")  # fmt: skip
    parser.add_argument("--log", metavar="FILE", help="log file (default: syslog)")
    parser.add_argument("--cache", metavar="FOLDER",
        help="keep what is read from a URL in this folder (default: $FFRECORD_CACHE)")  # fmt: skip
    parser.add_argument("--cache-size", metavar="SIZE",
        help="most bytes of this folder, such as 100GB")  # fmt: skip


def run(
    given: argparse.Namespace, caller: Caller | None = None, *, program: str = "ffrecord",
    by_mount8: bool = False, storage_options: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Mount as the command line says.

    Notes begin with the name of the `program`. `by_mount8` permits the words that mount(8) adds.
    """
    words = list(given.options)
    for name in ("workers", "backend", "subdir", "overlay", "log", "cache", "cache_size"):
        value = getattr(given, name)
        if value is not None:
            words.append(f"{name}={escape(str(value))}")
    options = parse(words, by_mount8=by_mount8)
    if by_mount8 and _is_mounted_already(given.archive, given.mountpoint, options):
        kept = "already mounted here, with its former options; to change them, unmount it first"
        note(f"{given.mountpoint}: {kept}", program=program)
        return 0
    # Imported late: help and completion do not need these modules.
    from ffrecord_fuse.process.daemon import serve

    try:
        return serve(
            given.archive, given.mountpoint, options, foreground=given.foreground, caller=caller,
            note=partial(note, program=program), storage_options=storage_options,
        )  # fmt: skip
    except FileNotFoundError:
        _refuse_swapped(given.archive, given.mountpoint, program)
        raise


def _is_mounted_already(archive: str, mountpoint: str, options: Options) -> bool:
    """Return True if this archive is there, served by the kernel or with an overlay as asked for.

    `mount -a` mounts these again, because the mount table has another source than fstab. The table
    tells the overlay, the back end and the flags of a mount, but no other options.
    """
    entry = find(mountpoint)
    if entry is None or not (entry.is_kernel or entry.changes is not None):
        return False
    changes = None if options.overlay is None else resolve(options.overlay)
    wants_kernel = options.backend == "kernel"
    is_other_backend = options.backend != "auto" and entry.is_kernel != wants_kernel
    if is_other_backend or changes != entry.changes or not has_flags(entry, options):
        return False
    name = shown(archive) if is_url(archive) else os.path.abspath(archive)
    return entry.mountpoint in places_of(name)


def _refuse_swapped(archive: str, mountpoint: str, program: str) -> None:
    """Raise an error with the right command if the archive was given as the mountpoint."""
    from ffrecord.archive.archive import Archive

    if not os.path.isfile(mountpoint):
        return
    try:
        Archive.open(mountpoint).close()
    except (OSError, FFRecordError):
        return
    command = PROGRAM if program == PROGRAM else f"{program} mount"
    before = f"not an archive, but {mountpoint} is one; the archive comes first"
    what = Advised(before, "", f": `{command} {shlex.join([mountpoint, archive])}`")
    raise FileNotFoundError(errno.ENOENT, what, archive) from None

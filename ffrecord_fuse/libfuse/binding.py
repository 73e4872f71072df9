"""libfuse as Python packages have it: which there is, how it is told to mount, what it says.

mfusepy takes libfuse 3 or 2, fusepy libfuse 2. Both have a class FUSE, which mounts and serves
until the mount has gone, and a class Operations, which the callbacks are of.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import importlib
import os
from collections.abc import Iterator
from typing import Any

from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting import mount as mounting
from ffrecord_fuse.mounting.options import Options

PACKAGES = ("mfusepy", "fuse")  # the second is what fusepy calls itself
ENCODING = "latin-1"
"""Names are bytes, and both packages hand them over as text, in an encoding of our choice. In this
one every byte is a character, so that no name is out of reach."""

FOREVER = 10**9
"""Seconds that the kernel may keep what it was told: an archive does not change."""


def load(mountpoint: str) -> Any:
    """The module that speaks to libfuse."""
    for name in PACKAGES:
        try:
            with _libfuse3_first() if name == "mfusepy" else contextlib.nullcontext():
                library = importlib.import_module(name)
        except ImportError:
            continue
        except (OSError, AttributeError) as error:  # how they say: none, or one that is too old
            why = (
                f"cannot mount, {name} finds no libfuse to use ({error}): install the package "
                "fuse3 or libfuse3, or take the native back end, which needs none"
            )
            raise MountError(mountpoint, errno.ENOENT, why) from None
        if hasattr(library, "Operations"):  # there is another package with a module `fuse`
            return library
    why = (
        "cannot mount, neither mfusepy nor fusepy is installed: pip install 'ffrecord[fuse]', "
        "or take the native back end, which needs none"
    )
    raise MountError(mountpoint, errno.ENOENT, why)


@contextlib.contextmanager
def _libfuse3_first() -> Iterator[None]:
    """mfusepy would take libfuse 2 where both are installed."""
    path = ctypes.util.find_library("fuse3")
    if path is None or "FUSE_LIBRARY_PATH" in os.environ:
        yield
        return
    os.environ["FUSE_LIBRARY_PATH"] = path
    try:
        yield
    finally:
        del os.environ["FUSE_LIBRARY_PATH"]


def settings(source: str, options: Options) -> dict[str, str | int | bool]:
    """The arguments of FUSE(), besides the callbacks and the mount point."""
    found: dict[str, str | int | bool] = {
        "encoding": ENCODING, "foreground": True, "nothreads": True,
        "use_ino": True, "kernel_cache": True,
        "entry_timeout": FOREVER, "negative_timeout": FOREVER, "attr_timeout": FOREVER,
    }  # fmt: skip
    for word in mounting.words(source, options):
        name, _, value = word.partition("=")
        if name != "nodiratime":  # libfuse has no such word, and a read-only mount no need of it
            found[name] = value.encode().decode(ENCODING) or True
    return found


class Overheard:
    """Catches stderr while libfuse mounts: it explains itself nowhere else."""

    def __init__(self) -> None:
        self._heard = os.memfd_create("stderr")
        self._stderr = os.dup(2)
        os.dup2(self._heard, 2)

    def stop(self) -> str:
        """As one line."""
        os.dup2(self._stderr, 2)
        said = os.pread(self._heard, 4096, 0).decode(errors="replace")
        os.close(self._heard)
        os.close(self._stderr)
        return " ".join(said.split())

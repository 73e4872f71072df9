"""Find a Python binding of libfuse, build its arguments, and catch its messages.

mfusepy uses libfuse 3 or 2, fusepy uses libfuse 2. Both packages have two classes. `FUSE` mounts
and serves until the file system is unmounted. `Operations` is the base class of the callbacks.
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

PACKAGES = ("mfusepy", "fuse")  # fusepy's module is called `fuse`
ENCODING = "latin-1"
"""The encoding of names between libfuse and the callbacks. File names are bytes, but both packages
pass them as text. In latin-1 every byte is a character, so every name can be passed."""

FOREVER = 10**9
"""Seconds that the kernel may cache answers: an archive does not change."""


def load(mountpoint: str) -> Any:
    """Return the Python module for libfuse."""
    for name in PACKAGES:
        try:
            with _libfuse3_first() if name == "mfusepy" else contextlib.nullcontext():
                library = importlib.import_module(name)
        except ImportError:
            continue
        except (OSError, AttributeError) as error:  # libfuse is missing or too old
            why = (
                f"{name} finds no usable libfuse ({error}); install the package fuse3 or libfuse3, "
                "or use the native back end, which needs no libfuse"
            )
            raise MountError(mountpoint, errno.ENOENT, why) from None
        if hasattr(library, "Operations"):  # another package also has a module `fuse`
            return library
    why = (
        "neither mfusepy nor fusepy is installed; run `pip install 'ffrecord[fuse]'`, "
        "or use the native back end, which needs neither"
    )
    raise MountError(mountpoint, errno.ENOENT, why)


@contextlib.contextmanager
def _libfuse3_first() -> Iterator[None]:
    """Make mfusepy load libfuse 3. By itself, mfusepy prefers libfuse 2 if both are installed."""
    path = ctypes.util.find_library("fuse3")
    if path is None or "FUSE_LIBRARY_PATH" in os.environ:
        yield
        return
    os.environ["FUSE_LIBRARY_PATH"] = path
    try:
        yield
    finally:
        del os.environ["FUSE_LIBRARY_PATH"]


def settings(source: str, options: Options, *, threads: bool) -> dict[str, str | int | bool]:
    """Return the keyword arguments of FUSE(). With `threads`, callbacks may wait."""
    found: dict[str, str | int | bool] = {
        "encoding": ENCODING, "foreground": True, "nothreads": not threads,
        "use_ino": True, "kernel_cache": True,
        "entry_timeout": FOREVER, "negative_timeout": FOREVER, "attr_timeout": FOREVER,
    }  # fmt: skip
    for word in mounting.words(source, options):
        name, _, value = word.partition("=")
        if name != "nodiratime":  # unknown to libfuse, and without effect on a read-only mount
            found[name] = value.encode().decode(ENCODING) or True
    return found


class Overheard:
    """Catches standard error while libfuse mounts: libfuse writes its messages nowhere else."""

    def __init__(self) -> None:
        self._heard = os.memfd_create("stderr")
        self._stderr = os.dup(2)
        os.dup2(self._heard, 2)

    def stop(self) -> str:
        """Restore standard error and return the caught text as one line."""
        os.dup2(self._stderr, 2)
        said = os.pread(self._heard, 4096, 0).decode(errors="replace")
        os.close(self._heard)
        os.close(self._stderr)
        return " ".join(said.split())

"""Open EROFS images as file systems, with the system calls fsopen(2) to move_mount(2).

A mount made by `opened` has no place at first, so that it can be tried before anybody sees it.
Closing its descriptor unmounts it, unless it has been given a place.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence

from ffrecord.disk import libc
from ffrecord.format import erofs
from ffrecord_fuse.kernel.tuning import tuned

# <linux/mount.h>
ATTRIBUTES = {
    "ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 0x10, "nodiratime": 0x80,
}  # fmt: skip


def opened(
    image: int,
    devices: Sequence[int],
    label: str,
    attributes: Sequence[str],
    *,
    direct: bool = True,
) -> int:
    """Return the descriptor of a new mount without a place.

    Args:
        image: the descriptor of the image.
        devices: the descriptors of the files that the image refers to.
        label: the source of the mount, which the mount table shows.
        attributes: names of `ATTRIBUTES`.
        direct: read the files past their page cache, so that their pages are not cached twice.

    Raises:
        OSError: with ENODEV if the kernel has no EROFS, ENOTBLK if it cannot use such an image.
    """
    fd = libc.fsopen(erofs.TYPE)
    try:
        for device in devices:
            libc.fsconfig(fd, "device", f"/proc/self/fd/{device}")
        if direct:
            libc.fsconfig(fd, "directio")
        libc.fsconfig(fd, "source", label)
        with _named(image, label), tuned():
            libc.fscreate(fd)
        return libc.fsmount(fd, sum(ATTRIBUTES[each] for each in attributes))
    finally:
        os.close(fd)


@contextlib.contextmanager
def _named(image: int, label: str) -> Iterator[None]:
    """Make `label` a path of the image while the block runs.

    The kernel opens the source as a file and shows it in the mount table for ever. So the label is
    a relative path from a temporary folder, with a symlink to the image.
    """
    before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with tempfile.TemporaryDirectory(prefix="ffrecord-") as folder:
            path = f"{folder}/{label}"
            os.makedirs(os.path.dirname(path), 0o700)
            os.symlink(f"/proc/self/fd/{image}", path)
            os.chdir(folder)
            try:
                yield
            finally:
                os.fchdir(before)
    finally:
        os.close(before)

"""Mount an archive so that the kernel serves it. No process stays.

The image is private: a file without a name, which only root can open. The descriptors of the
archive that were validated are the ones that the kernel gets.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass

from ffrecord.archive.archive import Archive
from ffrecord.archive.audit import audit_texts
from ffrecord.archive.names import to_text
from ffrecord.disk import libc, pagecache
from ffrecord.format.erofs import LONG_EXTENT
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.filesystem import Ownership
from ffrecord_fuse.kernel import probe, session
from ffrecord_fuse.kernel.image import EXTENT, Devices, Image
from ffrecord_fuse.kernel.probe import Refused
from ffrecord_fuse.mounting import mount as mounting
from ffrecord_fuse.mounting.mounttable import label, resolve
from ffrecord_fuse.mounting.options import Options

MOST_TIMES = 16  # an image may be this many times as large as the index; two is usual
ALWAYS = 1 << 20  # bytes that an image may have in addition
CACHED = 0.95
"""Share of an archive in the page cache from which on the kernel reads through it. Files of 10 kB
then come 4 to 6 times as fast. With less, reads of missing pages would also read pages around them,
and cache them twice."""
_SHOWN = 3  # names of extended attributes in a warning


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mount of the kernel, and facts about it for the log."""

    layout: str
    is_cached: bool  # read through the page cache of the archive
    verified: str | None  # None, "verified" or "verity": see `mounttable`
    left_out: str | None  # a warning about extended attributes that the mount does not have


def mount(archive: Archive, source: str, mountpoint: str, options: Options, root: int) -> Mounted:
    """Mount a folder of an archive.

    Args:
        archive: the archive.
        source: its path, as the mount table shall show it.
        mountpoint: an empty folder.
        options: the options of the mount.
        root: the inode of the folder.

    Raises:
        Refused: the kernel back end cannot be used here; another back end may be.
        MountError: mounting failed for another reason.
        IndexStructureError: the archive's index is wrong.
    """
    refuse_options(mountpoint, options)
    if not archive.is_local:
        raise Refused(errno.EINVAL, "the archive has a URL, and is not whole in a cache (--cache)")
    if ".." in source.split("/"):  # the source becomes a path in a temporary folder
        raise Refused(errno.EINVAL, "its URL has `..` in its path; write the URL without it")
    mounting.check_folder(mountpoint)
    layout = probe.choose(archive)
    audit_texts(archive)
    # Like a FUSE mount, this one is only for the user who mounts, unless all others may read too.
    keeper = None if options.allow_other else os.getuid()
    ownership = Ownership(options.uid, options.gid, options.umask, root, keeper)
    image = Image(archive, layout, ownership)
    _refuse_large(archive, image)
    verified = _verified(image.devices.fds, options)
    left_out = _left_out(image.left_out())
    with contextlib.ExitStack() as undo:
        fd = probe.image_file(layout, archive.path)
        undo.callback(os.close, fd)
        try:
            image.write(fd)
        except OSError as error:
            why = f"the image cannot be written: {error.strerror}; set TMPDIR to a folder with room"
            raise Refused(error.errno or errno.EIO, why) from None
        try:
            names = mounting.flag_names(options)
            is_cached = in_page_cache(image.devices)
            new = session.opened(
                fd, image.devices.fds, label(source, verified), names, direct=not is_cached
            )
            undo.callback(os.close, new)
            libc.move_mount(new, resolve(mountpoint))
        except OSError as error:
            raise mounting.refused(mountpoint, error) from None
    return Mounted(layout.name, is_cached, verified, left_out)


def refuse_options(mountpoint: str, options: Options) -> None:
    """Raise `Refused` for options that need a daemon."""
    if options.verify in ("first", "always"):
        why = f"only a FUSE back end can verify while it reads (verify={options.verify})"
        raise Refused(errno.EINVAL, why)
    if options.warm:
        why = "only a FUSE back end reads the archive through the page cache (warm)"
        raise Refused(errno.EINVAL, why)
    if mounting.inherited_descriptor(mountpoint) is not None:
        raise Refused(errno.EINVAL, "only a FUSE back end can take over a descriptor")


def _refuse_large(archive: Archive, image: Image) -> None:
    """Raise `Refused` if an image is far larger than the archive justifies.

    In an archive, many symlinks and attributes can share their bytes. In an image they do not, so a
    small hostile archive could fill a disk.
    """
    most = MOST_TIMES * archive.reader.record_size(archive.reader.n - 1) + ALWAYS
    most += sum(image.devices.sizes) // EXTENT * LONG_EXTENT.itemsize
    if image.size > most:
        why = f"its image would have {image.size:,} bytes, far more than its index"
        raise Refused(errno.EFBIG, why)


def in_page_cache(devices: Devices) -> bool:
    """Return True if nearly all of the archive is in the page cache."""
    cached = [
        pagecache.cached_bytes(fd, 0, size) or 0
        for fd, size in zip(devices.fds, devices.sizes, strict=True)
        if size
    ]
    return sum(cached) >= CACHED * sum(devices.sizes)


def _verified(fds: tuple[int, ...], options: Options) -> str | None:
    if all(map(libc.has_verity, fds)):
        return "verity"
    return "verified" if options.verify == "before" else None


def _left_out(names: list[bytes]) -> str | None:
    if not names:
        return None
    shown = ", ".join(dict.fromkeys(map(to_text, names[:_SHOWN])))
    return f"extended attributes that are too large for the kernel are left out: {shown}" + (
        f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    )


def refusal(mountpoint: str, refused: Refused) -> MountError:
    """Return the error for a user who wants the kernel back end and no other."""
    why = f"the kernel cannot serve this archive: {refused}; use another --backend"
    return MountError(mountpoint, refused.errno, why)

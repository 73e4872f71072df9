"""Find out whether the kernel can serve an archive, and with which layout.

Versions alone do not tell: distributions add features and corrections to old kernels. So a tiny
image is mounted, where nobody can see it, and read. `Refused` has the reason in one line.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import tempfile

import numpy as np

from ffrecord.aliases import Bytes
from ffrecord.archive.archive import Archive
from ffrecord.disk import libc
from ffrecord.disk.source import Source
from ffrecord.format import erofs
from ffrecord.format.erofs import DIRENT, INODE, DataLayout, Layout
from ffrecord.format.padding import ALIGNMENT
from ffrecord.records.reader import table_of
from ffrecord_fuse.kernel import session
from ffrecord_fuse.mounting.mounttable import label

FEATURES = "/sys/fs/erofs/features"
NEEDED = {
    erofs.EXTENTS: ("device_table", "48bit"),  # the kernel has encoded extents since "48bit"
    erofs.CHUNKS: ("device_table", "chunked_file"),
}
# CVE-2026-23224: with `directio`, the kernel may use memory that it has freed. Each row: the first
# version with the error, and the version that corrects it.
USE_AFTER_FREE = (((6, 12, 0), (6, 12, 72)), ((6, 13, 0), (6, 18, 11)), ((6, 19, 0), (6, 19, 1)))
LARGEST_CHUNKS = ALIGNMENT << 32  # bytes of a device: block numbers have 32 bits
LARGEST_EXTENTS = 15 << 40  # bytes of all devices; of 2**32 blocks, the rest is for the image

_NO_RIGHT = (
    "this root has no right to mount EROFS: it is the root of a user namespace, or of a container "
    "without --cap-add SYS_ADMIN"
)
WITHIN, BEYOND = b"within", b"beyond"
CONTENT = 600  # bytes of the file that must be readable
_DEVICE = 2 * 4096 + 100  # bytes of the device: its last block is not complete


class Refused(Exception):  # noqa: N818 - not an error for users: a back end is chosen by it
    """The kernel back end cannot be used. The message is the reason."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.errno = code


def choose(archive: Archive) -> Layout:
    """Return the layout for an archive; raise `Refused` if this kernel cannot serve it."""
    sources = table_of(archive.reader).require_files().each
    if len(sources) > erofs.MOST_DEVICES:
        raise Refused(errno.E2BIG, f"the archive has more than {erofs.MOST_DEVICES:,} shards")
    wanted = [erofs.EXTENTS]
    sizes = [source.size() for source in sources]
    if archive.alignment == ALIGNMENT and max(sizes) < LARGEST_CHUNKS:
        wanted = [erofs.CHUNKS, erofs.EXTENTS]
    refused = None
    for layout in wanted:
        try:
            require_kernel(layout)
            _require_disk(layout, sources, sum(sizes))
            return layout
        except Refused as error:
            refused = refused or error
    assert refused is not None
    raise refused


def require_kernel(layout: Layout) -> None:
    """Raise `Refused` unless this process can mount, and the kernel has what a layout needs."""
    if os.geteuid() != 0:
        raise Refused(errno.EPERM, "only root can mount without FUSE")
    _refuse_known_error(os.uname().release)
    features = _features()
    missing = ", ".join(name for name in NEEDED[layout] if name not in features)
    if missing and layout is erofs.EXTENTS:
        why = (
            f"this kernel's EROFS lacks {missing} (Linux 6.15), which archives that are not "
            "aligned need; `ffrecord convert --align 512` aligns this one"
        )
        raise Refused(errno.EOPNOTSUPP, why)
    if missing:
        raise Refused(errno.EOPNOTSUPP, f"this kernel's EROFS lacks {missing}")


def image_file(layout: Layout, archive: str) -> int:
    """Create a file for an image, without a name, where the kernel can mount it.

    Raises:
        Refused: no folder is suitable, or the kernel makes mistakes with this layout.
    """
    tried = _folders(archive)
    for folder in tried:
        # OSError: the file system has no files without a name, is read-only or full.
        with contextlib.suppress(OSError):
            if _works(layout, folder):
                return _nameless(folder)
    why = (
        "the kernel must read an image from a local disk (ext4, xfs, btrfs), which needs Linux "
        f"6.12; none of {', '.join(tried)} is suitable; set TMPDIR to a folder on such a disk"
    )
    raise Refused(errno.ENOTBLK, why)


def _folders(archive: str) -> list[str]:
    folders = [tempfile.gettempdir(), "/var/tmp", os.path.dirname(os.path.abspath(archive))]
    return list(dict.fromkeys(folders))


def _nameless(folder: str) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


# ---- versions and features -------------------------------------------------------------------


def _refuse_known_error(release: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    version = tuple(int(number or 0) for number in numbers.groups()) if numbers else (0, 0, 0)
    for first, corrected in USE_AFTER_FREE:
        if first <= version < corrected:
            due = ".".join(map(str, corrected))
            why = (
                f"Linux {release} has CVE-2026-23224, a use after free in EROFS; upgrade to "
                f"Linux {due}"
            )
            raise Refused(errno.EOPNOTSUPP, why)


def _features() -> set[str]:
    """Return the features of EROFS in this kernel. Loads the kernel's module, if it is one."""
    try:
        os.close(libc.fsopen(erofs.TYPE))
        return set(os.listdir(FEATURES))
    except OSError as error:
        if error.errno == errno.EPERM:
            raise Refused(errno.EPERM, _NO_RIGHT) from None
        why = "this kernel has no EROFS; it needs CONFIG_EROFS_FS"
        raise Refused(errno.ENODEV, why) from None


def _require_disk(layout: Layout, sources: tuple[Source, ...], size: int) -> None:
    """Raise `Refused` unless archives of this size, on this disk, can have the layout."""
    if layout is erofs.EXTENTS and size >= LARGEST_EXTENTS:
        raise Refused(errno.EFBIG, "the archive is larger than 15 TiB")
    for source in sources:
        if not _takes_direct_reads(source, layout.block):
            why = f"{source.path}: its disk refuses O_DIRECT reads of {layout.block} bytes"
            raise Refused(errno.EINVAL, why)


def _takes_direct_reads(source: Source, block: int) -> bool:
    """Return True if one block can be read with O_DIRECT, or if the file system has no O_DIRECT.

    Without O_DIRECT, the kernel reads through the page cache.
    """
    try:
        fd = os.open(f"/proc/self/fd/{source.fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        memory = mmap.mmap(-1, 2 * block)  # begins at a page
        os.preadv(fd, [memoryview(memory)[block:]], block)
    except OSError as error:
        return error.errno != errno.EINVAL
    finally:
        os.close(fd)
    return True


# ---- a tiny image ----------------------------------------------------------------------------


def _works(layout: Layout, folder: str) -> bool:
    """Mount a tiny image from a folder and read it. Return False if the folder is not suitable.

    One file of the image ends beyond the device's end. Reading it must fail. Kernels that fill up
    the page with zeros instead do the same when a reader is killed, and then serve such pages to
    others (corrected by eade54040384 in Linux 6.18).
    """
    with contextlib.ExitStack() as undo:
        image = _nameless(folder)
        undo.callback(os.close, image)
        device = _nameless(folder)
        undo.callback(os.close, device)
        content = np.random.default_rng().bytes(_DEVICE)
        os.pwrite(device, content, 0)
        os.pwrite(image, tiny_image(layout, len(content)), 0)
        try:
            mount = session.opened(image, [device], label("/probe"), ["ro", "nosuid", "nodev"])
        except OSError as error:
            if error.errno == errno.ENOTBLK:
                return False
            if error.errno == errno.EPERM:
                raise Refused(errno.EPERM, _NO_RIGHT) from None
            why = f"the kernel refuses a test image: {error.strerror}"
            raise Refused(error.errno or errno.EIO, why) from None
        undo.callback(os.close, mount)
        right = content[layout.block : layout.block + CONTENT]
        if _read(mount, WITHIN) != right:
            raise Refused(errno.EIO, "the kernel reads wrong bytes from a test image")
        if _read(mount, BEYOND) is not None:
            why = "this kernel serves wrong pages after a reader was killed; upgrade it"
            raise Refused(errno.EOPNOTSUPP, why)
    return True


def _read(mount: int, name: bytes) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=mount)
    except OSError:
        return None
    try:
        return os.read(fd, _DEVICE)
    except OSError:
        return None
    finally:
        os.close(fd)


def tiny_image(layout: Layout, device_size: int) -> bytes:
    """Return an image with two files: `WITHIN` in the second block of the device, `BEYOND` at its
    incomplete end.
    """
    out = np.zeros(2 * erofs.HEAD, np.uint8)
    inodes = out[erofs.HEAD :]
    end = device_size // erofs.HEAD * erofs.HEAD
    files = {BEYOND: (end, 2 * (device_size - end)), WITHIN: (layout.block, CONTENT)}
    root, step = 2, 128 // erofs.SLOT  # inode numbers: of the root, and from one file to the next
    numbers = {b".": root, b"..": root, BEYOND: root + step, WITHIN: root + 2 * step}
    folder = _folder(numbers, root)
    _put(inodes, root, 0o040555, DataLayout.INLINE, len(folder), 0, folder)
    for name, (begin, size) in files.items():
        count = layout.blocks(size)
        data = count if layout is erofs.EXTENTS else erofs.ONE_CHUNK
        listed = _list(layout, len(out) // layout.block, begin, size)
        _put(inodes, numbers[name], 0o100444, layout.files, size, data, listed)
    block = layout.block
    places = erofs.Places(3, root, erofs.HEAD // block, 0, len(out) // block)
    head = erofs.head(layout, places, [device_size])
    out[: len(head)] = np.frombuffer(head, np.uint8)
    return out.tobytes()


def _put(
    inodes: Bytes, number: int, mode: int, where: int, size: int, data: int, payload: bytes
) -> None:
    """Write an inode, and its payload behind it."""
    row = np.array([(where, 0, mode, 0, size, data, number, 0, 0, 0, 0, 1, b"")], INODE)
    at = number * erofs.SLOT
    whole = np.frombuffer(row.tobytes() + payload, np.uint8)
    inodes[at : at + len(whole)] = whole


def _folder(numbers: dict[bytes, int], root: int) -> bytes:
    rows = np.zeros(len(numbers), DIRENT)
    rows["inode"] = list(numbers.values())
    rows["kind"] = [2 if number == root else 1 for number in numbers.values()]
    lengths = np.array([len(name) for name in numbers])
    rows["name"] = rows.nbytes + np.cumsum(lengths) - lengths
    return rows.tobytes() + b"".join(numbers)


def _list(layout: Layout, end: int, begin: int, size: int) -> bytes:
    """Return a file's list of one extent or one chunk. The device follows `end` blocks."""
    if layout is erofs.CHUNKS:
        return np.array([(0, 1, begin // layout.block)], erofs.CHUNK).tobytes()
    header = erofs.extents_header(np.array([1]), np.array([False]))
    extent = np.array([(size, end * layout.block + begin, 0)], erofs.EXTENT)
    return header.tobytes() + bytes(8) + extent.tobytes()

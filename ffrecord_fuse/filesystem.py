"""Present an archive as a read-only file system: names, attributes, folder listings.

Inode numbers are the index's own; 0 is the root. A failure is an OSError with the errno for the
program that made the system call. The index is in memory, so no function waits for a disk. This
module does not know the FUSE protocol.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ffrecord.aliases import Ints
from ffrecord.archive.archive import Archive
from ffrecord.archive.index import ROOT, Index, Status
from ffrecord.archive.index.lookup import FOLDER_SIZE, MISSING
from ffrecord.archive.names import to_text
from ffrecord.format.index import LONGEST_NAME
from ffrecord.remote.urls import is_url

STATS = b"user.ffrecord.stats"
ARCHIVE = b"user.ffrecord.archive"
LOG = b"user.ffrecord.log"
RECORD = b"user.ffrecord.record"
CRC32 = b"user.ffrecord.crc32"
OURS = b"user.ffrecord."
SPACE_BLOCK = 4096


class Space(NamedTuple):
    """The answer to statfs(2)."""

    blocks: int
    files: int
    block_size: int
    longest_name: int


class Listing(NamedTuple):
    """Consecutive entries of a folder as columns; the first is at position `first`.

    The entries "." and ".." have positions 0 and 1.
    """

    first: int
    names: npt.NDArray[np.uint8]  # joined without separators
    lengths: Ints
    inodes: Ints
    dots: npt.NDArray[np.bool_]  # True for "." and ".."
    modes: Ints
    links: Ints
    uids: Ints
    gids: Ints
    sizes: Ints
    mtimes: Ints


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owner, group and umask to show for all files. None shows the packed ones."""

    uid: int | None = None
    gid: int | None = None
    umask: int | None = None
    root: int = ROOT  # the inode of the folder that is shown as the root
    keeper: int | None = None
    """The only user, besides root, who can enter the root folder. This implements allow_root. The
    kernel admits either one user or all, and the daemon cannot refuse a user, because the kernel
    serves cached data without asking. But the kernel always checks the root folder's mode."""

    def applied(self, found: Status) -> Status:
        """Return the attributes of an inode as the mount shows them."""
        inode, mode, links, uid, gid, size, mtime_ns = found
        if self.umask is not None and not stat.S_ISLNK(mode):
            mode = stat.S_IFMT(mode) | (0o777 & ~self.umask)
        uid = uid if self.uid is None else self.uid
        gid = gid if self.gid is None else self.gid
        if inode == self.root and self.keeper is not None:
            mode, uid = stat.S_IFDIR | 0o500, self.keeper
        return Status(inode, mode, links, uid, gid, size, mtime_ns)

    def columns(self, index: Index, inodes: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """Return the columns of modes, links, owners, groups, sizes and mtimes.

        The root folder is shown as it is packed, even if there is a keeper.
        """
        rows = index.tables.inodes[inodes]
        attributes = index.tables.attributes[rows["attributes"]]
        mode, links = attributes["mode"].astype(np.int64), attributes["links"].astype(np.int64)
        uid, gid = attributes["uid"].astype(np.int64), attributes["gid"].astype(np.int64)
        kind = mode & 0o170000
        if self.uid is not None:
            uid[:] = self.uid
        if self.gid is not None:
            gid[:] = self.gid
        if self.umask is not None:
            mode = np.where(kind == stat.S_IFLNK, mode, kind | (0o777 & ~self.umask))
        size = np.where(kind == stat.S_IFDIR, FOLDER_SIZE, rows["length"].astype(np.int64))
        return mode, links, uid, gid, size, rows["mtime"].astype(np.int64)


class Filesystem:
    """The tree of an archive. It never changes; one thread of each worker uses it."""

    def __init__(
        self,
        archive: Archive,
        ownership: Ownership | None = None,
        stats: Callable[[], bytes] = lambda: b"{}",
        log_place: str | None = None,
    ) -> None:
        self.archive = archive
        self._index = archive.index
        self._count = len(archive.index)
        self._own = None if ownership == Ownership() else ownership
        self._root = ROOT if ownership is None else ownership.root
        self._stats = stats
        self._log_place = log_place

    def __len__(self) -> int:
        return self._count

    def lookup(self, folder: int, name: bytes) -> int:
        """Return the inode of a name in a folder; MISSING if the name does not exist."""
        if not 0 <= folder < self._count:
            raise OSError(errno.ESTALE, "no such inode")
        found = self._index.child(folder, name)
        return self._special(folder, name) if found == MISSING else found

    def _special(self, folder: int, name: bytes) -> int:
        """Return the inode of "." or ".."; MISSING for a name that the index does not have."""
        if name == b".":  # NFS servers look up ".", even in a file: a handle is only a number
            return folder
        if not stat.S_ISDIR(self.mode(folder)):
            raise OSError(errno.ENOTDIR, "not a folder")
        if len(name) > LONGEST_NAME:
            raise OSError(errno.ENAMETOOLONG, "the name is too long")
        return self._index.parent(folder) if name == b".." else MISSING

    def file(self, number: int) -> int:
        """Return the archive's inode for a number of this file system. Here they are the same."""
        self._require(number)
        return number

    def mode(self, inode: int) -> int:
        self._require(inode)
        return self._index.mode(inode)

    def attributes(self, inode: int) -> Status:
        """Return the inode's attributes, with the mount's `Ownership` applied."""
        if not 0 <= inode < self._count:
            raise OSError(errno.ESTALE, "no such inode")
        found = self._index.status(inode)
        return found if self._own is None else self._own.applied(found)

    def readlink(self, inode: int) -> bytes:
        if not stat.S_ISLNK(self.mode(inode)):
            raise OSError(errno.EINVAL, "not a symlink")
        return self._index.target(inode)

    def listing(self, folder: int, first: int, count: int) -> Listing | None:
        """Return up to `count` entries from position `first` on; None after the last entry."""
        if not stat.S_ISDIR(self.mode(folder)):
            raise OSError(errno.ENOTDIR, "not a folder")
        entries = self._index.entries(folder)
        stop = min(first + count, len(entries) + 2)
        if first >= stop:
            return None
        begin, end = entries.start + max(first - 2, 0), entries.start + max(stop - 2, 0)
        rows = self._index.tables.entries[begin:end]
        names_begin = int(self._index.tables.entries["name_end"][begin - 1]) if begin else 0
        name_ends = rows["name_end"].astype(np.int64)
        names_end = int(name_ends[-1]) if len(name_ends) else names_begin
        lengths = np.diff(name_ends, prepend=names_begin)
        names = self._index.tables.names[names_begin:names_end]
        inodes = rows["inode"].astype(np.int64)
        dots = [(b".", folder), (b"..", self._index.parent(folder))][first:stop]
        if dots:
            texts = b"".join(name for name, _ in dots)
            names = np.concatenate([np.frombuffer(texts, np.uint8), names])
            lengths = np.concatenate([[len(name) for name, _ in dots], lengths])
            inodes = np.concatenate([[inode for _, inode in dots], inodes])
        is_dot = np.arange(len(inodes)) < len(dots)
        columns = (self._own or Ownership()).columns(self._index, inodes)
        return Listing(first, names, lengths, inodes, is_dot, *columns)

    def space(self) -> Space:
        """Return the answer to statfs(2): the archive's size and inodes, and no free space."""
        reader = self.archive.reader
        sizes = [int(reader.get_offsets(file)[-1]) for file in range(len(reader.fnames))]
        blocks = sum(-(-size // SPACE_BLOCK) for size in sizes)
        return Space(blocks, len(self._index), SPACE_BLOCK, LONGEST_NAME)

    def xattr(self, inode: int, name: bytes) -> bytes:
        """Return the value of an extended attribute: a packed one, or `user.ffrecord.…`."""
        self._require(inode)
        value = self._made_up(inode, name) if name.startswith(OURS) else None
        if value is None:
            value = self._index.xattrs(inode).get(name)
        if value is None:
            raise OSError(errno.ENODATA, "no such attribute")
        return value

    def xattr_names(self, inode: int) -> list[bytes]:
        """Return the names of the packed attributes.

        The `user.ffrecord.…` attributes are not listed: tools would copy them with the files.
        """
        self._require(inode)
        return list(self._index.xattrs(inode))

    def _made_up(self, inode: int, name: bytes) -> bytes | None:
        if inode == self._root and name == STATS:
            return self._stats()
        if inode == self._root and name == LOG and self._log_place is not None:
            return os.fsencode(self._log_place)
        if inode == self._root and name == ARCHIVE:
            path = (
                self.archive.path
                if is_url(self.archive.path)
                else os.path.abspath(self.archive.path)
            )
            # For an archive in shards, show the folder that was mounted, not the index file.
            is_folder = len(self.archive.reader.fnames) > 1
            return os.fsencode(os.path.dirname(path) if is_folder else path)
        if name in (RECORD, CRC32) and stat.S_ISREG(self.mode(inode)):
            record = self._index.record(inode)
            crc = self.archive.reader.checksum(record)
            return b"%d" % record if name == RECORD else b"%08x" % crc
        return None

    def place(self, inode: int) -> str:
        """Return a file's path, its record and the name of the archive or shard, for messages."""
        record = self._index.record(inode)
        file, _ = self.archive.blocks.locate(record)
        name = os.path.basename(self.archive.reader.fnames[file])
        return f"/{to_text(self._index.inode_path(inode))} (record {record} of {name})"

    def _require(self, inode: int) -> None:
        if not 0 <= inode < self._count:
            raise OSError(errno.ESTALE, "no such inode")


class Subfolder(Filesystem):
    """The tree of one folder of an archive. That folder has the number 0, and the root has its."""

    def __init__(self, whole: Filesystem, folder: int) -> None:
        super().__init__(whole.archive)
        self._whole = whole
        self._folder = folder

    def _number(self, inode: int) -> int:
        """Return the number outside of a number inside, and the other way round."""
        return self._folder if inode == ROOT else ROOT if inode == self._folder else inode

    def file(self, number: int) -> int:
        return self._whole.file(self._number(number))

    def lookup(self, folder: int, name: bytes) -> int:
        if folder == ROOT and name == b"..":
            return ROOT
        return self._number(self._whole.lookup(self._number(folder), name))

    def mode(self, inode: int) -> int:
        return self._whole.mode(self._number(inode))

    def attributes(self, inode: int) -> Status:
        return self._whole.attributes(self._number(inode))._replace(inode=inode)

    def readlink(self, inode: int) -> bytes:
        return self._whole.readlink(self._number(inode))

    def listing(self, folder: int, first: int, count: int) -> Listing | None:
        found = self._whole.listing(self._number(folder), first, count)
        if found is None:
            return None
        is_top = found.inodes == self._folder
        if folder == ROOT:
            is_top |= found.dots
        return found._replace(inodes=np.where(is_top, ROOT, found.inodes))

    def xattr(self, inode: int, name: bytes) -> bytes:
        return self._whole.xattr(self._number(inode), name)

    def xattr_names(self, inode: int) -> list[bytes]:
        return self._whole.xattr_names(self._number(inode))


class Separated(Filesystem):
    """The tree of an archive without hard links: every name is a file of its own.

    The first name of a file has the number of its inode. Each further name has the number of its
    entry, added to the number of inodes.
    """

    def __init__(self, whole: Filesystem) -> None:
        super().__init__(whole.archive)
        self._whole = whole

    def file(self, number: int) -> int:
        entries = self._index.tables.entries
        if not 0 <= number < self._count + len(entries):
            raise OSError(errno.ESTALE, "no such inode")
        return number if number < self._count else int(entries["inode"][number - self._count])

    def lookup(self, folder: int, name: bytes) -> int:
        found = self._whole.lookup(self.file(folder), name)
        if found == MISSING or stat.S_ISDIR(self._whole.mode(found)):
            return found
        if name == b".":
            return folder
        entry = self._index.entry(folder, name)
        is_first = entry == self._index.tables.inodes["entry"][found]
        return found if is_first else self._count + entry

    def mode(self, inode: int) -> int:
        return self._whole.mode(self.file(inode))

    def attributes(self, inode: int) -> Status:
        found = self._whole.attributes(self.file(inode))
        return found._replace(inode=inode, links=found.links if found.is_folder else 1)

    def readlink(self, inode: int) -> bytes:
        return self._whole.readlink(self.file(inode))

    def listing(self, folder: int, first: int, count: int) -> Listing | None:
        found = self._whole.listing(self.file(folder), first, count)
        if found is None:
            return None
        # The entries follow "." and "..", so a position is two more than an entry's place.
        entries = self._index.entries(folder).start - 2 + first + np.arange(len(found.inodes))
        is_folder = (found.modes & 0o170000) == stat.S_IFDIR
        firsts = self._index.tables.inodes["entry"][found.inodes]
        is_kept = is_folder | found.dots | (firsts == entries)
        numbers = np.where(is_kept, found.inodes, self._count + entries)
        return found._replace(inodes=numbers, links=np.where(is_folder, found.links, 1))

    def xattr(self, inode: int, name: bytes) -> bytes:
        return self._whole.xattr(self.file(inode), name)

    def xattr_names(self, inode: int) -> list[bytes]:
        return self._whole.xattr_names(self.file(inode))


__all__ = ["MISSING", "Filesystem", "Listing", "Ownership", "Separated", "Space", "Subfolder"]

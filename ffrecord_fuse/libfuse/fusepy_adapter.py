"""Serve the file system through libfuse, with mfusepy (libfuse 3 or 2) or fusepy (libfuse 2).

This back end is for systems where the native back end does not work. Tests also compare the two.
This one is slower: one thread runs all callbacks one after the other, and each waits for the disk.
If the archive has a URL, libfuse runs callbacks in several threads, and each waits for its answer.

libfuse names files by their paths, as text: see `binding.ENCODING`.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeAlias, TypeVar

from ffrecord.archive.index import ROOT
from ffrecord.errors import FFRecordError
from ffrecord.format.index import BLOCK
from ffrecord_fuse.filesystem import MISSING, Filesystem
from ffrecord_fuse.libfuse import binding
from ffrecord_fuse.libfuse.binding import ENCODING
from ffrecord_fuse.mounting import mount as mounting
from ffrecord_fuse.mounting import mounttable
from ffrecord_fuse.mounting.lifeline import Caller
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.serve import network, report, warm
from ffrecord_fuse.serve.blocks import CheckedContent, DamageError
from ffrecord_fuse.serve.network import Outage, Traffic, errno_of
from ffrecord_fuse.serve.piecereads import Facts
from ffrecord_fuse.serve.report import Counters, DamageLog
from ffrecord_fuse.wire import abi
from ffrecord_fuse.wire.reply import MOST_BACKGROUND

P = ParamSpec("P")
T = TypeVar("T")
Log: TypeAlias = Callable[[str], None]
Ready: TypeAlias = Callable[[], None]

KNOWN_PATHS = 1 << 14  # in the cache from paths to inodes


def prepare(
    source: str, mountpoint: str, options: Options, filesystem: Filesystem, content: CheckedContent,
    counters: Counters, log: Log, caller: Caller | None = None,
) -> Callable[[Ready], None]:  # fmt: skip
    """Return a function that mounts, reports when it is ready, and serves until unmounted.

    `release_after` ends the mount with the `caller`. Problems that can be found in advance are
    raised here. The returned function raises the others, while libfuse mounts.
    """
    inherited = mounting.inherited_descriptor(mountpoint)
    if inherited is None:
        mounting.check(mountpoint)
    else:  # libfuse 3.3 and later accepts /dev/fd/N. It waits in read(2), which must block.
        os.set_blocking(mounting.mount(source, mountpoint, options), True)
    library = binding.load(mountpoint)
    # A callback waits for its answer over the network, and others must not wait with it.
    settings = binding.settings(source, options, threads=not filesystem.archive.is_local)

    def run(ready: Ready) -> None:
        stderr = binding.Overheard()

        def started() -> None:
            mounttable.set_read_ahead(mountpoint, mounttable.READ_AHEAD_KIB)
            stderr.stop()
            if options.warm:
                warm.start(filesystem.archive, log)
            ready()

        kind = type("Callbacks", (Callbacks, library.Operations), {})
        row, tell_disk = counters.row(0), counters.tell_disk
        callbacks = kind(filesystem, content, row, log, started, tell_disk)
        place = os.fsencode(mountpoint).decode(ENCODING)
        try:
            library.FUSE(callbacks, place, **settings)
        except RuntimeError as error:
            # After a signal made libfuse 3 unmount, FUSE() raises too: ignore that.
            if not callbacks.has_started:
                said = stderr.stop() or f"libfuse failed with code {error}"
                raise mounting.refusal(mountpoint, said, options) from None
        if not filesystem.archive.is_local:
            network.finish()
        if caller is not None and caller.has_ended():
            caller.wait_for_release()

    return run


def release_after(caller: Caller, mountpoint: str, log: Log) -> None:
    """Unmount when the caller has ended. Uses a thread, because libfuse blocks the main one."""
    connection = mounttable.connection_at(mountpoint)

    def wait() -> None:
        caller.wait()
        caller.release(mountpoint, connection, log)

    threading.Thread(target=wait, daemon=True).start()


def _answered(
    callback: Callable[Concatenate[Callbacks, P], T],
) -> Callable[Concatenate[Callbacks, P], T]:
    """Wrap a callback: its errors become the answer to its request, EIO if there is no errno."""

    @functools.wraps(callback)
    def answer(self: Callbacks, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return callback(self, *args, **kwargs)
        except OSError as error:
            raise OSError(error.errno or errno.EIO, error.strerror) from error
        except Exception as error:  # a defect or a hostile index must not end the mount
            self.report(callback.__name__, error)
            raise OSError(errno.EIO, "the request failed") from error

    return answer


class Callbacks:
    """The functions that libfuse calls. Inode numbers are the same as in the native back end.

    Args:
        filesystem: names and attributes.
        content: contents of files.
        counts: a row of the counters.
        log: called with each line for the log.
        started: called once, when the kernel's first request has arrived.
        tell_disk: called with what was found out about the network.
    """

    use_ns = True  # times are nanoseconds

    def __init__(
        self, filesystem: Filesystem, content: CheckedContent, counts: memoryview, log: Log,
        started: Callable[[], None], tell_disk: Callable[[Facts], None] = lambda facts: None,
    ) -> None:  # fmt: skip
        self.has_started = False
        self._filesystem = filesystem
        self._content = content
        self._log = log
        self._counts = counts
        self._started = started
        self._damages = DamageLog(filesystem, counts, log)
        self._outage = Outage(filesystem.archive.path, counts, log)
        archive = filesystem.archive
        self._traffic = None if archive.is_local else Traffic(archive, counts, tell_disk)
        self._inode = functools.lru_cache(KNOWN_PATHS)(self._find)

    def init(self, path: str) -> None:
        self.has_started = True
        self._started()

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Start as `init` does; mfusepy calls this function instead.

        The answer to FUSE_INIT limits how far the kernel reads ahead and how many reads may be in
        flight. libfuse 3 allows asynchronous O_DIRECT reads by default.
        """
        if connection is not None:
            connection.max_readahead = mounttable.READ_AHEAD_KIB << 10
            connection.max_background = MOST_BACKGROUND  # libfuse's default is 12
        self.init("/")

    def report(self, callback: str, error: Exception) -> None:
        self._counts[report.ERRORS] += 1
        self._log(f"{callback} failed: {error!r}")

    def _find(self, path: str) -> int:
        inode = ROOT
        for name in filter(None, path.encode(ENCODING).split(b"/")):
            inode = self._filesystem.lookup(inode, name)
            if inode == MISSING:
                raise FileNotFoundError(errno.ENOENT, "no such file")
        return inode

    @_answered
    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        self._counts[report.ATTRIBUTES] += 1
        found = self._filesystem.attributes(self._inode(path))
        return {
            "st_ino": found.inode + abi.ROOT_ID, "st_mode": found.mode, "st_nlink": found.links,
            "st_uid": found.uid, "st_gid": found.gid, "st_size": found.size,
            "st_blocks": found.blocks, "st_blksize": BLOCK,
            "st_atime": found.mtime_ns, "st_mtime": found.mtime_ns, "st_ctime": found.mtime_ns,
        }  # fmt: skip

    @_answered
    def readdir(self, path: str, handle: int) -> list[tuple[str, dict[str, int], int]]:
        """Return all entries of a folder. libfuse keeps them while the folder is open.

        The 0 in each entry means "no position".
        """
        self._counts[report.LISTINGS] += 1
        listing = self._filesystem.listing(self._inode(path), 0, sys.maxsize)
        assert listing is not None  # "." and ".." always exist
        names, at, found = listing.names.tobytes().decode(ENCODING), 0, []
        numbers = (listing.inodes + abi.ROOT_ID).tolist()
        columns = zip(listing.lengths.tolist(), numbers, listing.modes.tolist(), strict=True)
        for length, number, mode in columns:
            found.append((names[at : at + length], {"st_ino": number, "st_mode": mode}, 0))
            at += length
        return found

    @_answered
    def readlink(self, path: str) -> str:
        return self._filesystem.readlink(self._inode(path)).decode(ENCODING)

    @_answered
    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        self._counts[report.READS] += 1
        inode = self._filesystem.file(self._inode(path))
        try:
            piece = self._content.piece(inode, offset, size)
            if piece is None:
                return b""
            memory = self._content.read(piece)
        except (DamageError, FFRecordError, OSError) as error:
            code = errno_of(error)
            if code is not None:
                self._outage.tell(error)
                raise OSError(code, "not read") from error
            if not isinstance(error, (DamageError, FFRecordError)):
                raise
            self._damages.tell(inode, str(error))
            raise OSError(errno.EIO, "damaged") from error
        finally:
            if self._traffic is not None:
                self._traffic.note()
        self._outage.ends()
        self._counts[report.VERIFIED_BLOCKS] += len(piece.checksums or ())
        self._counts[report.BYTES_READ] += piece.asked
        return memory.tobytes()

    @_answered
    def statfs(self, path: str) -> dict[str, int]:
        found = self._filesystem.space()
        return {
            "f_bsize": found.block_size, "f_frsize": found.block_size, "f_blocks": found.blocks,
            "f_bfree": 0, "f_bavail": 0, "f_files": found.files, "f_ffree": 0, "f_favail": 0,
            "f_namemax": found.longest_name,
        }  # fmt: skip

    @_answered
    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        return self._filesystem.xattr(self._inode(path), name.encode(ENCODING))

    @_answered
    def listxattr(self, path: str) -> list[str]:
        names = self._filesystem.xattr_names(self._inode(path))
        return [name.decode(ENCODING) for name in names]

    def _not_needed(self, *arguments: object) -> NoReturn:
        """Answer ENOSYS: the kernel then opens files without asking, and keeps its cache."""
        raise OSError(errno.ENOSYS, "not needed")

    open = flush = _not_needed  # not opendir: libfuse lists only folders that it has opened

    def _refuse(self, *arguments: object) -> NoReturn:
        raise OSError(errno.EROFS, "read-only")

    # The kernel refuses these by itself, unless another program mounted without `ro`.
    chmod = chown = create = fallocate = link = mkdir = mknod = removexattr = rename = _refuse
    rmdir = setxattr = symlink = truncate = unlink = utimens = write = _refuse

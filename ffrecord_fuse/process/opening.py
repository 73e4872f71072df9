"""Open the archive of a mount: a local one, or one with a URL."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from ffrecord.archive.archive import Archive
from ffrecord.disk.source import Source
from ffrecord.errors import FFRecordError
from ffrecord.records.reader import FileReader, table_of
from ffrecord.remote.urls import is_url, shown
from ffrecord_fuse.errors import OptionError
from ffrecord_fuse.mounting.options import Options
from ffrecord_fuse.process.watch import Pins

if TYPE_CHECKING:  # loaded with the first URL
    from ffrecord.remote.cache.copy import LocalCopy

Result = TypeVar("Result")


def opened(
    archive: str, options: Options, storage_options: Mapping[str, Any] | None = None
) -> tuple[Archive, str]:
    """Open an archive. Return it with its name: the same path, or the URL without secrets."""
    if not is_url(archive):
        if options.remote:
            name = next(iter(options.remote))
            raise OptionError(f"{name} is for URLs, but the archive is a local file; leave it out")
        return Archive.open(archive, memory=options.memory), archive
    if options.warm:
        raise OptionError("warm is for local archives, but this one has a URL; leave it out")
    remote: dict[str, Any] = {**options.remote, "storage_options": storage_options}
    return without_signals(partial(Archive.open, archive, **remote)), shown(archive)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The whole copy of an archive in the cache, opened as a local archive."""

    archive: Archive
    copies: list[LocalCopy]

    @property
    def pins(self) -> Pins:
        locks, copies = zip(*((copy.pin, copy.fd) for copy in self.copies), strict=True)
        return Pins(locks, copies)


def pinned(archive: Archive) -> Pinned | None:
    """Return the copy of an archive with a URL; None if the cache does not have all of it."""
    copies: list[LocalCopy] = []
    for source in table_of(archive.reader).require_open().each:
        copy = None if isinstance(source, Source) else source.local_copy()
        if copy is None:
            return None
        copies.append(copy)
    try:
        local = FileReader([copy.path for copy in copies])
    except FFRecordError:  # damaged in the cache
        return None
    if local.fingerprint != archive.reader.fingerprint:  # likewise
        local.close()
        return None
    return Pinned(archive.moved_to(local), copies)


def without_signals(work: Callable[[], Result]) -> Result:
    """Call `work` in a thread that gets no signals, and return its result.

    The libraries for URLs start threads, which inherit this. Signals must reach the main thread,
    because it waits for them: in any other thread, SIGTERM would end the mount without unmounting.
    """
    future: Future[Result] = Future()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="ffrecord-open", daemon=True).start()
    return future.result()

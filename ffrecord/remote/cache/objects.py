"""Find the copies of objects in a cache, by the places of the objects and their versions.

The name of a copy is a hash of the place, without signatures, and a hash of the version. So names
contain no secrets, and every version of an object has its own copy.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import weakref

from ffrecord.format.cachemap import MapHeader
from ffrecord.remote.answers import Place, Version
from ffrecord.remote.cache import trouble
from ffrecord.remote.cache.copy import Copy
from ffrecord.remote.cache.folder import CacheFolder
from ffrecord.remote.options import Options

_lock = threading.Lock()
_folders: dict[tuple[str, int | None], CacheFolder] = {}
_open: weakref.WeakValueDictionary[str, Copy] = weakref.WeakValueDictionary()
"""Open copies of this process, by path: readers of the same object share one."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def object_hash(identity: str) -> str:
    """Return the first part of the names of an object's copies."""
    return hashlib.sha256(identity.encode(errors="surrogatepass")).hexdigest()[:32]


class Cache:
    """The cache of one reader, while it opens its objects.

    `explains`: warn about objects that cannot be kept. A cache that the environment names holds for
    all objects of a program, so nobody may expect this one in it, and no warning is given.
    """

    def __init__(self, folder: CacheFolder, *, explains: bool) -> None:
        self._folder = folder
        self._explains = explains
        try:
            self._names = folder.names()
        except OSError as error:
            trouble.warn(folder.path, error)
            self._names = {}

    @classmethod
    def of(cls, options: Options) -> Cache | None:
        """Return the cache that the options name, or None."""
        if options.cache is None:
            return None
        key = options.cache, options.cache_size
        with _lock:
            folder = _folders.setdefault(key, CacheFolder(*key))
        return cls(folder, explains=options.cache_is_given)

    def newest(self, place: Place) -> Copy | None:
        """Return the copy of an object that was used last, whatever its version."""
        identity = place.store.object_identity(place.key)
        names = [] if identity is None else self._names.get(object_hash(identity), [])
        found = []
        for name in names:
            try:
                found.append(self._folder.read(name))
            except (OSError, ValueError):  # reported when the copy of this version is opened
                continue
        if not found:
            return None
        kept = max(found, key=lambda kept: kept.used)
        return self._opened(kept.name, kept.header)

    def copy(self, place: Place, version: Version) -> Copy | None:
        """Return the copy of a version of an object. Make it if it is missing."""
        identity = place.store.object_identity(place.key)
        if identity is None or version.match is None:
            if self._explains:
                trouble.warn_unversioned(self._folder.path, place.shown)
            return None
        if not version.size:
            return None
        text = f"{version.size} {version.match}".encode()
        name = f"{object_hash(identity)}-{hashlib.sha256(text).hexdigest()[:16]}"
        header = MapHeader(
            version.size, version.match, version.modified, place.shown, secrets.randbits(63)
        )
        return self._opened(name, header)

    def offline(self, place: Place) -> None:
        """Warn that a copy is used without asking the server."""
        trouble.warn_offline(self._folder.path, place.shown)

    def _opened(self, name: str, header: MapHeader) -> Copy | None:
        try:
            with _lock:
                path = os.path.join(self._folder.path, name)
                found = _open.get(path)
                if found is None or not (found.usable and found.is_named):
                    found = _open[path] = Copy(self._folder, name, header)
                return found
        except (OSError, ValueError, MemoryError) as error:
            trouble.warn(self._folder.path, error)
            return None

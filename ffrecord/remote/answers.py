"""The answer to a request, the version of an object, and the interface of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ffrecord.remote.multipart import Unfinished
from ffrecord.remote.parts import Parts
from ffrecord.remote.trouble import Span


@dataclass(frozen=True, slots=True)
class Version:
    """State of an object: its size, and its entity tag or the time of its last change."""

    size: int
    etag: str | None
    modified: float | None

    @property
    def match(self) -> str | None:
        """The tag to demand with a request. Servers never match weak tags."""
        return None if self.etag is None or self.etag.startswith("W/") else self.etag

    def agrees(self, other: Version) -> bool:
        """Return True unless the two are versions of different contents."""
        if self.size != other.size:
            return False
        if self.etag is not None and other.etag is not None:
            return self.etag.removeprefix("W/") == other.etag.removeprefix("W/")
        return self.modified == other.modified


@dataclass(frozen=True, slots=True)
class Answer:
    """Bytes of an object from `begin` on. `body` has the buffer protocol."""

    body: Any
    begin: int
    version: Version
    waited: float = 0.0  # seconds until the first byte came; 0: not known


class Store(Protocol):
    """Objects by key. All methods run in the loop and raise `Trouble`."""

    async def get(self, key: str, span: Span, pinned: Version | None) -> Answer:
        """Return bytes of an object. If `pinned` is given, only this version may answer."""

    async def get_unless(self, key: str, span: Span, known: Version) -> Answer | None:
        """Return bytes of an object, or None if it still has the version `known`."""

    def object_identity(self, key: str) -> str | None:
        """Return text that tells an object from all others, without secrets.

        None if the store cannot demand a version, so that its objects cannot be cached.
        """

    async def recheck(self, key: str, pinned: Version) -> None:
        """Raise `Trouble` if a version that `get` cannot demand is not there any more."""

    async def names(self, key: str) -> list[str]:
        """Return the names of the files and folders in a folder."""

    async def version(self, key: str) -> Version | None:
        """Return the version of an object; None if there is no such object."""

    async def is_empty(self, key: str) -> bool:
        """Return True if there is no object in a folder."""

    async def objects(self, key: str) -> dict[str, int]:
        """Return the size of every object in a folder, at any depth, by its name in the folder."""

    async def put(self, key: str, parts: Parts, *, new: bool, over: Version | None = None) -> None:
        """Put an object, which appears whole or not at all.

        With `new`, an existing object is not replaced, and with `over` only this version is, as far
        as the store can promise that. No store promises it for an object in several parts.
        """

    async def delete(self, key: str) -> None:
        """Delete an object. A missing object is no error."""

    async def remove_folders(self, key: str) -> None:
        """Remove the empty folders that deleted objects leave on a disk, and this folder itself."""

    def unfinished(self, key: str) -> Unfinished | None:
        """Return the key's unfinished uploads; None if the store has none, or does not list them.

        This method waits for the network, and must run in a thread.
        """

    def address(self, key: str) -> tuple[str | None, dict[str, str]]:
        """Return the URL of an object and the options that lead there, without secrets.

        The URL is None if the store does not know it.
        """


@dataclass(frozen=True, slots=True)
class Place:
    """An object: its store, its key there, and its name for messages."""

    store: Store
    key: str
    shown: str

    def inside(self, name: str) -> Place:
        """Return an object in this folder."""
        key = f"{self.key.rstrip('/')}/{name}" if self.key.strip("/") else f"{self.key}{name}"
        return Place(self.store, key, f"{self.shown.rstrip('/')}/{name}")

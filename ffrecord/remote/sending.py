"""Send the files of an upload, verify them, and remove the traces of an upload that failed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ffrecord.errors import FFRecordError, UploadError
from ffrecord.remote.answers import Place, Version
from ffrecord.remote.link import Link
from ffrecord.remote.loop import together
from ffrecord.remote.parts import AT_ONCE, Parts
from ffrecord.remote.trouble import MEANWHILE, Kind, Span, Trouble

MD5 = re.compile(r'"[0-9a-f]{32}(-\d+)?"')  # entity tag of S3; other stores have others
NOT_IMPLEMENTED = 501
LONG = 1 << 40
"""Bytes to wait for when a request has many pages: so the deadline alone limits its time."""

ROUNDS = 3
"""Times that unfinished uploads are looked for: a part on its way may outlive the first abort."""


class Diary(Protocol):
    """Notes of an upload that survive a kill of the process."""

    def known(self, name: str, ids: Sequence[str]) -> None:
        """Note the unfinished uploads that an object had before."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A local file, the object that it becomes, and the name of this object in its folder."""

    name: str
    place: Place
    path: str


async def send(
    link: Link, files: Sequence[Sent], diary: Diary, tell: Callable[[int], None], *, new: bool,
    over: Version | None = None,
) -> None:  # fmt: skip
    """Put files, small ones at the same time, and verify them.

    With `new`, no object is replaced, and with `over` only this version of the one object, as far
    as the store can promise that.
    """
    slots = asyncio.Semaphore(AT_ONCE)
    small, large = list[tuple[Sent, Parts]](), list[tuple[Sent, Parts]]()
    for file in files:
        parts = Parts(file.path, tell)
        (small if parts.is_single else large).append((file, parts))

    async def one(file: Sent, parts: Parts) -> None:
        async with slots:
            await _put(link, file.place, parts, new=new, over=over)

    await together(*(one(file, parts) for file, parts in small))
    for file, parts in large:  # each has parts enough to fill the connection
        await _put_large(link, file, parts, diary, new=new)


async def _put_large(link: Link, file: Sent, parts: Parts, diary: Diary, *, new: bool) -> None:
    place = file.place
    if new and await version(link, place) is not None:  # parts cannot demand it
        raise FileExistsError(errno.EEXIST, MEANWHILE, place.shown)
    before = await unfinished(place)
    diary.known(file.name, before)
    try:
        await _put(link, place, parts, new=new)
    finally:
        # Also after a success: if the answer to the first request was lost, obstore sent another,
        # and the store has two uploads.
        with contextlib.suppress(Trouble):
            await abort(place, before)


async def _put(
    link: Link, place: Place, parts: Parts, *, new: bool, over: Version | None = None
) -> None:
    store, key = place.store, place.key
    try:
        await link.write(
            place, lambda: store.put(key, parts, new=new, over=over), parts.size,
            once=not parts.is_single,
        )  # fmt: skip
    except (FFRecordError, OSError):
        if not await _is_there(link, place, parts):
            raise
    found = await version(link, place)
    if found is None or found.size != parts.size:
        size = "no such object" if found is None else f"{found.size} bytes"
        raise UploadError(
            place.shown, f"{parts.size} bytes were sent, but the store has {size}", None, 1
        )
    tag = parts.tag()
    if tag and MD5.fullmatch(found.etag or "") and found.etag != tag:
        await _compare(link, place, found, parts)


async def _is_there(link: Link, place: Place, parts: Parts) -> bool:
    """Return True if the store has the object after all: only its answer was lost."""
    with contextlib.suppress(FFRecordError, OSError):
        found = await version(link, place)
        return found is not None and found.size == parts.size and found.etag == parts.tag()
    return False


async def _compare(link: Link, place: Place, found: Version, parts: Parts) -> None:
    """Read an object back: its tag is not that of the bytes, as with keys of KMS, or after damage.

    A damaged object is deleted.
    """
    at = 0
    for part in Parts(parts.path, lambda size: None):
        answer = await link.get(place, Span(at, at + len(part)), found)
        if bytes(answer.body) != part:
            await link.write(place, lambda: place.store.delete(place.key))
            what = f"the store got other bytes than were sent, after byte {at}; nothing is kept"
            raise UploadError(place.shown, what, None, 1)
        at += len(part)


async def version(link: Link, place: Place) -> Version | None:
    """Return the version of an object; None if there is no such object."""
    return await link.write(place, lambda: place.store.version(place.key))


async def unfinished(place: Place) -> list[str]:
    """Return the ids of unfinished uploads of an object; none if the store does not tell."""

    def ids() -> list[str]:
        found = place.store.unfinished(place.key)
        return [] if found is None else found.ids()

    with contextlib.suppress(Trouble):
        return await asyncio.to_thread(ids)
    return []


async def abort(place: Place, before: Sequence[str]) -> None:
    """Abort the unfinished uploads of an object, except those of others. Raises `Trouble`."""

    def work() -> None:
        uploads = place.store.unfinished(place.key)
        for _ in range(0 if uploads is None else ROUNDS):
            assert uploads is not None
            ours = [each for each in uploads.ids() if each not in before]
            for each in ours:
                uploads.abort(each)
            if not ours:
                break

    await asyncio.to_thread(work)


async def abort_inside(link: Link, folder: Place) -> None:
    """Abort all unfinished uploads of objects in a folder, where the store lists them.

    A store or a credential that does not list uploads is no error: then a rule of the bucket has to
    remove them.
    """

    def abort_all() -> None:
        uploads = folder.store.unfinished(folder.key)
        seen = set[tuple[str, str]]()
        while uploads is not None and (found := set(uploads.inside()) - seen):
            for name, each in found:
                there = folder.store.unfinished(folder.inside(name).key)
                assert there is not None
                there.abort(each)
            seen |= found

    async def work() -> None:
        try:
            await asyncio.to_thread(abort_all)
        except Trouble as trouble:
            if trouble.kind in (Kind.BUSY, Kind.CONNECT) and trouble.status != NOT_IMPLEMENTED:
                raise

    await link.write(folder, work, LONG)


async def objects(link: Link, folder: Place) -> dict[str, int]:
    """Return the size of every object in a folder, at any depth, by its name in the folder."""
    return await link.write(folder, lambda: folder.store.objects(folder.key), LONG)


async def same(found: Version, path: str) -> bool:
    """Return True if the tag of an object is that of a local file. Other tags tell nothing."""
    parts = Parts(path, lambda size: None)
    if found.size != parts.size or MD5.fullmatch(found.etag or "") is None:
        return False

    def tag() -> str:
        for _ in parts:
            pass
        return parts.tag()

    return await asyncio.to_thread(tag) == found.etag


async def remove(link: Link, places: Sequence[Place]) -> None:
    """Delete objects."""

    async def one(place: Place) -> None:
        await link.write(place, lambda: place.store.delete(place.key))

    for at in range(0, len(places), link.requests):
        await together(*(one(place) for place in places[at : at + link.requests]))

"""Open objects.

Opening asks for the first and the last bytes at once. They contain the header, and the index of a
packed folder, unless these are long. The version of the object is pinned then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ffrecord.disk.source import DESCRIPTORS_EACH, allow_descriptors
from ffrecord.errors import RemoteError
from ffrecord.remote import loop
from ffrecord.remote.answers import Place, Version
from ffrecord.remote.cache.copy import Copy
from ffrecord.remote.cache.objects import Cache
from ffrecord.remote.link import Link
from ffrecord.remote.source import Opened, RemoteSource, RemoteSources
from ffrecord.remote.trouble import Span, Trouble, replaced

GUESS = 256 << 10
"""First and last bytes that opening asks for: the header of 21,000 records, the index of about
3,000 files. On a connection of 1 Gbit/s this takes 2 ms, much less than a round trip."""

GUESSES = 16 << 20
"""Most first bytes of all files together. With many files, less is asked of each."""

SMALLEST_GUESS = 16 << 10

DESCRIPTORS_OF_A_COPY = 2  # the copy and its map; the engine for local files opens the copy again

OPENINGS = 3  # attempts to open an object that is being replaced


def open_places(link: Link, places: Sequence[Place], cache: Cache | None = None) -> RemoteSources:
    """Open objects, all at once. The last one may have an index at its end."""
    guess = max(SMALLEST_GUESS, min(GUESS, GUESSES // len(places)))
    if cache is not None:
        allow_descriptors((DESCRIPTORS_EACH + DESCRIPTORS_OF_A_COPY) * len(places))
    copies = [None if cache is None else cache.newest(place) for place in places]

    last = len(places) - 1
    opening = (
        _open(link, place, guess, k == last)
        if copy is None
        else _reopen(link, place, guess, k == last, copy)
        for k, (place, copy) in enumerate(zip(places, copies, strict=True))
    )
    answers = loop.wait(loop.together(*opening))
    sources = []
    for place, copy, opened in zip(places, copies, answers, strict=True):
        if cache is not None:
            version = opened.version
            if opened.is_offline:
                cache.offline(place)
            elif copy is None or (copy.size, copy.header.etag) != (version.size, version.match):
                copy = cache.copy(place, version)
        sources.append(RemoteSource(place, link, opened, copy))
    return RemoteSources(link, sources)


async def _reopen(
    link: Link, place: Place, guess: int, with_end: bool, copy: Copy
) -> Opened:  # fmt: skip
    """Open an object that has a copy: one request, which asks for another version only.

    Without a connection, a whole copy is enough.
    """
    known = Version(copy.size, copy.header.etag, copy.header.modified)
    try:
        first = await link.get_unless(place, Span(0, guess), known)
    except RemoteError as error:
        if error.status is None and copy.is_whole:
            return Opened(known, None, None, is_offline=True)
        raise
    if first is None or first.version.agrees(known):
        return Opened(known, None, None)
    return await _open(link, place, guess, with_end)


async def _open(link: Link, place: Place, guess: int, with_end: bool) -> Opened:
    for _ in range(OPENINGS):
        asked = [link.get(place, Span(0, guess), None, opening=True)]
        if with_end:
            asked.append(link.get(place, Span(-guess), None, opening=True))
        first, *rest = await asyncio.gather(*asked, return_exceptions=True)
        if isinstance(first, BaseException):
            raise first
        last: Any = rest[0] if rest else None
        if isinstance(last, Trouble):  # no suffixes here, but now the size is known
            last = None
            size = first.version.size
            if size > guess:
                span = Span(max(guess, size - guess), size)
                last = await link.get(place, span, first.version, opening=True)
        if isinstance(last, BaseException):
            raise last
        if last is None or last.version.agrees(first.version):
            return Opened(first.version, first, last)
    raise replaced(place.shown)

"""Blocking requests to the store of a work prefix: put, read, list and remove objects."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence

from ffrecord.remote import loop, sending
from ffrecord.remote.answers import Place, Version
from ffrecord.remote.files import Access
from ffrecord.remote.options import Options
from ffrecord.remote.sending import Sent
from ffrecord.remote.trouble import Span
from ffrecord.remote.uploads import Record

LONGEST_RECEIPT = 1 << 30

AT_ONCE = 256
"""Objects that are asked for together, and in memory at once. The link limits the requests in
flight to fewer."""


class Requests:
    """The requests of one plan. Each returns when the store has answered."""

    def __init__(self, options: Options) -> None:
        access = Access(options)
        self.place = access.place
        self._link = access.link

    @contextlib.contextmanager
    def record(self, folder: Place) -> Iterator[Record]:
        """Yield the record of an upload into a folder, and a local folder for its files."""
        record = Record(folder.shown.rstrip("/"), *folder.store.address(folder.key))
        try:
            yield record
        finally:
            record.end()

    def put(self, folder: Place, name: str, content: object, *, new: bool) -> None:
        """Put an object of JSON into a folder."""
        with self.record(folder) as record:
            path = os.path.join(record.staging, "content")
            with open(path, "wb") as file:
                file.write(json.dumps(content).encode())
            record.plan([name], None)
            self.send(record, [Sent(name, folder.inside(name), path)], new=new)

    def send(
        self, record: Record, files: list[Sent], *, new: bool = False, over: Version | None = None
    ) -> None:
        """Put files. `new` and `over` limit what they may replace."""
        loop.wait(sending.send(self._link, files, record, _ignore, new=new, over=over))

    def version(self, place: Place) -> Version | None:
        return loop.wait(sending.version(self._link, place))

    def is_same(self, found: Version, path: str) -> bool:
        """Return True if the tag of an object is that of a local file."""
        return loop.wait(sending.same(found, path))

    def objects(self, folder: Place) -> dict[str, int]:
        """Return the size of every object in a folder, by its name in the folder."""
        return loop.wait(sending.objects(self._link, folder))

    def read(self, place: Place) -> bytes | None:
        """Return the content of a small object; None if there is no such object."""
        return loop.wait(self._begin(place, LONGEST_RECEIPT))

    def read_all(self, places: Sequence[tuple[Place, int]]) -> Iterator[bytes | None]:
        """Yield up to that many of the first bytes of each object."""
        for at in range(0, len(places), AT_ONCE):
            some = (self._begin(*each) for each in places[at : at + AT_ONCE])
            yield from loop.wait(loop.together(*some))

    async def _begin(self, place: Place, most: int) -> bytes | None:
        if not most:
            return b""
        try:
            answer = await self._link.get(place, Span(0, most), None, opening=True)
        except FileNotFoundError:
            return None
        return bytes(memoryview(answer.body))

    def remove(self, folder: Place, names: Iterable[str]) -> None:
        places = [folder.inside(name) for name in names]
        loop.wait(sending.remove(self._link, places))

    def remove_folders(self, folder: Place) -> None:
        """Remove the empty folders that some file systems keep."""
        loop.wait(self._link.write(folder, lambda: folder.store.remove_folders(folder.key)))

    def abort_inside(self, folder: Place) -> None:
        """Abort all unfinished uploads of objects in a folder."""
        loop.wait(sending.abort_inside(self._link, folder))


def _ignore(size: int) -> None:
    """Take the progress of an upload: tasks tell theirs with a receipt."""

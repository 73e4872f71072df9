"""Files and folders to write over the network: made on a local disk, then uploaded.

Object stores cannot change an object, and the header of a record file is written last. So a file is
made in a temporary folder first (in `TMPDIR`), and needs as much room there. It appears in the
store when all of it is there.

Several objects cannot appear at once. So the object without which the others cannot be opened, an
index or a spec, is put last, and the folder must be empty before.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

from ffrecord.aliases import Closing
from ffrecord.errors import FFRecordError, UrlError
from ffrecord.remote import loop, sending, urls
from ffrecord.remote.answers import Place
from ffrecord.remote.files import MARKER, Access, located
from ffrecord.remote.options import RemoteOptions
from ffrecord.remote.sending import Sent
from ffrecord.remote.uploads import Record, placed, undo
from ffrecord.text import there_already

LONGEST_NAME = 200  # bytes; a key may be longer than the names of local files
UNFINISHED = (
    "; the parts that were uploaded could not be removed from the store: `ffrecord cache rm "
    "--unfinished` removes them"
)
Tell = Callable[[int, int], None]
"""Takes the bytes that have been sent, and all bytes to send."""


class Target(Closing):
    """A URL to write to, and the local path at which the file or folder is made.

    A `with` block removes the local files at its end.

    Args:
        path: the URL, a `UPath`, or a key in the user's store.
        given: options for URLs.
        is_folder: True for several objects. The folder must be empty.
        new: True if an existing object must not be replaced.
        permit: name of the Python argument that permits replacing, for the error.
    """

    def __init__(
        self, path: Any, given: RemoteOptions, *, is_folder: bool = False, new: bool = False,
        permit: str = "force",
    ) -> None:  # fmt: skip
        url, options = located(path, given)
        self._is_folder = is_folder
        self._new = new or is_folder
        self._permit = permit
        self._access = Access(options)
        refuse_protocol(url, options.fs)
        if not is_folder and url.endswith("/"):
            raise UrlError(f"{urls.shown(url)}: names a folder; name the file to write")
        self._place = self._access.place(url)
        self.name = self._place.shown.rstrip("/")
        self._check()
        address, leading = self._place.store.address(self._place.key)
        if address is None and options.store is None and options.fs is None:
            address = urls.shown(url)
        self._record = Record(self.name, address, leading)
        name = self.name.rpartition("/")[2]
        if not name or len(os.fsencode(name)) > LONGEST_NAME:
            name = f"target{os.path.splitext(name)[1][:20]}"
        self.path = os.path.join(self._record.staging, name)
        """Where to make the file or folder."""

    def _check(self) -> None:
        """Raise an error if the target exists and must not be replaced."""
        place, link = self._place, self._access.link
        if self._is_folder:
            if not loop.wait(link.write(place, lambda: place.store.is_empty(place.key))):
                what = "already has objects, and nothing is added to them; choose another name"
                if loop.wait(sending.version(link, place.inside(MARKER))) is not None:
                    what = "the tasks of a plan write it, and were not committed; commit the plan, "
                    what += "make a new plan for it, or choose another name"
                raise FileExistsError(errno.EEXIST, what, self.name)
            return
        # Ask in any case: a wrong URL or wrong credentials show now, not after hours of work.
        found = loop.wait(sending.version(link, place))
        if self._new and found is not None:
            raise there_already(self.name, argument=self._permit)

    def upload(self, last: str | None = None, tell: Tell | None = None) -> None:
        """Upload what was made at `path`. An error leaves nothing in the store.

        Args:
            last: name of the file in a folder that completes the others.
            tell: called with the progress.
        """
        names = [""]
        if self._is_folder:
            names = files_inside(self.path)
            last = last or names[-1]
            names.remove(last)
            names.append(last)
        places = placed(self._place, names)
        paths = {name: os.path.join(self.path, name) if name else self.path for name in names}
        total, done = sum(map(os.path.getsize, paths.values())), 0

        def sent(size: int) -> None:
            nonlocal done
            done += size
            if tell is not None:
                tell(done, total)

        files = [Sent(name, places[name], paths[name]) for name in names]
        self._check()
        self._record.plan(names, last)
        link = self._access.link
        try:
            for group in (files[:-1], files[-1:]):
                loop.wait(sending.send(link, group, self._record, sent, new=self._new))
        except BaseException as error:
            self._undo(places, last, error)
            raise
        self.close()

    def _undo(self, places: dict[str, Place], last: str | None, error: BaseException) -> None:
        try:
            undo(self._access.link, places, last, self._record.before)
        except (FFRecordError, OSError):
            self._record.end(kept=True)
            with contextlib.suppress(AttributeError):
                error.what += UNFINISHED  # type: ignore[attr-defined]
        self.close()

    def close(self) -> None:
        """Remove the local files."""
        self._record.end()


def refuse_append(path: Any, *, append: bool, resumable: bool = False) -> None:
    """Raise an error for options that need a local file."""
    for name, is_given in (("append", append), ("resumable", resumable)):
        if is_given:
            raise UrlError(
                f"{urls.shown(str(path))}: {name}=True needs a local file, because objects in a "
                "store cannot be changed; write a local file and upload it, or write another object"
            )


def files_inside(folder: str) -> list[str]:
    """Return the paths of all files in a folder, relative to it, sorted."""
    found = []
    for top, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(top, name), folder) for name in names]
    return sorted(found)


def refuse_protocol(url: str, fs: Any) -> None:
    """Raise an error for web servers, which have no common way to write."""
    scheme = url.partition("://")[0].lower() if urls.is_url(url) else ""
    protocol = getattr(fs, "protocol", ())
    protocols = {protocol} if isinstance(protocol, str) else set(protocol)
    if scheme in urls.WEB or "http" in protocols:
        raise UrlError(
            f"{urls.shown(url)}: web servers are not written to; name a bucket (s3://, gs://, "
            "az://), or write a local file and copy it to the server"
        )

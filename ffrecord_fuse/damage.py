"""What is said about files that turn out to be damaged: a line in the log for each, once."""

from __future__ import annotations

from collections.abc import Callable

from ffrecord_fuse.content import Content
from ffrecord_fuse.filesystem import Filesystem

LOGGED_DAMAGES = 10_000


class DamageLog:
    """Knows of which files it has told. `log` takes a line."""

    def __init__(
        self, filesystem: Filesystem, content: Content, log: Callable[[str], None]
    ) -> None:
        self._filesystem = filesystem
        self._content = content
        self._log = log
        self._damaged: set[int] = set()

    def tell(self, inode: int, what: str) -> None:
        if inode not in self._damaged and len(self._damaged) < LOGGED_DAMAGES:
            self._damaged.add(inode)
            path, record = self._filesystem.path(inode), self._content.record_of(inode)
            self._log(f"damaged: {path} ({record}): {what}")

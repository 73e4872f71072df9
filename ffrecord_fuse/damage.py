"""What is said about files that turn out to be damaged: a line in the log for each, once."""

from __future__ import annotations

from collections.abc import Callable

from ffrecord_fuse.content import Content, Piece
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

    def tell(self, piece: Piece, what: str) -> None:
        if piece.inode not in self._damaged and len(self._damaged) < LOGGED_DAMAGES:
            self._damaged.add(piece.inode)
            path, record = self._filesystem.path(piece.inode), self._content.record_of(piece.inode)
            self._log(f"damaged: {path} ({record}): {what}")

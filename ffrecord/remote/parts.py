"""A local file, cut into the parts of an upload, with the checksum that S3 gives the object."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator

PART = 16 << 20
"""Bytes of a part. Fewer bytes are put with one request. Providers limit the speed of each request,
so several parts at once are faster than one; longer parts would need more memory."""

MOST_PARTS = 9_000  # S3 allows 10,000

AT_ONCE = 8
"""Parts that are on their way at once. With the next part they need 160 MiB of memory. Small
objects are counted like parts."""

MIB = 1 << 20


class Parts:
    """The content of a file, in parts. `tell` is called with the bytes of each part."""

    def __init__(self, path: str, tell: Callable[[int], None]) -> None:
        self.path = path
        self.size = os.stat(path).st_size
        self.length = max(PART, -(-self.size // MOST_PARTS // MIB) * MIB)
        self.is_single = self.size <= self.length
        self._tell = tell
        self._told = 0
        self._digests: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        self._digests.clear()
        done = 0
        with open(self.path, "rb", buffering=0) as file:
            while part := file.read(self.length):
                self._digests.append(_md5(part))
                yield part
                done += len(part)
                self.sent(done)

    def sent(self, done: int) -> None:
        """Tell that the first `done` bytes were sent, but not if the file is sent once more."""
        if done > self._told:
            self._tell(done - self._told)
            self._told = done

    @property
    def content(self) -> bytes:
        """The whole content of a small file."""
        content = b"".join(self)
        self._digests = self._digests or [_md5(b"")]
        return content

    def tag(self) -> str:
        """Return the entity tag that S3 gives to these parts; no text if they were not read."""
        if not self._digests:
            return ""
        if self.is_single:
            return f'"{self._digests[0].hex()}"'
        return f'"{_md5(b"".join(self._digests)).hex()}-{len(self._digests)}"'


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()

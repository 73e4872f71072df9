"""A session without a mount: driven over a socket with the bytes of requests.

The tree is small and every number in it is chosen such that the byte 0xDB is in no reply, but for
the contents of one file. Whatever a reply holds of it beyond that came out of a buffer that was
used before.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from ffrecord.archive.archive import Archive
from ffrecord.archive.blocks import FilePiece
from ffrecord_fuse.filesystem import Filesystem, Ownership
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.reading import Reading
from ffrecord_fuse.serve.report import Counters
from ffrecord_fuse.serve.session import Session
from tests.support import kernel, trees
from tests.support.kernel import Kernel, Reply

POISON = 0xDB
BLOCK = 128 << 10
WHEN = 1_600_000_000_123_456_789
# A node is an inode and 1; inodes are counted from the root, level by level, in the order of names.
NODES = {
    "": 1, "a.txt": 2, "big": 3, "empty": 4, "hard": 2, "link": 5, "poison": 6, "sub": 7,
    "sub/deep": 8, "sub/inner": 9,
}  # fmt: skip
FILES = ("a.txt", "big", "empty", "sub/deep")
NOWHERE = (0, 10, 219, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def content(size: int, seed: int) -> bytes:
    return trees.content(size, seed).replace(bytes([POISON]), b"\x01")


class ColdReading(Reading):
    """Finds nothing in the page cache."""

    def _cached(self, piece: FilePiece) -> None:
        return None


class GatedReading(ColdReading):
    """Stops at its first read until the gate is open: what was sent meanwhile is one batch."""

    gate = threading.Event()

    def _cached(self, piece: FilePiece) -> None:
        assert self.gate.wait(kernel.LIMIT)


@contextlib.contextmanager
def talk(
    archive: Path,
    verify: str = "first",
    ownership: Ownership | None = None,
    reading: type[Reading] = Reading,
) -> Iterator[Kernel]:
    """A session that serves an archive, and does not spin: it shares this process."""
    with Archive.open(archive) as opened:
        counters, contents = Counters(), CheckedContent(opened, verify)
        filesystem = Filesystem(opened, ownership, counters.json)

        def run(fd: int, log: Callable[[str], None]) -> None:
            with mock.patch("ffrecord_fuse.serve.session.Reading", reading):
                session = Session(fd, filesystem, contents, spin=0, counts=counters.row(0), log=log)
            with contextlib.closing(session):
                session.run()

        with kernel.conversation(run) as talking:
            yield talking


def attr(tree: Path, name: str) -> bytes:
    return kernel.packed_attr(os.lstat(tree / name), NODES[name])


def entry(tree: Path, name: str) -> bytes:
    return kernel.packed_entry(attr(tree, name), NODES[name])


def is_well(talking: Kernel, tree: Path) -> bool:
    """Whether a session still answers rightly."""
    reply = talking.ask(kernel.lookup(1, b"a.txt", 4242))
    return reply == Reply(4242, 0, entry(tree, "a.txt"))

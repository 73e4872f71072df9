"""A session without a mount, driven over a socket with the bytes of requests.

The tree is small. Its numbers are chosen so that no reply contains the byte 0xDB, except for the
content of one file. Any other 0xDB in a reply comes from a reused buffer.
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
# A node is an inode plus 1. Inodes count from the root, level by level, in the order of names.
NODES = {
    "": 1, "a.txt": 2, "big": 3, "empty": 4, "hard": 2, "link": 5, "poison": 6, "sub": 7,
    "sub/deep": 8, "sub/inner": 9,
}  # fmt: skip
FILES = ("a.txt", "big", "empty", "sub/deep")
NOWHERE = (0, 10, 219, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def content(size: int, seed: int) -> bytes:
    return trees.content(size, seed).replace(bytes([POISON]), b"\x01")


class ColdReading(Reading):
    """Reading that finds nothing in the page cache."""

    def _cached(self, piece: FilePiece) -> None:
        return None


class GatedReading(ColdReading):
    """Reading that waits at its first read until the gate opens.

    So all requests that arrive before are one batch.
    """

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
    """Serve an archive with a session that does not poll, because it shares this process."""
    with Archive.open(archive) as opened:
        counters, contents = Counters(), CheckedContent(opened, verify)
        filesystem = Filesystem(opened, ownership, counters.json)

        def run(fd: int, log: Callable[[str], None]) -> None:
            with mock.patch("ffrecord_fuse.serve.session.Reading", reading):
                session = Session(
                    fd, filesystem, contents, spin=0, counts=counters.row(0), log=log,
                    tell_disk=counters.tell_disk,
                )  # fmt: skip
            with contextlib.closing(session):
                session.run()

        with kernel.conversation(run) as talking:
            yield talking


def attr(tree: Path, name: str) -> bytes:
    return kernel.packed_attr(os.lstat(tree / name), NODES[name])


def entry(tree: Path, name: str) -> bytes:
    return kernel.packed_entry(attr(tree, name), NODES[name])


def is_well(talking: Kernel, tree: Path) -> bool:
    """Return True if a session still answers correctly."""
    reply = talking.ask(kernel.lookup(1, b"a.txt", 4242))
    return reply == Reply(4242, 0, entry(tree, "a.txt"))

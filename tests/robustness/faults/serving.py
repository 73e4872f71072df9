"""A mount's worker while system calls fail: it answers correctly or with EIO, and continues."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ffrecord.archive.archive import Archive
from ffrecord_fuse.filesystem import Filesystem
from ffrecord_fuse.serve.blocks import CheckedContent
from ffrecord_fuse.serve.session import Session
from tests.robustness.faults import shim
from tests.robustness.faults.cases import Operation
from tests.robustness.faults.reading import FILES, original_records
from tests.support import archives, handmade, kernel, trees
from tests.support.kernel import Kernel, Reply

STEP = 100_000
READS = [
    (name, offset) for name, content in FILES.items() for offset in range(0, len(content), STEP)
]


class RefusedError(Exception):
    """Some reads were answered with EIO, and all others correctly."""


class EndedError(Exception):
    """The worker ended with an error. In a mount, the supervisor then starts another worker."""


class Serve(Operation):
    """Read all files in batches while calls on the archive fail, then again without faults."""

    allowed: tuple[type[Exception], ...] = (RefusedError,)

    def __init__(self, folder: Path, *, cold: bool, original: bool = False) -> None:
        self._archive = folder / "packed.ffr"
        self._cold = cold
        if original:
            handmade.write_records(self._archive, original_records())
        else:
            archives.pack(trees.plain_tree(folder / "source", FILES), self._archive)
        with Archive.open(self._archive) as archive:
            filesystem = Filesystem(archive)
            self._nodes = {name: _node(filesystem, name) for name in FILES}

    def prepare(self) -> None:
        if self._cold:
            handmade.evict(self._archive)
        else:
            self._archive.read_bytes()

    def prepare_again(self) -> None:
        self.prepare()

    def run(self) -> list[bytes]:
        with shim.paused():
            archive = Archive.open(self._archive)
        with archive:
            filesystem, content = Filesystem(archive), CheckedContent(archive)

            def serve(fd: int, log: Callable[[str], None]) -> None:
                self.watch(fd)
                session = Session(fd, filesystem, content, spin=0, log=log)
                with contextlib.closing(session):
                    session.run()

            with kernel.conversation(serve) as asking:
                first = list(self._ask(asking))
                shim.disarm()
                again = list(self._ask(asking))
        assert [reply.payload for reply in again] == right_answers()
        for reply, due in zip(first, right_answers(), strict=True):
            assert reply.error == errno.EIO or (reply.error, reply.payload) == (0, due), reply
        if any(reply.error for reply in first):
            raise RefusedError
        return [reply.payload for reply in first]

    def kinds(self, call: str) -> Iterable[str]:
        """Leave out an empty io_getevents: the worker would wait for the kernel's next signal."""
        return (
            kind for kind in super().kinds(call) if (call, kind) != ("io_getevents", shim.NONE)
        )  # fmt: skip

    def watch(self, fd: int) -> None:
        """Do nothing: calls on the mount's descriptor do not fail here."""

    def check(self, result: list[bytes]) -> None:
        assert result == right_answers()

    def _ask(self, asking: Kernel) -> Iterator[Reply]:
        """Send several requests at once, so that the worker reads them as one batch."""
        for at in range(0, len(READS), asking.at_once):
            batch = list(enumerate(READS[at : at + asking.at_once], at + 1))
            for unique, (name, offset) in batch:
                asking.send(kernel.read(self._nodes[name], offset, STEP, unique))
            replies = {reply.unique: reply for reply in (asking.receive() for _ in batch)}
            yield from (replies[unique] for unique, _ in batch)


def right_answers() -> list[bytes]:
    return [FILES[name][offset : offset + STEP] for name, offset in READS]


def _node(filesystem: Filesystem, name: str) -> int:
    inode = 0
    for part in name.split("/"):
        inode = filesystem.lookup(inode, part.encode())
    return inode + 1


class ServeBadly(Serve):
    """Serve while calls that receive requests or send replies fail.

    /dev/fuse transfers whole messages, so there are no short counts. A blocking read does not
    return EAGAIN.
    """

    allowed = (RefusedError, EndedError)

    def watch(self, fd: int) -> None:
        shim.watch(fd)

    def kinds(self, call: str) -> Iterable[str]:
        if call == "read":
            return ("EIO", "EINTR", "ENOSPC")
        return shim.ERRORS if call == "write" else ()

    def run(self) -> list[bytes]:
        try:
            return super().run()
        except TimeoutError:  # the worker does not answer
            raise
        except OSError as error:
            raise EndedError from error
        finally:
            shim.watch(-1)


MAKERS: dict[str, Callable[[Path], Operation]] = {
    "serve, cold": lambda folder: Serve(folder, cold=True),
    "serve, cached": lambda folder: Serve(folder, cold=False),
    "serve an archive of the original": lambda folder: Serve(folder, cold=True, original=True),
    "serve a failing kernel": lambda folder: ServeBadly(folder, cold=True),
}

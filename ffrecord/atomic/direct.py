"""Writing large buffers with O_DIRECT, past the page cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class DirectWriter:
    """Writes whole buffers with O_DIRECT, each while the next one is filled.

    In a thread: Linux AIO waits when a write makes a file longer, so it is no help here.
    """

    def __init__(self, fd: int, buffered_fd: int, memory: Callable[[], memoryview]) -> None:
        self._fd = fd
        self._buffered_fd = buffered_fd
        self._new_memory = memory
        self.spare = memory()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ffrecord-write")
        self._writing: Future[None] | None = None

    @classmethod
    def over(cls, fd: int, memory: Callable[[], memoryview]) -> DirectWriter | None:
        """For the file behind `fd`, with buffers from `memory`; None where O_DIRECT cannot be."""
        try:
            again = f"/proc/self/fd/{fd}"
            return cls(os.open(again, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC), fd, memory)
        except OSError:  # no O_DIRECT on this file system, or no /proc
            return None

    def swap(self, full: memoryview, offset: int) -> memoryview:
        """Begin to write a buffer, and return another one that may be filled."""
        self.wait()
        other, self.spare = self.spare, full
        if other is full:  # the first time
            other = self._new_memory()
        try:
            self._writing = self._thread.submit(self._write, full, offset)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            self._write(full, offset)
        return other

    def _write(self, full: memoryview, offset: int) -> None:
        """Where O_DIRECT opens but does not write, or stops at an odd byte: through the cache."""
        try:
            write_all(self._fd, full, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            write_all(self._buffered_fd, full, offset)

    def wait(self) -> None:
        """Until the last buffer is written; raises what went wrong."""
        writing = self._writing
        if writing is not None:
            try:
                writing.result()
            finally:
                if writing.done():  # else it was this wait that was interrupted
                    self._writing = None

    def close(self) -> None:
        """Not before the last write has ended: the descriptor's number may go to another file."""
        if self._writing is not None:
            self._writing.exception()
            self._writing = None
        self._thread.shutdown()
        self.spare.release()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Of a forked child, which has no such thread: nothing is written here, so nothing to wait
        # for. In the parent `close` was called.
        if self._fd >= 0:
            os.close(self._fd)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)

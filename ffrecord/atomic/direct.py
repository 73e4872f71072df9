"""Write large buffers with O_DIRECT, bypassing the page cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class DirectWriter:
    """Writes each buffer with O_DIRECT while the caller fills the next one.

    The writes run in a thread. Linux AIO would not help: it blocks when a write extends a file.
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
        """Return a writer for the file of `fd`; None if O_DIRECT is not supported.

        `memory` returns a new buffer.
        """
        try:
            again = f"/proc/self/fd/{fd}"
            return cls(os.open(again, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC), fd, memory)
        except OSError:  # no O_DIRECT on this file system, or no /proc
            return None

    def swap(self, full: memoryview, offset: int) -> memoryview:
        """Begin to write a full buffer at `offset`, and return another one to fill."""
        self.wait()
        other, self.spare = self.spare, full
        if other is full:  # the caller filled `spare` itself: it is the first buffer
            other = self._new_memory()
        try:
            self._writing = self._thread.submit(self._write, full, offset)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            self._write(full, offset)
        return other

    def _write(self, full: memoryview, offset: int) -> None:
        """Write a buffer with O_DIRECT, or through the page cache if that fails with EINVAL.

        Some file systems open files with O_DIRECT but cannot write them. Some end a write at an
        unaligned byte, so that the rest is unaligned.
        """
        try:
            write_all(self._fd, full, offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            write_all(self._buffered_fd, full, offset)

    def wait(self) -> None:
        """Wait until the last buffer is written. Raises the error of that write."""
        writing = self._writing
        if writing is not None:
            try:
                writing.result()
            finally:
                if writing.done():  # otherwise a signal interrupted this wait, not the write
                    self._writing = None

    def close(self) -> None:
        """Wait for the last write, then close the descriptor.

        The thread must not write after that: another file may get the descriptor's number.
        """
        if self._writing is not None:
            self._writing.exception()
            self._writing = None
        self._thread.shutdown()
        self.spare.release()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Only a forked child gets here with an open descriptor: the process that made this object
        # calls `close`. The child has no thread, so no write is pending.
        if self._fd >= 0:
            os.close(self._fd)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)

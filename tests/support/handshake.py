"""Real mounts without a daemon: tests answer FUSE_INIT by hand, and no later request.

A stat of such a mountpoint waits for ever. Only operations that the kernel answers alone are safe:
O_PATH opens, umount, mountinfo. This module does not use the package.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import stat
import struct
import tempfile
import threading

import pytest

from tests.support.patience import PATIENCE

LIMIT = PATIENCE
FUSE_INIT = 26

needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="/dev/fuse is missing")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can call mount(2)")
needs_helper = pytest.mark.skipif(
    shutil.which("fusermount3") is None and shutil.which("fusermount") is None,
    reason="fusermount3 is not installed",
)


def users_can_open_the_device() -> bool:
    """Return True if ordinary users may open /dev/fuse, as on most systems.

    fusermount3 opens it with the rights of its user.
    """
    return os.path.exists("/dev/fuse") and os.stat("/dev/fuse").st_mode & 0o006 == 0o006


def let_users_open_the_device() -> None:
    """Let ordinary users open /dev/fuse, in this process and its children only.

    A /dev/fuse with other rights hides the real one, in a mount namespace of this process. Later
    mounts are visible in this namespace only, and end with its last process.
    """
    if users_can_open_the_device():
        return
    _system_call("unshare", 0x20000)  # CLONE_NEWNS
    _system_call("mount", None, b"/", None, 1 << 18 | 1 << 14, None)  # MS_PRIVATE, MS_REC
    with tempfile.TemporaryDirectory() as folder:
        node = os.path.join(folder, "fuse")
        os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(10, 229))
        os.chmod(node, 0o666)
        _system_call("mount", os.fsencode(node), b"/dev/fuse", None, 1 << 12, None)  # MS_BIND


def _system_call(name: str, *arguments: int | bytes | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def answer_init(fd: int) -> None:
    """Take the first request, which must be FUSE_INIT, and agree to protocol 7.31."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(LIMIT * 1000), "no request came"
    request = os.read(fd, 1 << 17)
    length, opcode, unique = struct.unpack_from("<IIQ", request)
    assert (length, opcode) == (len(request), FUSE_INIT)
    reply = struct.pack("<IIIIHHIIHH32x", 7, 31, 1 << 17, 0, 16, 12, 1 << 12, 1, 0, 0)
    os.write(fd, struct.pack("<IiQ", 16 + len(reply), 0, unique) + reply)


def escaped(path: str) -> bytes:
    """Return a mountpoint as the kernel writes it into mountinfo."""
    special = b" \t\n\\"
    return b"".join(b"\\%03o" % c if c in special else bytes([c]) for c in os.fsencode(path))


def mount_line(path: str) -> list[str] | None:
    """Return the fields of the last mount at exactly this path; None if there is no mount."""
    with open("/proc/self/mountinfo", "rb") as file:
        lines = [line.split(b" ") for line in file.read().split(b"\n")]
    found = [line for line in lines if len(line) > 4 and line[4] == escaped(path)]
    return [os.fsdecode(field) for field in found[-1]] if found else None


def detach(path: str) -> None:
    """Unmount everything at a path, even a dead or busy mount."""
    while mount_line(path) is not None:
        _system_call("umount2", os.fsencode(path), 2 | 8)  # MNT_DETACH, UMOUNT_NOFOLLOW


class Cleanup:
    """Closes the descriptors of a test, early if it hangs, and unmounts its mountpoints.

    Closing a descriptor aborts its connection, so a process that waits for an answer gets an error.
    """

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._mountpoints: list[str] = []
        self._alarm = threading.Timer(LIMIT, self.close_descriptors)
        self._alarm.daemon = True
        self._alarm.start()

    def descriptor(self, fd: int) -> int:
        self._descriptors.append(fd)
        return fd

    def mountpoint(self, path: str) -> str:
        self._mountpoints.append(path)
        return path

    def close(self, fd: int) -> None:
        """Close a descriptor now.

        A test must not use os.close: `run` would then close another file that got the same number.
        """
        self._descriptors.remove(fd)
        os.close(fd)

    def close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def run(self) -> None:
        self._alarm.cancel()
        self._alarm.join()
        self.close_descriptors()
        for path in self._mountpoints:
            detach(path)

"""Mount a writable overlay over an archive, which itself never changes.

Root uses overlayfs of the kernel. Other users, the root of a user namespace, and kernels before
Linux 5.11 use the program fuse-overlayfs. Its descriptor of /dev/fuse is mounted here, so the mount
table has our label.

The archive is first mounted on `CHANGES/lower`. Once the overlay is mounted, that place is given
up, because the overlay holds the archive's mount by itself. So one mount is visible, every
umount(2) of it ends both, and no accident leaves the lower one behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import subprocess
from dataclasses import replace
from types import TracebackType

from ffrecord.disk import libc
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting import mount as mounting
from ffrecord_fuse.mounting.changes import (
    BY_HELPER,
    BY_KERNEL,
    LOWER,
    UPPER,
    WORK,
    Changes,
    Origin,
    Top,
)
from ffrecord_fuse.mounting.mounttable import (
    FUSE_OVERLAY_TYPE,
    OVERLAY_TYPE,
    find,
    overlay_label,
    resolve,
)
from ffrecord_fuse.mounting.options import Options

HELPER = "fuse-overlayfs"
ANSWER_SECONDS = 60.0
"""The longest wait for mounting the overlay. The archive's mount must answer meanwhile."""

# Folders can be renamed (redirect_dir), which needs a note in `upper` about the former name. All
# files have the same st_dev (xino). The other features would compare the archive's mount with the
# one of the time before, and find another. A kernel may have other defaults, so all are named.
_SETTINGS = "redirect_dir=on,index=off,metacopy=off,nfs_export=off,xino=on"
_CAP_DAC_READ_SEARCH = 2
_SINCE = (5, 11)  # before, overlayfs made handles without that capability too
_INITIAL_USERS = ["0", "0", "4294967295"]  # /proc/self/uid_map outside of user namespaces


def with_owner(options: Options) -> Options:
    """Return the options for the archive under an overlay of this user.

    An ordinary user can change only files of his own, and give files to nobody else. So all files
    are shown as his, as after `ffrecord extract`, unless the options name another owner.
    """
    if _keeper() == BY_KERNEL:
        return options
    uid = os.geteuid() if options.uid is None else options.uid
    gid = os.getegid() if options.gid is None else options.gid
    return replace(options, uid=uid, gid=gid)


class Place:
    """Where an archive is mounted, and where its users find it. Without an overlay, both agree."""

    has_overlay = False
    separates_links = False
    """Whether the archive must be shown without hard links."""
    facts = ""
    """More for the line of the log about the mount."""

    def __init__(self, mountpoint: str, options: Options) -> None:
        self.mountpoint = mountpoint
        self.lower = mountpoint
        """The mountpoint of the archive."""
        self.options = options
        """The options for mounting the archive."""

    def cover(self) -> None:
        """Mount the overlay, if there is one, after the archive's mount answers."""

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        pass


class Overlay(Place):
    """An overlay over an archive. If the `with` block fails, nothing is left of it.

    Args:
        mountpoint: the folder where the merged files appear.
        options: the options of the mount; `options.overlay` is the folder with the changes.
        origin: the archive.
        top: the attributes of its root folder.
    """

    has_overlay = True

    def __init__(self, mountpoint: str, options: Options, origin: Origin, top: Top) -> None:
        # The overlay reads as the user who mounts, so nobody else needs access to the archive.
        super().__init__(mountpoint, replace(options, allow_other=False))
        assert options.overlay is not None
        self._options = options
        self._origin = origin
        if mounting.inherited_descriptor(mountpoint) is not None:
            why = "an overlay cannot be mounted from outside; name a folder as the mountpoint"
            raise MountError(mountpoint, errno.EINVAL, why)
        mounting.check_folder(mountpoint)
        keeper = _keeper()
        if keeper == BY_HELPER:
            _refuse_for_helper(mountpoint, resolve(options.overlay))
        is_held = self._is_held if keeper == BY_KERNEL else lambda fd: False
        self._changes = Changes(options.overlay, mountpoint, origin, top, keeper, is_held)
        self.lower = self._changes.lower
        # fuse-overlayfs mixes up the names of a hard link below it, and loses changes.
        self.separates_links = keeper == BY_HELPER
        self.facts = f", changes in {self._changes.path} by {keeper}"

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._undo()
        self._changes.close()

    def cover(self) -> None:
        """Mount the overlay, then give up the place of the archive's mount.

        A child process does it. It can be killed if the archive's mount does not answer.
        """
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            os.close(told)
            code = 1
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the helper inherits the mask
                self._cover()
                code = 0
            except MountError as error:
                os.write(tell, os.fsencode(error.strerror or ""))
            finally:
                os._exit(code)
        os.close(tell)
        with open(told, "rb") as pipe:
            answer = select.poll()  # select() takes no descriptor above 1023
            answer.register(pipe, select.POLLIN)
            if not answer.poll(1000 * ANSWER_SECONDS):
                os.kill(child, signal.SIGKILL)
            said = os.fsdecode(pipe.read())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            why = said or "the archive's mount did not answer; mount again"
            raise MountError(self.mountpoint, errno.EIO, why)

    def _cover(self) -> None:
        label = overlay_label(self._origin.archive, self._changes.path, find(self.lower))
        if self._changes.keeper == BY_KERNEL:
            self._mount_by_kernel(label)
        else:
            self._mount_by_helper(label)
        mounting.unmount(self.lower, lazy=True)

    def _mount_by_kernel(self, label: str) -> None:
        """Mount by mount(2). Overlayfs later acts with the rights that this process has now.

        With CAP_DAC_READ_SEARCH, overlayfs would note in `upper` by a handle which file of the
        archive a changed file was. In the next mount, it would look for that handle, and a changed
        file that was renamed would fail with ESTALE: FUSE cannot revalidate a file without a name.
        CAP_DAC_OVERRIDE includes the rest of that right.
        """
        flags = mounting.flags(self._options, OVERLAY_TYPE)
        libc.lay_down_capability(_CAP_DAC_READ_SEARCH)
        try:
            # Paths of descriptors need no escapes and are short: mount(2) takes 4095 bytes.
            settings = f"{_folders(self._changes.fd)},{_SETTINGS}"
            libc.mount(label, resolve(self.mountpoint), OVERLAY_TYPE, flags, settings)
        except OSError as error:
            raise self._refused(error) from None

    def _refused(self, error: OSError) -> MountError:
        if error.errno == errno.ENODEV:
            return MountError(self.mountpoint, errno.ENODEV, _NO_OVERLAYFS)
        if error.errno == errno.EINVAL:
            why = (
                f"the kernel cannot keep changes in {self._changes.path}, and `dmesg` says why; "
                "choose a folder on a local disk"
            )
            return MountError(self.mountpoint, errno.EINVAL, why)
        return mounting.refused(self.mountpoint, error)

    def _mount_by_helper(self, label: str) -> None:
        fd = mounting.mount(label, self.mountpoint, self._options, type_=FUSE_OVERLAY_TYPE)
        try:
            os.set_blocking(fd, True)  # libfuse waits in read(2)
            # The helper inherits the locked folder, and keeps it as long as it serves.
            folders = f"lowerdir={LOWER},upperdir={UPPER},workdir={WORK}"
            done = subprocess.run(
                [HELPER, "-o", folders, f"/dev/fd/{fd}"],
                cwd=f"/proc/self/fd/{self._changes.fd}", pass_fds=(fd, self._changes.fd),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                check=False,
            )  # fmt: skip
        finally:
            os.close(fd)
        if done.returncode:
            said = " ".join(os.fsdecode(done.stderr).split()) or f"exit code {done.returncode}"
            raise MountError(self.mountpoint, errno.EIO, f"{HELPER} failed: {said}")

    def _is_held(self, fd: int) -> bool:
        """Return True if overlayfs uses `upper` already, in any mount namespace.

        No process holds the lock if the kernel serves the archive. But with `index=on`, the kernel
        answers EBUSY for such a folder, before it refuses the `work` folder given here. This never
        mounts anything.
        """
        try:
            wrong = f"{_folders(fd, work=UPPER)},index=on"
            libc.mount("none", resolve(self.mountpoint), OVERLAY_TYPE, 0, wrong)
        except OSError as error:
            return error.errno == errno.EBUSY
        mounting.unmount(self.mountpoint)
        return False

    def _undo(self) -> None:
        """Remove the mounts and the new files of a failed attempt."""
        with contextlib.suppress(MountError, OSError):
            entry = find(self.mountpoint)
            if entry is not None and entry.changes == self._changes.path:
                mounting.unmount(self.mountpoint, lazy=True)
        with contextlib.suppress(MountError, OSError):
            if find(self.lower) is not None:
                mounting.unmount(self.lower, lazy=True)
        self._changes.discard()


def _folders(fd: int, work: str = WORK) -> str:
    place = f"/proc/self/fd/{fd}"
    return f"lowerdir={place}/{LOWER},upperdir={place}/{UPPER},workdir={place}/{work}"


def _refuse_for_helper(mountpoint: str, changes: str) -> None:
    """Raise MountError if fuse-overlayfs is missing or cannot use the folder of changes.

    It resolves the paths of its folders, then splits them at colons, and would use a folder that
    happens to have the name before the colon. Its versions before 2025 know no escaped colons.
    """
    if shutil.which(HELPER) is None:
        raise MountError(mountpoint, errno.ENOENT, _NO_HELPER)
    if ":" in changes:
        raise MountError(changes, errno.EINVAL, _COLON)


def _keeper() -> str:
    """Return the program that keeps this user's changes."""
    with open("/proc/self/uid_map") as file:
        is_initial = file.read().split() == _INITIAL_USERS
    version = tuple(map(int, re.findall(r"[0-9]+", os.uname().release)[:2]))
    is_able = os.geteuid() == 0 and is_initial and version >= _SINCE
    return BY_KERNEL if is_able else BY_HELPER


_NO_HELPER = (
    f"{HELPER} is missing, and only root can mount an overlay without it; "
    f"install the package {HELPER}, or run the command as root"
)
_COLON = (
    f"{HELPER} splits paths at colons; choose a path without ':' for the changes, "
    "or run the command as root"
)
_NO_OVERLAYFS = "this kernel has no overlayfs; load its module with `modprobe overlay`"

"""Mount and unmount: by mount(2), by fusermount3, or with a descriptor that was passed in.

`mount` returns a descriptor of /dev/fuse that is mounted. The kernel's first request, FUSE_INIT,
waits there. Until FUSE_INIT is answered, every program that looks at the mountpoint waits. When the
last copy of the descriptor is closed, a dead mount stays (ENOTCONN). That is better than an empty
folder, which could be mistaken for the data.

There are three ways to mount:

- Root calls mount(2).
- Other users run fusermount3, which is setuid root. It applies the rules of /etc/fuse.conf and
  passes the descriptor back over a socket.
- Another program, such as a container runtime, has mounted already: the mountpoint is `/dev/fd/N`.

This module never looks into a mounted file system: a daemon that hangs would make the caller hang,
and on a dead mount even lstat fails. The mount table (`mounttable`) shows what is mounted where.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import select
import shlex
import shutil
import socket
import stat
import subprocess

from ffrecord.disk import libc
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mounttable import (
    FUSE_TYPE,
    NOT_MOUNTED,
    OVERLAY_TYPES,
    MountEntry,
    entries,
    find,
    places_of,
    resolve,
    shown,
)
from ffrecord_fuse.mounting.options import Options, escape

_DEVICE = "/dev/fuse"
_DEVICE_NUMBER = os.makedev(10, 229)
_ROOT_MODE = 0o40755  # until the kernel asks for the attributes of the root

# <sys/mount.h>
_FOR_OVERLAYS = ("nosuid", "nodev")
_ALWAYS = ("ro", *_FOR_OVERLAYS)
_FLAGS = {
    "ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048,
}  # fmt: skip
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def mount(source: str, mountpoint: str, options: Options, *, type_: str = FUSE_TYPE) -> int:
    """Mount, and return the descriptor to serve from: non-blocking, closed on exec.

    `source` is only a label, which `df`, `findmnt` and error messages show. The kernel has no
    `allow_root`, so the mount asks for `allow_other`. The mode of the root folder then keeps other
    users out (`Ownership.keeper`).
    """
    inherited = inherited_descriptor(mountpoint)
    if inherited is not None:
        return _take_over(mountpoint, inherited)
    check(mountpoint)
    folder = resolve(mountpoint)
    if os.geteuid() == 0:
        return _mount_directly(source, mountpoint, folder, options, type_)
    return _mount_by_helper(source, mountpoint, folder, options, type_)


def check(mountpoint: str) -> None:
    """Raise MountError if mounting there is certain to fail."""
    check_folder(mountpoint)
    if not os.path.exists(_DEVICE):
        raise MountError(mountpoint, errno.ENODEV, _NO_DEVICE)


def words(source: str, options: Options, type_: str = FUSE_TYPE) -> list[str]:
    """Return the words of an `-o` string for fusermount3 and libfuse."""
    # fusermount3 cuts the name out of the -o string. The name comes last, so that it cannot damage
    # other words. fusermount3 also looks for its `x-…` words after every comma, escaped or not:
    # hence the second escape.
    name = escape(shown(source)).replace(",x", ",\\x")
    subtype = type_.removeprefix("fuse.")
    return [
        *flag_names(options, type_), *_access(options), f"subtype={subtype}", f"fsname={name}"
    ]  # fmt: skip


def unmount(mountpoint: str, *, lazy: bool = False) -> None:
    """Unmount, even if the daemon is dead. With `lazy`, also while programs use the mount."""
    folder = resolve(mountpoint)
    entry = find(mountpoint)
    if entry is None:
        raise _vacant(mountpoint, folder)
    if not entry.is_ours:
        why = f"the file system mounted here ({entry.type}) is not an archive; use umount(8)"
        raise MountError(mountpoint, errno.EINVAL, why)
    if os.geteuid() == 0:
        _unmount_directly(mountpoint, folder, lazy)
    elif not entry.is_fuse:
        raise MountError(mountpoint, errno.EPERM, _ONLY_ROOT)
    else:
        _unmount_by_helper(mountpoint, folder, lazy)


def inherited_descriptor(mountpoint: str) -> int | None:
    """Return N for the mountpoint `/dev/fd/N`, and None for any other.

    The program that made such a mount also unmounts it.
    """
    match = re.fullmatch(r"/dev/fd/([0-9]{1,9})", mountpoint)
    return None if match is None else int(match[1])


# ---- checks and messages for all ways of mounting --------------------------------------------

_NO_DEVICE = (
    f"cannot mount, because {_DEVICE} is missing; load the kernel module with `modprobe fuse`, "
    f"or start the container with --device {_DEVICE}"
)
_NO_HELPER = (
    "fusermount3 is missing, and only root can mount and unmount without it; "
    "install the package fuse3, or run the command as root"
)
_BUSY = (
    "the mount is in use; end the programs that `fuser -vm` shows for it, "
    "or unmount lazily with `ffrecord umount`"
)


def check_folder(mountpoint: str) -> None:
    """Check that the folder is empty and not a mountpoint: a mount would hide its files."""
    folder = resolve(mountpoint)
    entry = find(folder)
    if entry is not None:
        raise MountError(mountpoint, errno.EBUSY, _occupied(mountpoint, entry))
    try:
        with os.scandir(folder) as inside:
            is_empty = next(inside, None) is None
    except OSError as error:
        why = _NO_FOLDER.get(error.errno or 0, f"cannot mount here: {error.strerror}")
        raise MountError(mountpoint, error.errno or errno.EIO, why) from None
    if not is_empty:
        why = "the folder is not empty, and a mount would hide its files; choose an empty folder"
        raise MountError(mountpoint, errno.ENOTEMPTY, why)


def _occupied(mountpoint: str, entry: MountEntry) -> str:
    command = f"ffrecord umount {shlex.quote(mountpoint)}"
    archive = entry.archive
    if archive is not None and os.geteuid() in (0, entry.user):
        return f"{archive} is already mounted here; run `{command}` first"
    if archive is not None:
        who = _user_name(entry.user)
        they = who if entry.user == 0 else f"{who} or root"
        return (
            f"{archive} is already mounted here by {who}; choose another folder, "
            f"or ask {they} to run `{command}`"
        )
    return f"a file system ({entry.type}) is already mounted here; choose another folder"


def _vacant(mountpoint: str, folder: str) -> MountError:
    """Return the error for a path where nothing can be unmounted."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return MountError(mountpoint, errno.ENOENT, _NO_SUCH_FOLDER)
    except OSError:  # no permission to look, or inside a dead mount
        pass
    places = places_of(os.path.abspath(mountpoint))
    if places:
        why = f"this is the archive, not its mountpoint; unmount {' and '.join(places)} instead"
        return MountError(mountpoint, errno.EINVAL, why)
    places = [each.mountpoint for each in entries() if each.changes == folder]
    if places:
        why = f"this folder has the changes of a mount; unmount {places[0]} instead"
        return MountError(mountpoint, errno.EINVAL, why)
    return MountError(mountpoint, errno.EINVAL, NOT_MOUNTED)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


_ONLY_ROOT = "the kernel serves this mount, and only root can unmount it; run the command as root"
_NO_SUCH_FOLDER = (
    "the folder does not exist; `ffrecord umount --list` shows where archives are mounted"
)
_NO_FOLDER = {
    errno.ENOENT: "the folder does not exist; create it with `mkdir -p`",
    errno.ENOTDIR: "not a folder; choose an empty folder",
    errno.EACCES: "you have no permission to open this folder; choose a folder of your own",
}


def flag_names(options: Options, type_: str = FUSE_TYPE) -> list[str]:
    """Return the names of the mount's flags, without duplicates."""
    always = _FOR_OVERLAYS if type_ in OVERLAY_TYPES else _ALWAYS
    return list(dict.fromkeys((*always, *options.kernel)))


def flags(options: Options, type_: str) -> int:
    """Return the flags of mount(2)."""
    return sum(_FLAGS[name] for name in flag_names(options, type_))


def has_flags(entry: MountEntry, options: Options) -> bool:
    """Return True if a mount has the flags that the options ask for, and no others."""
    return set(flag_names(options, entry.type)) == _FLAGS.keys() & set(entry.options)


def _access(options: Options) -> list[str]:
    everybody = options.allow_other or options.allow_root
    return ["default_permissions", *(["allow_other"] if everybody else [])]


# ---- root ------------------------------------------------------------------------------------


def _mount_directly(source: str, mountpoint: str, folder: str, options: Options, type_: str) -> int:
    with contextlib.ExitStack() as on_failure:
        fd = _open_device(mountpoint)
        on_failure.callback(os.close, fd)
        settings = [
            f"fd={fd}", f"rootmode={_ROOT_MODE:o}",
            f"user_id={os.getuid()}", f"group_id={os.getgid()}", *_access(options),
        ]  # fmt: skip
        try:
            libc.mount(shown(source), folder, type_, flags(options, type_), ",".join(settings))
        except OSError as error:
            raise refused(mountpoint, error) from None
        on_failure.pop_all()
        return fd


def refused(mountpoint: str, error: OSError) -> MountError:
    """Return the error for a failed mount(2), with the next step for the user."""
    code = error.errno or errno.EIO
    why = _MOUNT_REFUSED.get(code, f"cannot mount here: {error.strerror}")
    return MountError(mountpoint, code, why)


def _open_device(mountpoint: str) -> int:
    try:
        return os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            why = _NO_DEVICE
        else:
            why = (
                f"cannot open {_DEVICE}: {error.strerror}; allow it with `chmod 666 {_DEVICE}`, "
                f"or start the container with --device {_DEVICE}"
            )
        raise MountError(mountpoint, error.errno or errno.EIO, why) from None


_MOUNT_REFUSED = {
    errno.EPERM: (
        "root has no right to mount here; start the container with --cap-add SYS_ADMIN, "
        "or mount outside of it and pass the mount in as /dev/fd/N"
    ),
    errno.ENODEV: _NO_DEVICE,
    errno.ENOSPC: (
        "too many file systems are mounted; unmount some, or raise the limit with "
        "`sysctl fs.mount-max`"
    ),
}


def _unmount_directly(mountpoint: str, folder: str, lazy: bool) -> None:
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    try:
        libc.umount(folder, flags)
    except OSError as error:
        code = error.errno or errno.EIO
        why = _UNMOUNT_REFUSED.get(code, f"cannot unmount: {error.strerror}")
        raise MountError(mountpoint, code, why) from None


_UNMOUNT_REFUSED = {
    errno.EBUSY: _BUSY,
    errno.EINVAL: NOT_MOUNTED,
    errno.EPERM: "root has no right to unmount here; unmount outside of the container",
}


# ---- other users: fusermount3 ----------------------------------------------------------------


def _mount_by_helper(
    source: str, mountpoint: str, folder: str, options: Options, type_: str
) -> int:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            environment = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
            said = _run_helper(
                mountpoint, ["-o", ",".join(words(source, options, type_)), "--", folder],
                environment=environment, descriptors=(theirs.fileno(),),
            )  # fmt: skip
        if said is not None:
            raise refusal(mountpoint, said, options)
        return _received(mountpoint, ours)


def _run_helper(
    mountpoint: str, arguments: list[str], environment: dict[str, str] | None = None,
    descriptors: tuple[int, ...] = (),
) -> str | None:  # fmt: skip
    """Run fusermount3; return None if it succeeded, otherwise its message."""
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    if helper is None:
        raise MountError(mountpoint, errno.ENOENT, _NO_HELPER)
    result = subprocess.run(
        [helper, *arguments], env=environment, pass_fds=descriptors, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    if result.returncode == 0:
        return None
    said = os.fsdecode(result.stderr).strip()
    return " ".join(said.split()) or f"{helper} failed with exit code {result.returncode}"


def _received(mountpoint: str, ours: socket.socket) -> int:
    # recv_fds ignores its flags argument, so close-on-exec is set below.
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        why = (
            "fusermount3 mounted the archive but returned no descriptor; "
            "check `which fusermount3`, then remove the mount with `ffrecord umount`"
        )
        raise MountError(mountpoint, errno.EPROTO, why)
    os.set_inheritable(descriptors[0], False)
    os.set_blocking(descriptors[0], False)
    return descriptors[0]


_NOT_FOR_USERS = "'user_allow_other' is set"
# rows: a part of fusermount3's message, our errno, our message
_SAID_OF_MOUNTING = (
    (_NOT_FOR_USERS, errno.EPERM,
        "allow_other needs root, or the line user_allow_other in /etc/fuse.conf; "
        "add that line as root, or leave the option out"),
    ("no write access", errno.EACCES,
        "you have no permission to write to this folder; choose a folder that you can write to"),
    ("not owned by user", errno.EACCES,
        "this folder is sticky and belongs to another user; choose a folder of your own"),
    ("too many FUSE filesystems", errno.ENOSPC,
        "the limit of FUSE mounts for all users is reached; unmount some, "
        "or raise mount_max in /etc/fuse.conf as root"),
    ("mounting over filesystem type", errno.EPERM,
        "users cannot mount on this type of file system; choose a folder on a local disk"),
    ("device not found", errno.ENODEV, _NO_DEVICE),
    (f"failed to open {_DEVICE}", errno.EACCES,
        f"users have no permission to open {_DEVICE}; run `chmod 666 {_DEVICE}` as root"),
    ("Operation not permitted", errno.EPERM,
        "fusermount3 has no right to mount; it must be setuid root, "
        "and a container needs --cap-add SYS_ADMIN"),
)  # fmt: skip
_ALLOW_ROOT = (
    "allow_root needs root, or the line user_allow_other in /etc/fuse.conf, as allow_other does; "
    "add that line as root, or leave the option out"
)


def refusal(mountpoint: str, said: str, options: Options) -> MountError:
    """Return the error for a message of fusermount3, with the next step for the user."""
    if options.allow_root and _NOT_FOR_USERS in said:  # fusermount3 was given allow_other
        return MountError(mountpoint, errno.EPERM, _ALLOW_ROOT)
    for part, code, why in _SAID_OF_MOUNTING:
        if part in said:
            return MountError(mountpoint, code, why)
    return MountError(mountpoint, errno.EIO, f"cannot mount here: {said}")


def _unmount_by_helper(mountpoint: str, folder: str, lazy: bool) -> None:
    said = _run_helper(mountpoint, ["-u", *(["-z"] if lazy else []), "--", folder])
    if said is None:
        return
    if os.strerror(errno.EBUSY) in said:
        raise MountError(mountpoint, errno.EBUSY, _BUSY)
    if "not found in" in said or os.strerror(errno.EPERM) in said:
        why = "another user made this mount; unmount it as that user or as root"
        raise MountError(mountpoint, errno.EPERM, why)
    raise MountError(mountpoint, errno.EIO, f"cannot unmount: {said}")


# ---- mounted by another program --------------------------------------------------------------


def _take_over(mountpoint: str, fd: int) -> int:
    try:
        status = os.fstat(fd)
    except OSError:
        why = "this descriptor is not open; the program that mounts must pass it on"
        raise MountError(mountpoint, errno.EBADF, why) from None
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _DEVICE_NUMBER:
        why = f"this descriptor is not {_DEVICE}; pass the number of an open {_DEVICE}"
        raise MountError(mountpoint, errno.ENODEV, why)
    if is_unmounted(fd):
        why = f"this descriptor of {_DEVICE} is not mounted; mount it first, then pass it on"
        raise MountError(mountpoint, errno.ENOTCONN, why)
    os.set_blocking(fd, False)
    os.set_inheritable(fd, False)
    return fd


def is_unmounted(fd: int) -> bool:
    """Return True if a descriptor of /dev/fuse was never mounted, or was unmounted."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))  # POLLERR

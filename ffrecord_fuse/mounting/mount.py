"""Mounting and unmounting: /dev/fuse, mount(2), fusermount3, a descriptor that was handed in.

`mount` returns a descriptor that is mounted and waits for its first request, FUSE_INIT. Until that
is answered, whoever looks at the mount point waits; when the last copy of the descriptor is closed,
the mount stays as a dead one (ENOTCONN), so that nobody takes an empty folder for the data.

Root calls mount(2). Others ask fusermount3, which is setuid root, decides what they may (its rules
are in /etc/fuse.conf), and passes the descriptor back over a socket. Someone else may have mounted
already, as container runtimes do: then the mount point is `/dev/fd/N`.

Nothing here looks into a mounted file system: a daemon that hangs would hang us too, and one that
died lets not even lstat through. `mounttable` knows what is mounted where.
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
from ffrecord_fuse.mounting.mounttable import NOT_MOUNTED, MountEntry, find, places_of, resolve
from ffrecord_fuse.mounting.options import Options, escape

TYPE = "fuse.ffrecord"

_DEVICE = "/dev/fuse"
_DEVICE_NUMBER = os.makedev(10, 229)
_MAX_SOURCE = 4095  # bytes: mount(2) takes no longer names

# <sys/mount.h>
_ALWAYS = ("ro", "nosuid", "nodev")
_FLAGS = {
    "ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048,
}  # fmt: skip
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def mount(source: str, mountpoint: str, options: Options, *, root_mode: int = 0o40755) -> int:
    """Mount, and return the descriptor to serve it by: non-blocking, closed on exec.

    `source` is only shown, by `df` and `findmnt`. The kernel knows no `allow_root`: it is asked for
    `allow_other`, and turns others away by the mode of the root folder (`Ownership.keeper`).
    """
    inherited = inherited_descriptor(mountpoint)
    if inherited is not None:
        return _take_over(mountpoint, inherited)
    check(mountpoint)
    folder = resolve(mountpoint)
    if os.geteuid() == 0:
        return _mount_directly(source, mountpoint, folder, options, root_mode)
    return _mount_by_helper(source, mountpoint, folder, options)


def check(mountpoint: str) -> None:
    """Raise MountError if it can be seen in advance that nothing can be mounted there."""
    _check_folder(mountpoint, resolve(mountpoint))
    if not os.path.exists(_DEVICE):
        raise MountError(mountpoint, errno.ENODEV, _NO_DEVICE)


def words(source: str, options: Options) -> list[str]:
    """A mount as an `-o` string of fusermount3 and libfuse."""
    # fusermount3 takes the name out of its -o by itself; last, so that it can harm no other. It
    # also looks for its own `x-…` words, at every comma, escaped or not: hence the second escape.
    name = escape(_shown(source)).replace(",x", ",\\x")
    return [*_names(options), *_access(options), "subtype=ffrecord", f"fsname={name}"]


def unmount(mountpoint: str, *, lazy: bool = False) -> None:
    """Unmount, also a mount whose daemon is dead. Lazy: now, though somebody still uses it."""
    folder = resolve(mountpoint)
    entry = find(mountpoint)
    if entry is None:
        raise _vacant(mountpoint, folder)
    if not entry.is_fuse:
        why = f"{entry.type} is mounted here, not an archive: umount(8) is for that"
        raise MountError(mountpoint, errno.EINVAL, why)
    if os.geteuid() == 0:
        _unmount_directly(mountpoint, folder, lazy)
    else:
        _unmount_by_helper(mountpoint, folder, lazy)


def inherited_descriptor(mountpoint: str) -> int | None:
    """N of `/dev/fd/N`. Such a mount is unmounted by whoever made it."""
    match = re.fullmatch(r"/dev/fd/([0-9]{1,9})", mountpoint)
    return None if match is None else int(match[1])


# ---- what every way of mounting shares -------------------------------------------------------

_NO_DEVICE = (
    f"cannot mount, there is no {_DEVICE}: load the kernel's module (modprobe fuse), "
    f"or start the container with --device {_DEVICE}"
)
_NO_HELPER = "only root can do this without fusermount3: install the package fuse3, or become root"
_BUSY = "is in use: end the programs that `fuser -vm` shows for it, or unmount lazily"


def _check_folder(mountpoint: str, folder: str) -> None:
    """A mount hides what is below it, so only an empty folder will do."""
    entry = find(folder)
    if entry is not None:
        raise MountError(mountpoint, errno.EBUSY, _occupied(mountpoint, entry))
    try:
        with os.scandir(folder) as inside:
            is_empty = next(inside, None) is None
    except OSError as error:
        why = _NO_FOLDER.get(error.errno or 0, f"cannot be mounted on: {error.strerror}")
        raise MountError(mountpoint, error.errno or errno.EIO, why) from None
    if not is_empty:
        why = "is not empty, and a mount would hide what is there: choose or make an empty folder"
        raise MountError(mountpoint, errno.ENOTEMPTY, why)


def _occupied(mountpoint: str, entry: MountEntry) -> str:
    command = f"ffrecord umount {shlex.quote(mountpoint)}"
    if entry.type == TYPE and os.geteuid() in (0, entry.user):
        return f"{entry.source} is mounted here: run `{command}` first"
    if entry.type == TYPE:
        who = _user_name(entry.user)
        they = who if entry.user == 0 else f"{who} or root"
        return (
            f"{entry.source} is mounted here by {who}: choose another folder, "
            f"or have {they} run `{command}`"
        )
    return f"a file system ({entry.type}) is mounted here: choose another folder"


def _vacant(mountpoint: str, folder: str) -> MountError:
    """Why there is nothing to unmount."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return MountError(mountpoint, errno.ENOENT, "there is no such folder")
    except OSError:  # no permission to look, or below a dead mount
        pass
    places = places_of(_shown(os.path.abspath(mountpoint)), TYPE)
    if places:
        why = f"is the archive, not where it is mounted: that is {' and '.join(places)}"
        return MountError(mountpoint, errno.EINVAL, why)
    return MountError(mountpoint, errno.EINVAL, NOT_MOUNTED)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


_NO_FOLDER = {
    errno.ENOENT: "there is no such folder: make it first (mkdir -p)",
    errno.ENOTDIR: "is not a folder: mount on an empty folder",
    errno.EACCES: "no permission to open this folder: choose one of your own",
}


def _shown(source: str) -> str:
    """A name that no reader of /proc/mounts stumbles over: some take \\r for an end of line, and
    bytes that are not UTF-8 for an error."""
    printable = "".join(each if each.isprintable() else "?" for each in source)
    return printable.encode()[:_MAX_SOURCE].decode(errors="ignore") or "ffrecord"


def _names(options: Options) -> list[str]:
    """The names of the mount's flags, each once."""
    return list(dict.fromkeys((*_ALWAYS, *options.kernel)))


def _access(options: Options) -> list[str]:
    everybody = options.allow_other or options.allow_root
    return ["default_permissions", *(["allow_other"] if everybody else [])]


# ---- root ------------------------------------------------------------------------------------


def _mount_directly(
    source: str, mountpoint: str, folder: str, options: Options, root_mode: int
) -> int:
    with contextlib.ExitStack() as on_failure:
        fd = _open_device(mountpoint)
        on_failure.callback(os.close, fd)
        settings = [
            f"fd={fd}", f"rootmode={root_mode:o}",
            f"user_id={os.getuid()}", f"group_id={os.getgid()}", *_access(options),
        ]  # fmt: skip
        flags = sum(_FLAGS[name] for name in _names(options))
        try:
            libc.mount(_shown(source), folder, TYPE, flags, ",".join(settings))
        except OSError as error:
            code = error.errno or errno.EIO
            why = _MOUNT_REFUSED.get(code, f"cannot be mounted on: {error.strerror}")
            raise MountError(mountpoint, code, why) from None
        on_failure.pop_all()
        return fd


def _open_device(mountpoint: str) -> int:
    try:
        return os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            why = _NO_DEVICE
        else:
            why = f"cannot mount, {_DEVICE} does not open: {error.strerror}"
        raise MountError(mountpoint, error.errno or errno.EIO, why) from None


_MOUNT_REFUSED = {
    errno.EPERM: (
        "this root may not mount: start the container with --cap-add SYS_ADMIN, "
        "or mount outside of it and hand in /dev/fd/N"
    ),
    errno.ENODEV: _NO_DEVICE,
    errno.ENOSPC: "too many file systems are mounted: unmount some, or raise fs.mount-max",
}


def _unmount_directly(mountpoint: str, folder: str, lazy: bool) -> None:
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    try:
        libc.umount(folder, flags)
    except OSError as error:
        code = error.errno or errno.EIO
        why = _UNMOUNT_REFUSED.get(code, f"cannot be unmounted: {error.strerror}")
        raise MountError(mountpoint, code, why) from None


_UNMOUNT_REFUSED = {
    errno.EBUSY: _BUSY,
    errno.EINVAL: NOT_MOUNTED,
    errno.EPERM: "this root may not unmount",
}


# ---- others: fusermount3 ---------------------------------------------------------------------


def _mount_by_helper(source: str, mountpoint: str, folder: str, options: Options) -> int:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            environment = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
            said = _run_helper(
                mountpoint, ["-o", ",".join(words(source, options)), "--", folder],
                environment=environment, descriptors=(theirs.fileno(),),
            )  # fmt: skip
        if said is not None:
            raise refusal(mountpoint, said, options)
        return _received(mountpoint, ours)


def _run_helper(
    mountpoint: str, arguments: list[str], environment: dict[str, str] | None = None,
    descriptors: tuple[int, ...] = (),
) -> str | None:  # fmt: skip
    """Run fusermount3; return None if it succeeded, else what it said."""
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
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)  # which forgets its flags argument
    if not descriptors:
        raise MountError(mountpoint, errno.EPROTO, "fusermount3 mounted, but passed nothing back")
    os.set_inheritable(descriptors[0], False)
    os.set_blocking(descriptors[0], False)
    return descriptors[0]


_NOT_FOR_USERS = "'user_allow_other' is set"
# what fusermount3 says -> what it means
_SAID_OF_MOUNTING = (
    (_NOT_FOR_USERS, errno.EPERM,
        "allow_other is for root only, unless /etc/fuse.conf has the line user_allow_other: "
        "have root add it, or leave the option out"),
    ("no write access", errno.EACCES,
        "no permission to mount here: choose a folder that you can write to"),
    ("not owned by user", errno.EACCES,
        "no permission to mount here: choose a folder of your own"),
    ("too many FUSE filesystems", errno.ENOSPC,
        "users have mounted too much: unmount some, or have root raise mount_max in "
        "/etc/fuse.conf"),
    ("mounting over filesystem type", errno.EPERM,
        "users may not mount on this kind of file system: choose a folder on a local disk"),
    ("device not found", errno.ENODEV, _NO_DEVICE),
    (f"failed to open {_DEVICE}", errno.EACCES,
        f"users may not open {_DEVICE}: have root allow it (chmod 666 {_DEVICE})"),
    ("Operation not permitted", errno.EPERM,
        "fusermount3 may not mount: it has to be setuid root, and a container needs SYS_ADMIN"),
)  # fmt: skip
_ALLOW_ROOT = (
    "allow_root takes the line user_allow_other in /etc/fuse.conf, as allow_other does: "
    "have root add it, or leave the option out"
)


def refusal(mountpoint: str, said: str, options: Options) -> MountError:
    """Return the error for what fusermount3 said, with what to do about it."""
    if options.allow_root and _NOT_FOR_USERS in said:  # it was asked for allow_other instead
        return MountError(mountpoint, errno.EPERM, _ALLOW_ROOT)
    for part, code, why in _SAID_OF_MOUNTING:
        if part in said:
            return MountError(mountpoint, code, why)
    return MountError(mountpoint, errno.EIO, f"cannot be mounted on: {said}")


def _unmount_by_helper(mountpoint: str, folder: str, lazy: bool) -> None:
    said = _run_helper(mountpoint, ["-u", *(["-z"] if lazy else []), "--", folder])
    if said is None:
        return
    if os.strerror(errno.EBUSY) in said:
        raise MountError(mountpoint, errno.EBUSY, _BUSY)
    if "not found in" in said or os.strerror(errno.EPERM) in said:
        why = "is another user's mount: unmount it as that user, or as root"
        raise MountError(mountpoint, errno.EPERM, why)
    raise MountError(mountpoint, errno.EIO, f"cannot be unmounted: {said}")


# ---- mounted by someone else -----------------------------------------------------------------


def _take_over(mountpoint: str, fd: int) -> int:
    try:
        status = os.fstat(fd)
    except OSError:
        why = "no such descriptor was handed in: whoever mounts has to pass it on"
        raise MountError(mountpoint, errno.EBADF, why) from None
    if not stat.S_ISCHR(status.st_mode) or status.st_rdev != _DEVICE_NUMBER:
        raise MountError(mountpoint, errno.ENODEV, f"the descriptor handed in is not {_DEVICE}")
    if is_unmounted(fd):
        why = "the descriptor handed in is not mounted, or no longer: mount it first"
        raise MountError(mountpoint, errno.ENOTCONN, why)
    os.set_blocking(fd, False)
    os.set_inheritable(fd, False)
    return fd


def is_unmounted(fd: int) -> bool:
    """Whether a descriptor of /dev/fuse has no mount: never had one, or lost it by now."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))  # POLLERR

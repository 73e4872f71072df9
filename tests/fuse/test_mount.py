"""Real mounts: as root, as an ordinary user, and with an inherited descriptor."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ffrecord import FFRecordError
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting import mount as mounting
from ffrecord_fuse.mounting import mounttable
from ffrecord_fuse.mounting.options import Options, parse
from tests.support import handmade, handshake, users
from tests.support.handshake import answer_init, mount_line, needs_fuse, needs_helper, needs_root

pytestmark = needs_fuse

NAMES = [
    "plain", "with space", "a,b", ",x-gvfs", "back\\slash", "back\\,both\\\\", "new\nline",
    "tab\there", "#hash", "\\040", "-o", "ünï-😀", "--", "trailing ", "carriage\rreturn",
    os.fsdecode(b"not-utf8-\xff"), "'\"$(x)`", "n" * 255,
]  # fmt: skip
Mounter = Callable[..., int]
NOT_IN_PASSWD = 54321


@pytest.fixture
def cleanup() -> Iterator[handshake.Cleanup]:
    cleanup = handshake.Cleanup()
    yield cleanup
    cleanup.run()


@pytest.fixture
def mounter(cleanup: handshake.Cleanup) -> Mounter:
    """Return a function that mounts, and answers FUSE_INIT by default."""

    def mount(
        folder: str, options: str = "", source: str = "/data/a.ffr", answered: bool = True
    ) -> int:
        cleanup.mountpoint(folder)
        fd = cleanup.descriptor(mounting.mount(source, folder, parse(options)))
        if answered:
            answer_init(fd)
        return fd

    return mount


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = tmp_path / "mnt"
    path.mkdir()
    return str(path)


@pytest.fixture
def an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the package see an ordinary user. Tests with a real user are further down."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def refusal(source: str, folder: str, options: Options | None = None) -> MountError:
    """Return the error of a mount, and check that the mount leaves nothing behind."""
    before = handmade.open_descriptors()
    with pytest.raises(MountError) as caught:
        mounting.mount(source, folder, options or Options())
    assert handmade.open_descriptors() == before
    line = str(caught.value)
    assert line.startswith(f"{folder}: ")
    assert "\n" not in line.removeprefix(folder)
    return caught.value


# ---- root ------------------------------------------------------------------------------------


@needs_root
def test_a_mount_is_read_only_and_keeps_devices_setuid_and_other_users_out(
    mounter: Mounter, folder: str
) -> None:
    mounter(folder)
    line = mount_line(folder)
    assert line is not None
    assert line[-3:-1] == ["fuse.ffrecord", "/data/a.ffr"]
    assert set(line[5].split(",")) == {"ro", "nosuid", "nodev", "relatime"}
    assert set(line[-1].split(",")) == {
        "ro", "user_id=0", "group_id=0", "default_permissions",
    }  # fmt: skip


@needs_root
@pytest.mark.parametrize(
    ("options", "added"),
    [
        ("noexec", {"noexec"}),
        ("noatime,nodiratime", {"noatime", "nodiratime"}),
        ("nosuid,nodev,ro,dev,suid", set()),
    ],
)
def test_requested_flags_are_added_and_none_is_removed(
    mounter: Mounter, folder: str, options: str, added: set[str]
) -> None:
    mounter(folder, options)
    line = mount_line(folder)
    assert line is not None
    assert set(line[5].split(",")) - {"relatime"} == {"ro", "nosuid", "nodev"} | added


@needs_root
@pytest.mark.parametrize("word", ["allow_other", "allow_root"])
def test_other_users_get_access_on_request(mounter: Mounter, folder: str, word: str) -> None:
    mounter(folder, word)
    line = mount_line(folder)
    assert line is not None
    assert {"allow_other", "default_permissions"} <= set(line[-1].split(","))


@needs_root
def test_the_descriptor_does_not_block_and_is_closed_on_exec(mounter: Mounter, folder: str) -> None:
    fd = mounter(folder)
    assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse"
    assert not os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    with pytest.raises(BlockingIOError):
        os.read(fd, 1 << 17)


@needs_root
@pytest.mark.parametrize("name", NAMES)
def test_a_mount_point_may_have_any_name(mounter: Mounter, tmp_path: Path, name: str) -> None:
    folder = str(tmp_path / name)
    os.mkdir(folder)
    mounter(folder)
    assert mount_line(folder) is not None
    entry = mounttable.find(folder)
    assert entry is not None
    assert (entry.mountpoint, entry.type) == (folder, "fuse.ffrecord")
    mounting.unmount(folder)
    assert mount_line(folder) is None
    assert mounttable.find(folder) is None


@needs_root
@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("a b", "a b"),
        ("a,b\\c", "a,b\\c"),
        ("a,x-b,allow_other", "a,x-b,allow_other"),
        ("#ü\\040", "#ü\\040"),
        ("a\nb\rc\x1bd", "a?b?c?d"),
        (os.fsdecode(b"\xff"), "?"),
        ("", "ffrecord"),
        ("é" * 3000, "é" * 2047),
    ],
)
def test_any_source_is_shown_and_breaks_no_line_of_the_mount_table(
    mounter: Mounter, folder: str, source: str, shown: str
) -> None:
    mounter(folder, source=source)
    entry = mounttable.find(folder)
    assert entry is not None
    assert (entry.source, entry.type) == (shown, "fuse.ffrecord")
    line = mount_line(folder)
    assert line is not None
    assert "allow_other" not in line[-1].split(",")


@needs_root
def test_unmounting_twice_is_an_error_the_second_time(mounter: Mounter, folder: str) -> None:
    mounter(folder)
    mounting.unmount(folder)
    assert mount_line(folder) is None
    with pytest.raises(MountError, match="nothing is mounted here") as caught:
        mounting.unmount(folder)
    assert caught.value.errno == errno.EINVAL
    assert os.listdir(folder) == []


def test_a_missing_folder_cannot_be_unmounted(folder: str) -> None:
    for path in (f"{folder}/missing", f"{folder}/missing/too", "/proc/self/exe/inside"):
        with pytest.raises(MountError, match="the folder does not exist") as caught:
            mounting.unmount(path)
        assert caught.value.errno == errno.ENOENT
    os.symlink("missing", f"{folder}/link")
    with pytest.raises(MountError, match="the folder does not exist"):
        mounting.unmount(f"{folder}/link")


@needs_root
def test_a_busy_mount_can_only_be_unmounted_lazily(
    mounter: Mounter, cleanup: handshake.Cleanup, folder: str
) -> None:
    fd = mounter(folder)
    user = cleanup.descriptor(os.open(folder, os.O_PATH))
    with pytest.raises(MountError, match=r"the mount is in use; .*fuser -vm.*lazily") as caught:
        mounting.unmount(folder)
    assert caught.value.errno == errno.EBUSY
    assert mount_line(folder) is not None
    mounting.unmount(folder, lazy=True)
    assert mount_line(folder) is None
    with pytest.raises(BlockingIOError):  # the connection lives while a program uses it
        os.read(fd, 1 << 17)
    cleanup.close(user)
    with pytest.raises(OSError, match="No such device") as ended:
        os.read(fd, 1 << 17)
    assert ended.value.errno == errno.ENODEV


@needs_root
@pytest.mark.parametrize("lazy", [False, True])
def test_a_dead_mount_can_be_found_and_unmounted(
    mounter: Mounter, cleanup: handshake.Cleanup, folder: str, lazy: bool
) -> None:
    cleanup.close(mounter(folder))
    with pytest.raises(OSError, match="not connected"):
        os.stat(folder)
    entry = mounttable.find(folder)
    assert entry is not None
    assert mounttable.connection_of(folder) == entry.minor
    mounting.unmount(folder, lazy=lazy)
    assert mount_line(folder) is None
    assert os.listdir(folder) == []


@needs_root
def test_a_mount_that_never_answers_blocks_nobody(mounter: Mounter, folder: str) -> None:
    """Without an answer to FUSE_INIT, lstat of the mountpoint would wait for ever."""
    mounter(folder, answered=False)
    assert mounttable.find(folder) is not None
    assert mounttable.connection_of(folder) > 0
    assert refusal("again", folder).errno == errno.EBUSY
    mounting.unmount(folder)
    assert mount_line(folder) is None


@needs_root
@pytest.mark.parametrize(
    "spelling", ["mnt", "./mnt/", "mnt/.", "//{here}/mnt", "sub/../mnt", "link", "far/../mnt"]
)
def test_a_mount_point_is_the_same_however_it_is_spelled(
    mounter: Mounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """`far` is a symlink to another place, so `far/..` is not the folder that holds `far`."""
    for name in ("mnt", "sub", "else", "else/far", "else/mnt"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("sub/../mnt")
    (tmp_path / "far").symlink_to(tmp_path / "else/far")
    monkeypatch.chdir(tmp_path)
    spelled = spelling.format(here=tmp_path)
    real = str(tmp_path / ("else/mnt" if "far" in spelling else "mnt"))
    assert os.path.realpath(spelled) == real
    mounter(real)
    entry = mounttable.find(spelled)
    assert entry is not None
    assert entry.mountpoint == real
    mounting.unmount(spelled)
    assert mount_line(real) is None


@needs_root
def test_mounting_on_a_symlink_mounts_on_its_target(
    mounter: Mounter, cleanup: handshake.Cleanup, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "link").symlink_to("mnt")
    cleanup.mountpoint(folder)
    mounter(str(tmp_path / "link"))
    assert mount_line(folder) is not None


@needs_root
def test_only_the_mount_point_itself_is_found(mounter: Mounter, tmp_path: Path) -> None:
    for name in ("a", "ab", "a/sub"):
        (tmp_path / name).mkdir()
    mounter(str(tmp_path / "ab"))
    for name in ("", "a", "a/sub", "missing", "missing/x"):
        assert mounttable.find(str(tmp_path / name)) is None


@needs_root
def test_the_upper_of_two_stacked_mounts_is_found_and_unmounted(
    mounter: Mounter, cleanup: handshake.Cleanup, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounter(folder, source="lower")
    with monkeypatch.context() as patch:
        patch.setattr(mounting, "check_folder", lambda *_: None)
        mounter(folder, source="upper")
    for expected in ("upper", "lower"):
        entry = mounttable.find(folder)
        assert entry is not None
        assert entry.source == expected
        mounting.unmount(folder)
    assert mounttable.find(folder) is None


@needs_root
def test_the_connection_number_equals_the_kernels(mounter: Mounter, folder: str) -> None:
    mounter(folder)
    line = mount_line(folder)
    assert line is not None
    connection = mounttable.connection_of(folder)
    assert line[2] == f"0:{connection}"
    listed = Path("/sys/fs/fuse/connections")
    if any(listed.iterdir()):  # fusectl is mounted
        assert (listed / str(connection)).is_dir()


@needs_root
def test_read_ahead_is_raised_if_permitted(mounter: Mounter, folder: str) -> None:
    mounter(folder)
    setting = Path(f"/sys/class/bdi/0:{mounttable.connection_of(folder)}/read_ahead_kb")
    if not os.access(setting, os.W_OK):
        pytest.skip("/sys is not writable")
    assert mounttable.set_read_ahead(folder, 1024) is True
    assert setting.read_text().strip() == "1024"


def test_an_unmounted_folder_has_no_connection_and_no_read_ahead(folder: str) -> None:
    assert mounttable.set_read_ahead(folder, 1024) is False
    assert mounttable.set_read_ahead("/proc", 1024) is False
    for path in (folder, "/proc"):
        with pytest.raises(MountError, match="nothing is mounted here"):
            mounttable.connection_of(path)


# ---- unsuitable mountpoints ------------------------------------------------------------------


def test_a_missing_folder_must_be_created_first(tmp_path: Path) -> None:
    error = refusal("a", str(tmp_path / "missing"))
    assert error.errno == errno.ENOENT
    assert "the folder does not exist; create it with `mkdir -p`" in str(error)


def test_a_dangling_symlink_is_a_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert refusal("a", str(tmp_path / "link")).errno == errno.ENOENT


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal("a", str(tmp_path / "file"))
    assert error.errno == errno.ENOTDIR
    assert "not a folder; choose an empty folder" in str(error)


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    error = refusal("a", str(tmp_path))
    assert error.errno == errno.ENOTEMPTY
    assert "is not empty" in str(error)


def test_a_symlink_to_itself_is_a_mount_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert refusal("a", str(tmp_path / "loop")).errno == errno.ELOOP


@pytest.mark.parametrize("name", ["nul\0", "surrogate\ud800"])
def test_a_name_that_no_file_can_have_is_a_mount_error(tmp_path: Path, name: str) -> None:
    error = refusal("a", str(tmp_path / name))
    assert "a character that no path can have, such as NUL; correct the path" in str(error)


def test_a_name_that_is_too_long_is_a_mount_error_with_the_systems_reason(tmp_path: Path) -> None:
    error = refusal("a", str(tmp_path / ("n" * 256)))
    assert "cannot mount here: File name too long" in str(error)


@needs_root
@pytest.mark.parametrize("state", ["alive", "dead"])
def test_a_mounted_folder_must_be_unmounted_first(
    mounter: Mounter, cleanup: handshake.Cleanup, folder: str, state: str
) -> None:
    fd = mounter(folder, source="/data/first.ffr")
    if state == "dead":
        cleanup.close(fd)
    error = refusal("/data/second.ffr", folder)
    assert error.errno == errno.EBUSY
    assert f"/data/first.ffr is already mounted here; run `ffrecord umount {folder}`" in str(error)


ASKED_BY_A_USER = """
try:
    mounting.mount("/data/second.ffr", sys.argv[1], Options())
except MountError as error:
    print(error)
"""


@needs_root
@pytest.mark.parametrize("state", ["alive", "dead"])
def test_a_user_who_may_not_unmount_is_told_whose_mount_it_is(
    mounter: Mounter, cleanup: handshake.Cleanup, folder: str, tmp_path: Path, state: str
) -> None:
    fd = mounter(folder, source="/data/first.ffr")
    if state == "dead":
        cleanup.close(fd)
    imports = (
        "from ffrecord_fuse.mounting import mount as mounting\n"
        "from ffrecord_fuse.errors import MountError\n"
        "from ffrecord_fuse.mounting.options import Options\n"
    )
    with users.reachable(tmp_path):
        said = users.run(ASKED_BY_A_USER, folder, imports=imports)
    assert said == (
        f"{folder}: /data/first.ffr is already mounted here by root; choose another folder, "
        f"or ask root to run `ffrecord umount {folder}`\n"
    )


@pytest.mark.parametrize(
    ("uid", "advice"),
    [
        (NOT_IN_PASSWD, "run `ffrecord umount {}` first"),
        (1000, "choose another folder, or ask user 54321 or root to run `ffrecord umount {}`"),
    ],
)
def test_the_user_who_mounted_can_unmount_even_without_a_name(
    folder: str, uid: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User 54321 has mounted; the user `uid` tries to mount on the same folder."""
    entry = mounttable.MountEntry(
        folder,
        mounttable.FUSE_TYPE,
        "/data/a.ffr",
        0,
        99,
        ("ro",),
        ("rw", f"user_id={NOT_IN_PASSWD}"),
    )
    monkeypatch.setattr(mounting, "find", lambda path: entry)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert str(refusal("b", folder)).endswith(advice.format(folder))


@needs_root
def test_a_mountpoint_is_quoted_for_the_shell(mounter: Mounter, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    mounter(str(folder))
    assert f"run `ffrecord umount '{folder}'` first" in str(refusal("b", str(folder)))


def test_other_file_systems_are_left_alone() -> None:
    error = refusal("a", "/proc")
    assert error.errno == errno.EBUSY
    assert "a file system (proc) is already mounted here; choose another folder" in str(error)
    with pytest.raises(
        MountError, match=r"mounted here \(proc\) is not an archive; use umount\(8\)"
    ):
        mounting.unmount("/proc")


# ---- unsuitable machines ---------------------------------------------------------------------


def test_a_missing_device_is_reported_with_the_next_step(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounting, "_DEVICE", str(tmp_path / "missing"))
    error = refusal("a", folder)
    assert error.errno == errno.ENODEV
    assert "/dev/fuse is missing; load the kernel module with `modprobe fuse`" in str(error)
    assert "--device /dev/fuse" in str(error)


@needs_root
def test_a_device_without_a_driver_is_reported_as_missing(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "fuse"))  # opening it fails with ENXIO, as without a driver
        monkeypatch.setattr(mounting, "_DEVICE", str(tmp_path / "fuse"))
        assert "modprobe fuse" in str(refusal("a", folder))


@needs_root
def test_a_device_that_cannot_be_opened_gives_the_reason(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounting, "_DEVICE", str(tmp_path))
    assert f"cannot open {tmp_path}: Is a directory" in str(refusal("a", folder))


@needs_root
def test_another_device_cannot_be_mounted(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(mounting, "_DEVICE", str(tmp_path / "file"))
    assert "cannot mount here: Invalid argument" in str(refusal("a", folder))
    assert mount_line(folder) is None


WITHOUT_RIGHTS = """
import sys
from ffrecord_fuse.mounting import mount
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.options import Options
for call, arguments in (
    (mount.mount, ("a", sys.argv[1], Options())),
    (mount.unmount, (sys.argv[2],)),
):
    try:
        call(*arguments)
    except MountError as error:
        print(error.errno, error)
"""


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_root_without_rights_is_told_the_missing_container_option(
    mounter: Mounter, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    mounter(str(tmp_path / "other"))
    result = subprocess.run(
        ["setpriv", "--inh-caps", "-sys_admin", "--bounding-set", "-sys_admin", sys.executable,
         "-c", WITHOUT_RIGHTS, folder, str(tmp_path / "other")],
        capture_output=True, text=True, check=True, timeout=handshake.LIMIT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    mounted, unmounted = result.stdout.splitlines()
    assert mounted.startswith(f"{errno.EPERM} {folder}: root has no right to mount here; start")
    assert "--cap-add SYS_ADMIN" in mounted
    assert unmounted.startswith(f"{errno.EPERM} {tmp_path}/other: root has no right to unmount")


# ---- answers of fusermount3 ------------------------------------------------------------------


def fake_helper(folder: Path, script: str, name: str = "fusermount3") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.usefixtures("an_ordinary_user")
def test_without_fusermount3_only_root_can_mount(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refusal("a", folder)
    assert error.errno == errno.ENOENT
    assert "fusermount3 is missing, and only root can mount and unmount without it; install" in str(
        error
    )


@pytest.mark.usefixtures("an_ordinary_user")
@pytest.mark.parametrize(
    ("said", "code", "told"),
    [
        (
            "option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
            errno.EPERM, "user_allow_other in /etc/fuse.conf; add that line as root",
        ),
        (
            "user has no write access to mountpoint /x",
            errno.EACCES, "choose a folder that you can write to",
        ),
        ("mountpoint /x not owned by user", errno.EACCES, "choose a folder of your own"),
        (
            "too many FUSE filesystems mounted; mount_max=N can be set in /etc/fuse.conf",
            errno.ENOSPC, "raise mount_max in /etc/fuse.conf as root",
        ),
        (
            "mounting over filesystem type 0x01021994 is forbidden",
            errno.EPERM, "choose a folder on a local disk",
        ),
        ("fuse device not found, try 'modprobe fuse' first", errno.ENODEV, "modprobe fuse"),
        ("failed to open /dev/fuse: Permission denied", errno.EACCES, "chmod 666 /dev/fuse"),
        ("mount failed: Operation not permitted", errno.EPERM, "it must be setuid root"),
        ("something\n  else", errno.EIO, "cannot mount here: fusermount3: something else"),
    ],
)  # fmt: skip
def test_messages_of_fusermount3_become_one_helpful_line(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, code: int, told: str
) -> None:
    (tmp_path / "said").write_text(f"fusermount3: {said}\n")
    fake_helper(tmp_path, f"/bin/cat '{tmp_path}/said' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refusal("a", folder)
    assert error.errno == code
    assert told in str(error)


@pytest.mark.usefixtures("an_ordinary_user")
@pytest.mark.parametrize("word", ["allow_other", "allow_root"])
def test_a_refusal_names_the_option_that_was_given(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """fusermount3 gets allow_other in both cases, and its message names allow_other."""
    said = "option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf"
    (tmp_path / "said").write_text(f"fusermount3: {said}\n")
    fake_helper(tmp_path, f"/bin/cat '{tmp_path}/said' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refusal("a", folder, parse(word))
    assert (error.errno, str(error).startswith(f"{folder}: {word} ")) == (errno.EPERM, True)


@pytest.mark.usefixtures("an_ordinary_user")
def test_a_helper_that_fails_silently_or_passes_nothing_is_an_error(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_helper(tmp_path, "exit 3", name="fusermount")
    assert "fusermount failed with exit code 3" in str(refusal("a", folder))
    fake_helper(tmp_path, "exit 0")
    assert "returned no descriptor" in str(refusal("a", folder))


@pytest.mark.usefixtures("an_ordinary_user")
def test_fusermount3_gets_the_name_last_and_escaped(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_helper(tmp_path, f"printf '%s\\n' \"$@\" > '{tmp_path}/asked'; exit 1")
    refusal("a,b\\c,x-d", folder, Options(kernel=("noexec", "nodev"), allow_root=True))
    assert (tmp_path / "asked").read_text().splitlines() == [
        "-o",
        "ro,nosuid,nodev,noexec,default_permissions,allow_other,subtype=ffrecord,"
        r"fsname=a\,b\\c\,\x-d",
        "--",
        folder,
    ]


# ---- a real ordinary user --------------------------------------------------------------------

IMPORTS = """
import ffrecord_fuse.mounting.mount as mounting, ffrecord_fuse.mounting.mounttable as mounttable
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.options import parse
from tests.support.handshake import answer_init, let_users_open_the_device, mount_line
let_users_open_the_device()
"""
LIFE = """
folder, source, options, end = sys.argv[1:]
try:
    fd = mounting.mount(source, folder, parse(options))
except MountError as error:
    print(json.dumps({"errno": error.errno, "line": str(error)}))
    sys.exit()
answer_init(fd)
told = {"fields": mount_line(folder), "source": mounttable.find(folder).source}
told["fd"] = [os.get_blocking(fd), os.get_inheritable(fd)]
told["read ahead"] = mounttable.set_read_ahead(folder, 1024)
if end == "lazy":
    user = os.open(folder, os.O_PATH)
    try:
        mounting.unmount(folder)
    except MountError as error:
        told["errno"], told["line"] = error.errno, str(error)
if end == "dead":
    os.close(fd)
if end != "none":
    mounting.unmount(folder, lazy=end == "lazy")
    told["after"] = mount_line(folder)
print(json.dumps(told))
"""


def life_of_a_mount(
    folder: str, source: str = "/data/a.ffr", options: str = "", end: str = "unmount"
) -> dict[str, object]:
    told = users.run(LIFE, folder, source, options, end, imports=IMPORTS)
    print(told)  # pytest shows this when the test fails
    answer: dict[str, object] = json.loads(told)
    return answer


@pytest.fixture
def theirs(tmp_path: Path, cleanup: handshake.Cleanup) -> Iterator[str]:
    """Yield a folder that belongs to an ordinary user."""
    path = tmp_path / "theirs"
    path.mkdir()
    with users.reachable(path):
        yield cleanup.mountpoint(str(path))


@needs_helper
@pytest.mark.parametrize("end", ["unmount", "lazy", "dead"])
def test_an_ordinary_user_mounts_and_unmounts(theirs: str, end: str) -> None:
    told = life_of_a_mount(theirs, end=end)
    fields = told["fields"]
    assert isinstance(fields, list)
    assert set(fields[5].split(",")) == {"ro", "nosuid", "nodev", "relatime"}
    assert fields[-3:-1] == ["fuse.ffrecord", "/data/a.ffr"]
    user = users.NOBODY if os.geteuid() == 0 else os.getuid()
    assert {f"user_id={user}", "default_permissions"} <= set(fields[-1].split(","))
    assert "allow_other" not in fields[-1].split(",")
    assert told["fd"] == [False, False]
    assert told["read ahead"] is False
    assert told["after"] is None
    if end == "lazy":
        assert told["errno"] == errno.EBUSY
        assert "is in use" in str(told["line"])


@needs_helper
def test_an_ordinary_user_s_flags_are_passed_on(theirs: str) -> None:
    fields = life_of_a_mount(theirs, options="noexec,noatime,dev,suid")["fields"]
    assert isinstance(fields, list)
    assert set(fields[5].split(",")) == {"ro", "nosuid", "nodev", "noexec", "noatime"}


@needs_helper
@pytest.mark.parametrize("name", NAMES)
def test_an_ordinary_user_s_mount_point_may_have_any_name(
    theirs: str, cleanup: handshake.Cleanup, name: str
) -> None:
    folder = cleanup.mountpoint(os.path.join(theirs, name))
    os.mkdir(folder)
    os.chown(folder, os.stat(theirs).st_uid, os.stat(theirs).st_gid)
    told = life_of_a_mount(folder)
    assert told["fields"] is not None
    assert told["after"] is None


@needs_helper
@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("a b", "a b"),
        ("a,b\\c", "a,b\\c"),
        ("a\\", "a\\"),
        ("a,x-b,allow_other", "a,x-b,allow_other"),
        ("x-a,,x", "x-a,,x"),
        ("#ü\\040", "#ü\\040"),
        ("a\nb\rc", "a?b?c"),
    ],
)
def test_an_ordinary_user_s_source_cannot_become_an_option(
    theirs: str, source: str, shown: str
) -> None:
    told = life_of_a_mount(theirs, source=source)
    fields = told["fields"]
    assert isinstance(fields, list)
    assert told["source"] == shown
    assert fields[-3] == "fuse.ffrecord"
    assert "allow_other" not in fields[-1].split(",")


@needs_helper
@pytest.mark.parametrize("word", ["allow_other", "allow_root"])
def test_access_for_other_users_needs_user_allow_other(theirs: str, word: str) -> None:
    told = life_of_a_mount(theirs, options=word)
    try:
        settings = Path("/etc/fuse.conf").read_text().splitlines()
    except FileNotFoundError:
        settings = []
    if "user_allow_other" in map(str.strip, settings):
        fields = told["fields"]
        assert isinstance(fields, list)
        assert "allow_other" in fields[-1].split(",")
    else:
        assert told["errno"] == errno.EPERM
        assert f"{word} " in str(told["line"])
        assert "the line user_allow_other" in str(told["line"])


@needs_helper
@needs_root
@pytest.mark.parametrize(
    ("mode", "told_to"),
    [(0o755, "choose a folder that you can write to"), (0o700, "choose a folder of your own")],
)
def test_an_ordinary_user_cannot_mount_on_another_user_s_folder(
    theirs: str, mode: int, told_to: str
) -> None:
    os.chown(theirs, 0, 0)
    os.chmod(theirs, mode)
    told = life_of_a_mount(theirs)
    assert told["errno"] == errno.EACCES
    assert told_to in str(told["line"])


@needs_helper
@needs_root
def test_an_ordinary_user_cannot_unmount_root_s_mount(mounter: Mounter, theirs: str) -> None:
    mounter(theirs)
    script = """
for lazy in (False, True):
    try:
        mounting.unmount(sys.argv[1], lazy=lazy)
    except MountError as error:
        print(error.errno, error)
"""
    why = "another user made this mount; unmount it as that user or as root"
    line = f"{errno.EPERM} {theirs}: {why}\n"
    assert users.run(script, theirs, imports=IMPORTS) == 2 * line
    assert mount_line(theirs) is not None


@needs_helper
@needs_root
@pytest.mark.skipif(
    not handshake.users_can_open_the_device(),
    reason="users cannot open /dev/fuse, and the substitute for it ends with its process",
)
def test_root_can_unmount_a_user_s_mount(theirs: str) -> None:
    life_of_a_mount(theirs, end="none")
    assert mount_line(theirs) is not None
    with pytest.raises(PermissionError):  # without allow_other, even root has no access
        os.stat(theirs)
    mounting.unmount(theirs)
    assert mount_line(theirs) is None


# ---- mounted by another program --------------------------------------------------------------


@needs_root
def test_an_inherited_descriptor_is_used_without_mounting(
    mounter: Mounter, cleanup: handshake.Cleanup, folder: str
) -> None:
    fd = cleanup.descriptor(os.dup(mounter(folder, answered=False)))
    os.set_inheritable(fd, True)
    os.set_blocking(fd, True)
    assert mounting.inherited_descriptor(f"/dev/fd/{fd}") == fd
    assert mounting.mount("ignored", f"/dev/fd/{fd}", Options()) == fd
    assert not os.get_blocking(fd)
    assert not os.get_inheritable(fd)
    answer_init(fd)
    assert (
        mounting.mount("ignored", f"/dev/fd/{fd}", Options()) == fd
    )  # also while no request waits


@pytest.mark.parametrize("path", ["/dev/fd/", "/dev/fd/x", "/dev/fd/1/", "dev/fd/1", "/dev/fd/-1"])
def test_other_paths_are_not_descriptors(path: str) -> None:
    assert mounting.inherited_descriptor(path) is None


def test_a_descriptor_that_is_not_open_is_an_error() -> None:
    error = refusal("a", "/dev/fd/999999")
    assert error.errno == errno.EBADF
    assert "this descriptor is not open; the program that mounts must pass it on" in str(error)


def test_a_descriptor_of_something_else_is_an_error(cleanup: handshake.Cleanup) -> None:
    for path in ("/dev/null", "/"):
        fd = cleanup.descriptor(os.open(path, os.O_RDONLY))
        assert "this descriptor is not /dev/fuse" in str(refusal("a", f"/dev/fd/{fd}"))
        assert os.get_blocking(fd)


@needs_root
def test_a_descriptor_that_is_not_mounted_is_an_error(
    mounter: Mounter, cleanup: handshake.Cleanup, folder: str
) -> None:
    fresh = cleanup.descriptor(os.open("/dev/fuse", os.O_RDWR))
    unmounted = mounter(folder)
    mounting.unmount(folder)
    for fd in (fresh, unmounted):
        error = refusal("a", f"/dev/fd/{fd}")
        assert error.errno == errno.ENOTCONN
        assert "this descriptor of /dev/fuse is not mounted" in str(error)


# ---- the error class -------------------------------------------------------------------------


def test_a_mount_error_is_an_os_error_and_an_ffrecord_error_with_its_own_exit_code() -> None:
    error = MountError("/mnt", errno.EBUSY, "is in use")
    assert isinstance(error, OSError)
    assert isinstance(error, FFRecordError)
    copy = pickle.loads(pickle.dumps(error))
    for each in (error, copy):
        assert str(each) == "/mnt: is in use"
        assert (each.errno, each.filename, each.exit_code) == (errno.EBUSY, "/mnt", 18)

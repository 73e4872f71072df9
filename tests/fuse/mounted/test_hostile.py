"""Attacks on users who mount or read: by options, names, contents of the archive, or by replacing
the mountpoint.

`test_permissions.py` tests the permissions of readers. `tests/fuse/test_mount.py` tests the flags
and names that mount(2) and fusermount3 get. The tests here look at a whole mount.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from ffrecord import cli
from ffrecord_fuse.mounting.mounttable import MountEntry, find
from tests.fuse.mounted import mounting
from tests.fuse.mounted.test_commands import IMPORTS
from tests.robustness.attacks.builders import SAMPLE
from tests.robustness.attacks.cases import CASES
from tests.robustness.attacks.extras import with_xattrs
from tests.support import archives, trees, users
from tests.support.handshake import needs_helper, needs_root

DUE = {"ro", "nosuid", "nodev"}
LONG = pytest.mark.long  # each case needs a mount


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    archives.pack(trees.plain_tree(tmp_path / "tree", {"file": b"content"}), tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


def entry_of(path: Path) -> MountEntry:
    entry = find(str(path))
    assert entry is not None
    return entry


UNDOING = {
    "flags": "suid,dev,rw,exec,user,users,owner",
    "twice": "nosuid,suid,nodev,dev,ro,rw",
    "words of mount8": "defaults,uhelper=x,x-systemd.automount,comment=allow_other",
    "in the values": "comment=a\\,allow_other\\,suid,x-a=b\\,dev",
    "a log with options in its name": "log=LOG\\,allow_other\\,suid",
}


@pytest.mark.parametrize("how", ["all", *(pytest.param(how, marks=LONG) for how in UNDOING)])
def test_no_options_remove_the_protection(
    how: str, backend: str, archive: Path, mountpoint: Path, tmp_path: Path
) -> None:
    options = ",".join(UNDOING.values()) if how == "all" else UNDOING[how]
    options = options.replace("LOG", str(tmp_path / "log"))
    # Run ffrecord-fuse, as mount(8) does: only ffrecord-fuse accepts `rw`.
    helper = ("ffrecord_fuse", archive, mountpoint, "--backend", backend, "-o", options)
    done = mounting.python(*helper)
    assert done.returncode == 0, done.stderr
    entry = entry_of(mountpoint)
    assert set(entry.options) >= DUE
    assert not {"suid", "dev", "rw"} & set(entry.options)
    if backend == "kernel":
        assert stat.S_IMODE(mountpoint.stat().st_mode) == 0o500
    else:
        assert "default_permissions" in entry.super_options
    assert "allow_other" not in entry.super_options
    with mounting.fails_with(errno.EROFS):
        (mountpoint / "new").touch()


REFUSED = (
    "default_permissions=0", "nodefault_permissions", "allow_other=0", "fsname=x", "subtype=ext4",
    "fd=3", "rootmode=120777", "user_id=0", "modules=subdir", "auto_unmount", "kernel_cache",
    "\nallow_other", "allow_other\n", " allow_other", "allow_other suid", "uid=0\nallow_other",
    "\\,allow_other", "verify=off\\,allow_other", "umask=0,\x00",
)  # fmt: skip


@pytest.mark.parametrize("options", REFUSED, ids=ascii)
def test_words_meant_for_libfuse_or_the_kernel_are_refused(
    options: str, archive: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["mount", str(archive), str(mountpoint), "-o", options]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not mounting.is_mounted(mountpoint)


@pytest.mark.parametrize(
    "name",
    [
        "a,allow_other,x-suid,\\,dev\\\\,fsname=b 0 0\n|etc|passwd |etc ext4 rw 0 0.ffr",
        pytest.param("a,allow_other,suid.ffr", marks=LONG),
        pytest.param("a\\,allow_other\\\\,dev.ffr", marks=LONG),
        pytest.param("x,x-allow_other,fsname=root.ffr", marks=LONG),
        pytest.param("a\\040- ext4 rw.ffr", marks=LONG),
    ],
    ids=ascii,
)
def test_the_name_of_an_archive_cannot_fake_an_option_or_a_mount_line(
    name: str, backend: str, archive: Path, mountpoint: Path
) -> None:
    hostile = archive.rename(archive.with_name(name))
    with mounting.mounted(hostile, mountpoint, backend=backend):
        lines = Path("/proc/self/mounts").read_text().split("\n")
        assert len([line for line in lines if "passwd" in line or str(mountpoint) in line]) == 1
        entry = entry_of(mountpoint)
        assert set(entry.options) >= DUE
        assert entry.type == ("erofs" if backend == "kernel" else "fuse.ffrecord")
        assert "allow_other" not in entry.super_options
        assert entry.archive == str(hostile).replace("\n", "?")


@needs_root
def test_a_set_user_id_program_on_a_mount_runs_as_the_user_who_starts_it(
    backend: str, tmp_path: Path, mountpoint: Path
) -> None:
    """The mount is nosuid, also for other users, and also for a program that root owns."""
    tree = trees.plain_tree(tmp_path / "tree", {})
    program = tree / "id"
    program.write_bytes(Path("/usr/bin/id").read_bytes())
    program.chmod(0o6755)
    archives.pack(tree, tmp_path / "tree.ffr")
    with (
        users.reachable(tmp_path),
        mounting.mounted(tmp_path / "tree.ffr", mountpoint, "allow_other", backend=backend),
    ):
        assert (mountpoint / "id").stat().st_mode & 0o7777 == 0o6755
        for path, user in (
            (mountpoint / "id", users.NOBODY),
            (program, 0),
        ):  # the second pair shows that the setuid bit works outside of the mount
            done = subprocess.run(
                [path, "-u"], user=users.NOBODY, group=users.NOBODY, extra_groups=[],
                capture_output=True, text=True, check=False, timeout=mounting.PATIENCE,
            )  # fmt: skip
            assert (done.returncode, done.stdout.strip()) == (0, str(user)), done.stderr


def test_an_archive_with_a_device_in_it_is_not_mounted(
    backend: str, tmp_path: Path, mountpoint: Path
) -> None:
    (case,) = (each for each in CASES.values() if "device" in each.title)
    for made in case.archives():
        assert isinstance(made, bytes)
        (tmp_path / "a.ffr").write_bytes(made)
        arguments = ["mount", str(tmp_path / "a.ffr"), str(mountpoint), "--backend", backend]
        assert cli.main(arguments) == 16
        assert not mounting.is_mounted(mountpoint)


@pytest.mark.parametrize(
    "name",
    [
        "security.capability",
        pytest.param("trusted.overlay.opaque", marks=LONG),
        pytest.param("system.posix_acl_access", marks=LONG),
    ],
)
def test_attributes_with_a_meaning_for_the_kernel_are_not_served(
    name: str, backend: str, tmp_path: Path, mountpoint: Path
) -> None:
    value = b"\1\0\0\2" + b"\xff" * 16  # would grant all capabilities
    path = tmp_path / "a.ffr"
    path.write_bytes(with_xattrs((name.encode(), value)))
    if backend == "kernel":  # the kernel must not see such an index
        done = mounting.command("mount", path, mountpoint, "--backend", backend)
        assert done.returncode == 16
        assert "is not a valid name of an extended attribute" in done.stderr
        return
    with mounting.mounted(path, mountpoint, backend=backend):
        with pytest.raises(OSError, match=r"Errno (5|61|95)"):  # EIO, ENODATA, EOPNOTSUPP
            os.getxattr(mountpoint / "alpha", name)
        with pytest.raises(OSError, match=r"Errno 5"):
            os.listxattr(mountpoint / "alpha")
        assert (mountpoint / "alpha").read_bytes() == SAMPLE[b"alpha"]
        assert stat.S_ISREG((mountpoint / "alpha").stat().st_mode)


@mounting.BY_FUSE
def test_no_file_name_can_fake_a_line_of_the_log(
    backend: str, tmp_path: Path, mountpoint: Path
) -> None:
    forged = "2026-01-01T00:00:00+0000 ffrecord-fuse[1] unmounted |mnt"
    names = [f"x\n{forged}", f"y\r{forged}", f"\x1b[2K{forged}", f"\udcff\u2028{forged}"]
    archives.pack(
        trees.plain_tree(tmp_path / "tree", dict.fromkeys(names, b"x" * 100)),
        tmp_path / "a.ffr",
    )
    for name in names:
        archives.damage(tmp_path / "a.ffr", name)
    log = tmp_path / "log"
    with mounting.mounted(tmp_path / "a.ffr", mountpoint, backend=backend, log=log):
        for name in names:
            with mounting.fails_with(errno.EIO):
                (mountpoint / name).read_bytes()
    lines = log.read_bytes().decode().splitlines()
    assert len(lines) == 1 + len(names) + 1  # mounted, a line for each, unmounted
    assert [line for line in lines if line.startswith("2026-01-01T00:00:00+0000")] == []
    assert not any(character in "".join(lines) for character in "\r\x1b\u2028")


SWAPPED = """
archive, point, aim = sys.argv[1:]
mount_by_helper = mounting._mount_by_helper

def exchanged_first(*arguments):
    os.rmdir(point)
    os.symlink(aim, point)
    return mount_by_helper(*arguments)

mounting._mount_by_helper = exchanged_first
code = cli.main([archive, point])
print(json.dumps([code, [line.split()[4] for line in open("/proc/self/mountinfo")]]))
"""


@needs_helper
@needs_root
def test_a_mountpoint_that_becomes_a_symlink_mounts_nothing_on_roots_folder(
    archive: Path, tmp_path: Path
) -> None:
    """An ordinary user swaps the mountpoint between our check and fusermount3's."""
    aim = tmp_path / "root's"
    aim.mkdir()
    point = tmp_path / "mnt"
    point.mkdir()
    archive.chmod(0o644)
    with users.reachable(tmp_path), mounting.released(point), mounting.released(aim):
        os.chown(point, users.NOBODY, users.NOBODY)
        imports = f"{IMPORTS}\nfrom ffrecord_fuse.mounting import mount as mounting\n"
        code, mounts = json.loads(users.run(SWAPPED, archive, point, aim, imports=imports))
    assert code == 18
    assert not [each for each in mounts if each.startswith(str(tmp_path).replace(" ", "\\040"))]

"""`ffrecord mount`, `ffrecord umount` and `ffrecord-fuse`, run by users and by mount(8)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord_fuse.mounting.mount import unmount
from tests.fuse.mounted import mounting
from tests.fuse.mounted.mounting import command, is_mounted, processes, released, wait_until_ended
from tests.support import archives, handmade, trees, users

FILES = {"file": b"content", "folder/inside": b"more"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    archives.pack(trees.plain_tree(tmp_path / "tree", FILES), tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error line of a failed command."""
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip()


# ---- mount -------------------------------------------------------------------------------------


UNVERIFIED = "ffrecord: {}: the kernel serves this mount; bytes are not verified\n"


def test_the_command_returns_when_the_mount_answers(
    archive: Path, mountpoint: Path, backend: str
) -> None:
    log = mountpoint.with_name("log")
    done = command("mount", archive, mountpoint, "--backend", backend, "--log", log)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (UNVERIFIED.format(mountpoint) if backend == "kernel" else "")
    assert (mountpoint / "file").read_bytes() == b"content"
    assert command("umount", mountpoint).returncode == 0
    assert not is_mounted(mountpoint)
    assert wait_until_ended(mountpoint)
    assert os.listdir(mountpoint) == []


def test_a_daemon_keeps_no_session_folder_or_file_of_its_caller(
    archive: Path, mountpoint: Path, tmp_path: Path, backend: str
) -> None:
    """A closing terminal must not end the daemon, and the daemon must keep no folder busy."""
    assert command("mount", archive, mountpoint, "--backend", backend).returncode == 0
    for pid in processes(mountpoint):
        assert os.getsid(pid) != os.getsid(0)
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        streams = {os.readlink(f"/proc/{pid}/fd/{stream}") for stream in range(3)}
        assert streams == {os.devnull}


@mounting.BY_FUSE
def test_the_log_records_mounting_and_unmounting(
    archive: Path, mountpoint: Path, tmp_path: Path, backend: str
) -> None:
    log = tmp_path / "a log"
    assert command("mount", archive, mountpoint, "--log", log, "--backend", backend).returncode == 0
    unmount(str(mountpoint))
    assert wait_until_ended(mountpoint)
    first, last = log.read_text().splitlines()
    assert f"mounted {archive} on {mountpoint}" in first
    assert f"unmounted {mountpoint}" in last


@mounting.BY_FUSE
def test_without_syslog_the_command_names_the_log_file(
    archive: Path, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = command("mount", archive, mountpoint, "--backend", backend)
    assert (done.returncode, done.stdout) == (0, "")
    place = os.getxattr(mountpoint, "user.ffrecord.log").decode()
    if place == "syslog":
        assert done.stderr == ""
        return
    assert place == str(tmp_path / "state/ffrecord/ffrecord-fuse.log")
    assert one_line(done) == f"ffrecord: log: {place} (no syslog here)"
    assert f"mounted {archive} on {mountpoint}" in Path(place).read_text()


@pytest.mark.parametrize("workers", [3])
def test_the_given_number_of_workers_serves(archive: Path, mountpoint: Path, workers: int) -> None:
    assert command("mount", archive, mountpoint, "--workers", str(workers)).returncode == 0
    assert len(processes(mountpoint)) == workers + 1  # and the supervisor
    assert (mountpoint / "file").read_bytes() == b"content"


# arguments -> exit code, part of the message
REFUSED: dict[tuple[str, ...], tuple[int, str]] = {
    ("missing.ffr", "{mnt}"): (13, "No such file or directory"),
    ("{mnt}", "{archive}"): (13, "comes first: `ffrecord mount {archive} {mnt}`"),
    ("missing.ffr", "{archive}"): (13, "comes first: `ffrecord mount {archive} missing.ffr`"),
    ("{mnt}", "{records}"): (13, "no *.ffr file in this folder"),
    ("{archive}", "{mnt}/deeper"): (18, "the folder does not exist; create it with `mkdir -p`"),
    ("{archive}", "{archive}"): (18, "not a folder; choose an empty folder"),
    ("{archive}", "{mnt}/.."): (18, "is not empty"),
    ("{records}", "{mnt}"): (14, "not a packed folder"),
    ("{text}", "{mnt}"): (3, "text"),
    ("{archive}", "{mnt}", "-o", "bogus"): (2, "unknown option 'bogus'"),
    ("{archive}", "{mnt}", "-o", "verify=never"): (2, "one of first, always, off"),
    ("{archive}", "{mnt}", "-o", "allow_other,allow_root"): (2, "leave one of them out"),
    ("{archive}", "{mnt}", "-o", "noexec,rw"): (2, "mounts are read-only; leave rw out"),
    ("{archive}", "{mnt}", "--workers", "0"): (2, "workers=0"),
    ("{archive}", "{mnt}", "--workers", "abc"): (2, "workers must be a number from 1 to 256"),
    ("{archive}", "{mnt}", "--log", "{mnt}/no/log"): (13, "No such file or directory"),
    ("{archive}", "/dev/fd/999"): (18, "this descriptor is not open"),
}
# Each command runs in a forked process: starting Python would take longer than the rest.
RUN_ALL = """
import json, os, sys
import ffrecord.cli, ffrecord_fuse.process.daemon

results = []
for arguments in json.loads(sys.argv[1]):
    taken, given = os.pipe()
    pid = os.fork()
    if not pid:
        code = 99
        try:
            os.dup2(given, 1)
            os.dup2(given, 2)
            code = ffrecord.cli.main(["mount", *arguments])
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(given)
    with open(taken) as file:
        said = file.read()
    results.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said])
print(json.dumps(results))
"""


def test_every_failure_is_one_line_and_an_exit_code(
    archive: Path, mountpoint: Path, tmp_path: Path
) -> None:
    handmade.write_records(tmp_path / "records", [b"a", b"b"])
    (tmp_path / "text").write_text("This is a letter, not an archive.\n" * 100)
    names = {
        "mnt": mountpoint, "archive": archive, "records": tmp_path / "records",
        "text": tmp_path / "text",
    }  # fmt: skip
    commands = [[each.format(**names) for each in arguments] for arguments in REFUSED]
    process = handmade.python(RUN_ALL, json.dumps(commands))
    results = json.loads(process.communicate(timeout=mounting.PATIENCE)[0])
    for (arguments, due), (code, said) in zip(REFUSED.items(), results, strict=True):
        part = due[1].format(**names)
        assert (code, part in said) == (due[0], True), (arguments, code, said)
        assert said.startswith("ffrecord: "), said
        assert said.count("\n") == 1, said
    assert not is_mounted(mountpoint)


DELETED_FOLDER = """
import os, subprocess, sys
os.mkdir("deleted")
os.chdir("deleted")
os.rmdir("../deleted")
for arguments in sys.argv[1:]:
    command = [sys.executable, "-m", "ffrecord", *arguments.split("|")]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    print(done.returncode, done.stderr, end="" if done.stderr else "\\n")
"""


def test_absolute_paths_mount_and_unmount_from_a_folder_that_was_deleted(
    archive: Path, mountpoint: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    mounting_it = [f"mount|{archive}|{mountpoint}|--log|{log}", f"umount|{mountpoint}"]
    relative = ["mount|tree.ffr|mnt", f"mount|{archive}|mnt", "umount|mnt"]
    done = subprocess.run(
        [sys.executable, "-c", DELETED_FOLDER, *mounting_it, *relative],
        env=mounting.environment(), cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=mounting.PATIENCE,
    )  # fmt: skip
    why = "the working directory was deleted; pass an absolute path"
    assert done.stdout.splitlines() == [
        "0 ", "0 ",
        f"13 ffrecord: tree.ffr: {why}", f"13 ffrecord: mnt: {why}", f"18 ffrecord: mnt: {why}",
    ]  # fmt: skip
    assert log.read_text().count("mounted") == 2
    assert wait_until_ended(mountpoint)


# ---- in the foreground -------------------------------------------------------------------------


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts_and_ends_a_foreground_mount(
    archive: Path, mountpoint: Path, signo: signal.Signals, backend: str
) -> None:
    process = foreground(archive, mountpoint, backend)
    assert (mountpoint / "file").read_bytes() == b"content"
    process.send_signal(signo)
    _, said = process.communicate(timeout=mounting.PATIENCE)
    assert process.returncode == 0, said
    assert not is_mounted(mountpoint)
    assert f"mounted {archive} on {mountpoint}" in said
    assert "Traceback" not in said


def test_a_foreground_mount_ends_when_it_is_unmounted_from_outside(
    archive: Path, mountpoint: Path, backend: str
) -> None:
    process = foreground(archive, mountpoint, backend)
    unmount(str(mountpoint))
    process.communicate(timeout=mounting.PATIENCE)
    assert process.returncode == 0


def foreground(archive: Path, mountpoint: Path, backend: str = "native") -> subprocess.Popen[str]:
    """Start `ffrecord mount -f` and wait until it has mounted. `released` ends it."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "ffrecord", "mount", "-f", archive, mountpoint,
            "--backend", backend,
        ],
        env=mounting.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert mounting.wait_until(lambda: is_mounted(mountpoint) or process.poll() is not None)
    if process.poll() is not None:
        raise AssertionError(process.communicate()[1])
    os.listdir(mountpoint)  # waits for the first answer
    return process


# ---- umount ------------------------------------------------------------------------------------


def test_a_busy_mount_is_unmounted_and_open_files_stay_readable(
    archive: Path, mountpoint: Path, backend: str
) -> None:
    assert command("mount", archive, mountpoint, "--backend", backend).returncode == 0
    with open(mountpoint / "folder/inside", "rb", buffering=0) as file:
        done = command("umount", mountpoint)
        assert (done.returncode, done.stdout) == (0, "")
        assert "unmounted, but still in use" in one_line(done)
        assert not is_mounted(mountpoint)
        assert file.read() == b"more"
    assert wait_until_ended(mountpoint)


def test_a_path_without_a_mount_cannot_be_unmounted(archive: Path, mountpoint: Path) -> None:
    for path, why in (
        (mountpoint, "nothing is mounted here"),
        (archive, "nothing is mounted here"),
        (mountpoint / "missing", "the folder does not exist"),
        (mountpoint / "missing" / "as well", "the folder does not exist"),
        (archive / "inside", "the folder does not exist"),
    ):
        done = command("umount", path)
        assert done.returncode == 18
        advice = "`ffrecord umount --list` shows where archives are mounted"
        assert one_line(done) == f"ffrecord: {path}: {why}; {advice}"


def test_unmounting_the_archive_names_its_mountpoint(
    archive: Path, mountpoint: Path, backend: str
) -> None:
    assert command("mount", archive, mountpoint, "--backend", backend).returncode == 0
    done = command("umount", archive)
    assert done.returncode == 18
    assert one_line(done).endswith(
        f"{archive}: this is the archive, not its mountpoint; unmount {mountpoint} instead"
    )
    assert is_mounted(mountpoint)
    assert command("umount", mountpoint).returncode == 0
    assert wait_until_ended(mountpoint)


def test_a_file_system_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    done = command("umount", "/proc")
    assert done.returncode == 18
    assert "not an archive" in one_line(done)
    assert os.path.ismount("/proc")


def test_a_path_through_a_symlink_is_unmounted(
    archive: Path, mountpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("mnt")
    assert command("mount", archive, tmp_path / "link").returncode == 0
    assert (mountpoint / "file").read_bytes() == b"content"
    assert command("umount", f"{tmp_path}/link/").returncode == 0
    assert not is_mounted(mountpoint)
    assert mounting.wait_until(lambda: not processes(tmp_path / "link"))


# ---- ffrecord-fuse -----------------------------------------------------------------------------


def test_every_setting_can_be_an_option_as_in_fstab(
    archive: Path, mountpoint: Path, tmp_path: Path, backend: str
) -> None:
    log = tmp_path / "log, with a comma"
    escaped = str(log).replace(",", "\\,")
    done = mounting.python(
        "ffrecord_fuse", archive, mountpoint, "-o",
        f"rw,nosuid,_netdev,x-systemd.automount,noatime,uid=7,umask=0,log={escaped}",
        "-o", f"verify={'before' if backend == 'kernel' else 'always'},backend={backend}",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.stat(mountpoint / "file").st_uid == 7
    assert os.stat(mountpoint / "file").st_mode & 0o777 == 0o777
    assert log.exists()
    shown = mounting.output("findmnt", "-n", "-o", "FSTYPE,OPTIONS", mountpoint).decode()
    assert "ro,nosuid,nodev" in shown
    assert "noatime" in shown
    assert shown.split()[0] == ("erofs" if backend == "kernel" else "fuse.ffrecord")


def test_an_error_of_ffrecord_fuse_is_one_line_with_its_name(
    archive: Path, mountpoint: Path
) -> None:
    done = mounting.python("ffrecord_fuse", archive, mountpoint / "missing", "-o", "ro")
    assert done.returncode == 18
    assert one_line(done).startswith("ffrecord-fuse: ")
    done = mounting.python("ffrecord_fuse", archive, mountpoint, "-o", "ro,size=5")
    assert done.returncode == 2
    assert "unknown option 'size'" in one_line(done)


@pytest.mark.skipif(shutil.which("mount.fuse3") is None, reason="fuse3 is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may call mount(8)")
@pytest.mark.parametrize("access", ["ro", "defaults", "rw", "ro,backend=kernel"])
def test_mount8_mounts_an_archive(
    archive: Path, mountpoint: Path, tmp_path: Path, access: str
) -> None:
    """mount(8) gets the path of ffrecord-fuse, because it searches only the system's folders."""
    if "kernel" in access:
        mounting.require("kernel")
    program = tmp_path / "bin/ffrecord-fuse"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{mounting.ROOT}" exec "{sys.executable}" -m ffrecord_fuse "$@"\n'
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["mount", "-t", "fuse", f"{program}#{archive}", mountpoint,
         "-o", f"{access},noexec,workers=2"],
        capture_output=True, text=True, check=False, timeout=mounting.PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (mountpoint / "file").read_bytes() == b"content"
    assert os.statvfs(mountpoint).f_flag & os.ST_NOEXEC
    assert os.statvfs(mountpoint).f_flag & os.ST_RDONLY
    mounting.output("umount", mountpoint)
    assert wait_until_ended(mountpoint)


# ---- as an ordinary user -----------------------------------------------------------------------

IMPORTS = """
import contextlib
from ffrecord_fuse import cli
from ffrecord_fuse.process import daemon
with contextlib.suppress(ImportError):
    from ffrecord_fuse.libfuse import fusepy_adapter
from tests.support.handshake import let_users_open_the_device
let_users_open_the_device()
"""
AS_A_USER = """
archive, mountpoint, backend = sys.argv[1:]
assert cli.main([archive, mountpoint, "--backend", backend]) == 0
found = {
    "me": os.geteuid(),
    "file": open(mountpoint + "/file").read(),
    "names": sorted(os.listdir(mountpoint)),
    "archive": os.getxattr(mountpoint, "user.ffrecord.archive").decode(),
}
try:
    open(mountpoint + "/secret")
except OSError as error:
    found["secret"] = errno.errorcode[error.errno]
assert ffrecord.cli.main(["umount", mountpoint]) == 0
found["left"] = os.listdir(mountpoint)
print(json.dumps(found))
"""
TOO_MUCH = """
sys.exit(0 if cli.main([*sys.argv[1:], "-o", "allow_other"]) == 18 else 1)
"""
BUSY = """
archive, mountpoint, backend = sys.argv[1:]
assert cli.main([archive, mountpoint, "--backend", backend]) == 0
with open(mountpoint + "/file", "rb", buffering=0) as file:
    assert ffrecord.cli.main(["umount", mountpoint]) == 0
    assert os.listdir(mountpoint) == []
    print(file.read().decode())
"""
POLLING = """
archive, mountpoint = sys.argv[1:]
os.dup2(1, 2)
assert cli.main([archive, mountpoint, "-o", "idle=poll"]) == 0
assert ffrecord.cli.main(["umount", mountpoint]) == 0
"""
OWNED = """
import signal, time
from ffrecord_fuse.mounting.lifeline import Caller
archive, mountpoint, backend = sys.argv[1], sys.argv[2] + "/made", sys.argv[3]
program = os.fork()
if not program:
    signal.pause()
caller = Caller([os.pidfd_open(program)], mountpoint)
assert cli.main([archive, mountpoint, "--backend", backend], caller) == 0
print(open(mountpoint + "/file").read())
os.kill(program, signal.SIGKILL)
os.waitpid(program, 0)
deadline = time.monotonic() + 600
while os.path.lexists(mountpoint) and time.monotonic() < deadline:
    time.sleep(0.01)
assert mountpoint not in open("/proc/self/mountinfo").read()
print(os.listdir(sys.argv[2]))
"""
needs_helper = pytest.mark.skipif(
    shutil.which("fusermount3") is None and shutil.which("fusermount") is None,
    reason="fusermount3 is not installed",
)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield an ordinary user's mountpoint, beside an archive with a file that belongs to root."""
    source = trees.plain_tree(tmp_path / "tree", {**FILES, "secret": b"secret"})
    (source / "secret").chmod(0o600)
    archives.pack(source, tmp_path / "tree.ffr")
    if os.geteuid() == 0:
        archives.set_owners(tmp_path / "tree.ffr", 0, 0)
    (tmp_path / "tree.ffr").chmod(0o644)
    point = tmp_path / "mnt"
    point.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with users.reachable(tmp_path), released(point):
        if os.geteuid() == 0:
            os.chown(point, users.NOBODY, users.NOBODY)
        yield point


@mounting.BY_FUSE
@needs_helper
def test_an_ordinary_user_mounts_reads_and_unmounts(theirs: Path, backend: str) -> None:
    archive = theirs.with_name("tree.ffr")
    found = json.loads(users.run(AS_A_USER, archive, theirs, backend, imports=IMPORTS))
    if os.geteuid() == 0:
        assert found.pop("me") == users.NOBODY
        assert found.pop("secret") == "EACCES"
    assert found.pop("archive") == str(archive)
    assert found["file"] == "content"
    assert found["names"] == ["file", "folder", "secret"]
    assert found["left"] == []
    assert wait_until_ended(theirs)


@mounting.BY_FUSE
@needs_helper
def test_an_ordinary_user_s_busy_mount_is_unmounted(theirs: Path, backend: str) -> None:
    archive = theirs.with_name("tree.ffr")
    assert users.run(BUSY, archive, theirs, backend, imports=IMPORTS) == "content\n"
    assert wait_until_ended(theirs)


@needs_helper
def test_an_ordinary_user_is_told_that_idle_cores_will_not_poll(theirs: Path) -> None:
    said = users.run(POLLING, theirs.with_name("tree.ffr"), theirs, imports=IMPORTS)
    assert f"{theirs}: idle=poll has no effect, because /dev/cpu_dma_latency cannot be" in said
    assert wait_until_ended(theirs)


@mounting.BY_FUSE
@needs_helper
def test_an_ordinary_user_s_mount_ends_with_the_program_that_it_belongs_to(
    theirs: Path, backend: str
) -> None:
    archive = theirs.with_name("tree.ffr")
    assert users.run(OWNED, archive, theirs, backend, imports=IMPORTS) == "content\n[]\n"
    assert wait_until_ended(theirs)


@needs_helper
def test_allow_other_without_permission_is_reported(theirs: Path) -> None:
    settings = Path("/etc/fuse.conf")
    if settings.exists() and "\nuser_allow_other" in f"\n{settings.read_text()}":
        pytest.skip("/etc/fuse.conf has user_allow_other")
    users.run(TOO_MUCH, theirs.with_name("tree.ffr"), theirs, imports=IMPORTS)
    assert not is_mounted(theirs)
    assert processes(theirs) == []

"""`--overlay`: files in a mount can be changed, and the archive stays as it is."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ffrecord_fuse
from ffrecord.atomic import locks
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting import changes as changes_module
from ffrecord_fuse.mounting.changes import Origin, Top
from ffrecord_fuse.mounting.mounttable import entries, find
from ffrecord_fuse.mounting.options import parse
from ffrecord_fuse.mounting.overlay import Overlay
from tests.fuse.mounted import changing, mounting
from tests.fuse.mounted.conftest import Packed
from tests.fuse.mounted.mounting import command, is_mounted, output, wait_until
from tests.fuse.mounted.test_commands import IMPORTS, needs_helper, one_line
from tests.support import archives, handmade, overlays, trees, users

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can use the kernel's overlayfs"
)
needs_fuse_overlayfs = pytest.mark.skipif(
    shutil.which("fuse-overlayfs") is None, reason="fuse-overlayfs is not installed"
)


@pytest.fixture(autouse=True)
def _suitable(tmp_path: Path) -> None:
    why = overlays.why_not(tmp_path)
    if why is not None:
        pytest.skip(why)


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = [each.mountpoint for each in entries() if each.mountpoint.startswith(f"{tmp_path}/")]
    assert left == []


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changing.make(tmp_path_factory.mktemp("overlay") / "tree")


@pytest.fixture
def archive(tree: Path, tmp_path: Path) -> Path:
    archives.pack(tree, tmp_path / "tree.ffr")
    return tmp_path / "tree.ffr"


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    return tmp_path / "changes"


@contextlib.contextmanager
def overlaid(archive: Path, mountpoint: Path, changes: Path, *more: str | Path) -> Iterator[Path]:
    """Mount an overlay with the command while the block runs."""
    log = mountpoint.with_name("log")
    done = command("mount", archive, mountpoint, "--overlay", changes, "--log", log, *more)
    assert done.returncode == 0, done.stderr
    try:
        yield mountpoint
    finally:
        if is_mounted(mountpoint):
            assert command("umount", mountpoint).returncode == 0
    assert mounting.wait_until_ended(mountpoint)
    assert not is_mounted(mountpoint)
    assert os.listdir(changes / "lower") == []


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy(tree: Path, to: Path) -> Path:
    output("cp", "-a", tree, to)
    return to


# ---- changes -----------------------------------------------------------------------------------


@needs_root
def test_changes_are_those_of_a_plain_folder_and_can_be_packed(
    archive: Path, tree: Path, mountpoint: Path, changes: Path, tmp_path: Path, backend: str
) -> None:
    before = digest(archive)
    plain = copy(tree, tmp_path / "plain")
    changing.change(plain)
    with overlaid(archive, mountpoint, changes, "--backend", backend) as top:
        assert trees.differences(tree, top) == []
        changing.change(top)
        # Until the next mount, a changed file and a new hard link to it have different numbers.
        found = [each for each in trees.differences(plain, top) if "same_file" not in each]
        assert found == []
    with overlaid(archive, mountpoint, changes, "--backend", backend) as top:
        assert trees.differences(plain, top) == []
        assert command("pack", top, tmp_path / "new.ffr").returncode == 0
    assert command("verify", tmp_path / "new.ffr").returncode == 0
    assert command("extract", tmp_path / "new.ffr", "-C", tmp_path / "out").returncode == 0
    assert trees.differences(plain, tmp_path / "out") == []
    assert digest(archive) == before


AS_A_USER = """
archive, mountpoint, changes, plain, new, out = map(Path, sys.argv[1:])
overlay = [str(archive), str(mountpoint), "-o", "overlay=" + str(changes)]
changing.separate(plain)
assert cli.main(overlay) == 0
found = [os.listdir(changes / "lower"), trees.differences(plain, mountpoint)]
for top in (plain, mountpoint):
    (top / "untouched").write_bytes(b"changed")  # but not its other name
    changing.change(top)
found.append(trees.differences(plain, mountpoint))
assert cli.main([str(archive), str(mountpoint) + " 2", *overlay[2:]]) == 18
assert ffrecord.cli.main(["umount", str(mountpoint)]) == 0
assert cli.main(overlay) == 0
found.append(trees.differences(plain, mountpoint))
pack_folder(mountpoint, new)
assert ffrecord.cli.main(["umount", str(mountpoint)]) == 0
with PackedFolder(new) as folder:
    folder.extract(out)
found.append(trees.differences(plain, out))
print(json.dumps(found))
"""
MORE_IMPORTS = f"""
{IMPORTS}
from pathlib import Path
import ffrecord.archive.pack, ffrecord.cli.umount
from tests.fuse.mounted import changing
from tests.support import trees
"""


@pytest.fixture
def theirs(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder of an ordinary user, with an archive and a copy of the packed files."""
    archives.pack(copy(tree, tmp_path / "plain"), tmp_path / "tree.ffr")
    (tmp_path / "mnt").mkdir()
    (tmp_path / "mnt 2").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with users.reachable(tmp_path), mounting.released(tmp_path / "mnt"):
        if os.geteuid() == 0:
            output("chown", "-hR", f"{users.NOBODY}:{users.NOBODY}", tmp_path)
            archives.set_owners(tmp_path / "tree.ffr", 12345, 0)  # shown as the user's own
        yield tmp_path


@needs_helper
@needs_fuse_overlayfs
def test_an_ordinary_user_changes_and_packs(theirs: Path) -> None:
    names = ("tree.ffr", "mnt", "changes", "plain", "new.ffr", "out")
    said = users.run(AS_A_USER, *(theirs / name for name in names), imports=MORE_IMPORTS)
    assert json.loads(said) == [[], [], [], [], []]
    assert mounting.wait_until_ended(theirs / "mnt")
    assert wait_until(lambda: is_unlocked(theirs / "changes"))


def is_unlocked(changes: Path) -> bool:
    """Return True if no process holds the folder: neither our daemon nor fuse-overlayfs."""
    fd = os.open(changes, os.O_RDONLY)
    try:
        return locks.take(fd)
    finally:
        os.close(fd)


@needs_root
def test_a_mount_with_every_kind_of_file_is_shown_as_it_was_packed(
    whole: Packed, mountpoint: Path, changes: Path, backend: str
) -> None:
    with overlaid(whole.archive, mountpoint, changes, "--backend", backend) as top:
        assert trees.differences(whole.source, top) == []


@needs_root
def test_a_changed_hard_link_of_the_archive_becomes_a_file_of_its_own(
    archive: Path, mountpoint: Path, changes: Path, backend: str
) -> None:
    with overlaid(archive, mountpoint, changes, "--backend", backend) as top:
        (top / "untouched").write_bytes(b"changed")
        assert (top / "untouched too").read_bytes() == changing.FILES["untouched"]
    with overlaid(archive, mountpoint, changes, "--backend", backend) as top:
        assert (top / "untouched").read_bytes() == b"changed"
        assert (top / "untouched too").read_bytes() == changing.FILES["untouched"]


@needs_root
def test_only_changes_are_stored(archive: Path, mountpoint: Path, changes: Path) -> None:
    with overlaid(archive, mountpoint, changes) as top:
        assert (top / "untouched").read_bytes() == changing.FILES["untouched"]
        (top / "kept/new").write_bytes(b"new")
    stored = {str(path.relative_to(changes / "upper")) for path in (changes / "upper").rglob("*")}
    assert stored == {"kept", "kept/new"}
    assert stat.S_IMODE(changes.stat().st_mode) == 0o700


@needs_root
def test_a_folder_of_an_archive_can_have_an_overlay(
    archive: Path, mountpoint: Path, changes: Path, tmp_path: Path
) -> None:
    with overlaid(archive, mountpoint, changes, "--subdir", "kept") as top:
        (top / "new").write_bytes(b"new")
        assert sorted(os.listdir(top)) == ["file", "new"]
    done = command("mount", archive, mountpoint, "--overlay", changes)
    assert done.returncode == 18
    assert f"changes to {archive}, folder kept, not to {archive};" in one_line(done)


@needs_root
@pytest.mark.parametrize("fuse", ["native", "fusepy"])
def test_a_damaged_file_cannot_be_changed(
    archive: Path, mountpoint: Path, changes: Path, fuse: str
) -> None:
    """A change copies the file through the mount, which verifies it."""
    mounting.require(fuse)
    archives.damage(archive, "cut", 2 * changing.BLOCK)
    with overlaid(archive, mountpoint, changes, "--backend", fuse) as top:
        with mounting.fails_with(errno.EIO), open(top / "cut", "ab") as file:
            file.write(b"more")
        with mounting.fails_with(errno.EIO):
            (top / "cut").chmod(0o600)
        assert not (changes / "upper/cut").exists()
        (top / "cut").unlink()
        (top / "cut").write_bytes(b"whole again")
        changing_one = top / "appended"
        changing_one.write_bytes(b"fine")
    with overlaid(archive, mountpoint, changes, "--backend", fuse) as top:
        assert (top / "cut").read_bytes() == b"whole again"
        assert (top / "appended").read_bytes() == b"fine"


@needs_root
def test_permissions_of_the_files_decide_who_may_change_them(
    tree: Path, tmp_path: Path, mountpoint: Path, changes: Path, backend: str
) -> None:
    source = trees.plain_tree(
        tmp_path / "source", {"theirs": b"1", "shared": b"2", "private": b"3"}
    )
    os.chown(source / "theirs", users.NOBODY, users.NOBODY)
    (source / "shared").chmod(0o666)
    (source / "private").chmod(0o600)
    source.chmod(0o1777)
    archives.pack(source, tmp_path / "tree.ffr")
    write = """
found = {}
for name in ("theirs", "shared", "private", "new"):
    try:
        with open(os.path.join(sys.argv[1], name), "a") as file:
            file.write("!")
        found[name] = os.stat(os.path.join(sys.argv[1], name)).st_uid
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
print(json.dumps(found))
"""
    with (
        overlaid(tmp_path / "tree.ffr", mountpoint, changes, "--backend", backend) as top,
        users.reachable(tmp_path),
    ):
        found = json.loads(users.run(write, top))
        assert found == {
            "theirs": users.NOBODY, "shared": 0, "private": "EACCES", "new": users.NOBODY,
        }  # fmt: skip
        os.chown(top / "private", users.NOBODY, users.NOBODY)
        assert json.loads(users.run(write, top))["private"] == users.NOBODY
        assert (top / "shared").read_bytes() == b"2!!"


@needs_root
def test_names_with_special_characters(archive: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a,b:c\\d %41\n\udcff"
    odd.mkdir()
    moved = archive.rename(odd / "tree:1,2.ffr")
    point, changes = odd / "mnt,=:", odd / "changes\\:,="
    point.mkdir()
    with overlaid(moved, point, changes) as top:
        (top / "new").write_bytes(b"new")
        (found,) = [each for each in entries() if each.mountpoint == str(point)]
        assert found.changes == str(changes)
        assert "this folder has the changes of a mount" in one_line(command("umount", changes))
    assert (changes / "upper/new").read_bytes() == b"new"


# ---- as options --------------------------------------------------------------------------------


@needs_root
def test_overlay_is_an_option_as_in_fstab(
    archive: Path, mountpoint: Path, changes: Path, backend: str
) -> None:
    for access, due in (("rw", None), ("ro", errno.EROFS)):
        words = f"{access},dev,suid,noexec,overlay={changes},backend={backend}"
        log = f"log={mountpoint.with_name('log')}"
        done = mounting.python("ffrecord_fuse", archive, mountpoint, "-o", f"{words},{log}")
        assert done.returncode == 0, done.stderr
        flags = os.statvfs(mountpoint).f_flag
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV
        assert flags & os.ST_NOEXEC
        if due is None:
            (mountpoint / "new").write_bytes(b"new")
        else:
            with mounting.fails_with(due):
                (mountpoint / "other").write_bytes(b"new")
        assert (mountpoint / "new").read_bytes() == b"new"
        entry = find(str(mountpoint))
        assert entry is not None
        assert entry.is_kernel == (backend == "kernel")
        again = mounting.python("ffrecord_fuse", archive, mountpoint, "-o", f"{words},{log}")
        assert again.returncode == 0  # as `mount -a` does it
        assert "already mounted here, with its former options" in one_line(again)
        for others in (words.replace("noexec", "exec"), words.replace(str(changes), f"{changes}2")):
            done = mounting.python("ffrecord_fuse", archive, mountpoint, "-o", others)
            assert done.returncode == 18, others
        output("umount", mountpoint)  # as for fstab: mount(8)'s umount ends the daemon too
        assert mounting.wait_until_ended(mountpoint)


@needs_root
def test_python_mounts_an_overlay(archive: Path, changes: Path, backend: str) -> None:
    for turn in range(2):
        with ffrecord_fuse.mount(archive, backend=backend, overlay=changes) as path:
            assert os.path.exists(f"{path}/new") == bool(turn)
            Path(path, "new").write_bytes(b"new")
        assert not os.path.exists(path)


KILLED = """
import signal, sys
import ffrecord_fuse
archive, mountpoint, backend, changes = sys.argv[1:]
with ffrecord_fuse.mount(archive, mountpoint, backend=backend, overlay=changes) as path:
    open(path + "/new", "w").close()
    print("mounted", flush=True)
    signal.pause()
"""


@needs_root
def test_an_overlay_ends_with_the_program_that_it_belongs_to(
    archive: Path, mountpoint: Path, changes: Path, backend: str
) -> None:
    arguments = map(str, (archive, mountpoint, backend, changes))
    process = handmade.python(KILLED, *arguments)
    assert process.stdout is not None
    assert process.stdout.readline() == "mounted\n"
    process.kill()
    process.communicate()
    assert wait_until(lambda: not is_mounted(mountpoint))
    assert mounting.wait_until_ended(mountpoint)
    with overlaid(archive, mountpoint, changes, "--backend", backend) as top:
        assert (top / "new").exists()


@needs_root
@pytest.mark.parametrize(
    ("backend", "signo"),
    [("native", signal.SIGTERM), ("fusepy", signal.SIGINT), ("kernel", signal.SIGTERM)],
    indirect=["backend"],
)
def test_a_signal_ends_a_foreground_overlay(
    archive: Path, mountpoint: Path, changes: Path, backend: str, signo: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ffrecord", "mount", "-f", archive, mountpoint, "--backend", backend,
         "--overlay", changes],
        env=mounting.environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert wait_until(lambda: is_mounted(mountpoint) or process.poll() is not None)
    assert process.poll() is None
    # The log comes after the overlay is mounted; before, a signal would end another step.
    assert process.stderr is not None
    assert wait_until(lambda: "changes in" in (process.stderr.readline() if process.stderr else ""))
    (mountpoint / "new").write_bytes(b"new")
    process.send_signal(signo)
    process.communicate(timeout=mounting.PATIENCE)
    assert process.returncode == 0
    assert not is_mounted(mountpoint)
    assert (changes / "upper/new").read_bytes() == b"new"


# ---- refused -----------------------------------------------------------------------------------


def empty_folder(changes: Path) -> None:
    changes.mkdir()


def with_files(changes: Path) -> None:
    changes.mkdir()
    (changes / "letter").write_text("precious")


def a_file(changes: Path) -> None:
    changes.write_text("precious")


def of_another_user(changes: Path) -> None:
    changes.mkdir()
    os.chown(changes, users.NOBODY, users.NOBODY)


def used_before(changes: Path) -> Path:
    """Mount once, so that the folder has everything."""
    point = changes.with_name("first")
    point.mkdir()
    with overlaid(changes.with_name("tree.ffr"), point, changes):
        pass
    return changes / "about.json"


def of_another_archive(changes: Path) -> None:
    about = used_before(changes)
    facts = json.loads(about.read_text())
    about.write_text(json.dumps({**facts, "archive": "/else.ffr", "fingerprint": "0"}))


def of_an_earlier_archive(changes: Path) -> None:
    used_before(changes)
    archive = changes.with_name("tree.ffr")
    source = trees.plain_tree(changes.with_name("repacked"), {"other": b"content"})
    archive.unlink()
    archives.pack(source, archive)


def kept_by_fuse_overlayfs(changes: Path) -> None:
    about = used_before(changes)
    about.write_text(about.read_text().replace('"overlayfs"', '"fuse-overlayfs"'))


def damaged(changes: Path) -> None:
    used_before(changes).write_text("{")


def of_a_later_version(changes: Path) -> None:
    about = used_before(changes)
    about.write_text(about.read_text().replace('"version": 1', '"version": 2'))


def with_a_symlink(changes: Path) -> None:
    used_before(changes)
    shutil.rmtree(changes / "upper")
    (changes / "upper").symlink_to("/tmp")


# name of the folder, how it is made, a part of the message
REFUSED: list[tuple[str, Callable[[Path], None] | None, str]] = [
    ("mnt/inside", None, "contain each other; choose separate folders"),
    ("mnt", None, "contain each other; choose separate folders"),
    (".", None, "contain each other; choose separate folders"),
    ("missing/changes", None, "the folder above it does not exist; create it with `mkdir -p`"),
    ("changes", with_files, "the folder has other files in it; choose a new or empty folder"),
    ("changes", a_file, "not a folder; choose a new or empty folder"),
    ("changes", of_another_user, f"the folder belongs to user {users.NOBODY}; choose"),
    ("changes", of_another_archive, "these are changes to /else.ffr, not to {archive}; choose"),
    ("changes", of_an_earlier_archive, "these are changes to an earlier {archive}, which was"),
    ("changes", kept_by_fuse_overlayfs, "made with fuse-overlayfs; mount as the user who made"),
    ("changes", damaged, "about.json cannot be used: "),
    ("changes", of_a_later_version, "version 2 is unknown; choose another folder"),
    ("changes", with_a_symlink, "upper is not a folder; choose another folder"),
    ("/sys/changes", None, "cannot keep changes here: "),
]


@needs_root
@pytest.mark.parametrize(("name", "make", "part"), REFUSED)
def test_a_refused_folder_is_one_line_and_nothing_is_left(
    archive: Path, mountpoint: Path, tmp_path: Path,
    name: str, make: Callable[[Path], None] | None, part: str,
) -> None:  # fmt: skip
    changes = tmp_path / name
    if make is not None:
        make(changes)
    before = trees.snapshot(tmp_path)
    done = command("mount", archive, mountpoint, "--overlay", changes)
    assert done.returncode == 18
    assert part.format(archive=archive) in one_line(done)
    assert trees.snapshot(tmp_path) == before
    assert not is_mounted(mountpoint)
    assert mounting.processes(mountpoint) == []


@needs_root
@pytest.mark.parametrize("name", ["ramfs", "FUSE", "overlayfs", "EROFS"])
def test_a_file_system_that_cannot_keep_changes_is_refused(
    archive: Path, mountpoint: Path, tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    due = f"overlays cannot keep changes on {name}; choose a folder on a local disk"
    with mounting.released(elsewhere):
        if name == "ramfs":
            output("mount", "-t", "ramfs", "none", elsewhere)
            due = "the file system of this folder keeps no extended attributes"
        elif name == "EROFS":
            mounting.require("kernel")
            assert command("mount", archive, elsewhere, "--backend", "kernel").returncode == 0
            due = "the file system is read-only"
        elif name == "FUSE":
            assert command("mount", archive, elsewhere).returncode == 0
        else:
            done = command("mount", archive, elsewhere, "--overlay", tmp_path / "first")
            assert done.returncode == 0
        try:
            done = command("mount", archive, mountpoint, "--overlay", elsewhere / "changes")
            assert done.returncode == 18
            assert due in one_line(done)
            assert not (elsewhere / "changes").exists()
        finally:
            if name == "ramfs":
                output("umount", elsewhere)


@needs_root
def test_options_that_exclude_an_overlay(archive: Path, mountpoint: Path, changes: Path) -> None:
    for arguments, code, part in (
        ([mountpoint, "-o", "allow_root"], 2, "allow_root and overlay exclude each other"),
        (["/dev/fd/0"], 18, "an overlay cannot be mounted from outside; name a folder"),
    ):
        done = command("mount", archive, *arguments, "--overlay", changes)
        assert (done.returncode, part in one_line(done)) == (code, True)
        assert not changes.exists()


@needs_root
def test_changes_are_for_one_mount_at_a_time(
    archive: Path, mountpoint: Path, changes: Path, tmp_path: Path, backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    second = tmp_path / "second"
    second.mkdir()
    with overlaid(archive, mountpoint, changes, "--backend", backend) as top:
        for other in ("native", backend):
            done = command("mount", archive, second, "--overlay", changes, "--backend", other)
            assert done.returncode == 18
            assert f"in use by the mount on {mountpoint}; unmount it first" in one_line(done)
        with open(top / "open", "w") as file:
            file.write("still written to")
            assert "still in use" in command("umount", mountpoint).stderr
            monkeypatch.setattr(changes_module, "_PATIENCE", 0.0)
            with pytest.raises(MountError, match="or by open files of an unmounted one"):
                overlay_of(archive, second, changes)
    assert wait_until(lambda: not is_busy(archive, second, changes))
    assert (changes / "upper/open").read_text() == "still written to"


def overlay_of(archive: Path, mountpoint: Path, changes: Path) -> Overlay:
    origin = Origin(str(archive), "another archive")  # refused, but later than a used folder
    options = parse(f"overlay={changes}")
    return Overlay(str(mountpoint), options, origin, Top(0o40755, 0, 0, 0, {}))


def is_busy(archive: Path, mountpoint: Path, changes: Path) -> bool:
    with pytest.raises(MountError) as caught:
        overlay_of(archive, mountpoint, changes)
    return caught.value.errno == errno.EBUSY


NO_PROGRAM = """
os.environ["PATH"] = sys.argv[4]
code = cli.main([*sys.argv[1:3], "-o", "overlay=" + sys.argv[3]])
print(code, os.path.exists(sys.argv[3]), sys.argv[2] in open("/proc/self/mountinfo").read())
"""


@needs_helper
@pytest.mark.parametrize("program", [None, "#!/bin/sh\necho no luck >&2\nexit 1\n"])
def test_a_missing_or_failing_fuse_overlayfs_leaves_nothing(
    theirs: Path, capfd: pytest.CaptureFixture[str], program: str | None
) -> None:
    tools = theirs / "tools"
    tools.mkdir()
    for name in ("fusermount3", "fusermount"):
        found = shutil.which(name)
        if found is not None:
            (tools / name).symlink_to(found)
    due = "fuse-overlayfs is missing, and only root can mount an overlay without it"
    if program is not None:
        (tools / "fuse-overlayfs").write_text(program)
        (tools / "fuse-overlayfs").chmod(0o755)
        due = "fuse-overlayfs failed: no luck"
    script = f"os.dup2(1, 2)\n{NO_PROGRAM}"
    names = ("tree.ffr", "mnt", "changes", "tools")
    said = users.run(script, *(theirs / name for name in names), imports=MORE_IMPORTS)
    error, result = said.splitlines()
    assert error.startswith(f"ffrecord-fuse: {theirs / 'mnt'}: {due}")
    assert result == "18 False False"
    assert mounting.wait_until_ended(theirs / "mnt")


@needs_helper
def test_a_colon_in_the_path_is_refused_for_fuse_overlayfs(
    theirs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = theirs / "tree.ffr", theirs / "mnt", theirs / "a:b", Path(os.environ["PATH"])
    script = f"os.dup2(1, 2)\n{NO_PROGRAM}"
    error, result = users.run(script, *places, imports=MORE_IMPORTS).splitlines()
    due = "fuse-overlayfs splits paths at colons; choose a path without ':' for the changes"
    assert error.startswith(f"ffrecord-fuse: {theirs / 'a:b'}: {due}")
    assert result == "18 False False"


# ---- failures ----------------------------------------------------------------------------------

FAILING = """
import os, sys, signal
from ffrecord_fuse import cli
from ffrecord_fuse.mounting import overlay
from ffrecord_fuse.mounting.overlay import Overlay
archive, mountpoint, changes, backend, log, how = sys.argv[1:]
whole = Overlay._cover

def die(self):
    whole(self)
    os.kill(os.getppid(), signal.SIGKILL)  # the process that serves, or the command itself

if how == "refused by the kernel":
    overlay._SETTINGS = "nonsense=on"
elif how == "silent":
    overlay.ANSWER_SECONDS = 0.1
    Overlay._cover = lambda self: signal.pause()
else:
    Overlay._cover = die
sys.exit(cli.main([archive, mountpoint, "-o", f"overlay={changes},backend={backend},log={log}"]))
"""


@needs_root
@pytest.mark.parametrize(
    ("backend", "how"),
    [
        ("native", "killed"), ("fusepy", "killed"),
        ("native", "refused by the kernel"), ("kernel", "silent"),
    ],
    indirect=["backend"],
)  # fmt: skip
def test_an_overlay_that_fails_leaves_nothing(
    archive: Path, mountpoint: Path, changes: Path, tmp_path: Path, backend: str, how: str
) -> None:
    arguments = map(str, (archive, mountpoint, changes, backend, tmp_path / "log", how))
    process = handmade.python(FAILING, *arguments)
    _, said = process.communicate(timeout=mounting.PATIENCE)
    assert process.returncode == 18, said
    assert said.count("\n") == 1, said
    assert {
        "refused by the kernel": "and `dmesg` says why; choose a folder on a local disk",
        "silent": "the archive's mount did not answer; mount again",
        "killed": "the daemon ended before it was ready",
    }[how] in said
    assert not is_mounted(mountpoint)
    assert not changes.exists()
    assert mounting.wait_until_ended(mountpoint)


@needs_root
@pytest.mark.parametrize("fuse", ["native", "fusepy"])
def test_an_overlay_whose_daemon_was_killed_is_unmounted_and_keeps_its_changes(
    archive: Path, mountpoint: Path, changes: Path, fuse: str
) -> None:
    mounting.require(fuse)
    with overlaid(archive, mountpoint, changes, "--backend", fuse) as top:
        (top / "new").write_bytes(b"new")
        mounting.kill(mountpoint)
        assert mounting.wait_until_ended(mountpoint)
        assert wait_until(lambda: fails(top / "untouched"))
        assert is_mounted(mountpoint)  # not an empty folder, and not only the changes
        done = command("mount", archive, mountpoint, "--overlay", changes)
        assert f"ffrecord umount {mountpoint}" in one_line(done)
    with overlaid(archive, mountpoint, changes, "--backend", fuse) as top:
        assert (top / "new").read_bytes() == b"new"
        assert (top / "untouched").read_bytes() == changing.FILES["untouched"]


def fails(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return True
    return False


HELPER_KILLED = """
import signal, time
archive, mountpoint, changes = sys.argv[1:]
overlay = [archive, mountpoint, "-o", "overlay=" + changes]
assert cli.main(overlay) == 0
Path(mountpoint, "new").write_bytes(b"new")

def holds(pid):
    with contextlib.suppress(OSError):
        if Path("/proc", pid, "comm").read_text() == "fuse-overlayfs\\n":
            folder = f"/proc/{pid}/fd"
            return any(os.readlink(f"{folder}/{fd}") == changes for fd in os.listdir(folder))

(helper,) = filter(holds, filter(str.isdigit, os.listdir("/proc")))
os.kill(int(helper), signal.SIGKILL)
deadline = time.monotonic() + 600
while time.monotonic() < deadline:
    try:
        os.stat(mountpoint)
    except OSError as error:
        assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        break
    time.sleep(0.01)
assert ffrecord.cli.main(["umount", mountpoint]) == 0
assert cli.main(overlay) == 0
print(Path(mountpoint, "new").read_text(), len(os.listdir(mountpoint)))
assert ffrecord.cli.main(["umount", mountpoint]) == 0
"""


@needs_helper
@needs_fuse_overlayfs
def test_a_killed_fuse_overlayfs_is_unmounted_and_its_changes_are_kept(
    theirs: Path, tree: Path
) -> None:
    names = ("tree.ffr", "mnt", "changes")
    said = users.run(HELPER_KILLED, *(theirs / name for name in names), imports=MORE_IMPORTS)
    assert said == f"new {len(os.listdir(tree)) + 1}\n"
    assert mounting.wait_until_ended(theirs / "mnt")
    assert wait_until(lambda: is_unlocked(theirs / "changes"))


@needs_root
@pytest.mark.parametrize("fuse", ["native", "fusepy"])
def test_an_overlay_is_unmounted_when_its_daemon_is_told_to_end(
    archive: Path, mountpoint: Path, changes: Path, fuse: str
) -> None:
    mounting.require(fuse)
    with overlaid(archive, mountpoint, changes, "--backend", fuse):
        supervisor = min(mounting.processes(mountpoint))
        os.kill(supervisor, signal.SIGTERM)
        assert mounting.wait_until_ended(mountpoint)
        assert wait_until(lambda: not is_mounted(mountpoint))


@needs_root
def test_a_mount_left_on_lower_is_removed(archive: Path, mountpoint: Path, changes: Path) -> None:
    """A command that is killed at the worst moment leaves the archive mounted there."""
    with overlaid(archive, mountpoint, changes):
        pass
    assert command("mount", archive, changes / "lower").returncode == 0
    mounting.kill(changes / "lower")
    assert mounting.wait_until_ended(changes / "lower")
    with overlaid(archive, mountpoint, changes) as top:
        assert (top / "untouched").read_bytes() == changing.FILES["untouched"]

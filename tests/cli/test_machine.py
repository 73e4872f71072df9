"""`info --system`: facts that agree with other tools, and advice about missing features."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffrecord import cli
from ffrecord.cli import machine, system
from ffrecord.cli.machine import Facts, Missing
from ffrecord_fuse.mounting import mounttable
from tests.docs.pages import ROOT
from tests.support import handmade, users


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ffrecord", "info", *map(str, words)],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip


def said_by(*command: str) -> str:
    plain = {"PATH": os.environ["PATH"]}  # nproc obeys variables of OpenMP
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    return done.stdout.strip()


def test_facts_agree_with_other_tools(tmp_path: Path) -> None:
    found = machine.facts(str(tmp_path))
    assert found["kernel"] == said_by("uname", "-r")
    assert found["processors"] == int(said_by("nproc"))
    assert found["file_system"] == said_by("findmnt", "-no", "FSTYPE", "--target", str(tmp_path))
    for key, option in (("open_files", "-Sn"), ("open_files_most", "-Hn")):
        limit = said_by("bash", "-c", f"ulimit {option}")
        assert str(found[key]) == {"unlimited": "None"}.get(limit, limit)
    most = Path("/proc/sys/fs/aio-max-nr")
    assert found["aio_requests_most"] == (int(most.read_text()) if most.exists() else None)
    assert found["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["fuse_device"] == os.path.exists("/dev/fuse")
    assert found["fuse_overlayfs"] == shutil.which("fuse-overlayfs")
    assert found["fusermount"] in (shutil.which("fusermount3"), shutil.which("fusermount"))


def test_a_file_and_its_folder_are_on_the_same_disk(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [b"x" * 5000])
    of_file, of_folder = machine.facts(str(path)), machine.facts(str(tmp_path))
    for key in ("file_system", "direct_bytes", "cachestat", "read_ahead_bytes"):
        assert of_file[key] == of_folder[key]
    assert os.listdir(tmp_path) == ["r.ffr"]


def can_be_read_directly(path: Path, block: int) -> bool:
    memory = np.empty(2 * 4096, np.uint8)
    at = -memory.ctypes.data % 4096
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.preadv(fd, [memory[at : at + block].data], block) == block
    finally:
        os.close(fd)


def test_blocks_of_the_reported_size_can_be_read_with_o_direct(tmp_path: Path) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [b"x" * 20_000])
    block = machine.facts(str(tmp_path))["direct_bytes"]
    if not block:
        pytest.skip("no O_DIRECT here")
    assert can_be_read_directly(path, block)


def test_facts_that_cannot_be_measured_are_none(tmp_path: Path) -> None:
    with users.reachable(tmp_path):
        os.chmod(tmp_path, 0o555)
        found = json.loads(
            users.run(
                "print(json.dumps(machine.facts(sys.argv[1])))", tmp_path,
                imports="import json\nfrom ffrecord.cli import machine\n",
            )
        )  # fmt: skip
        os.chmod(tmp_path, 0o755)
    assert (found["direct_bytes"], found["cachestat"]) == (None, None)
    (tmp_path / "empty").touch()
    assert machine.facts(str(tmp_path / "empty"))["direct_bytes"] is None


def test_proc_and_sys_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_AIO", "_HUGE_PAGES", "_MEMORY", "_READ_AHEAD", "_FUSE"):
        monkeypatch.setattr(machine, name, tmp_path / "missing")
    monkeypatch.setattr(mounttable, "MOUNTINFO", tmp_path / "missing")
    found = machine.facts(str(tmp_path))
    unknown = [key for key, value in found.items() if value is None]
    assert {
        "memory_bytes", "page_cache_bytes", "huge_pages", "aio_requests", "aio_requests_most",
        "file_system", "read_ahead_bytes",
    } <= set(unknown)  # fmt: skip
    assert not found["fuse_device"]
    system.show(str(tmp_path), as_json=False)


@pytest.mark.parametrize(
    ("mounts", "path", "due"),
    [
        (["/ ext4", "/data xfs"], "/data/x", "xfs"),
        (["/ ext4", "/data xfs"], "/database", "ext4"),
        (["/my\\040data xfs", "/ ext4"], "/my data/x", "xfs"),
        (["/d ext4", "/d tmpfs"], "/d/x", "tmpfs"),
        ([], "/d/x", None),
    ],
)
def test_the_longest_and_latest_mountpoint_decides_the_file_system(
    mounts: list[str], path: str, due: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["1 1 8:1 / {} rw - {} /dev/sda rw\n".format(*mount.split(" ")) for mount in mounts]
    (tmp_path / "mounts").write_text("".join(lines))
    monkeypatch.setattr(mounttable, "MOUNTINFO", tmp_path / "mounts")
    assert machine.file_system(Path(path)) == due


# ---- missing features --------------------------------------------------------------------------

WHOLE: Facts = {
    "libaio": True, "aio_context": True, "direct_bytes": 512, "cachestat": True,
    "huge_pages": "madvise", "open_files_most": None, "fuse_device": True,
    "fusermount": "/usr/bin/fusermount3", "fuse_overlayfs": "/usr/bin/fuse-overlayfs",
    "root": False, "kernel": "6.9.0-generic",
}  # fmt: skip
LACKING: dict[str, dict[str, Any]] = {
    "libaio": {"libaio": False, "aio_context": False},
    "AIO contexts": {"aio_context": False},
    "O_DIRECT": {"direct_bytes": 0},
    "cachestat": {"cachestat": False},
    "huge pages": {"huge_pages": "never"},
    "open files": {"open_files_most": 1024},
    "/dev/fuse": {"fuse_device": False},
    "fusermount3": {"fusermount": None},
    "fuse-overlayfs": {"fuse_overlayfs": None},
    "Linux 6.9": {"kernel": "6.8.12"},
}


def test_a_machine_that_has_everything_lacks_nothing() -> None:
    assert machine.missing(WHOLE) == []
    unknown = {"direct_bytes": None, "cachestat": None, "huge_pages": "always"}
    as_root = {"root": True, "fusermount": None, "fuse_overlayfs": None}
    assert machine.missing({**WHOLE, **unknown, **as_root}) == []
    assert machine.missing({**WHOLE, "kernel": "10.0"}) == []


@pytest.mark.parametrize("what", LACKING)
def test_each_missing_feature_is_one_line(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (told,) = machine.missing({**WHOLE, **LACKING[what]})
    assert told.what == what
    whole = machine.facts(".")
    monkeypatch.setattr(system, "facts", lambda _: {**whole, **WHOLE, **LACKING[what]})
    assert cli.main(["info", "--system"]) == 0
    lines = capsys.readouterr().out.partition("\nmissing\n")[2].splitlines()
    assert lines == [f"  {what}: {told.cost}; {told.remedy}"]
    assert cli.main(["info", "--system", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["missing"]
    assert Missing(**listed) == told


def test_a_machine_without_libaio_reports_it_and_still_reads(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/libaio.py").write_text("raise ImportError\n")
    found = os.pathsep.join([str(tmp_path / "hidden"), str(ROOT)])
    done = run("--system", PYTHONPATH=found)
    assert done.returncode == 0
    assert re.search(r"^AIO +no libaio$", done.stdout, re.MULTILINE)
    assert re.search(r"^  libaio: .*libaio1t64 on newer releases$", done.stdout, re.MULTILINE)
    path = handmade.write_records(tmp_path / "r.ffr", [b"x" * 5000])
    assert "records          1\n" in run(path, PYTHONPATH=found).stdout


# ---- the command line --------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["r.ffr", "--system", "."], ["--system", "a", "b"]])
def test_info_takes_a_file_or_system_but_not_both(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"ffrecord: .*--system.*; see `ffrecord info --help`\n", done.stderr)


def test_info_system_refuses_a_missing_path_and_a_fifo(tmp_path: Path) -> None:
    done = run("--system", tmp_path / "missing")
    assert (done.returncode, done.stdout) == (13, "")
    assert done.stderr == f"ffrecord: {tmp_path}/missing: No such file or directory\n"
    os.mkfifo(tmp_path / "fifo")
    done = run("--system", tmp_path / "fifo")
    said = "neither a file nor a folder; name a file or a folder"
    assert done.stderr == f"ffrecord: {tmp_path}/fifo: {said}\n"


def test_each_fact_is_one_line(tmp_path: Path) -> None:
    shown = run("--system", tmp_path).stdout.partition("\n\n")[0].splitlines()
    names = [
        "ffrecord", "kernel", "processors", "memory", "huge pages", "open files", "locked memory",
        "AIO", "FUSE", "file system", "O_DIRECT", "cachestat", "read-ahead",
    ]  # fmt: skip
    assert [line[:17].strip() for line in shown] == names
    assert all(line[17:].strip() for line in shown)

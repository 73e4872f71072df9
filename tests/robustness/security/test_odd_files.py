"""Odd files instead of archives: each command prints one line and exits at once, with its code.

All commands run in one process of an ordinary user, so that permissions matter. Time is limited: a
command that waits for the other end of a fifo is killed.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import handmade, users

OTHER, SHORT, UNFINISHED, SYSTEM, NO_DATASET, MOUNT = 3, 4, 8, 13, 25, 18
CONVERT = 36

# path -> exit code of commands that read it as an archive
READ = {
    "empty": SHORT, "twelve zeros": UNFINISHED, "text": OTHER, "unreadable": SYSTEM,
    "missing": SYSTEM, "": SYSTEM, "text/below": SYSTEM, "n" * 300: SYSTEM, "d/" * 3000: SYSTEM,
    "broken link": SYSTEM, "link loop": SYSTEM,
    "fifo": OTHER, "socket": OTHER, "link to fifo": OTHER, "/dev/stdin": OTHER,
    "/dev/null": OTHER, "/dev/zero": OTHER, "/dev/full": OTHER, "/proc/self/status": SHORT,
    "empty folder": SYSTEM, "folder": SYSTEM, "folder of a fifo": OTHER, "closed folder": SYSTEM,
}  # fmt: skip
READERS = ("info", "ls", "cat", "cat record", "extract", "mount", "ffrecord-fuse")
FOLDERS = ("empty folder", "folder", "folder of a fifo")
NOT_REGULAR = ("fifo", "socket", "link to fifo", "/dev/stdin", "/dev/null", "/dev/zero",
               "/dev/full")  # fmt: skip

IMPORTS = """
import importlib, pkgutil
import ffrecord.cli, ffrecord.convert.conversion
import h5py, tarfile, isal, tqdm
for each in pkgutil.walk_packages(ffrecord.cli.__path__, "ffrecord.cli."):
    importlib.import_module(each.name)
import ffrecord_fuse.cli, ffrecord_fuse.process.daemon
"""
# Runs every command on every file, and prints the outcomes.
ALL = """
import io
place, names = sys.argv[1], json.loads(sys.argv[2])
os.chdir(place)

def commands(path):
    return {
        "info": ["info", path], "ls": ["ls", path], "cat": ["cat", path, "x"],
        "cat record": ["cat", path, "--record", "0"], "extract": ["extract", path, "-C", "out"],
        "mount": ["mount", path, "mnt"], "ffrecord-fuse": [path, "mnt"],
        "verify": ["verify", path], "salvage": ["salvage", path, "out.ffr"],
        "pack": ["pack", path, "out.ffr"], "pack into": ["pack", "folder", path],
        "convert": ["convert", path, "out.tar"],
        "convert tar": ["convert", "--from", "tar", path, "out.ffr"],
        "convert hdf5": ["convert", "--from", "hdf5", path, "out.ffr"],
        "convert dataset": ["convert", "--from", "dataset", path, "out.tar"],
        "umount": ["umount", path],
    }

def run(name, arguments):
    main = ffrecord_fuse.cli.main if name == "ffrecord-fuse" else ffrecord.cli.main
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except BaseException as error:
            code = repr(error)
        out.flush(), err.flush()
    return code, *(stream.buffer.getvalue().decode() for stream in (out, err))

for path in names:
    for name, arguments in commands(path).items():
        if name == "pack into" and path in json.loads(sys.argv[3]):
            continue
        print(json.dumps([path, name, *run(name, arguments)]), flush=True)
        for left in ("out.ffr", "out.tar"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("odd")
    with users.reachable(place), tempfile.TemporaryDirectory() as short:
        (place / "empty").touch()
        (place / "twelve zeros").write_bytes(bytes(12))
        (place / "text").write_text("some text, longer than a header")
        (place / "unreadable").write_bytes(handmade.record_bytes([b"x"]))
        (place / "unreadable").chmod(0)
        (place / "broken link").symlink_to("nowhere")
        (place / "link loop").symlink_to("link loop")
        (place / "link to fifo").symlink_to("fifo")
        os.mkfifo(place / "fifo")
        with socket.socket(socket.AF_UNIX) as server:  # the path of a socket must be short
            server.bind(f"{short}/socket")
            os.rename(f"{short}/socket", place / "socket")
        for name in ("empty folder", "folder", "folder of a fifo", "closed folder", "mnt"):
            (place / name).mkdir()
        (place / "folder" / "file").write_bytes(b"x")
        os.mkfifo(place / "folder of a fifo" / "PART_00000.ffr")
        (place / "closed folder").chmod(0)
        yield place
        (place / "closed folder").chmod(0o700)


@pytest.fixture(scope="module")
def outcomes(place: Path) -> dict[tuple[str, str], tuple[Any, str, str]]:
    # `pack` gets none of these names as its target: it would succeed for some of them.
    not_packed_into = [
        name for name in READ if name not in FOLDERS and name not in NOT_REGULAR
        if not name.startswith("/")
    ]  # fmt: skip
    if os.geteuid() != 0 and not os.access(place, os.W_OK):
        pytest.skip("this user cannot write there")
    told = users.run(
        ALL, place, json.dumps(list(READ)), json.dumps(not_packed_into), imports=IMPORTS
    )
    found = {}
    for line in told.splitlines():
        path, name, code, out, err = json.loads(line)
        found[path, name] = (code, out, err)
    return found


def due(path: str, command: str) -> int:
    code = READ[path]
    if command in READERS:
        return code
    if command == "verify":  # reports a bad file as damaged, with code 1
        return SYSTEM if code == SYSTEM else 1
    if command == "umount":
        return MOUNT
    if command == "pack":
        return 0 if path in FOLDERS else SYSTEM
    if command == "pack into":
        return SYSTEM
    if command == "convert dataset":
        return NO_DATASET if path in FOLDERS else SYSTEM
    if command in ("salvage", "convert hdf5") and path in (*FOLDERS, "closed folder"):
        return OTHER
    if command == "salvage":
        return code
    return due_of_converting(path, command)


def due_of_converting(path: str, command: str) -> int:
    if command == "convert" and path == "folder of a fifo":  # the fifo has the name of a shard
        return OTHER
    if path in FOLDERS:
        return 0 if command == "convert" else CONVERT
    if path in NOT_REGULAR or READ[path] == SYSTEM:
        return READ[path]
    return CONVERT if command == "convert" else 35


@pytest.mark.parametrize("path", READ, ids=lambda path: path[:20])
def test_every_command_explains_the_error_in_one_line(
    path: str, outcomes: dict[tuple[str, str], tuple[Any, str, str]]
) -> None:
    found = {name: outcome for (of, name), outcome in outcomes.items() if of == path}
    assert len(found) >= 15
    codes = {name: code for name, (code, _, _) in found.items()}
    assert codes == {name: due(path, name) for name in found}, found
    for name, (code, out, err) in found.items():
        said = out if name == "verify" else err
        if code:
            assert len(said.splitlines()) == 1, (name, said)
            assert "Errno" not in said
            assert "Traceback" not in out + err


# ---- from Python -------------------------------------------------------------------------------

READERS_IN_PYTHON = """
from ffrecord import FileReader, FileWriter
from ffrecord.dataset import DatasetReader
from ffrecord.errors import FFRecordError
place, names = sys.argv[1], json.loads(sys.argv[2])
os.chdir(place)
ways = {
    "FileReader": FileReader, "PackedFolder": PackedFolder, "DatasetReader": DatasetReader,
    "append": lambda path: FileWriter(path, append=True),
    "resumable": lambda path: FileWriter(path, resumable=True),
    **TORCH,
}
for path in names:
    for name, way in ways.items():
        if path.startswith("d/") and name in ("append", "resumable"):
            continue
        if name in ("append", "resumable") and path in ("missing", "broken link", "text", "empty"):
            continue
        try:
            way(path)
            came = "nothing"
        except (FFRecordError, OSError) as error:
            named = (path[:100], os.path.basename(os.path.realpath(path)))
            came = "" if any(name in str(error) for name in named) else str(error)
        except Exception as error:
            came = repr(error)
        print(json.dumps([path, name, came]), flush=True)
"""
TORCH = """
import ffrecord.torch
TORCH = {
    "torch": ffrecord.torch.Dataset, "torch folder": ffrecord.torch.PackedFolderDataset,
}
"""


@pytest.mark.parametrize("with_torch", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_reader_raises_an_error_that_names_the_file(with_torch: bool, place: Path) -> None:
    if with_torch:
        pytest.importorskip("torch")
    names = [name for name in READ if name not in ("twelve zeros", "unreadable")]
    imports = "import ffrecord.dataset\n" + (TORCH if with_torch else "TORCH = {}\n")
    told = users.run(READERS_IN_PYTHON, place, json.dumps(names), imports=imports)
    came = [json.loads(line) for line in told.splitlines()]
    assert [each for each in came if each[2]] == []
    assert len(came) > 4 * len(names) - 10

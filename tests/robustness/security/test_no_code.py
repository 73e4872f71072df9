"""No code from an archive, a dataset or the current folder is ever run."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ffrecord_fuse import mount
from tests.fuse.mounted import mounting
from tests.robustness.attacks.pickles import CALLS, CANARY, calling
from tests.support import archives, handmade, trees

MODULES = (
    "numpy", "isal", "libaio", "tqdm", "ffrecord", "ffrecord_fuse", "mfusepy", "fuse", "json",
    "argparse", "struct", "secrets", "tempfile", "h5py", "msgpack", "zstandard", "PIL", "torch",
    "sitecustomize", "usercustomize",
)  # fmt: skip


class Trap:
    """Object that creates the canary file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {CANARY}",)


# ---- the current folder ------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Make a folder with an archive, and with modules that create the canary when imported."""
    place = tmp_path / "downloads"
    tree = trees.plain_tree(tmp_path / "tree", {"file": b"content"})
    place.mkdir()
    archives.pack(tree, place / "a.ffr")
    (place / "mnt").mkdir()
    canary = tmp_path / CANARY
    for name in MODULES:
        (place / f"{name}.py").write_text(f"open({str(canary)!r}, 'a').write('{name} ')\n")
    return place


def run_in(place: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join(filter(None, sys.path))  # the same code as in this process
    return subprocess.run(
        list(map(str, command)), cwd=place, env={**os.environ, "PYTHONPATH": found},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


SCRIPT = """
import sys
from ffrecord.cli import main
sys.exit(max(main(line.split()) for line in sys.argv[1:]))
"""


def test_commands_import_nothing_from_the_current_folder(hostile: Path, tmp_path: Path) -> None:
    """A command is a script, as pip installs it: Python searches the script's folder only."""
    script = tmp_path / "bin" / "ffrecord"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    lines = ["ls a.ffr", "verify a.ffr", "cat a.ffr file", "extract a.ffr -C out",
             "convert a.ffr a.tar", "pack out b.ffr", "salvage b.ffr c.ffr"]  # fmt: skip
    done = run_in(hostile, sys.executable, script, *lines)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / CANARY).exists()


def test_mounting_from_python_imports_nothing_from_the_current_folder(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = mounting.why_not()
    if why is not None:
        pytest.skip(why)
    monkeypatch.chdir(hostile)
    with mounting.released(hostile / "mnt"), mount("a.ffr", "mnt") as path:
        assert Path(path, "file").read_bytes() == b"content"
    assert not (tmp_path / CANARY).exists()


def test_python_itself_would_import_from_the_current_folder(hostile: Path, tmp_path: Path) -> None:
    """Control: the trap works. This is also why no command above is started with -m."""
    run_in(hostile, sys.executable, "-m", "ffrecord", "ls", "a.ffr")
    assert (tmp_path / CANARY).exists()


# ---- contents of files -------------------------------------------------------------------------

# Runs every decoder on every payload, and opens every dataset and archive. An audit hook notes each
# event that running code from these files would need.
USING = """
import contextlib, json, os, sys, warnings
import numpy, ffrecord, ffrecord.convert
from ffrecord import PackedFolder
from ffrecord.dataset import DatasetReader
from ffrecord.dataset.codecs import decoders
from ffrecord.errors import FFRecordError

FORBIDDEN = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork",
             "subprocess.Popen"}
heard, listening = [], False

def hook(event, arguments):
    if listening and (event in FORBIDDEN or event == "import" and "canary" in str(arguments[0])):
        heard.append(event)

sys.addaudithook(hook)
warnings.simplefilter("ignore")
payloads, archives, datasets, tars = (
    [os.path.join(top, name) for name in sorted(os.listdir(top))] for top in sys.argv[1:]
)
for name, decode in decoders.items():  # the decoders' own imports happen before the hook listens
    with contextlib.suppress(FFRecordError):
        decode(bytearray(b"x"))
tried = refused = 0

def attempt(use, *arguments):
    global tried, refused, listening
    tried += 1
    listening = True
    try:
        use(*arguments)
    except FFRecordError:
        refused += 1
    finally:
        listening = False

for path in payloads:
    for decode in decoders.values():
        attempt(decode, bytearray(open(path, "rb").read()))
for path in archives:
    attempt(PackedFolder, path)
for path in datasets:
    attempt(DatasetReader, path)
for number, path in enumerate(tars):
    attempt(lambda: ffrecord.convert.convert(path, f"out{number}", target_format="dataset"))
print(json.dumps({"tried": tried, "refused": refused, "heard": heard}))
"""
TYPES = (
    "canary_module", "canary_module.run", "canary_module:run", "bytes+canary_module", "os.system",
    "pickle", "object", "eval", "__import__('canary_module')", "array:O", "../canary_module",
)  # fmt: skip


def object_array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([Trap()], object), allow_pickle=True)
    return out.getvalue()


def hostile_header(descr: str) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)


PAYLOADS = {
    "pickle": pickle.dumps(Trap()),
    "object array": object_array(),
    "call in a header": hostile_header(f"__import__('os').system('touch {CANARY}')"),
    "object in a header": hostile_header("'|O'"),
    "object field in a header": hostile_header("[('a', '|O')]"),
    **{f"call {number}": call for number, call in enumerate(CALLS.values())},
}


def test_the_payloads_run_when_they_are_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: the payloads are dangerous."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(PAYLOADS["pickle"])
    assert (tmp_path / CANARY).exists()
    (tmp_path / CANARY).unlink()
    np.load(io.BytesIO(PAYLOADS["object array"]), allow_pickle=True)
    assert (tmp_path / CANARY).exists()


def test_no_file_content_is_run_or_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / name for name in ("payloads", "archives", "datasets", "tars")]
    for place in places:
        place.mkdir()
    payloads, hostile, datasets, tars = places
    for name, payload in PAYLOADS.items():
        (payloads / name).write_bytes(payload)
        with tarfile.open(tars / f"{name}.tar", "w") as tar:
            for extension in ("pth", "pkl", "pyd", "npy", "pickle"):
                member = tarfile.TarInfo(f"sample.{extension}")
                member.size = len(payload)
                tar.addfile(member, io.BytesIO(payload))
    for number, name in enumerate(CALLS):
        (hostile / f"{number}.ffr").write_bytes(calling(name))
    for number, text in enumerate(TYPES):
        folder = datasets / str(number)
        folder.mkdir()
        manifest = {"format": "ffrecord dataset", "version": 1, "length": 1, "spec": {"a": text},
                    "checksums": {"a": 0}}  # fmt: skip
        (folder / "spec.json").write_text(json.dumps(manifest))
        handmade.write_records(folder / "a.ffr", [b"x"])
    place = tmp_path / "place"
    place.mkdir()
    (place / "canary_module.py").write_text(f"open({CANARY!r}, 'w')\n")
    monkeypatch.chdir(place)
    process = handmade.python(USING, *map(str, places), PYTHONSAFEPATH="")
    try:
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found.pop("heard") == []
    assert found["tried"] == 11 * len(PAYLOADS) + len(CALLS) + len(TYPES) + len(PAYLOADS)
    assert found["refused"] >= len(CALLS) + len(TYPES)
    assert not (place / CANARY).exists()

"""Ctrl-C at any moment of a command: exit code 130, one line, and no incomplete file left behind.

SIGTERM and SIGHUP do the same, with other exit codes.

A moment is a call of a Python function. A command is run again and again, and interrupted at its
1st, 2nd, 4th, 8th, … call (with --long at more calls), until it ends before that call. So timing
does not matter, and every part of the command is interrupted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord import FileReader, PackedFolder
from ffrecord.command import run_command
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import unmount
from tests.fuse.mounted import mounting
from tests.support import archives, handmade, trees

# Forks once for each moment, because starting Python takes longer than everything else. The
# modules of the command are imported before the fork.
INTERRUPT_OFTEN = """
import json, os, shutil, signal, sys
from importlib import import_module
import ffrecord.cli, ffrecord_fuse.process.daemon

place, growth, words = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
number = int(sys.argv[4])
module = import_module(f"ffrecord.cli.{words[0]}")

def interrupted_at(moment):
    left, run = moment, module.run
    def count(frame, event, argument):
        nonlocal left
        if event == "call":
            left -= 1
            if left == 0:
                sys.setprofile(None)
                os.write(tell, b"!")
                signal.raise_signal(number)
    def counted(options):
        os.register_at_fork(after_in_child=lambda: sys.setprofile(None))  # children get no Ctrl-C
        sys.setprofile(count)
        try:
            return run(options)
        finally:
            sys.setprofile(None)
    module.run = counted
    sys.argv[1:] = words
    return ffrecord.cli.command()

def tree():
    return sorted(
        os.path.relpath(os.path.join(top, name), place)
        for top, folders, files in os.walk(place) for name in folders + files
    )

moment, results = 1, []
told, tell = os.pipe2(os.O_NONBLOCK)
while True:
    taken, given = os.pipe()
    pid = os.fork()
    if not pid:
        code = 99
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(given, 2)
            os.close(given)  # a daemon replaces descriptor 2, but would keep this one open
            code = interrupted_at(moment)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(given)
    with open(taken) as file:
        said = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    results.append([moment, code, said, tree()])
    try:
        os.read(told, 1)
    except BlockingIOError:  # the command ended before this moment
        break
    for name in os.listdir(place):
        path = os.path.join(place, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    moment = max(moment + 1, int(moment * growth))
print(json.dumps(results))
"""
Results = list[tuple[int, int, str, list[str]]]


@pytest.fixture
def growth(request: pytest.FixtureRequest) -> float:
    """Return the factor from one moment to the next. Each moment costs a process."""
    return 1.03 if request.config.getoption("--long") else 2.0


def interrupt_often(
    place: Path, growth: float, *words: str | Path, number: signal.Signals = signal.SIGINT
) -> Results:
    """Return a command's exit code, its messages and the files left in `place`, for each moment.

    The last entry is the command without an interrupt.
    """
    place.mkdir(exist_ok=True)
    process = handmade.python(
        INTERRUPT_OFTEN, str(place), str(growth), json.dumps(list(map(str, words))), str(number)
    )
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    results: Results = json.loads(out)
    *stopped, (_, code, said, _) = results
    assert (code, said) == (0, "")
    assert len(stopped) > 7
    late = 0
    for moment, code, said, _ in stopped:
        # Python drops an interrupt that arrives in a destructor, and we raise it again later. The
        # command may have ended by then.
        if code == 0:
            late += 1
            continue
        what = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        assert (code, said) == (128 + number, f"ffrecord: {what}\n"), (moment, words)
    assert late <= len(stopped) // 8
    return results


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("interrupted")
    files = {f"{folder}/{i}": trees.content(3000) for folder in "ab" for i in range(10)}
    tree = trees.plain_tree(top / "tree", {**files, "large": trees.content(700_000)})
    (tree / "link").symlink_to("a/3")
    archives.pack(tree, top / "tree.ffr")
    handmade.write_records(top / "records.ffr", [trees.content(1000) for _ in range(50)])
    return top


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ([], signal.SIGINT), (["--shard-size", "20kB"], signal.SIGINT),
        (["--shard-size", "20kB"], signal.SIGTERM), (["--shard-size", "20kB"], signal.SIGHUP),
    ],
)  # fmt: skip
def test_an_interrupted_pack_leaves_nothing_or_all_of_it(
    options: list[str], number: signal.Signals, sample: Path, tmp_path: Path, growth: float
) -> None:
    place = tmp_path / "place"
    results = interrupt_often(
        place, growth, "pack", sample / "tree", place / "new", *options, number=number
    )
    *stopped, (*_, whole) = results
    assert "new" in whole
    for moment, _, _, left in stopped:
        # Interrupted after the rename, the file exists and is complete.
        assert left in ([], whole), moment
    with PackedFolder(place / "new") as folder:
        assert folder.read("a/3").tobytes() == trees.content(3000)


@pytest.mark.parametrize(
    ("target", "number"),
    [("new.tar", signal.SIGINT), ("new.tfrecord", signal.SIGINT), ("new.tar", signal.SIGTERM)],
)
def test_an_interrupted_conversion_leaves_nothing_or_all_of_it(
    target: str, number: signal.Signals, sample: Path, tmp_path: Path, growth: float
) -> None:
    source = sample / ("tree.ffr" if target.endswith("tar") else "records.ffr")
    results = interrupt_often(
        tmp_path / "place", growth, "convert", source, tmp_path / "place" / target, number=number
    )
    for moment, _, _, left in results:
        assert left in ([], [target]), moment
    assert results[-1][-1] == [target]


def test_an_interrupted_salvage_leaves_nothing_or_all_of_it(
    sample: Path, tmp_path: Path, growth: float
) -> None:
    broken = Path(shutil.copy(sample / "records.ffr", tmp_path / "broken.ffr"))
    archives.flip(broken, 20)  # damaged header: salvage must check all records
    place = tmp_path / "place"
    results = interrupt_often(place, growth, "salvage", broken, place / "new.ffr")
    for moment, _, _, left in results:
        assert left in ([], ["new.ffr"]), moment
    with FileReader(place / "new.ffr") as reader:
        assert reader.n == 50


def test_an_interrupted_extract_leaves_whole_files_only(
    sample: Path, tmp_path: Path, growth: float
) -> None:
    """Extracted files stay under their names, as with tar. Nothing else stays."""
    place = tmp_path / "place"
    results = interrupt_often(place, growth, "extract", sample / "tree.ffr", "-C", place)
    every = {os.fsdecode(path) for path in trees.paths(sample / "tree")} - {"."}
    for moment, _, _, left in results:
        assert set(left) <= every, moment
    assert set(results[-1][-1]) == every
    assert any(0 < len(left) < len(every) for _, _, _, left in results)


@pytest.mark.parametrize("words", [["verify"], ["warm"], ["warm", "a"]], ids=" ".join)
def test_an_interrupted_reader_reports_the_interrupt(
    words: list[str], sample: Path, tmp_path: Path, growth: float
) -> None:
    command, *names = words
    for moment, _, _, left in interrupt_often(
        tmp_path / "p", growth, command, sample / "tree.ffr", *names
    ):
        assert left == [], moment


# ---- mount -------------------------------------------------------------------------------------


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    why = mounting.why_not()
    if why is not None:
        pytest.skip(why)
    point = tmp_path / "mnt"
    point.mkdir()
    with mounting.released(point):
        yield point


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others mount in a second process")
def test_an_interrupted_mount_leaves_nothing_mounted(
    sample: Path, mountpoint: Path, tmp_path: Path, growth: float
) -> None:
    words = ("mount", sample / "tree.ffr", mountpoint, "--workers", "1", "--log", tmp_path / "log")
    interrupt_often(tmp_path / "place", growth, *words)
    # The last run was not interrupted. A mount left by an earlier run would have made it fail.
    assert (mountpoint / "a/3").read_bytes() == trees.content(3000)
    unmount(str(mountpoint))
    with pytest.raises(MountError):
        unmount(str(mountpoint))
    assert mounting.wait_until_ended(mountpoint)


# ---- start of a command ------------------------------------------------------------------------

INTERRUPT_AN_IMPORT = """
import signal, sys
from ffrecord.__main__ import command

class Interrupt:
    def __init__(self, when):
        self.when = when

    def find_spec(self, name, path=None, target=None):
        if name == self.when:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt(sys.argv.pop(1)))
sys.exit(command())
"""


@pytest.mark.parametrize("module", ["ffrecord.cli", "ffrecord.terminal", "numpy", "numpy.linalg"])
def test_an_interrupt_while_modules_are_imported_gives_one_line(module: str, sample: Path) -> None:
    words = [sys.executable, "-c", INTERRUPT_AN_IMPORT, module, "verify", str(sample / "tree.ffr")]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ffrecord: interrupted\n")


def test_an_interrupt_that_a_lock_turns_into_another_error_still_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    condition = threading.Condition()

    def work() -> int:
        """Raise RuntimeError as `wait` does if it is interrupted before it has its lock again."""
        with condition:
            condition.release()
            raise KeyboardInterrupt

    assert run_command(work, "ffrecord") == 130
    assert capsys.readouterr().err == "ffrecord: interrupted\n"


def test_another_runtime_error_does_not_count_as_an_interrupt() -> None:
    def work() -> int:
        raise RuntimeError("a mistake of ours")

    with pytest.raises(RuntimeError, match="a mistake of ours"):
        run_command(work, "ffrecord")

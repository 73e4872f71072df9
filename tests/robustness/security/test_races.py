"""Extracting while another process changes the target folder as fast as it can.

The other process swaps folders and files below the target with symlinks that lead out of it. Each
swap is one step (renameat2 with RENAME_EXCHANGE), so every name always exists, sometimes as a
symlink. Extracting may fail, but nothing outside may change.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ffrecord.archive.archive import Archive
from ffrecord.archive.extract import extract
from tests.support import archives, handmade, trees

ROUNDS = 60
LONG_ROUNDS = 3000
FILES = {f"{top}/{inner}/{name}": b"from the archive"
         for top in "ab" for inner in "cd" for name in "efgh"}  # fmt: skip
# No path is inside another: otherwise the attacker's renames would follow its own symlinks.
EXCHANGED = ["a", "b/d", "b/c/e", "b/c/g"]

EXCHANGING = """
import ctypes, os, random, sys, time
libc = ctypes.CDLL(None)
names = [os.fsencode(name) for name in sys.argv[1:]]
pairs = list(zip(names[::2], names[1::2]))
print("ready", flush=True)
while os.getppid() != 1:
    for one, other in pairs:
        libc.renameat2(-100, one, -100, other, 2)
        time.sleep(random.random() * 0.0003)  # without a pause nobody else gets the kernel's lock
"""


class Attacker:
    """The swapping process, which can be stopped while the next round is prepared."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._pid, os.WSTOPPED)

    def resume(self) -> None:
        os.kill(self._pid, signal.SIGCONT)


@contextmanager
def attacking(pairs: list[tuple[Path, Path]]) -> Iterator[Attacker]:
    process = handmade.python(EXCHANGING, *(str(path) for pair in pairs for path in pair))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Attacker(process.pid)
    finally:
        process.kill()
        process.communicate()


def contents_of(top: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return modes, links and contents of everything below a folder."""
    return {
        str(path.relative_to(top)): (
            path.lstat().st_mode,
            path.lstat().st_nlink if path.is_file() else 0,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [top, *top.rglob("*")]
    }


@pytest.mark.parametrize(
    "rounds", [ROUNDS, pytest.param(LONG_ROUNDS, marks=pytest.mark.long)], ids=["short", "long"]
)
def test_no_race_writes_a_file_outside_the_folder(rounds: int, tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", FILES)
    os.link(tree / "b/c/e", tree / "b/d/link")
    archives.pack(tree, tmp_path / "tree.ffr")
    outside = trees.plain_tree(tmp_path / "outside", dict.fromkeys(FILES, b"outside"))
    (outside / "a").chmod(0o701)
    before = contents_of(outside)
    dest, links = tmp_path / "dest", tmp_path / "links"
    pairs = [(dest / name, links / name.replace("/", "-")) for name in EXCHANGED]
    failed = exchanged = 0
    with Archive.open(tmp_path / "tree.ffr") as archive, attacking(pairs) as attacker:
        for _ in range(rounds):
            attacker.stop()
            for place in (dest, links):
                shutil.rmtree(place, ignore_errors=True)
            links.mkdir()
            for name, (_, link) in zip(EXCHANGED, pairs, strict=True):
                link.symlink_to(outside / name)
            attacker.resume()
            try:
                extract(archive, dest)
                extract(archive, dest, overwrite=True)
            except OSError:
                failed += 1
            exchanged += any(not os.path.islink(link) for _, link in pairs)
    assert contents_of(outside) == before
    assert failed > 0  # otherwise there was no race
    assert exchanged > 0

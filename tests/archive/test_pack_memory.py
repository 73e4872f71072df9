"""Packing takes a limited number of bytes of memory for each file.

The peak of resident memory is measured in fresh processes, once for a tree of many files and once
for a tree of few; the difference counts. Reading takes the same memory for both.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import handmade

FEW, MANY = 20_000, 80_000
MOST = 300
"""Bytes for each file: 195 to 235 on an idle machine. A busy machine has more reads in flight. With
the 50 MB that any packing takes, a million files take at most 350 MB."""
MOST_WITH_ATTRIBUTES = 550
"""Bytes for each file that also has its own row of attributes and its own text."""

pytestmark = pytest.mark.in_memory

# Not ru_maxrss, which starts with the peak of the parent process.
SAY = 'print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])'
PACK = f"""
import sys
from ffrecord import pack_folder
shards = dict(shard_size="1MB") if sys.argv[3] == "shards" else dict()
pack_folder(sys.argv[1], sys.argv[2], **shards)
{SAY}
"""
CONVERT = f"""
import sys
from ffrecord.convert import convert
convert(sys.argv[1], sys.argv[2])
{SAY}
"""


def flat(top: Path, count: int) -> None:
    """Make all files in one folder."""
    fill(top, count, lambda number, fd: make(f"{number:016d}", fd))


def folders(top: Path, count: int) -> None:
    """Make ten files in each folder."""
    for start in range(0, count, 10):
        fill(top / f"{start:012d}", 10, lambda number, fd: make(f"{number:016d}", fd))


def links(top: Path, count: int) -> None:
    """Make symlinks with different targets, and files with two names."""

    def make_links(number: int, fd: int) -> None:
        if number % 4 == 0:
            make(f"{number:016d}", fd)
            os.link(f"{number:016d}", f"{number:016d}+", src_dir_fd=fd, dst_dir_fd=fd)
        elif number % 4 < 3:
            os.symlink(f"../{number:010d}", f"{number:016d}", dir_fd=fd)

    fill(top, count, make_links)


def attributes(top: Path, count: int) -> None:
    """Make files with different extended attributes."""
    fill(top, count, lambda number, fd: make(f"{number:016d}", fd, b"%016d" % number))


def make(name: str, folder: int, attribute: bytes = b"") -> None:
    fd = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder)
    if attribute:
        os.setxattr(fd, "user.a", attribute)
    os.close(fd)


def fill(top: Path, count: int, make_one: Callable[[int, int], None]) -> None:
    top.mkdir(parents=True)
    fd = os.open(top, os.O_RDONLY)
    for number in range(count):
        make_one(number, fd)
    os.close(fd)


def peak_of(script: str, *arguments: str | Path) -> int:
    """Return the peak memory of a script, in bytes."""
    process = handmade.python(script, *map(str, arguments))
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return 1024 * int(out)


Use = tuple[str, str]
"""A script, and the kind of archive that it writes."""


@pytest.mark.parametrize(
    ("shape", "uses", "most"),
    [
        pytest.param(
            flat, [(PACK, "file"), (PACK, "shards"), (CONVERT, "file")], MOST, id="one folder"
        ),
        pytest.param(folders, [(PACK, "file")], MOST, id="many folders", marks=pytest.mark.long),
        pytest.param(links, [(PACK, "file")], MOST, id="links", marks=pytest.mark.long),
        pytest.param(attributes, [(PACK, "file")], MOST_WITH_ATTRIBUTES, id="attributes"),
    ],
)
def test_memory_for_each_file_is_limited(
    shape: Callable[[Path, int], None], uses: list[Use], most: int, tmp_path: Path
) -> None:
    found: dict[tuple[Use, int], int] = {}
    for count in (FEW, MANY):
        tree = tmp_path / f"tree of {count}"
        try:
            shape(tree, count)
        except OSError as error:  # tmpfs has extended attributes since Linux 6.6
            pytest.skip(f"this file system cannot hold such files: {error}")
        for number, (script, target) in enumerate(uses):
            out = tmp_path / f"{count} {number}.ffr"
            found[(script, target), count] = peak_of(script, tree, out, target)
        subprocess.run(["rm", "-rf", str(tree)], check=True)
    for use in uses:
        each = (found[use, MANY] - found[use, FEW]) // (MANY - FEW)
        assert each < most, use

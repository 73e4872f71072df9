"""Try every attack of `cases` alone, and all of them in one process with little memory."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import PackedFolder
from ffrecord.archive.archive import Archive as OpenArchive
from ffrecord.archive.audit import audit_texts
from ffrecord.errors import FFRecordError
from ffrecord.format import erofs
from ffrecord_fuse.filesystem import Ownership
from ffrecord_fuse.kernel.image import Image
from tests.robustness.attacks.builders import folder, large_files, sample, sharded, text
from tests.robustness.attacks.case import Archive, Case
from tests.robustness.attacks.cases import CASES
from tests.robustness.attacks.extras import reading_large_files
from tests.robustness.attacks.pickles import CALLS, CANARY
from tests.robustness.attacks.tables import hard_links
from tests.robustness.attacks.trees import reading_all_of_the_sample
from tests.support import handmade
from tests.support.erofs_image import Checker
from tests.support.patience import PATIENCE

Written: TypeAlias = "Callable[[int], list[Path]]"

MEMORY = 512 << 20  # bytes that all attacks together may map, in addition to Python and numpy
SECONDS = PATIENCE  # a process that takes longer is considered to hang


def write(archive: Archive, path: Path) -> Path:
    """Write an archive: a file, or a folder of files."""
    if isinstance(archive, bytes):
        path.write_bytes(archive)
        return path
    path.mkdir()
    for name, content in archive.items():
        (path / name).write_bytes(content)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """Return a function that writes the archives of a case once and returns their paths."""
    top = tmp_path_factory.mktemp("attacks")
    made: dict[int, list[Path]] = {}

    def paths(number: int) -> list[Path]:
        if number not in made:
            made[number] = [
                write(archive, top / f"{number:03d}-{form:03d}.ffr")
                for form, archive in enumerate(CASES[number].archives())
            ]
        return made[number]

    yield paths
    shutil.rmtree(top)


def test_the_archives_are_valid_before_the_attacks_change_them(tmp_path: Path) -> None:
    """Otherwise an archive could be refused for another reason than its attack."""
    archives: list[Archive] = [sample().archive(), sharded(sample())]
    for number, archive in enumerate(archives):
        with PackedFolder(write(archive, tmp_path / f"{number}.ffr")) as packed:
            reading_all_of_the_sample(packed)
            assert packed.xattrs("alpha") == {"user.colour": b"green", "user.empty": b""}
            assert packed.stat("folder").st_nlink == 4
    with PackedFolder(write(large_files().archive(), tmp_path / "large.ffr")) as packed:
        reading_large_files(packed)
    with PackedFolder(write(hard_links([2, 1, 3], [2, 1, 3]), tmp_path / "links.ffr")) as packed:
        assert [packed.stat(name).st_nlink for name in packed] == [2, 2, 1, 3, 3, 3]


@pytest.mark.parametrize("name", CALLS)
def test_the_pickles_run_code_when_they_are_unpickled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a missing canary file in the other tests would prove nothing."""
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(folder(text("a") + CALLS[name])) == {"a": 0}
    assert (tmp_path / CANARY).exists()


EVERY = pytest.mark.parametrize(
    "number", CASES, ids=[f"{number:03d} {case.title}" for number, case in CASES.items()]
)


@EVERY
def test_an_attack_has_its_stated_result(
    number: int, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = CASES[number]
    for path in written(number):
        if case.use is None:
            refused(case, path, partial(PackedFolder, path))
            continue
        with PackedFolder(path) as packed:
            if case.error is None:
                case.use(packed)
            else:
                refused(case, path, partial(case.use, packed))
    assert list(tmp_path.iterdir()) == []  # no canary file


def refused(case: Case, path: Path, attempt: Callable[[], Any]) -> None:
    """Check that the attempt raises exactly the case's error, with the file and the reason."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        attempt()
    assert type(caught.value) is case.error, f"{path}: {caught.value!r}"
    assert str(path) in str(caught.value)
    assert case.says in str(caught.value)


@EVERY
def test_no_attack_reaches_an_image_for_the_kernel(
    number: int, written: Written, tmp_path: Path
) -> None:
    """An archive is refused before its image is built, or the image is valid."""
    for path in written(number):
        try:
            opened = OpenArchive.open(path)
        except (FFRecordError, OSError):
            continue
        with opened:
            try:
                audit_texts(opened)
            except FFRecordError:
                continue
            image = Image(opened, erofs.EXTENTS, Ownership())
            fd = os.open(tmp_path / "image", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                image.write(fd)
            finally:
                os.close(fd)
            shown = Checker((tmp_path / "image").read_bytes(), image.devices.sizes).tree()
        assert len(shown) == 1 + len(opened.index.tables.entries)


# A program that reads a list of archives, opens each one, uses it as its case does, and prints the
# result. At the end it prints how many descriptors are left open.
ALL_IN_ONE_PROCESS = """
import gc, json, os, resource, sys
from ffrecord import PackedFolder
from tests.support import handmade
from tests.robustness.attacks.cases import CASES

os.chdir(sys.argv[1])
attempts = json.load(sys.stdin)
before = handmade.open_descriptors()
pages = int(open("/proc/self/statm").read().split()[0])
_, most = resource.getrlimit(resource.RLIMIT_AS)
little = (pages * os.sysconf("SC_PAGE_SIZE") + int(sys.argv[2]), most)
enough = (most, most)  # memory to report the error
gc.freeze()

def result_of(case, path):
    resource.setrlimit(resource.RLIMIT_AS, little)
    try:
        with PackedFolder(path) as packed:
            if case.use is not None:
                case.use(packed)
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_AS, enough)
        return type(error).__name__

for number, path in attempts:
    print(json.dumps([number, path, result_of(CASES[number], path)]), flush=True)
    gc.collect()  # free the memory of this attack before the next
print(json.dumps(handmade.open_descriptors() - before))
"""


def test_all_attacks_together_take_little_memory_and_run_no_code(
    written: Written, tmp_path: Path
) -> None:
    attempts = [(number, str(path)) for number in CASES for path in written(number)]
    process = handmade.python(ALL_IN_ONE_PROCESS, str(tmp_path), str(MEMORY))
    try:
        out, err = process.communicate(json.dumps(attempts), timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, err
    *results, leaked = map(json.loads, out.splitlines())
    errors = {number: case.error and case.error.__name__ for number, case in CASES.items()}
    wrong = {
        f"{number} {CASES[number].title}: {error}"
        for number, _, error in results
        if error != errors[number]
    }
    assert not wrong, "\n".join(sorted(wrong))
    assert [tuple(item[:2]) for item in results] == attempts
    assert leaked == 0
    assert list(tmp_path.iterdir()) == []  # no canary file, and no core dump


def test_the_readme_lists_all_cases() -> None:
    """Compare number, title and error of each."""
    readme = Path(__file__).with_name("README.md").read_text()
    items = re.findall(r"^(\d+)\. \*\*(.+?)\.\*\* (?:`(\w+)`|Harmless)", readme, re.MULTILINE)
    listed = [(int(number), title.lower(), error) for number, title, error in items]
    assert listed == [
        (number, case.title.lower(), case.error.__name__ if case.error else "")
        for number, case in CASES.items()
    ]
    assert len(re.findall(r"^\d+\.", readme, re.MULTILINE)) == len(CASES) >= 40

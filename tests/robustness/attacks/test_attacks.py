"""Every attack of `cases` is tried, alone and all of them in one process that may use little."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import PackedFolder
from tests.robustness.attacks.builders import folder, large_files, sample, sharded, text
from tests.robustness.attacks.case import Archive, Case
from tests.robustness.attacks.cases import CASES
from tests.robustness.attacks.extras import reading_large_files
from tests.robustness.attacks.pickles import CALLS, CANARY
from tests.robustness.attacks.tables import hard_links
from tests.robustness.attacks.trees import reading_all_of_the_sample
from tests.support import handmade
from tests.support.patience import PATIENCE

Written: TypeAlias = "Callable[[int], list[Path]]"

MEMORY = 512 << 20  # that all attacks together may map, beyond what Python and numpy have
SECONDS = PATIENCE  # after which it is taken to hang


def write(archive: Archive, path: Path) -> Path:
    """A file, or a folder of files."""
    if isinstance(archive, bytes):
        path.write_bytes(archive)
        return path
    path.mkdir()
    for name, content in archive.items():
        (path / name).write_bytes(content)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """The archives of a case on disk, made when they are first asked for."""
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


def test_what_the_attacks_begin_with_is_sound(tmp_path: Path) -> None:
    """Else they would be refused for another reason than the one they are about."""
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
def test_the_pickles_that_run_code_do_so_when_they_are_unpickled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would mean nothing that they make no canary here."""
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(folder(text("a") + CALLS[name])) == {"a": 0}
    assert (tmp_path / CANARY).exists()


@pytest.mark.parametrize(
    "number", CASES, ids=[f"{number:03d} {case.title}" for number, case in CASES.items()]
)
def test_an_attack_comes_to_what_is_said_of_it(
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
    assert list(tmp_path.iterdir()) == []  # no canary


def refused(case: Case, path: Path, attempt: Callable[[], Any]) -> None:
    """Exactly the error that is due, which names the file and says why."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        attempt()
    assert type(caught.value) is case.error, f"{path}: {caught.value!r}"
    assert str(path) in str(caught.value)
    assert case.says in str(caught.value)


# Opens every archive that it is told of on its input, uses it as its case does, and says what
# came of it; then what is left open.
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
enough = (most, most)  # to say what went wrong
gc.freeze()

def came_of(case, path):
    resource.setrlimit(resource.RLIMIT_AS, little)
    try:
        with PackedFolder(path) as packed:
            if case.use is not None:
                case.use(packed)
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_AS, enough)
        return type(error).__name__

for number, path in attempts:
    print(json.dumps([number, path, came_of(CASES[number], path)]), flush=True)
    gc.collect()  # what one took is not held against the next
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
    *came, leaked = map(json.loads, out.splitlines())
    errors = {number: case.error and case.error.__name__ for number, case in CASES.items()}
    wrong = {
        f"{number} {CASES[number].title}: {error}"
        for number, _, error in came
        if error != errors[number]
    }
    assert not wrong, "\n".join(sorted(wrong))
    assert [tuple(item[:2]) for item in came] == attempts
    assert leaked == 0
    assert list(tmp_path.iterdir()) == []  # no canary, and no core


def test_the_list_in_the_readme_is_that_of_the_cases() -> None:
    """Number, sentence and error of each."""
    readme = Path(__file__).with_name("README.md").read_text()
    items = re.findall(r"^(\d+)\. \*\*(.+?)\.\*\* (?:`(\w+)`|Harmless)", readme, re.MULTILINE)
    listed = [(int(number), title.lower(), error) for number, title, error in items]
    assert listed == [
        (number, case.title.lower(), case.error.__name__ if case.error else "")
        for number, case in CASES.items()
    ]
    assert len(re.findall(r"^\d+\.", readme, re.MULTILINE)) == len(CASES) >= 40

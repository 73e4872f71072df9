"""Two writers of one target: the second gets an error before it has done any work.

Each case of `MAKERS` makes a new folder in its own way; one case makes a file. All must behave
alike. The other writer is a real process.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ffrecord import BusyError, FileReader, ShardedDatasetWriter, pack_folder, write_dataset
from ffrecord.atomic import folder as atomic_folder
from ffrecord.convert import convert
from ffrecord.records.dump import dump
from tests.support import handmade, trees
from tests.support.patience import PATIENCE

FILES = {f"d/{k}": trees.content(1000 + k) for k in range(20)}
ROWS = [{"number": k} for k in range(20)]
RECORDS = [b"%d" % k for k in range(20)]


class Listed(list[Any]):
    """A list whose items are read in one place, which a test can forbid."""

    def __getitem__(self, index: Any) -> Any:
        return read(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(read, super().__iter__())


def read(item: Any) -> Any:
    """Return an item. Tests replace this function to forbid or delay a maker's work."""
    return item


def by_packing(source: Path, target: Path) -> None:
    pack_folder(source, target, shard_size=3000)


def by_dumping(source: Path, target: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        dump(Listed(RECORDS), target, 4, executor=executor)


def by_writing(source: Path, target: Path) -> None:
    write_dataset(target, Listed(ROWS), {"number": "int"})


def by_writing_shards(source: Path, target: Path) -> None:
    with ShardedDatasetWriter(target, {"number": "int"}, shardlen=50) as writer:
        for row in Listed(ROWS):
            writer.append(row)


def by_converting(source: Path, target: Path) -> None:
    convert(source.with_name("records.ffr"), target, target_format="dataset")


def by_converting_to_a_file(source: Path, target: Path) -> None:
    convert(source, target, target_format="tar")


MAKERS: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "pack_folder": (by_packing, "ffrecord.archive.pack.Scan"),
    "dump": (by_dumping, "tests.atomic.test_folder.read"),
    "write_dataset": (by_writing, "tests.atomic.test_folder.read"),
    "ShardedDatasetWriter": (by_writing_shards, "tests.atomic.test_folder.read"),
    "convert": (by_converting, "ffrecord.convert.conversion._opened"),
    "convert to a file": (by_converting_to_a_file, "ffrecord.convert.conversion._opened"),
}
"""Functions that make a target, and the names of the work that a refused writer must not begin."""

every_maker = pytest.mark.parametrize("maker", MAKERS)

FORK = multiprocessing.get_context("fork")


class Other:
    """Another process, which waits in the middle of its work. `go_on` lets it continue."""

    def __init__(self, work: Callable[[Callable[[], None]], None]) -> None:
        """Start `work`, which gets a function to call when it must wait."""
        self._begun, self._told = FORK.Event(), FORK.Event()
        self.process = FORK.Process(target=work, args=(self._wait,))
        self.process.start()
        assert self._begun.wait(PATIENCE)

    def _wait(self) -> None:
        self._begun.set()
        self._told.wait()

    def go_on(self) -> int | None:
        """Let the process continue, and return its exit code."""
        self._told.set()
        self.process.join(PATIENCE)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def another(maker: str, source: Path, target: Path) -> Iterator[Other]:
    """Start a process that has begun to make the target, and waits."""

    def work(wait: Callable[[], None]) -> None:
        begin = atomic_folder.NewFolder.__init__

        def begin_and_wait(self: Any, *arguments: Any) -> None:
            begin(self, *arguments)
            wait()

        atomic_folder.NewFolder.__init__ = begin_and_wait  # type: ignore[assignment,method-assign]
        make(maker, source, target)

    other = Other(work)
    try:
        yield other
    finally:
        other.kill()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    handmade.write_records(tmp_path / "records.ffr", RECORDS)
    return trees.plain_tree(tmp_path / "source", FILES)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def make(maker: str, source: Path, target: Path) -> None:
    MAKERS[maker][0](source, target)


def forbid_work(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(*_arguments: object, **_options: object) -> Any:
        raise AssertionError("a refused writer has begun to work")

    monkeypatch.setattr(MAKERS[maker][1], work)


@every_maker
def test_a_second_writer_gets_a_busy_error_at_the_start(
    maker: str, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = place / "new"
    with another(maker, source, target) as other:
        with monkeypatch.context() as patched:
            forbid_work(maker, patched)
            with pytest.raises(BusyError, match=f"^{target}.*: another writer is using it"):
                make(maker, source, target)
        assert other.go_on() == 0
    assert os.listdir(place) == ["new"]


@every_maker
def test_a_target_that_another_writer_has_just_finished_is_refused_before_any_work(
    maker: str, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer ends between the second writer's check of the target and its lock."""
    target = place / "new"
    with another(maker, source, target) as other:

        def let_the_other_end(*arguments: Any) -> bool:
            assert other.go_on() == 0
            return hidden(*arguments)

        hidden = atomic_folder.make_hidden
        monkeypatch.setattr(atomic_folder, "make_hidden", let_the_other_end)
        monkeypatch.setattr("ffrecord.convert.conversion.remove_abandoned", lambda *_: None)
        forbid_work(maker, monkeypatch)
        with pytest.raises(FileExistsError, match="already exists"):
            make(maker, source, target)
    assert os.listdir(place) == ["new"]


@every_maker
def test_a_killed_writer_does_not_block_the_next(maker: str, source: Path, place: Path) -> None:
    target = place / "new"
    with another(maker, source, target):
        pass  # killed
    make(maker, source, target)
    assert os.listdir(place) == ["new"]


@every_maker
def test_a_target_that_appears_meanwhile_is_not_replaced(
    maker: str, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that takes no locks has made the target."""
    target = place / "new"
    name = target / "000000" if maker == "ShardedDatasetWriter" else target

    def appear(_unfinished: str) -> None:
        if not name.exists():
            name.mkdir(parents=True)
            (name / "theirs").touch()

    monkeypatch.setattr(atomic_folder, "sync_folder", appear)
    monkeypatch.setattr("ffrecord.convert.publish._make_durable", appear)
    with pytest.raises(FileExistsError, match="already exists") as caught:
        make(maker, source, target)
    assert caught.value.filename == str(name)
    assert os.listdir(name) == ["theirs"]
    assert os.listdir(place) == ["new"]


# ---- an existing folder ------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_two_dumps_into_one_folder_exclude_each_other(killed: bool, place: Path) -> None:
    def work(wait: Callable[[], None]) -> None:
        def read_and_wait(item: Any) -> Any:
            globals()["read"] = lambda item: item
            wait()
            return item

        globals()["read"] = read_and_wait
        by_dumping(Path(), place)

    other = Other(work)
    with pytest.raises(BusyError, match=f"^{place}: another writer is using it"):
        by_dumping(Path(), place)
    if killed:
        other.kill()
    else:
        assert other.go_on() == 0
    by_dumping(Path(), place)
    with FileReader(place) as reader:
        assert [record.tobytes() for record in reader] == RECORDS
    assert sorted(os.listdir(place)) == [f"PART_{k:05d}.ffr" for k in range(4)]

"""Operations that read through the library, in every way that it offers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ffrecord import DatasetReader, FileReader, PackedFolder
from ffrecord.records.opening import MODES

from .contents import KIB, MIB, File
from .operations import TIMEOUT, Answer, Setting, difference, in_a_fork, operation

ROOT = Path(__file__).resolve().parents[2]
THREADS = 4
LOADER = "loader"


class LibraryReader:
    """The operations of one reader. Its files stay open, as in a training job."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._chance = setting.chance
        stage = setting.stage
        self._readers = {mode: FileReader(stage.records, mode=mode) for mode in MODES}
        # Mapped pages cannot be dropped from the page cache: with a mapped archive, the mount would
        # never read from the disk. So only operations that open the archive for a moment map it.
        modes = [mode for mode in MODES if mode != "mmap"]
        self._folders = [PackedFolder(stage.archive, mode=mode) for mode in modes]
        self._dataset = DatasetReader(stage.dataset)
        self._small = [file for file in self._plan.files if file.size < MIB]
        self._large = [file for file in self._plan.files if file.size >= MIB]

    @operation("read auto", 20)
    def read_auto(self) -> list[Answer]:
        return self._read("auto")

    @operation("read aio", 20)
    def read_aio(self) -> list[Answer]:
        return self._read("aio")

    @operation("read buffered", 20)
    def read_buffered(self) -> list[Answer]:
        return self._read("buffered")

    @operation("read mmap", 20)
    def read_mmap(self) -> list[Answer]:
        return self._read("mmap")

    def _read(self, mode: str) -> list[Answer]:
        indices = self._indices()
        return self._records(indices, self._readers[mode].read(indices))

    @operation("read_async", 20)
    def read_ahead(self) -> list[Answer]:
        """Collect two batches in flight in reverse order; sometimes drop one."""
        reader = self._readers[self._mode()]
        one, two = self._indices(), self._indices()
        first, second = reader.read_async(one), reader.read_async(two)
        answers = self._records(two, second.result())
        if self._chance.random() < 0.2:
            return answers
        return answers + self._records(one, first.result())

    @operation("prefetch", 10)
    def prefetch(self) -> list[Answer]:
        reader, indices = self._readers[self._mode()], self._indices()
        reader.prefetch(indices)
        return self._records(indices, reader.read(indices))

    @operation("open and close", 5)
    def open_and_close(self) -> list[Answer]:
        indices = self._indices()
        with FileReader(self._setting.stage.records, mode=self._mode()) as reader:
            answers = self._records(indices, reader.read(indices))
        file = self._chance.choice(self._small)
        with PackedFolder(self._setting.stage.archive, mode=self._mode()) as folder:
            return [*answers, self._setting.whole(file, folder.read_one(file.path))]

    @operation("folder.read", 20)
    def read_names(self) -> list[Answer]:
        files = self._chance.choices(self._small, k=self._chance.randrange(1, 48))
        found = self._chance.choice(self._folders).read([file.path for file in files])
        return [self._setting.whole(file, one) for file, one in zip(files, found, strict=True)]

    @operation("folder.open", 10)
    def open_file(self) -> list[Answer]:
        file = self._chance.choice(self._large)
        offset = self._chance.randrange(file.size)
        with self._chance.choice(self._folders).open(file.path) as opened:
            opened.seek(offset)
            first, second = opened.read(10_000), opened.read(300 * KIB)
        return [
            self._setting.part(file, offset, 10_000, first),
            self._setting.part(file, offset + 10_000, 300 * KIB, second),
        ]

    @operation("folder.read_range", 20)
    def read_range(self) -> list[Answer]:
        file = self._chance.choice(self._large if self._chance.random() < 0.7 else self._small)
        offset = self._chance.randrange(file.size + 1)
        length = self._chance.choice([1, 5_000, 200_000, 2 * MIB])
        found = self._chance.choice(self._folders).read_range(file.path, offset, length)
        return [self._setting.part(file, offset, length, found)]

    @operation("threads", 5)
    def in_threads(self) -> list[Answer]:
        """Read with several threads from one reader."""
        reader = self._readers[self._mode()]
        batches = [self._indices() for _ in range(THREADS)]
        answers: list[list[Answer]] = [[] for _ in batches]
        problems: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for _ in range(3):
                    answers[number] += self._records(batches[number], reader.read(batches[number]))
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return [answer for each in answers for answer in each]

    @operation("fork", 3)
    def fork(self) -> list[Answer]:
        """Fork with reads in flight: the child also collects them, and makes more reads."""
        reader, folder = self._readers[self._mode()], self._chance.choice(self._folders)
        indices, file = self._indices(), self._chance.choice(self._small)
        pending = reader.read_async(indices)

        def child() -> str:
            answers = self._records(indices, pending.result())
            answers += self._records(indices[::-1], reader.read(indices[::-1]))
            answers.append(self._setting.whole(file, folder.read_one(file.path)))
            return "\n".join(filter(None, map(difference, answers)))

        said = in_a_fork(child)
        return [Answer("a forked child", said, str), *self._records(indices, pending.result())]

    @operation("spawn", 0.2)
    def spawn(self) -> list[Answer]:
        """Send a pickled reader to a fresh process."""
        indices = self._indices()
        reader = self._readers[self._mode()]
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.spawned"], cwd=ROOT, capture_output=True,
            input=pickle.dumps((reader, indices)), timeout=TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode()}")
        found = list(map(int, done.stdout.split()))
        return [Answer(f"spawned: {indices}", found, lambda: self._checksums(indices))]

    @operation("dataset", 10)
    def read_dataset(self) -> list[Answer]:
        indices = self._chance.choices(range(len(self._dataset)), k=self._chance.randrange(1, 33))
        found: Any = (
            self._dataset.read_async(indices).result()
            if self._chance.random() < 0.3
            else self._dataset.read(indices)
        )
        due = self._plan.datapoint
        return [
            Answer(f"datapoint {index}", one, partial(due, index))
            for index, one in zip(indices, found, strict=True)
        ]

    @operation(LOADER, 0.3)
    def load(self) -> list[Answer]:
        from . import loading  # imported here, because torch takes seconds

        return [
            self._setting.whole(self._plan.records[index], found)
            for index, found in loading.some_batches(
                str(self._setting.stage.records), self._chance.randrange(1 << 30)
            )
        ]

    # ---- choices -------------------------------------------------------------------------

    def _mode(self) -> str:
        return self._chance.choice(MODES)

    def _indices(self) -> list[int]:
        """Return the records of a batch: most batches are small, some larger than a window."""
        count = self._chance.choice([1, 2, 8, 32, 64, 400])
        return self._chance.choices(range(len(self._plan.records)), k=count)

    def _records(self, indices: Sequence[int], found: Sequence[Any]) -> list[Answer]:
        due: list[File] = [self._plan.records[index] for index in indices]
        return [self._setting.whole(file, one) for file, one in zip(due, found, strict=True)]

    def _checksums(self, indices: Sequence[int]) -> list[int]:
        return [zlib.crc32(self._plan.content(self._plan.records[index]).data) for index in indices]

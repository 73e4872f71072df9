"""Operations that write files of their own, and operations that mount a second archive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from ffrecord import FileReader, FileWriter
from ffrecord_fuse import mount

from .contents import OTHERS_FROM, File
from .operations import Answer, Setting, operation

RECORDS = 60
RESUMED = 400
"""Number of records in the file that killed processes write."""


class Writer:
    """The operations of the writer, in its own folder.

    Each operation reads its files back, and lists the folder to check that nothing else is left.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._chance = setting.chance
        self._folder = setting.stage.scratch(setting.name)
        self._folder.mkdir(exist_ok=True)
        self._generation = 0

    @operation("replace", 3)
    def replace(self) -> list[Answer]:
        """Replace a file that is open: its reader continues with the old content."""
        path, old = self._folder / "replaced.ffr", self._new_records()
        _write(path, self._setting, old)
        with FileReader(path) as before:
            new = self._new_records()
            _write(path, self._setting, new)
            answers = self._read(before, old)
        return answers + self._check(path, new)

    @operation("append", 3)
    def append(self) -> list[Answer]:
        path, records = self._folder / "appended.ffr", self._new_records()
        _write(path, self._setting, records)
        more = self._new_records()
        with FileWriter(path, append=True) as writer:
            writer.write([self._setting.plan.content(record) for record in more])
        return self._check(path, records + more)

    @operation("resume", 2)
    def resume(self) -> list[Answer]:
        """Write a resumable file in processes that are killed at random, until one finishes."""
        path = self._folder / "resumed.ffr"
        records = [File(OTHERS_FROM + index, f"{index}", 900) for index in range(RESUMED)]
        safe, answers, finished = 0, [], False
        while not finished:
            # If a writer was killed right after the file got its name, the next one starts again.
            due = 0 if path.exists() else safe
            counts, finished = self._write_until_killed(path, records)
            if counts:
                enough = counts[0] >= due
                answers.append(Answer(f"{counts[0]} of {due} records", enough, lambda: True))
                safe = counts[-1]
        for name in self._folder.glob(".resumed.ffr.*.tmp"):  # left by a kill within the last step
            name.unlink()
        return answers + self._check(path, records)

    def _write_until_killed(self, path: Path, records: Sequence[File]) -> tuple[list[int], bool]:
        """Write in a child that may be killed. Return its counts, and True if it finished.

        The counts are the numbers of safe records: at the start, and after each flush.
        """
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(told)
                self._write_on(path, records, tell)
                code = 0
            except BaseException as error:
                os.write(tell, f"failed: {error!r}".encode())
            finally:
                os._exit(code)
        os.close(tell)
        if self._chance.random() < 0.7:
            time.sleep(self._chance.uniform(0.0, 0.3))
            os.kill(pid, signal.SIGKILL)
        with open(told, "rb") as pipe:
            said, _, why = pipe.read().decode().partition("failed: ")
        _, status = os.waitpid(pid, 0)
        if why:
            raise RuntimeError(f"a resumable writer failed: {why}")
        return list(map(int, said.split())), status == 0

    def _write_on(self, path: Path, records: Sequence[File], tell: int) -> None:
        with FileWriter(path, resumable=True) as writer:
            os.write(tell, b"%d\n" % writer.count)
            for record in records[writer.count :]:
                writer.write_one(self._setting.plan.content(record))
                if not record.number % 10:
                    writer.flush()
                    os.write(tell, b"%d\n" % writer.count)

    def _new_records(self) -> list[File]:
        """Return records with numbers, and therefore contents, that no earlier call has used."""
        self._generation += 1
        first = OTHERS_FROM + 1000 * self._generation
        return [
            File(first + index, f"new {first + index}", self._chance.randrange(30_000))
            for index in range(self._chance.randrange(1, RECORDS))
        ]

    def _check(self, path: Path, records: Sequence[File]) -> list[Answer]:
        """Check that the file has these records and is alone in its folder; then remove it."""
        names = sorted(os.listdir(self._folder))
        with FileReader(path) as reader:
            answers = self._read(reader, records)
        path.unlink()
        return [*answers, Answer("files in the folder", names, lambda: [path.name])]

    def _read(self, reader: FileReader, records: Sequence[File]) -> list[Answer]:
        found = reader.read(range(reader.n))
        answers = [Answer(f"{reader.fnames[0]}: count", reader.n, lambda: len(records))]
        pairs = zip(records, found, strict=False)
        return answers + [self._setting.whole(record, one) for record, one in pairs]


class Cycler:
    """Mounts a second archive, reads in it and unmounts it; nothing may be left."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        files = setting.plan.files
        self._files = [file for file in files if file.path.startswith("folder 00/")]

    @operation("mount cycle", 1)
    def cycle(self) -> list[Answer]:
        stage, chance = self._setting.stage, self._setting.chance
        with mount(stage.second, stage.second_point, log=stage.log.with_name("second.log")) as path:
            answers = [
                self._setting.whole(file, Path(path, os.path.basename(file.path)).read_bytes())
                for file in chance.choices(self._files, k=20)
            ]
            names = sorted(os.listdir(path))
        due = self._setting.plan.listings["folder 00"]
        return [
            *answers,
            Answer("names in the second mount", names, lambda: due),
            Answer("names after unmounting", os.listdir(stage.second_point), list),
        ]


def _write(path: Path, setting: Setting, records: Sequence[File]) -> None:
    n = len(records) if setting.chance.random() < 0.5 else None
    with FileWriter(path, n) as writer:
        for record in records:
            writer.write_one(setting.plan.content(record))

"""Operations that read from a URL through the library, with and without a cache."""

from __future__ import annotations

import warnings
from typing import Any

from ffrecord import CacheWarning, FileReader, PackedFolder

from .contents import KIB, MIB
from .operations import Answer, Setting, operation

LITTLE_ROOM = "24MB"
"""Room of a cache that is too small for the files."""


class NetworkReader:
    """The operations of one reader. All readers share two caches."""

    def __init__(self, setting: Setting) -> None:
        warnings.simplefilter("ignore", CacheWarning)  # the small cache is full
        self._setting = setting
        self._plan = setting.plan
        self._chance = setting.chance
        stage = setting.stage
        self._ways: list[dict[str, Any]] = [
            {"cache": False},
            {"cache": stage.cache},
            {"cache": stage.small_cache, "cache_size": LITTLE_ROOM},
        ]
        self._records = f"{setting.url}/{stage.records.name}"
        self._archive = f"{setting.url}/{stage.archive.name}"
        self._readers = [FileReader(self._records, **way) for way in self._ways]
        self._folders = [PackedFolder(self._archive, **way) for way in self._ways]
        self._small = [file for file in self._plan.files if file.size < MIB]
        self._large = [file for file in self._plan.files if file.size >= MIB]

    @operation("URL read", 20)
    def read(self) -> list[Answer]:
        indices = self._indices()
        return self._answers(indices, self._chance.choice(self._readers).read(indices))

    @operation("URL read_async", 10)
    def read_ahead(self) -> list[Answer]:
        """Collect the second of two batches in flight; drop the first one half of the time."""
        reader = self._chance.choice(self._readers)
        one, two = self._indices(), self._indices()
        first, second = reader.read_async(one), reader.read_async(two)
        answers = self._answers(two, second.result())
        return answers if self._chance.random() < 0.5 else answers + self._answers(
            one, first.result()
        )  # fmt: skip

    @operation("URL folder.read", 20)
    def read_names(self) -> list[Answer]:
        files = self._chance.choices(self._small, k=self._chance.randrange(1, 48))
        found = self._chance.choice(self._folders).read([file.path for file in files])
        return [self._setting.whole(file, one) for file, one in zip(files, found, strict=True)]

    @operation("URL folder.open", 10)
    def open_file(self) -> list[Answer]:
        file = self._chance.choice(self._large)
        offset = self._chance.randrange(file.size)
        with self._chance.choice(self._folders).open(file.path) as opened:
            opened.seek(offset)
            found = opened.read(300 * KIB)
        return [self._setting.part(file, offset, 300 * KIB, found)]

    @operation("URL open and close", 3)
    def open_and_close(self) -> list[Answer]:
        indices, way = self._indices(), self._chance.choice(self._ways)
        with FileReader(self._records, **way) as reader:
            answers = self._answers(indices, reader.read(indices))
        file = self._chance.choice(self._small)
        with PackedFolder(self._archive, **way) as folder:
            return [*answers, self._setting.whole(file, folder.read_one(file.path))]

    def _indices(self) -> list[int]:
        count = self._chance.choice([1, 8, 64, 200])
        return self._chance.choices(range(len(self._plan.records)), k=count)

    def _answers(self, indices: list[int], found: list[Any]) -> list[Answer]:
        due = [self._plan.records[index] for index in indices]
        return [self._setting.whole(file, one) for file, one in zip(due, found, strict=True)]

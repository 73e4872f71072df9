"""Open a path or URL for the page: a packed folder, record files or a typed dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ffrecord.aliases import Closing
from ffrecord.archive.detect import open_if_packed
from ffrecord.dataset import folders
from ffrecord.dataset.reader import DatasetReader
from ffrecord.dataset.sharded import ShardedDatasetReader
from ffrecord.records.reader import FileReader
from ffrecord.remote.urls import is_url, shown
from ffrecord.view import overview
from ffrecord.view.checking import ADVICE, Checking
from ffrecord.view.datasets import Dataset
from ffrecord.view.folder import Folder
from ffrecord.view.records import Records
from ffrecord.view.thumbnails import Thumbnails
from ffrecord.view.values import stored

Shown: TypeAlias = "Folder | Records | Dataset"


@dataclass(frozen=True, slots=True)
class Opened(Closing):
    """Everything that the page can ask for. `name` is the last part of the path."""

    name: str
    path: str
    shown: Shown
    thumbnails: Thumbnails
    checking: Checking
    overview: Callable[[], dict[str, Any]]
    reader: Any

    def close(self) -> None:
        self.checking.stop()
        self.checking.wait()
        self.thumbnails.close()
        self.reader.close()


def open_path(path: str | os.PathLike[str]) -> Opened:
    """Open a path or URL. Raise the same errors as its reader."""
    path = os.fspath(path)
    parts = folders.parts(path)
    if all(map(folders.is_dataset, parts)):
        return _dataset(path, parts)
    reader = FileReader(path)
    try:
        archive = open_if_packed(reader, ADVICE)
    except BaseException:
        reader.close()
        raise

    def again() -> list[FileReader]:
        return [FileReader(path)]

    if archive is None:
        records = Records(reader)
        return _opened(path, records, reader, again, lambda: overview.of_records(reader))
    folder = Folder(archive)
    return _opened(path, folder, reader, again, lambda: overview.of_folder(archive))


def _dataset(path: str, parts: list[str]) -> Opened:
    bytes_only = dict.fromkeys(folders.any_decoders(folders.manifest_of(parts[0]).spec), stored)
    reader: DatasetReader | ShardedDatasetReader
    if parts == [path]:
        reader = DatasetReader(path, bytes_only)
    else:
        reader = ShardedDatasetReader(path, bytes_only)

    def again() -> list[FileReader]:
        return [FileReader(folders.files(part)) for part in parts]

    facts = lambda: folders.describe(path, parts)  # noqa: E731 - short
    return _opened(path, Dataset(reader), reader, again, facts)


def _opened(
    path: str, contents: Shown, reader: Any, again: Callable[[], list[FileReader]],
    facts: Callable[[], dict[str, Any]],
) -> Opened:  # fmt: skip
    known: list[dict[str, Any]] = []

    def once() -> dict[str, Any]:
        if not known:  # two threads may both compute the facts, with the same result
            known.append(facts())
        return known[0]

    displayed = shown(path) if is_url(path) else os.path.abspath(path)
    name = displayed.rstrip("/").rpartition("/")[2] or displayed
    return Opened(name, displayed, contents, Thumbnails(contents), Checking(again), once, reader)

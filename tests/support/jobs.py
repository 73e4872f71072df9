"""Small jobs that write files in every way, for tests that cut them short by a kill or power cut.

Each job writes a target, and names the file or folder that exists at the target before.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest

from ffrecord import DatasetWriter, FileWriter, ShardedDatasetWriter, pack_folder, utils
from ffrecord.archive import source_files
from ffrecord.atomic import file as atomic_file
from ffrecord.convert import convert
from tests.convert import foreign
from tests.support import handmade, trees

RECORDS = handmade.random_records([50_000, 0, 123_456, 7, 33_333, 4096] * 6, seed=2)
OLD = handmade.random_records([700, 0, 3], seed=4)
SPEC = {"number": "int", "words": "utf8[]", "noise": "bytes"}
SMALL = 16 << 10

Content: TypeAlias = "bytes | dict[str, bytes | None] | None"


@dataclass(frozen=True)
class Sources:
    """Inputs of the jobs."""

    tree: Path
    archive: Path
    records: Path


def old_or_new(found: Content, old: Content, new: Content) -> bool:
    return found in (old, new)


def old_or_new_folder(found: Content, old: Content, new: Content) -> bool:
    """Check a folder that is replaced in one step.

    Tests do not look into such a folder during the job: the folder may be replaced between two
    files.
    """
    return old_or_new(found, old, new)


def first_shards(found: Content, _old: Content, new: Content) -> bool:
    """Check that a folder of datasets has the first datasets, each of them whole."""
    if found is None:
        return True
    assert isinstance(found, dict)
    assert isinstance(new, dict)
    visible = {path: data for path, data in found.items() if not path.startswith(".")}
    last = max(visible, default="")[:6]
    return visible == {path: data for path, data in new.items() if path[:6] <= last}


def each_old_or_new(found: Content, old: Content, new: Content) -> bool:
    """Check that each file in a folder of record files is the old or the new one."""
    assert isinstance(found, dict)
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    return all(found.get(path) in (old[path], new[path]) for path in new)


def no_mixture(found: Content, old: Content, new: Content) -> bool:
    """Check a bag of two files: both old, both new, or only one file."""
    return found in (old, new, None) or len(cast(dict[str, bytes | None], found)) == 1


@dataclass(frozen=True)
class Job:
    """A job: `do` writes a target.

    `over` names the file or folder that exists at the target before. A job with `replaces` False
    raises FileExistsError if its target is complete already. `named` jobs run without O_TMPFILE.
    `leaves` checks the content during the job. `beside` is the name of a second file of the target.
    """

    name: str
    do: Callable[[Sources, Path], None]
    over: str = "nothing"
    replaces: bool = True
    named: bool = False
    leaves: Callable[[Content, Content, Content], bool] = old_or_new
    beside: str | None = None

    def __str__(self) -> str:
        return f"{self.name} over {self.over}{' with a name' if self.named else ''}"

    def prepare(self, target: Path) -> Content:
        """Create an empty folder with the old target in it, and return the old target's content."""
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir()
        if self.over == "a file":
            handmade.write_records(target, [b"what was there before"])
        elif self.over == "an empty folder":
            target.mkdir()
        elif self.over == "shards":
            target.mkdir()
            for number in range(4):
                handmade.write_records(target / f"PART_{number:05d}.ffr", [b"old", b"%d" % number])
        elif self.over == "a dataset":
            with DatasetWriter(target, SPEC) as writer:
                for number in range(25):
                    writer.append(datapoint(number))
        elif self.over == "a bag":
            target.write_bytes(b"".join(OLD))
            target.with_suffix(".idx").write_bytes(foreign.limits(OLD))
        return self.found(target)

    def found(self, target: Path) -> Content:
        """Return the content of the target; by name if a second file belongs to it."""
        if self.beside is None:
            return content(target)
        found = {name: content(target.parent / name) for name in self.names(target)}
        there = {name: data for name, data in found.items() if isinstance(data, bytes)}
        return {**there} or None

    def names(self, target: Path) -> list[str]:
        return [target.name] if self.beside is None else [target.name, self.beside]

    def do_again(self, sources: Sources, target: Path, *, done: bool) -> None:
        """Run the job once more, as a user would after a crash."""
        if self.replaces or not done:
            self.do(sources, target)
            return
        with pytest.raises(FileExistsError):
            self.do(sources, target)


def content(path: Path) -> Content:
    """Return the bytes of a file, or of every file in a folder; None if nothing exists."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        below = sorted(path.rglob("*"))
        return {str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in below}


def make_sources(place: Path) -> Sources:
    tree = place / "tree"
    for number, size in enumerate([70_000, 0, 200_000, 5, trees.BLOCK * 3 + 1, 1] * 3):
        trees.a_file(tree / f"folder {number % 4}" / f"{number}.bin", size, number)
    (tree / "empty").mkdir()
    (tree / "link").symlink_to("folder 0/0.bin")
    os.link(tree / "folder 0/0.bin", tree / "again.bin")
    archive = place / "tree.ffr"
    pack_folder(tree, archive)
    return Sources(tree, archive, handmade.write_records(place / "records.ffr", RECORDS))


def use_small_steps(patch: pytest.MonkeyPatch) -> None:
    """Make buffers and batches small, so that a little work has many steps and uses threads."""
    patch.setattr(atomic_file, "SMALL_BUFFER", SMALL)
    patch.setattr(atomic_file, "DIRECT_BUFFER", SMALL)
    patch.setattr(source_files, "BATCH_BYTES", trees.BLOCK)
    patch.setattr(source_files, "BATCH_FILES", 3)
    patch.setattr(source_files, "WAITING", 2.0)


def without_tmpfile(patch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def refusing(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return plain(path, flags, *args, **kwargs)

    patch.setattr(os, "open", refusing)


# ---- the jobs ------------------------------------------------------------------------------


def write_known(_sources: Sources, target: Path) -> None:
    with FileWriter(target, len(RECORDS)) as writer:
        writer.write(RECORDS)


def write_unknown(_sources: Sources, target: Path) -> None:
    with FileWriter(target) as writer:
        writer.write(RECORDS)


def write_direct(_sources: Sources, target: Path) -> None:
    """Write a file with O_DIRECT, as large files are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_file, "DIRECT_FROM", 4 * SMALL)
        write_known(_sources, target)


def pack(sources: Sources, target: Path) -> None:
    pack_folder(sources.tree, target)


def pack_shards(sources: Sources, target: Path) -> None:
    pack_folder(sources.tree, target, shard_size=400_000)


def datapoint(number: int) -> dict[str, Any]:
    noise = handmade.random_records([3000], seed=number)[0]
    return {"number": number, "words": [f"word {k}" for k in range(number % 4)], "noise": noise}


def write_points(_sources: Sources, target: Path) -> None:
    with DatasetWriter(target, SPEC) as writer:
        for number in range(60):
            writer.append(datapoint(number))


def append_points(_sources: Sources, target: Path) -> None:
    with DatasetWriter(target, SPEC, append=True) as writer:
        for number in range(len(writer), 60):
            writer.append(datapoint(number))


def append_to_shards(_sources: Sources, target: Path) -> None:
    with ShardedDatasetWriter(target, SPEC, shardlen=12, append=True) as writer:
        for number in range(len(writer), 40):
            writer.append(datapoint(number))


def write_more_points(_sources: Sources, target: Path) -> None:
    """Write shards, from the first missing one on."""
    there = len([*target.glob("[0-9]*")])
    with ShardedDatasetWriter(target, SPEC, shardlen=12, shardstart=there) as writer:
        for number in range(12 * there, 40):
            writer.append(datapoint(number))


def to_tar(sources: Sources, target: Path) -> None:
    convert(sources.archive, target, target_format="tar", force=True)


def to_new_tar(sources: Sources, target: Path) -> None:
    convert(sources.archive, target, target_format="tar")


def to_folder(sources: Sources, target: Path) -> None:
    convert(sources.archive, target, target_format="folder")


def to_bag(sources: Sources, target: Path) -> None:
    convert(sources.records, target, target_format="bag", force=True)


def dump_one(_sources: Sources, target: Path) -> None:
    utils.dump(RECORDS, target, 1)


def dump_shards(_sources: Sources, target: Path) -> None:
    """Write shards in a thread, because a worker process would have to be killed too."""
    with ThreadPoolExecutor(1) as pool:
        utils.dump(RECORDS, target, 4, executor=pool)


WRITING = [
    Job("writer", write_known),
    Job("writer", write_known, over="a file"),
    Job("writer", write_known, over="a file", named=True),
    Job("writer, n unknown", write_unknown),
    Job("writer, n unknown", write_unknown, over="a file"),
    Job("writer, n unknown", write_unknown, over="a file", named=True),
    Job("writer, O_DIRECT", write_direct, over="a file"),
]
PACKING = [
    Job("pack", pack),
    Job("pack", pack, over="a file"),
    Job("pack", pack, over="a file", named=True),
    Job("pack in shards", pack_shards, replaces=False),
    Job("pack in shards", pack_shards, over="an empty folder", replaces=False),
]
TO_BAG = Job("convert, forced", to_bag, over="a bag", leaves=no_mixture, beside="target.idx")
OTHERS = [
    Job("dataset", write_points, replaces=False),
    Job("convert, forced", to_tar, over="a file"),
    Job("convert", to_new_tar, replaces=False),
    Job("convert to a folder", to_folder, replaces=False),
    TO_BAG,
    Job("dataset in shards", write_more_points, leaves=first_shards),
    Job("dataset, appended to", append_points),
    Job("dataset, appended to", append_points, over="a dataset", leaves=old_or_new_folder),
    Job("dataset in shards, appended to", append_to_shards, leaves=first_shards),
    Job("dump", dump_one, over="a file"),
    Job("dump in shards", dump_shards),
    Job("dump in shards", dump_shards, over="shards", leaves=each_old_or_new),
]
EVERY = WRITING + PACKING + OTHERS

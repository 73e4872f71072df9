"""Pack random folders and read them in every way: all results must equal the folder itself.

                         ┌─ the library ──────┐
plan ─▶ folder ─▶ archive┼─ the native mount  ├─▶ files by path ─▶ compared with the folder
                         ├─ the fusepy mount  │
                         └─ extract ──────────┘
"""

from __future__ import annotations

import os
import pickle
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings

from ffrecord import PackedFolder
from tests.fuse.mounted import mounting
from tests.fuse.mounted.conftest import MAGIC, structure
from tests.support import archives, handmade, random_trees, trees
from tests.support.random_trees import Entry
from tests.support.trees import BLOCK, Found

Answer: TypeAlias = Mapping[bytes, Found]
Ranges: TypeAlias = dict[bytes, list[tuple[int, int]]]
"""Offsets and lengths to read, for each file."""

FORMS = {"file": (5, 250), "shards": (2, 100), "aligned": (2, 100), "original": (2, 60)}
"""The forms of archives, each with the number of trees in the short and the long run."""


@pytest.fixture
def _time_limit() -> None:
    """Disable the time limit of a test: each example has one, and shrinking needs many examples."""


@pytest.fixture(scope="session")
def _fuse_is_available() -> None:
    """Do not skip the tests: if nothing can be mounted, the other ways are still compared."""


def why_not(backend: str) -> str | None:
    return mounting.why_not() or mounting.why_no_backend(backend)


@pytest.mark.parametrize("way", [*mounting.BACKENDS, "extracted"])
def test_a_wrong_answer_is_found_in_every_way_of_reading(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way in mounting.BACKENDS and (why := why_not(way)):
        pytest.skip(why)
    right = trees.snapshot

    def wrong(top: Path) -> Answer:
        found = right(top)
        return {path: found[path] for path in found if path != b"file" or top.name != way}

    monkeypatch.setattr(trees, "snapshot", wrong)
    with pytest.raises(AssertionError, match=f"{way}: b'file' is missing"):
        compare_one([Entry("file", b"file", 0, size=100)], "file", tmp_path)


def compare(form: str, examples: int, place: Path) -> None:
    """Compare the given number of random trees."""

    @settings(max_examples=examples, report_multiple_bugs=False)
    @given(random_trees.plans)
    def one(plan: list[Entry]) -> None:
        with (
            mounting.time_limit(mounting.PATIENCE),
            tempfile.TemporaryDirectory(dir=place) as each,
        ):
            compare_one(plan, form, Path(each))

    one()


@pytest.mark.parametrize("form", FORMS)
def test_a_few_trees_read_the_same_in_every_way(form: str, tmp_path: Path) -> None:
    compare(form, FORMS[form][0], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_many_trees_read_the_same_in_every_way(form: str, tmp_path: Path) -> None:
    compare(form, FORMS[form][1], tmp_path)


def compare_one(plan: list[Entry], form: str, place: Path) -> None:
    top = random_trees.build(plan, place / "tree")
    archive, due = PACKERS[form](top, place / "tree.ffr")
    ranges = some_ranges(due)
    with ExitStack() as mounts, PackedFolder(archive) as folder:
        check_library(folder, due, ranges)
        for backend in mounting.BACKENDS:
            if not why_not(backend):
                path = place / backend
                mounts.enter_context(mounting.mounted(archive, path, backend=backend))
                check_on_disk(backend, path, due, ranges)
                check_links(backend, path, due)
        folder.extract(place / "extracted")
        check_on_disk("extracted", place / "extracted", due, ranges)


# ---- forms of archives -------------------------------------------------------------------------


def pack_file(top: Path, out: Path) -> tuple[Path, Answer]:
    archives.pack(top, out)
    return out, trees.snapshot(top)


def pack_shards(top: Path, out: Path) -> tuple[Path, Answer]:
    archives.pack(top, out, shard_size=2 * BLOCK, legacy_index=False)
    return out, trees.snapshot(top)


def pack_aligned(top: Path, out: Path) -> tuple[Path, Answer]:
    archives.pack(top, out, align=512)
    return out, trees.snapshot(top)


def pack_original(top: Path, out: Path) -> tuple[Path, Answer]:
    """Pack as the original FFRecord does: no symlinks, no attributes, no hard links."""
    found = {path: each for path, each in trees.snapshot(top).items() if each.kind != "symlink"}
    for path in trees.paths(top):
        if path not in found:
            os.unlink(os.path.join(os.fsencode(top), path))
    records: list[bytes] = []
    index = MAGIC + pickle.dumps(structure(top, records))
    handmade.write_records(out, [*records, index])
    os.utime(out, ns=(0, trees.NANOSECONDS))
    now = out.stat()
    due = {
        path: replace(
            each, mode=0o555 if each.kind == "folder" else 0o444, uid=now.st_uid, gid=now.st_gid,
            mtime_ns=now.st_mtime_ns, xattrs=(), same_file=(path,),
            links=0 if each.kind == "folder" else 1,
        )
        for path, each in found.items()
    }  # fmt: skip
    return out, due


PACKERS: dict[str, Callable[[Path, Path], tuple[Path, Answer]]] = {
    "file": pack_file,
    "shards": pack_shards,
    "aligned": pack_aligned,
    "original": pack_original,
}


# ---- comparisons -------------------------------------------------------------------------------


def differences(who: str, found: Answer, due: Answer) -> Iterator[str]:
    for path in found.keys() - due.keys():
        yield f"{who}: {path!r} is unexpected"
    for path in due.keys() - found.keys():
        yield f"{who}: {path!r} is missing"
    for path in sorted(due.keys() & found.keys()):
        for field in fields(Found):
            one, two = getattr(found[path], field.name), getattr(due[path], field.name)
            if one != two:
                yield f"{who}: {path!r}: {field.name}: {str(one)[:80]}, not {str(two)[:80]}"


def some_ranges(due: Answer) -> Ranges:
    chance = random.Random(len(due))
    found = {}
    for path, each in due.items():
        if each.kind == "file":
            offsets = [chance.randint(0, each.size + 5), each.size // BLOCK * BLOCK, 0]
            found[path] = [(at, chance.choice([1, 100, BLOCK, 3 * BLOCK])) for at in offsets]
    return found


def check_ranges(
    who: str, due: Answer, ranges: Ranges, read: Callable[[bytes, int, int], bytes]
) -> None:
    for path, places in ranges.items():
        for offset, length in places:
            wanted = due[path].content[offset : offset + length]
            assert read(path, offset, length) == wanted, (who, path, offset, length)


def check_on_disk(who: str, top: Path, due: Answer, ranges: Ranges) -> None:
    """Check a mount or an extracted folder. Read parts of files first, while they are uncached."""

    def read(path: bytes, offset: int, length: int) -> bytes:
        with open(os.path.join(os.fsencode(top), path), "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset)

    check_ranges(who, due, ranges, read)
    assert [*differences(who, trees.snapshot(top), due)] == []


def check_links(who: str, top: Path, due: Answer) -> None:
    """Check that each folder has 2 links and one for each folder in it.

    Not for extracted folders, whose links depend on the file system.
    """
    for path, links in folder_links(due).items():
        assert os.stat(os.path.join(os.fsencode(top), path)).st_nlink == links, (who, path)


def folder_links(due: Answer) -> dict[bytes, int]:
    folders = [path for path, each in due.items() if each.kind == "folder"]
    links = dict.fromkeys(folders, 2)
    for path in folders:
        if path != b".":
            links[os.path.dirname(path) or b"."] += 1
    return links


def check_library(folder: PackedFolder, due: Answer, ranges: Ranges) -> None:
    def read(path: bytes, offset: int, length: int) -> bytes:
        return folder.read_range(os.fsdecode(path), offset, length).tobytes()

    check_ranges("library", due, ranges, read)
    assert [*differences("library", library_answer(folder), due)] == []
    for path, links in folder_links(due).items():
        name = os.fsdecode(path)
        assert folder.stat(name).st_nlink == links, path
        inside = sorted(os.path.basename(p) for p in due if is_in(p, path))
        assert [os.fsencode(each) for each in folder.list(name)] == inside, path
    files = [path for path, each in due.items() if each.kind == "file"]
    assert sorted(map(os.fsencode, folder)) == sorted(files)
    every = sorted(os.fsencode(path) for path in folder.list(recursive=True))
    assert every == sorted(due.keys() - {b"."})


def is_in(path: bytes, folder: bytes) -> bool:
    return path != b"." and (os.path.dirname(path) or b".") == folder


def library_answer(folder: PackedFolder) -> Answer:
    """Return everything that a `PackedFolder` shows, with the contents read as one batch."""
    paths = ["."]
    for above, folders, files in folder.walk():
        paths += [os.path.join(above, name) for name in folders + files]
    found, names = {}, defaultdict(list)
    for path in paths:
        names[folder.stat(path, follow_symlinks=False).st_ino].append(os.fsencode(path))
    for path in paths:
        status = folder.stat(path, follow_symlinks=False)
        kind = trees.kind_of(status)
        xattrs = folder.xattrs(path, follow_symlinks=False)
        found[os.fsencode(path)] = Found(
            kind, status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_mtime_ns,
            links=0 if kind == "folder" else status.st_nlink,
            size=0 if kind == "folder" else status.st_size,
            target=os.fsencode(folder.readlink(path)) if kind == "symlink" else b"",
            xattrs=tuple(sorted(xattrs.items())),
            same_file=tuple(names[status.st_ino]),
        )  # fmt: skip
    files = [path for path in paths if found[os.fsencode(path)].kind == "file"]
    for path, content in zip(files, folder.read(files), strict=True):
        raw = os.fsencode(path)
        found[raw] = replace(found[raw], content=content.tobytes())
    return {
        path: replace(each, same_file=tuple(sorted(each.same_file))) for path, each in found.items()
    }

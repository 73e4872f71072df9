"""Archives that are damaged, truncated or replaced while they are mounted.

Reading damaged data gives EIO and a line in the log. The same worker still serves all other data.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from ffrecord import PackedFolder
from tests.fuse.mounted_faults import daemons
from tests.fuse.mounted_faults.conftest import BLOCK, Packed
from tests.support import archives, handmade, trees


def names_of(packed: Packed) -> list[str]:
    """Return all files in the order of the archive."""
    with PackedFolder(packed.archive) as folder:
        names = [
            str(path.relative_to(packed.source))
            for path in packed.source.rglob("*")
            if path.is_file()
        ]
        return sorted(names, key=folder.record)


def record_and_offset(packed: Packed, name: str) -> tuple[int, int]:
    """Return the record and the offset of a file in an archive."""
    with PackedFolder(packed.archive) as folder:
        record = folder.record(name)
        return record, int(folder.reader.get_offsets(0)[record])


def right(packed: Packed, point: Path, name: str) -> bool:
    try:
        found = (point / name).read_bytes()
    except OSError:
        return False
    assert found == (packed.source / name).read_bytes(), "wrong bytes were served"
    return True


def stats(point: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads(os.getxattr(point, "user.ffrecord.stats"))
    return found


def test_flipped_bytes_are_an_error_of_their_files_only(own: Packed, point: Path) -> None:
    names = names_of(own)
    generator = random.Random(7)
    nonempty = [name for name in names if (own.source / name).stat().st_size]
    damaged = sorted(generator.sample(nonempty, 12))
    with daemons.daemon(own.archive, point) as mounted:
        workers = mounted.workers
        for name in damaged:
            size = (own.source / name).stat().st_size
            archives.damage(own.archive, name, generator.randrange(size))
        wrong = sorted(name for name in names if not right(own, point, name))
        assert wrong == damaged
        lines = daemons.damage_lines(mounted.log())
        assert sorted(lines) == damaged
        for name, line in lines.items():
            assert line == f"record {record_and_offset(own, name)[0]} of own.ffr"
        assert stats(point)["damaged_reads"] >= len(damaged)
        assert stats(point)["restarts"] == stats(point)["errors"] == 0
        assert mounted.workers == workers


def test_a_damaged_block_of_a_large_file_spoils_no_other_block(own: Packed, point: Path) -> None:
    name = "folder 0/file 155"  # has more than six blocks
    whole = (own.source / name).read_bytes()
    with daemons.daemon(own.archive, point):
        archives.damage(own.archive, name, 3 * BLOCK + 5)
        fd = os.open(point / name, os.O_RDONLY)
        try:
            for number in range(-(-len(whole) // BLOCK)):
                begin = number * BLOCK
                if number == 3:
                    with pytest.raises(OSError, match="Input/output error"):
                        os.pread(fd, 100, begin + 50_000)
                else:
                    assert os.pread(fd, 100, begin + 1000) == whole[begin + 1000 : begin + 1100]
        finally:
            os.close(fd)


def test_with_verify_always_later_damage_is_found(own: Packed, point: Path) -> None:
    name = "folder 1/file 001"
    with daemons.daemon(own.archive, point, "-o", "verify=always") as mounted:
        direct = os.open(point / name, os.O_RDONLY | os.O_DIRECT)
        try:
            assert len(os.pread(direct, 4096, 0)) == 4096
            archives.damage(own.archive, name, 17)
            with pytest.raises(OSError, match="Input/output error"):
                os.pread(direct, 4096, 0)
        finally:
            os.close(direct)
        assert list(daemons.damage_lines(mounted.log())) == [name]


@pytest.mark.parametrize("evicted", [False, True])
def test_a_truncated_archive_serves_its_remaining_files(
    own: Packed, point: Path, evicted: bool
) -> None:
    names = names_of(own)
    middle = names[len(names) // 2]
    with daemons.daemon(own.archive, point, "--workers", "2") as mounted:
        workers = mounted.workers
        _, cut = record_and_offset(own, middle)
        os.truncate(own.archive, cut)
        if evicted:
            handmade.evict(own.archive)
        kept = [name for name in names if right(own, point, name)]
        empty = [name for name in names if not (own.source / name).stat().st_size]
        assert set(kept) == set(names[: len(names) // 2]) | set(empty)
        lines = daemons.damage_lines(mounted.log())
        assert set(lines) == set(names) - set(kept)
        assert mounted.workers == workers
        assert stats(point)["restarts"] == stats(point)["errors"] == 0


def test_an_archive_truncated_to_nothing_still_has_its_names(own: Packed, point: Path) -> None:
    with daemons.daemon(own.archive, point) as mounted:
        workers = mounted.workers
        os.truncate(own.archive, 0)
        for path in own.source.rglob("*"):
            here = os.lstat(point / path.relative_to(own.source))
            assert here.st_mode == path.stat().st_mode
        assert not right(own, point, "folder 1/file 001")
        os.statvfs(point)
        assert mounted.workers == workers


def test_an_archive_that_is_replaced_or_removed_is_served_to_the_end(
    own: Packed, point: Path, tmp_path: Path
) -> None:
    names = names_of(own)
    half = len(names) // 2
    with daemons.daemon(own.archive, point, "--workers", "2") as mounted:
        trees.plain_tree(tmp_path / "other", {"another": b"tree"})
        archives.pack(tmp_path / "other", tmp_path / "other.ffr")
        os.replace(tmp_path / "other.ffr", own.archive)
        assert all(right(own, point, name) for name in names[:half])
        own.archive.unlink()
        mounted.kill_worker(0)  # the next worker also serves the archive that was mounted
        assert all(right(own, point, name) for name in names[half:])
        assert os.statvfs(point).f_blocks > 100
        assert daemons.damage_lines(mounted.log()) == {}


def test_an_archive_that_is_written_over_gives_errors_and_never_other_bytes(
    own: Packed, point: Path, tmp_path: Path
) -> None:
    names = names_of(own)
    shuffled = {name: trees.content(len(name) * 500, 9) for name in names}
    trees.plain_tree(tmp_path / "other", shuffled)
    archives.pack(tmp_path / "other", tmp_path / "other.ffr")
    with daemons.daemon(own.archive, point) as mounted:
        workers = mounted.workers
        with open(tmp_path / "other.ffr", "rb") as source, open(own.archive, "wb") as target:
            shutil.copyfileobj(source, target)
        served = [name for name in names if right(own, point, name)]  # `right` detects wrong bytes
        assert all(not (own.source / name).stat().st_size for name in served)
        assert len(daemons.damage_lines(mounted.log())) == len(names) - len(served)
        assert mounted.workers == workers

"""Kill processes that use a cache. The others, and those that start later, read right bytes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.remote.conftest import Site
from tests.support import handmade
from tests.support.patience import PATIENCE

PROCESSES = 8
SIZES = np.random.default_rng(5).integers(0, 20_000, 400).tolist()


@pytest.fixture(scope="module")
def files(site: Site, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return a file with the checksums of three record files, and the URLs of these."""
    records = handmade.random_records(SIZES)
    crcs = []
    for k in range(3):
        some = records[k:] + records[:k]
        handmade.write_records(site.folder / f"kills-{k}.ffr", some)
        crcs.append(list(map(zlib.crc32, some)))
    path = tmp_path_factory.mktemp("kills") / "crcs.npy"
    np.save(path, np.array(crcs))
    return [str(path), *(f"{site.url}/kills-{k}.ffr" for k in range(3))]


@pytest.mark.parametrize("least", [6, pytest.param(100, marks=pytest.mark.long)])
def test_kills_leave_no_wrong_byte_no_leak_and_a_cache_that_works(
    files: list[str], site: Site, tmp_path: Path, least: int
) -> None:
    cache, chance = tmp_path / "cache", random.Random(least)
    bound = int(1.6 * (site.folder / "kills-0.ffr").stat().st_size)
    kills = 0

    def start(point: int) -> subprocess.Popen[bytes]:
        words = [str(cache), str(bound), str(point), str(chance.randrange(10**6)), *files]
        return subprocess.Popen([sys.executable, "-m", "tests.remote.cache_user", *words])

    while kills < least:
        running = [start(chance.randrange(1, 250)) for _ in range(PROCESSES)]
        codes = [process.wait(PATIENCE) for process in running]
        assert set(codes) <= {0, -signal.SIGKILL}
        kills += codes.count(-signal.SIGKILL)
        assert used(cache) <= bound
    assert start(0).wait(PATIENCE) == 0
    assert used(cache) <= bound
    names = {path.stem for path in cache.glob("*.map")}
    assert {path.stem for path in cache.glob("*-*")} <= names  # nothing that nobody will remove


def used(cache: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in cache.glob("*-*"))

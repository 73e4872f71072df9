"""Options and fixtures for all tests."""

from __future__ import annotations

import gc
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import handmade

# Timing never decides a test, and hypothesis keeps nothing between runs.
for name, examples in (("short", 40), ("long", 200)):
    settings.register_profile(
        name, max_examples=examples, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "short")
    # A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP. The processes
    # that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; pass --long to run it"))


@pytest.fixture(scope="module", autouse=True)
def _fast_garbage_collection() -> None:
    """Hide all existing objects from the garbage collector.

    With torch and a few thousand tests loaded, each collection that a test runs would take half a
    second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _log_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give mounts a log folder of this test run, which they use if there is no syslog."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _bytecode_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep compiled byte code, because tests start hundreds of commands."""
    if not sys.dont_write_bytecode:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("bytecode")))
        yield


MEMORY = Path("/dev/shm")
"""Folder in memory, so that writes to it never wait for a disk."""
ROOM = 1 << 30  # free bytes that the folder in memory must have


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a folder for one test, in memory if the test is marked `in_memory` and memory has room.

    A writer syncs every file to disk before the file gets its name. Tests that only check content
    need not wait for a busy disk.
    """
    marked = request.node.get_closest_marker("in_memory") is not None
    if not marked or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="ffrecord-test-", dir=MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def sample_records() -> list[bytes]:
    """Records of many sizes: empty, one byte, around a block, around a page, large."""
    sizes = [0, 1, 511, 512, 513, 4095, 4096, 4097, 0, 12_000, 100_000, 3, 0]
    return handmade.random_records(sizes + [700 + 37 * i for i in range(60)])


@pytest.fixture
def sample_file(tmp_path: Path, sample_records: list[bytes]) -> Path:
    return handmade.write_records(tmp_path / "sample.ffr", sample_records)

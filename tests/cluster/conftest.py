"""Fixtures that all engines share: a folder to pack, its packed bytes, and a store.

Engines stay on loopback, and tell nobody that they are used.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ffrecord import pack_folder
from tests.remote.servers import empty_bucket
from tests.support import trees
from tests.support.executors import files_in

os.environ.update({
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without "clusters", Ray takes 127.0.0.1 as the address of this machine.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",  # otherwise other programs let Ray's workers wait, with 15
    "RAY_DATA_LOG_LEVEL": "WARNING",  # otherwise a failed test shows thousands of lines
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about its next version
})  # fmt: skip

FILES = 20_000
SHARD_SIZE = "60kB"
LIMIT = 300  # seconds for a test; the longest takes ten


@pytest.fixture(scope="module", autouse=True)
def _installed_byte_code() -> Iterator[None]:
    """Let the engines' processes use the byte code that was installed with the packages.

    Engines start many processes. With a folder of its own for byte code (see tests/conftest.py),
    each process would compile the engine again, for ten seconds and more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPYCACHEPREFIX", raising=False)
        patch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        yield


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    """Fail a test whose engine does not answer. Without workers, Dask would wait for ever."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"the test has not ended within {LIMIT} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.many_files(tmp_path_factory.mktemp("many") / "tree", FILES)


@pytest.fixture(scope="session")
def alone(many: Path) -> dict[str, bytes]:
    """Pack the folder in this process; return the bytes of the shards."""
    pack_folder(many, many.with_name("alone"), shard_size=SHARD_SIZE)
    return files_in(many.with_name("alone"))


@pytest.fixture
def server() -> str:
    return empty_bucket()


@pytest.fixture
def remote(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options for an empty bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return {"storage_options": {
        "access_key_id": "key", "secret_access_key": "SECRET", "endpoint": server,
        "region": "us-east-1",
    }}  # fmt: skip

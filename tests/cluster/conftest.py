"""Folders that every engine packs, and the bytes that a single process makes of them.

Engines stay on loopback, and tell nobody that they are used.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ffrecord import pack_folder
from tests.support import trees
from tests.support.executors import files_in

os.environ.update({
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without "clusters", Ray takes 127.0.0.1 as the address of this machine.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about its next version
})  # fmt: skip

FILES = 20_000
SHARD_SIZE = "300kB"


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.many_files(tmp_path_factory.mktemp("many") / "tree", FILES)


@pytest.fixture(scope="session")
def alone(many: Path) -> dict[str, bytes]:
    """Pack the folder in this process; return the bytes of the shards."""
    pack_folder(many, many.with_name("alone"), shard_size=SHARD_SIZE)
    return files_in(many.with_name("alone"))

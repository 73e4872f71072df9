"""The number of processors respects affinity, control groups and Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord.machine import processors


@pytest.fixture(autouse=True)
def a_machine_of_64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    monkeypatch.setattr(processors, "GROUPS", tmp_path)
    monkeypatch.setattr(processors, "OWN_GROUPS", tmp_path / "own")
    for variable in ("SLURM_CPUS_PER_TASK", "PYTHON_CPU_COUNT"):
        monkeypatch.delenv(variable, raising=False)
    processors._of_groups.cache_clear()
    yield
    processors._of_groups.cache_clear()


@pytest.mark.parametrize(
    ("own", "files", "count"),
    [
        pytest.param("", {}, 64, id="no groups"),
        pytest.param("0::/\n", {"cpu.max": "max 100000"}, 64, id="no limit"),
        pytest.param("0::/\n", {"cpu.max": "400000 100000"}, 4, id="container, version 2"),
        pytest.param("0::/a/b\n", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"}, 3,
            id="the group above, rounded up"),
        pytest.param("0::/\n", {"cpu.max": "1000 100000"}, 1, id="less than one"),
        pytest.param("3:cpu,cpuacct:/x\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "200000",
            "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 2, id="version 1"),
        pytest.param("3:cpu:/outside\n", {"cpu/cpu.cfs_quota_us": "500000",
            "cpu/cpu.cfs_period_us": "100000"}, 5, id="version 1, the path outside a container"),
        pytest.param("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000"}, 64, id="version 1, no limit"),
        pytest.param("3:cpuset:/\n0::/\n", {"cpu.max": "nonsense"}, 64, id="nonsense"),
    ],
)  # fmt: skip
def test_a_control_group_limits_the_count(
    own: str, files: dict[str, str], count: int, tmp_path: Path
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert processors.available() == count


@pytest.mark.parametrize(("job", "count"), [("3", 3), ("100", 64), ("", 64), ("0", 1), ("x", 64)])
def test_slurm_limits_the_count(job: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", job)
    assert processors.available() == count

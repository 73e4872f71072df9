"""`ffrecord.machine.memory`: the smallest limit of machine and cgroups counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ffrecord.machine import memory

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> str:
    """Write the files below a folder that stands for `/`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


MACHINE = {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GIB >> 10} kB\n"}


def v1(folder: str, limit: int, usage: int, cached: int) -> dict[str, str]:
    """Return the files of a cgroup of version 1."""
    place = f"sys/fs/cgroup/memory{folder}"
    stat = f"cache {cached}\ntotal_inactive_file {cached // 2}\ntotal_active_file {cached // 2}\n"
    return {
        f"{place}/memory.limit_in_bytes": f"{limit}\n",
        f"{place}/memory.usage_in_bytes": f"{usage}\n",
        f"{place}/memory.stat": stat,
    }


def v2(folder: str, limit: str, usage: int, cached: int) -> dict[str, str]:
    """Return the files of a cgroup of version 2."""
    place = f"sys/fs/cgroup{folder}"
    return {
        f"{place}/memory.max": f"{limit}\n",
        f"{place}/memory.current": f"{usage}\n",
        f"{place}/memory.stat": f"inactive_file {cached // 2}\nactive_file {cached // 2}\n",
    }


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8 * GIB),
        ({"proc/self/cgroup": "0::/\n"}, 8 * GIB),
        ({"proc/self/cgroup": "4:memory:/job\n", **v1("/job", 2 * GIB, GIB, GIB // 2)},
         2 * GIB - GIB // 2),
        ({"proc/self/cgroup": "0::/a/b\n", **v2("/a/b", str(3 * GIB), GIB, 0)}, 2 * GIB),
        ({"proc/self/cgroup": "0::/a/b\n", **v2("/a/b", "max", GIB, 0)}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a\n", **v2("/a", "max", GIB, GIB // 2),
          "sys/fs/cgroup/a/memory.high": f"{2 * GIB}\n"}, 2 * GIB - GIB // 2),
        ({"proc/self/cgroup": "0::/a\n", **v2("/a", str(2 * GIB), GIB, 0),
          "sys/fs/cgroup/a/memory.high": "max\n"}, GIB),
        # A limit further up holds too, and a limit above the machine's memory does not.
        ({"proc/self/cgroup": "0::/a/b\n", **v2("/a/b", "max", 0, 0),
          **v2("/a", str(GIB), GIB // 4, 0)}, GIB - GIB // 4),
        ({"proc/self/cgroup": "4:cpu,memory:/\n", **v1("/", 1 << 62, GIB, 0)}, 8 * GIB),
        ({"proc/self/cgroup": "0::/a\n", **v2("/a", str(GIB), 2 * GIB, 0)}, 0),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "nonsense"}, 8 * GIB),
    ],
)  # fmt: skip
def test_the_smallest_limit_counts(files: dict[str, str], available: int, tmp_path: Path) -> None:
    assert memory.available(write(tmp_path, {**MACHINE, **files})) == available


def test_a_machine_that_tells_nothing_allows_nothing(tmp_path: Path) -> None:
    assert memory.available(str(tmp_path)) == 0


def test_this_machine_has_memory() -> None:
    assert memory.available() > 1 << 20

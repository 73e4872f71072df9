"""O_DIRECT reads, measured by fio: the limit of a disk or of a mount."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from .harness import MeasurementError

ALIGNMENT = 4096
QUEUE_DEPTH = 64
IN_ORDER = 250 * ALIGNMENT
"""Bytes of each read in order: a hard disk of 200 reads a second then still gives 200 MB/s.

Not 1 MiB: its 256 pages may be scattered over the memory, and many disks take 254 pieces at most.
The kernel then makes two requests of one.
"""
IN_ORDER_DEPTH = 32
REST = 1
"""Seconds between fio's start and its first read. A throttled disk saves up bytes for 0.2 s during
the few reads of a start, and loses them in a rest."""
STARTUP = 60
"""Seconds beyond its run time after which fio counts as hanging."""


class FioError(MeasurementError):
    """Raised when fio is missing or fails."""


def block_size(record_size: int) -> int:
    """Return the smallest aligned block that holds a record of this size.

    Reads of unaligned records transfer more than this, and fio's bytes/s count the padding. A
    reader with the same reads per second as fio gets record_size / block_size of fio's bytes/s.
    """
    return -(-record_size // ALIGNMENT) * ALIGNMENT


def random_read(path: Path, block: int, seconds: int, depth: int = QUEUE_DEPTH) -> dict[str, float]:
    """Return reads and bytes per second of random O_DIRECT reads, `depth` of them at a time."""
    return _measured(
        path,
        f"--bs={block}",
        f"--iodepth={depth}",
        "--rw=randread",
        "--norandommap",
        "--randrepeat=0",
        "--time_based",
        f"--runtime={seconds}",
        timeout=seconds + STARTUP,
    )


def read_in_order(path: Path, timeout: float) -> dict[str, float]:
    """Return reads and bytes per second of reading a file once, from its start to its end."""
    return _measured(
        path,
        f"--bs={IN_ORDER}",
        f"--iodepth={IN_ORDER_DEPTH}",
        "--rw=read",
        f"--startdelay={REST}",
        timeout=timeout,
    )


def version() -> str:
    """Return the version of fio."""
    return _run("--version", timeout=STARTUP).strip()


def _measured(path: Path, *options: str, timeout: float) -> dict[str, float]:
    output = _run(
        "--name=limit",
        f"--filename={path}",
        "--ioengine=libaio",
        "--direct=1",
        *options,
        "--output-format=json",
        "--readonly",
        timeout=timeout,
    )
    return _rates(output)


def _run(*arguments: str, timeout: float) -> str:
    if shutil.which("fio") is None:
        raise FioError("fio is not installed; scripts/setup bench installs it")
    command = ["fio", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise FioError(f"no result after {timeout:.0f} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise FioError(words[-1])
    return done.stdout


def _rates(output: str) -> dict[str, float]:
    # fio prints warnings before its JSON.
    job = json.loads(output[output.index("{") :])["jobs"][0]
    if job["error"]:
        raise FioError(f"errno {job['error']}")
    return {"records_per_s": job["read"]["iops"], "bytes_per_s": float(job["read"]["bw_bytes"])}

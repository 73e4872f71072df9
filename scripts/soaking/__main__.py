"""Run a soak: read an archive for minutes while workers and readers are killed.

The exit code is 0 if every operation was right, neither memory nor descriptors grew, and no process
or mount is left.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ffrecord.terminal import EXIT_INTERRUPTED

from .served import WORKERS
from .soak import PATIENCE, Order, soak

FEWEST_READERS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument(
        "minutes", type=_minutes, help="duration of the soak in minutes; may have decimals"
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of contents, reads and disturbances (default: the current time)",
    )
    parser.add_argument(
        "--readers",
        type=_readers,
        default=12,
        metavar="N",
        help="number of readers (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=WORKERS,
        metavar="N",
        help="workers of the mount (default: %(default)s)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures and samples to FILE"
    )
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS",
        help="time after which an operation counts as hanging; raise it on a busy machine "
        "(default: %(default)s)",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print(
            "not root: only the pages of the files in use are dropped from the cache; "
            "run as root to drop all pages and names",
            file=sys.stderr,
        )
    # Like Ctrl-C: started processes are ended, and mounts are unmounted.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = int(time.time()) if given.seed is None else given.seed
    order = Order(given.minutes * 60, seed, given.readers, given.workers, given.patience)
    print(f"seed {seed}", flush=True)
    try:
        report = soak(order, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(*report.lines(), sep="\n", flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(report.as_json()) + "\n")
    if report.interrupted:
        return EXIT_INTERRUPTED
    return 0 if report.passed else 1


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60 * 24 * 7:
        raise argparse.ArgumentTypeError("must be more than 0 and at most a week (10080 minutes)")
    return value


def _readers(text: str) -> int:
    value = int(text)
    if value < FEWEST_READERS:
        raise argparse.ArgumentTypeError(f"must be at least {FEWEST_READERS}")
    return value


if __name__ == "__main__":
    raise SystemExit(main())

"""`scripts/soak MINUTES`: exit code 0 if every read was right, nothing grew and nothing is left."""

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
    parser.add_argument("minutes", type=_minutes, help="how long; may have decimals")
    parser.add_argument("--seed", type=int, help="of contents, reads and disturbances")
    parser.add_argument("--readers", type=_readers, default=12, metavar="N", help="12 if left out")
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="N", help="of the mount")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write all figures and samples there"
    )
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, metavar="SECONDS",
        help="what takes longer hangs; more than %(default)s on a machine that is busy",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if os.geteuid() != 0:
        print("not root: pages are dropped file by file, names not at all", file=sys.stderr)
    # As Ctrl-C: what was started is ended, what was mounted is unmounted.
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
        raise argparse.ArgumentTypeError("more than 0, and no more than a week")
    return value


def _readers(text: str) -> int:
    value = int(text)
    if value < FEWEST_READERS:
        raise argparse.ArgumentTypeError(f"must be at least {FEWEST_READERS}")
    return value


if __name__ == "__main__":
    raise SystemExit(main())

"""Command line of scripts/fuzz."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from functools import partial

from tests.robustness.fuzzing import campaign, table
from tests.robustness.fuzzing.scratch import in_memory
from tests.robustness.fuzzing.target import EscapeError


def main() -> int:
    options = _parse()
    if options.alone:
        return _one(options)
    names = list(table.PLACES) if options.parser == ["all"] else options.parser
    failed = [name for name in names if _fails(name)]
    return int(bool(failed))


def _fails(name: str) -> bool:
    """Fuzz one parser in a child process, because libFuzzer ends its process without cleanup."""
    arguments = [each for each in sys.argv[1:] if each not in ("all", *table.PLACES)]
    command = [sys.executable, "-m", "tests.robustness.fuzzing", name, "--alone", *arguments]
    with tempfile.TemporaryDirectory(prefix="ffrecord-fuzz-", dir=in_memory()) as top:
        environment = os.environ | {"TMPDIR": top}
        done = subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE)
    if done.returncode:
        sys.stderr.buffer.write(done.stderr)
    return done.returncode != 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description="Feed parsers with malformed input."
    )
    parser.add_argument(
        "parser",
        nargs="*",
        default=["all"],
        metavar="PARSER",
        help=f"all, or some of {', '.join(table.PLACES)}",
    )
    parser.add_argument("--runs", type=int, default=1_000_000, help="executions of each parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes",
        type=float,
        help="stop each parser after this time, even if --runs is not reached",
    )
    parser.add_argument(
        "--engine", choices=["atheris", "own"],
        default="atheris" if campaign.has_atheris() else "own",
        help="atheris is guided by coverage, own by outcomes; own also checks memory",
    )  # fmt: skip
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = {*options.parser} - {"all", *table.PLACES}
    if unknown:
        parser.error(f"unknown parser {' '.join(sorted(unknown))}; see --help for all names")
    return options


def _one(options: argparse.Namespace) -> int:
    (name,) = options.parser
    print(f"{name}, by {options.engine}, seed {options.seed}", flush=True)
    if options.engine == "atheris":
        make = partial(table.make, name)
        campaign.run_atheris(make, options.runs, options.seed, options.minutes)
        return 1  # not reached: run_atheris ends the process
    try:
        target = table.make(name)
        print(campaign.run_own(target, options.runs, options.seed, options.minutes))
    except EscapeError as error:
        print(campaign.told(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.robustness.faults.server FOLDER`, run with the library preloaded.

Each input line has an operation's name and `every` or `some`. The server runs the operation's cases
and prints the tally as a line of JSON. One server process forks a child for the cases, because
starting Python takes longer than a hundred cases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ffrecord.atomic import file as atomic_file
from ffrecord.convert import files as convert_files
from tests.robustness.faults import converting, reading, serving, shim, writing
from tests.robustness.faults.cases import Operation, run_all

MAKERS: dict[str, Callable[[Path], Operation]] = {
    **reading.MAKERS, **writing.MAKERS, **converting.MAKERS, **serving.MAKERS
}  # fmt: skip


def main(folder: Path) -> None:
    atomic_file.SMALL_BUFFER = 16 << 10  # small, so that each file takes several writes
    convert_files.STEP = convert_files.GATHERED = 16 << 10
    shim.set_base(folder)
    for number, line in enumerate(sys.stdin):
        name, _, how_many = line.rstrip("\n").rpartition(" ")
        place = folder / str(number)
        place.mkdir()
        tally = run_all(MAKERS[name](place), every=how_many == "every")
        print(tally.as_json(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

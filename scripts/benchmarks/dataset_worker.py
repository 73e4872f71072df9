"""Making a contestant's files, and one measurement of reading them, each in a fresh process.

Cold and warm are as in `read_worker`. New files are read back as a whole before they count as made.
The last batch of every measurement is compared with the stored samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import batches, datasets, harness
from .dataset_peers import PEERS, Peer, Samples
from .dataset_samples import RECIPE, SampleSet, digest, sample

UNTIMED_BATCHES = 3
REHEARSAL_BATCHES = 2


class WrongSamplesError(Exception):
    """Raised when a contestant returns other samples than were written."""


def create(*, peer: str, root: str, count: int, batch: int) -> dict[str, int]:
    """Write the samples in a contestant's format unless they exist.

    Returns their size on disk, and the digest of all values as they were read back.
    """
    contestant, samples = PEERS[peer], SampleSet(count)
    folder = samples.folder(Path(root), contestant.layout)
    noted = folder / "digest"

    def write() -> None:
        contestant.write(folder / contestant.file, samples)
        noted.write_text(str(_read_back(contestant, folder, samples, batch)))

    datasets.make_once(folder, RECIPE, write)
    return {"bytes": _size(folder / contestant.file), "digest": int(noted.read_text())}


def measure(
    *,
    peer: str,
    fields: Sequence[str] | None,
    root: str,
    count: int,
    batch: int,
    cold: bool,
    seed: int,
    budget: float,
    most_batches: int,
) -> dict[str, float]:
    """Return the samples per second of one contestant."""
    contestant, samples = PEERS[peer], SampleSet(count)
    folder = samples.folder(Path(root), contestant.layout)
    order = batches.shuffled(count, batch, seed).tolist()
    if cold:
        small = rehearsal(samples, batch).folder(Path(root), contestant.layout)
        warm_up = batches.shuffled(REHEARSAL_BATCHES * batch, batch, 0).tolist()
        batches.exhaust(contestant.stream(small / contestant.file, fields)(warm_up))
        stream = contestant.stream(folder / contestant.file, fields)
        harness.drop_caches()
        timed: Iterable[list[int]] = order
    else:
        harness.read_through(folder)
        stream = contestant.stream(folder / contestant.file, fields)
        batches.exhaust(stream(order[:UNTIMED_BATCHES]))
        timed = itertools.cycle(order)
    done, seconds, last = batches.clock(stream(itertools.islice(timed, most_batches)), budget)
    _check(last, order[(done - 1) % len(order)], fields)
    return {"samples": done * batch, "seconds": seconds, "samples_per_s": done * batch / seconds}


def rehearsal(samples: SampleSet, batch: int) -> SampleSet:
    """Return the small set on which a contestant's code is warmed before a cold measurement."""
    return SampleSet(min(samples.count, REHEARSAL_BATCHES * batch))


def _read_back(contestant: Peer, folder: Path, samples: SampleSet, batch: int) -> int:
    """Read everything back, and return its digest if it matches the stored samples."""
    read = contestant.open(folder / contestant.file, None)
    found = due = 0
    for first in range(0, samples.count, batch):
        indices = list(range(first, min(first + batch, samples.count)))
        found, due = digest(read(indices), found), digest(map(sample, indices), due)
        if found != due:
            raise WrongSamplesError(f"samples from {first} on differ from the written ones")
    return found


def _check(last: Samples, indices: list[int], fields: Sequence[str] | None) -> None:
    due = [
        {name: value for name, value in sample(index).items() if fields is None or name in fields}
        for index in indices
    ]
    if [each.keys() for each in last] != [each.keys() for each in due] or digest(last) != digest(
        due
    ):
        raise WrongSamplesError(f"samples {indices[:3]}… differ from the written ones")


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)

"""A campaign: one target, many inputs, and a count of the outcomes.

Two engines feed the same targets. atheris knows which lines an input has reached. Without atheris,
`own` keeps the inputs with a new outcome: an error, or a place that raises it, not seen before.
"""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from scripts.benchmarks import memory
from tests.robustness.fuzzing.mutate import LARGEST, Mutator
from tests.robustness.fuzzing.target import EscapeError, Outcome, Target, try_one

SECONDS = 120
"""Seconds after which an input counts as hanging, even on a busy machine.

A normal input takes milliseconds.
"""

SEALED = 0.85  # part of the inputs that get correct checksums
SEED_BYTES = 16  # so many that two random inputs are never the same
MOST_KEPT = 512  # inputs that are mutated further
WARM_UP = 2000  # executions before memory is compared
LOOK_AT_MEMORY = 500  # executions between two looks


@dataclass
class Tally:
    """Counts of the outcomes so far."""

    target: Target
    started: float = field(default_factory=time.monotonic)
    words: Counter[str] = field(default_factory=Counter)
    outcomes: set[Outcome] = field(default_factory=set)
    executions: int = 0

    def count(self, data: bytes) -> bool:
        """Try one input; return True if its outcome is new."""
        self.executions += 1
        try:
            outcome = try_one(self.target, data)
        except EscapeError as error:
            error.executions = self.executions
            raise
        self.words[outcome.word] += 1
        if outcome in self.outcomes:
            return False
        self.outcomes.add(outcome)
        return True

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started
        words = ", ".join(f"{word} {times:,}" for word, times in self.words.most_common())
        return (
            f"{self.target.name}: {self.executions:,} executions, {seconds:.0f} s, "
            f"{len(self.outcomes)} different outcomes; {words}"
        )


def told(error: EscapeError) -> str:
    return f"ESCAPE after {error.executions:,} executions: {error}"


def inputs(target: Target, generator: random.Random) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield mutated seeds without end, each with the list of seeds, which the caller may extend."""
    pool = list(target.seeds)
    mutator = Mutator(generator, target.tokens, in_place=target.in_place)
    for seed in target.seeds:
        yield seed, pool
    while True:
        if target.is_seed:
            yield generator.randbytes(SEED_BYTES), pool
            continue
        data = mutator.mutate(generator.choice(pool))
        yield (target.seal(data) if generator.random() < SEALED else data), pool


def run_own(target: Target, runs: int, seed: int, minutes: float | None = None) -> Tally:
    """Run our own mutator, and check memory and time. Raises EscapeError."""
    generator = random.Random(f"{target.name} {seed}")
    tally = Tally(target)
    peak = _Memory(target)
    for data, pool in inputs(target, generator):
        with no_longer_than(SECONDS):
            new = tally.count(data)
        if new and len(pool) < MOST_KEPT:
            pool.append(data)
        if tally.executions % LOOK_AT_MEMORY == 0:
            peak.look(tally.executions, data)
            if minutes is not None and time.monotonic() - tally.started > 60 * minutes:
                break
        if tally.executions >= runs:
            break
    return tally


class _Memory:
    """Check that the peak memory of this process hardly grows after the warm-up."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._first = 0

    def look(self, executions: int, data: bytes) -> None:
        most = memory.peak()
        if executions <= WARM_UP or not self._first:
            self._first = most
        elif most - self._first > self._target.memory + LARGEST:
            what = MemoryError(f"{most - self._first} bytes more than at the beginning")
            raise EscapeError(self._target.name, data, what)


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raise TimeoutError, which counts as an escape, if the block takes longer."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- atheris ---------------------------------------------------------------------------------


def has_atheris() -> bool:
    return importlib.util.find_spec("atheris") is not None


def run_atheris(make: Any, runs: int, seed: int, minutes: float | None = None) -> None:
    """Run atheris in this process, and end the process: libFuzzer does not return or clean up.

    `make` imports the code to fuzz.
    """
    import atheris

    with atheris.instrument_imports(include=["ffrecord", "ffrecord_fuse"]):
        target: Target = make()
    generator = random.Random(seed)
    mutator = Mutator(generator, target.tokens, in_place=target.in_place)
    tally = Tally(target)
    reported = runs + len(target.seeds)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        generator.seed(number)
        if target.is_seed:
            return generator.randbytes(SEED_BYTES)
        changed = (
            mutator.mutate(data) if generator.random() < 0.7 else atheris.Mutate(data, len(data))
        )
        if generator.random() < SEALED:
            changed = target.seal(changed)
        return changed[:most]

    def test_one(data: bytes) -> None:
        try:
            tally.count(data)
        except EscapeError as error:
            print(f"{tally}\n{told(error)}", flush=True)
            os._exit(1)
        late = minutes is not None and time.monotonic() - tally.started > 60 * minutes
        if tally.executions >= reported or late:
            print(tally, flush=True)
            os._exit(0)

    corpus = tempfile.mkdtemp()  # it grows; removed with the folder that contains it
    for number, data in enumerate(target.seeds):
        with open(os.path.join(corpus, str(number)), "wb") as file:
            file.write(data)
    largest = max(LARGEST, *map(len, target.seeds))
    options = [f"-timeout={SECONDS}", f"-max_len={largest}", f"-seed={seed}", "-rss_limit_mb=4096"]
    options += ["-verbosity=0", f"-artifact_prefix={tempfile.gettempdir()}/"]
    atheris.Setup([sys.argv[0], *options, corpus], test_one, custom_mutator=mutate)
    atheris.Fuzz()

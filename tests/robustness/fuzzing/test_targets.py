"""Short runs of the fuzzers: every target, every seed, and some thousands of mutations.

`scripts/fuzz` runs each target a million times. With `--long`, these tests run it up to 20,000
times.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.robustness.fuzzing import campaign, corpus, table
from tests.robustness.fuzzing.mutate import Mutator
from tests.robustness.fuzzing.target import EscapeError, Target
from tests.support import handmade

SHORT = 150
LONG = 20_000
SLOW = ("resuming", "archive", "shards", "dataset", "state")

NAMES = list(table.PLACES)


@pytest.fixture
def target(name: str) -> Target:
    if name == "state":
        pytest.importorskip("torch")
    return table.make(name)


@pytest.mark.parametrize("runs", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::ffrecord.errors.LegacyFileWarning")
def test_nothing_escapes_from(target: Target, runs: int) -> None:
    if target.name in SLOW:
        runs //= 3 if runs == SHORT else 10
    tally = campaign.run_own(target, runs, seed=runs)
    assert tally.executions == tally.words.total() == runs
    refused = {error.__name__ for kind in target.errors for error in _kinds_of(kind)}
    # Servers refuse with answers, and every input of "image" and "mounttable" is valid.
    if target.name not in ("session", "handshake", "image", "answer", "page", "mounttable"):
        assert refused & tally.words.keys(), "nothing is refused: the mutations have no effect"
    assert tally.words.keys() - refused, (
        "everything is refused: no input gets past the first checks"
    )


def _kinds_of(error: type[Exception]) -> Iterator[type[Exception]]:
    yield error
    for below in error.__subclasses__():
        yield from _kinds_of(below)


def test_a_wrong_answer_and_an_unexpected_error_are_escapes() -> None:
    def wrong(data: bytes) -> str:
        assert data != b"seed", "a wrong answer"
        raise KeyError

    for seeds in ((b"seed",), (b"other",)):
        with pytest.raises(EscapeError):
            campaign.run_own(Target("wrong", wrong, seeds), 3, seed=1)


def test_the_same_seed_gives_the_same_mutations_and_another_seed_others() -> None:
    def spoiled(seed: int) -> list[bytes]:
        mutator = Mutator(random.Random(seed), (b"token",))
        return [mutator.mutate(bytes(range(100))) for _ in range(50)]

    assert spoiled(1) == spoiled(1) != spoiled(2)
    assert len(set(spoiled(1))) > 40


def test_inputs_that_seed_random_numbers_are_all_different() -> None:
    target = table.make("image")
    made = islice(campaign.inputs(target, random.Random(1)), 5000)
    assert len({data for data, _ in made}) == 5000


def test_the_corpus_is_the_same_for_the_same_seed_and_has_a_thousand_files() -> None:
    files = list(corpus.bad_files(1000, 1))
    assert files == list(corpus.bad_files(1000, 1))
    assert len({str(each) for each in files}) > 900


def corpus_outcomes(count: int, seed: int, seconds: int) -> Counter[str]:
    """Run the corpus in its own process, because its memory is measured; return the outcomes."""
    command = [sys.executable, "-m", "tests.robustness.fuzzing.corpus", str(count), str(seed)]
    top = Path(__file__).parents[3]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, cwd=top, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == count
    return Counter(lines)


def test_every_command_reports_bad_files_of_all_kinds_in_one_line() -> None:
    assert len(corpus_outcomes(63, 1, 300)) > 10


@pytest.mark.long
def test_every_command_reports_a_thousand_bad_files_in_one_line_each() -> None:
    assert len(corpus_outcomes(1008, 2, 3000)) > 40


def test_the_corpus_run_reports_a_traceback() -> None:
    """Without this, the tests above could never fail."""
    script = (
        "from tests.robustness.fuzzing import corpus\n"
        "def main(arguments): raise KeyError(arguments[0])\n"
        "corpus.main = main\n"
        "corpus.run(1, 1)\n"
    )
    process = handmade.python(script)
    try:
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert "KeyError: 'info'" in err

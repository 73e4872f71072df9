"""scripts/train.py, stopped within an epoch and resumed, ends with the same weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "train.py"


def train(work: Path, *options: str) -> str:
    """Run the script; return its last line: the digest of the weights, or where it stopped."""
    command = [
        sys.executable,
        "-W",
        "ignore::UserWarning",
        str(SCRIPT),
        str(work),
        "--epochs",
        "2",
        *options,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    work = tmp_path_factory.mktemp("training")
    weights = train(work, "--workers", "2")
    assert weights.startswith("weights ")
    return work, weights


@pytest.mark.parametrize(
    ("before", "after", "steps", "epoch"),
    [
        pytest.param("2", "0", 17, 1, id="fewer workers"),
        pytest.param("0", "4", 5, 0, id="more workers", marks=pytest.mark.long),
        pytest.param("2", "2", 12, 0, id="after the last step", marks=pytest.mark.long),
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    before: str, after: str, steps: int, epoch: int, uninterrupted: tuple[Path, str]
) -> None:
    work, weights = uninterrupted
    (work / "checkpoint.pt").unlink(missing_ok=True)
    stopped = train(work, "--workers", before, "--stop-after", str(steps))
    assert stopped == f"stopped in epoch {epoch} after {steps} steps"
    assert train(work, "--workers", after) == weights

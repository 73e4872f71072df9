"""What fuzzing has found, so that it does not come back."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import pytest

from ffrecord import FileReader, salvage_file
from ffrecord.errors import StateError
from tests import handmade
from tests.fuzzing import records


def claiming(settled: int) -> bytes:
    """A journal of four records, under checksums that hold, that claims to have had more."""
    raw = bytearray(records.journal_bytes(0, None, 1 << 20, count=4))
    struct.pack_into("<q", raw, 40, settled)
    return records.sealed_journal(bytes(raw))


@pytest.mark.parametrize("settled", [1 << 40, (1 << 63) - 1])
def test_a_journal_that_claims_any_number_of_records_costs_no_memory(
    settled: int, tmp_path: Path
) -> None:
    partial = tmp_path / ".file.partial"
    partial.write_bytes(bytes(1 << 20) + records.BODY)
    (tmp_path / ".file.partial.journal").write_bytes(claiming(settled))
    before = handmade.resident_bytes()
    report = salvage_file(partial, tmp_path / "saved.ffr")
    assert handmade.resident_bytes() - before < 64 << 20
    assert report.kept == 4
    assert 4 < report.records < 1 << 17
    with FileReader(tmp_path / "saved.ffr") as reader:
        assert handmade.as_bytes(reader) == list(records.RECORDS[:4])


def states() -> list[dict[str, Any]]:
    torch = pytest.importorskip("torch")
    return [
        {"version": torch.zeros(2)},
        {"rng": torch.zeros(5)},
        {"rng": torch.zeros(5056, dtype=torch.uint8)},
        {"generator": torch.empty(0)},
        {"step": 1 << 64},
    ]


@pytest.mark.parametrize("change", range(5))
@pytest.mark.parametrize("begun", [False, True])
def test_a_state_with_an_odd_value_is_a_state_error_and_changes_nothing(
    begun: bool, change: int, tmp_path: Path
) -> None:
    from tests.fuzzing import states as fuzzed

    handmade.write_records(tmp_path / "numbers.ffr", [bytes([i]) for i in range(fuzzed.COUNT)])
    loader = fuzzed._drawn(fuzzed.Numbers(tmp_path / "numbers.ffr"))
    state = fuzzed._saved(fuzzed._drawn(loader.dataset))[begun]  # type: ignore[arg-type]
    before = loader.state_dict()
    with pytest.raises(StateError):
        loader.load_state_dict(dict(state) | states()[change])
    assert repr(loader.state_dict()) == repr(before)


def test_a_sampler_s_state_of_infinity_or_tensors_is_a_state_error() -> None:
    torch = pytest.importorskip("torch")
    from ffrecord.torch import ShuffleSampler

    sampler = ShuffleSampler(10)
    for odd in (math.inf, torch.zeros(3)):
        with pytest.raises(StateError, match="not the state of a shuffle"):
            sampler.load_state_dict(sampler.state_dict() | {"position": odd})
        with pytest.raises(StateError):
            sampler.load_state_dict(sampler.state_dict() | {"shuffle": torch.zeros(3)})

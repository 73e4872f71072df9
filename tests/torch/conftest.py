"""Fixtures and ignored warnings for the tests of ffrecord.torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torch.datasets import TORCH_WARNINGS, N, write_numbers

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for warning in TORCH_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of N records, each with its number in it."""
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.ffr", range(N))

"""Packages that the tests of the frameworks use and not every machine has."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest


def package(name: str) -> Any:
    """Import a package, or skip the module that asks and say how to get the package."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(
            f"{name} is not installed: scripts/setup long installs it", allow_module_level=True
        )
    return importlib.import_module(name)

"""Optional packages for the tests of other frameworks."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest


def package(name: str) -> Any:
    """Import a package. If it is missing, skip the calling module and say how to install it."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; run: scripts/setup long", allow_module_level=True)
    return importlib.import_module(name)

"""Engines stay on loopback, and tell nobody that they are used."""

from __future__ import annotations

import os

os.environ.update({
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without "clusters", Ray takes 127.0.0.1 as the address of this machine.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns about its next version
})  # fmt: skip

"""The server of a store that is not at its provider, from the options and the environment.

obstore panics, and prints a stack trace, if the address of a server is not a URL. So it is checked
here, and obstore gets it as an option. No I/O.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ffrecord.errors import UrlError
from ffrecord.remote import urls

FIRST = "AWS_ENDPOINT_URL_S3"
"""Variable that obstore prefers to all options."""

VARIABLES = (FIRST, "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")

_OPTIONS = (
    "endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "azure_endpoint",
    "azure_storage_endpoint",
)  # fmt: skip
_REGIONS = ("region", "aws_region", "default_region", "aws_default_region")
_SERVER = re.compile(r"https?://[^\s/?#]+(/\S*)?", re.IGNORECASE)


def in_environment(provider: str) -> str | None:
    """Return the variable with the server of a provider; None if none has a value."""
    names = (name for name in VARIABLES if name.startswith(provider) and os.environ.get(name))
    return next(names, None)


def is_known(config: Mapping[str, Any]) -> bool:
    """Return True if the options or the environment name the server of an S3 store."""
    return any(config.get(name) for name in _OPTIONS) or in_environment("AWS") is not None


def completed(config: Mapping[str, Any], provider: str) -> dict[str, Any]:
    """Return the options of a store with the server that obstore is to use as `endpoint`.

    Options come first, then the environment. Empty values count as unset.

    Args:
        config: the options.
        provider: AWS or AZURE, with which the names of its variables begin.
    """
    given = [config[name] for name in _OPTIONS if config.get(name)]
    config = {name: value for name, value in config.items() if name not in _OPTIONS}
    variable = in_environment(provider)
    empty = [name for name in VARIABLES if os.environ.get(name) == "" and name.startswith(provider)]
    if variable is not None and (not given or variable == FIRST):
        config["endpoint"] = _checked(os.environ[variable], variable)
    elif given:
        config["endpoint"] = _checked(given[0], "the endpoint in storage_options or the profile")
    elif empty and provider == "AWS":  # obstore would use the empty address
        config["endpoint"] = f"https://s3.{_region(config)}.amazonaws.com"
    if FIRST in empty or (empty and "endpoint" not in config):
        raise UrlError(f"{empty[0]} is empty; unset it")
    return config


def _region(config: Mapping[str, Any]) -> str:
    """Return the region, as obstore finds it."""
    given = [config[name] for name in _REGIONS if config.get(name)]
    given += [os.environ[name.upper()] for name in _REGIONS if os.environ.get(name.upper())]
    return str(given[0]) if given else "us-east-1"


def _checked(endpoint: Any, whose: str) -> str:
    """Return the address of a server; raise UrlError if it is not one."""
    text = str(endpoint)
    try:
        if _SERVER.fullmatch(text) and urls.split(text).port != 0:
            return text
    except ValueError:  # the port is not a number below 65,536
        pass
    raise UrlError(
        f"{whose} is {urls.shown(text).rpartition('@')[2]!r}; it must begin with http:// or "
        "https:// and name a server, such as http://127.0.0.1:9000"
    )

"""The bucket of moto's server, seen without our own code."""

from __future__ import annotations

import re
import urllib.request

import obstore
from obstore.store import S3Store

from tests.support.patience import PATIENCE


def ask(url: str, method: str = "GET") -> bytes:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def bucket(url: str) -> S3Store:
    return S3Store(
        "bucket", endpoint=url, region="us-east-1", access_key_id="key", secret_access_key="SECRET",
        client_options={"allow_http": True},
    )  # fmt: skip


def keys(url: str) -> list[str]:
    return re.findall("<Key>(.*?)</Key>", ask(f"{url}/bucket?list-type=2").decode())


def pending(url: str) -> list[str]:
    """Return the keys of unfinished uploads."""
    return re.findall("<Key>(.*?)</Key>", ask(f"{url}/bucket?uploads").decode())


def content(url: str, key: str) -> bytes:
    return bytes(obstore.get(bucket(url), key).bytes())

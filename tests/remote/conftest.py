"""Servers and files for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.remote.proxy import Proxy, proxy
from tests.remote.servers import nginx
from tests.support import handmade

COUNT = 1500
SIZES = np.random.default_rng(7).integers(0, 20_000, COUNT).tolist()


@dataclass(frozen=True, slots=True)
class Site:
    """A folder, and the URL of the web server that serves it."""

    folder: Path
    url: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)
    with nginx(folder, tmp_path_factory.mktemp("nginx")) as url:
        yield Site(folder, url)


@pytest.fixture(scope="session")
def running_proxy(site: Site) -> Iterator[Proxy]:
    with proxy(site.url) as running:
        yield running


@pytest.fixture
def through(running_proxy: Proxy) -> Iterator[Proxy]:
    """Yield the proxy, without faults and with no requests counted."""
    running_proxy.renew()
    yield running_proxy
    running_proxy.renew()


@pytest.fixture(scope="session")
def records() -> list[bytes]:
    """Records of up to 20 kB, 15 MB in all."""
    return handmade.random_records(SIZES)


@pytest.fixture(scope="session")
def record_file(site: Site, records: list[bytes]) -> str:
    """Write the records into the site, and return the name of the file."""
    handmade.write_records(site.folder / "records.ffr", records)
    return "records.ffr"

"""A web server on loopback that answers late: nginx behind a relay that delays requests.

nginx answers requests for objects of S3 as well: it ignores signatures, and a bucket is a folder.
So all contestants read from the same server. nginx also counts: its log has the size of every
answer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import harness, remote_relay

PATIENCE = 10.0
"""Seconds in which a server must have started."""

# tcp_nopush holds the end of an answer of 110 kB back for 40 ms, on loopback.
CONFIGURATION = """
daemon off; master_process off; worker_processes 1; pid {place}/pid; error_log {place}/log crit;
events {{ worker_connections 4096; }}
http {{
    log_format size '$body_bytes_sent'; access_log {place}/answers size;
    keepalive_requests 1000000; keepalive_timeout 1h; default_type application/octet-stream;
    sendfile on; tcp_nopush off; open_file_cache max=1000;
    client_body_temp_path {place}/body; proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi; uwsgi_temp_path {place}/uwsgi; scgi_temp_path {place}/scgi;
    server {{ listen 127.0.0.1:{port} backlog=1024; root {root}; }}
}}
"""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `direct` is the URL of nginx itself, without the delay."""

    url: str
    direct: str
    answers: Path

    def counted(self) -> tuple[int, int]:
        """Return the number of answers so far, and the sum of the sizes of their bodies."""
        sizes = self.answers.read_text().split() if self.answers.exists() else []
        return len(sizes), sum(map(int, sizes))


@contextlib.contextmanager
def serving(root: Path, delay: float) -> Iterator[Server]:
    """Serve the folders in `root` as buckets, with `delay` seconds before each answer."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise harness.MeasurementError("nginx is not installed; scripts/setup bench installs it")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        place, port = Path(folder), _free_port()
        configuration = place / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(place=place, port=port, root=root))
        command = [program, "-e", str(place / "log"), "-c", str(configuration)]
        running.enter_context(_ended(subprocess.Popen(command)))
        _wait_for(port)
        command = [sys.executable, "-m", remote_relay.__name__, str(port), str(delay)]
        relay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=harness.ROOT)
        running.enter_context(_ended(relay))
        assert relay.stdout is not None
        late = int(relay.stdout.readline())
        yield Server(f"http://127.0.0.1:{late}", f"http://127.0.0.1:{port}", place / "answers")


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    raise harness.MeasurementError("nginx does not answer")

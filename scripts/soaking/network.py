"""The archive and the records behind a URL, on a server that fails one request in a hundred."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from scripts.demo import Ranges

from .crew import fork, send

FAILING = 0.01
"""Share of the requests that fail. Each reader repeats them."""
TAG = '"soak"'
"""The version of every file. They never change, and without a version the cache keeps nothing."""


class Unreliable(Ranges):
    """Sends parts of files, or an error, half of the answer, or nothing at all."""

    chance = random.Random(1)
    is_cut = False

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        fault = self.chance.choice(("busy", "cut", "lost"))
        if self.chance.random() >= FAILING:
            fault = ""
        self.close_connection = fault in ("cut", "lost") or self.close_connection
        self.is_cut = fault == "cut"
        if fault == "busy":
            self.send_error(503)
        elif fault != "lost":
            super().do_GET()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        outputfile.write(content[: len(content) // 2] if self.is_cut else content)

    def end_headers(self) -> None:
        self.send_header("ETag", TAG)
        super().end_headers()


class Server(ThreadingHTTPServer):
    """Says nothing about clients that are killed in the middle of an answer."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Print no traceback."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder in a process of its own until the block ends, and yield its URL."""
    with Server(("127.0.0.1", 0), partial(Unreliable, directory=str(folder))) as server:
        pid = fork(server.serve_forever)
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        send(pid, signal.SIGKILL)

"""`ffrecord view PATH`: serve a page that shows the files, records or datapoints of a path."""

from __future__ import annotations

import argparse
import contextlib

from ffrecord.terminal import note
from ffrecord.view.opening import open_path
from ffrecord.view.server import Server


def run(options: argparse.Namespace) -> int:
    with (
        Server(open_path(options.file), options.host, options.port) as server,
        contextlib.suppress(KeyboardInterrupt),  # the way to end it
    ):
        # The URL alone is on standard output, for scripts.
        print(server.url, flush=True)
        note(f"showing {server.opened.path}; press Ctrl-C to stop")
        if options.open:
            import webbrowser

            webbrowser.open(server.url)
        server.serve()
    return 0

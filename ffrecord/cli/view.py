"""`ffrecord view PATH`: serve a page that shows the files, records or datapoints of a path."""

from __future__ import annotations

import argparse
import contextlib
import sys

from ffrecord.terminal import printable
from ffrecord.view.opening import open_path
from ffrecord.view.server import Server


def run(options: argparse.Namespace) -> int:
    with Server(open_path(options.file), options.host, options.port) as server:
        # The URL alone is on standard output, for scripts.
        print(server.url, flush=True)
        print(printable(f"showing {server.opened.path}; press Ctrl-C to stop"), file=sys.stderr)
        if options.open:
            import webbrowser

            webbrowser.open(server.url)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve()
    return 0

"""`ffrecord view PATH`: serve a page that shows the files, records or datapoints of a path."""

from __future__ import annotations

import argparse
import contextlib
import html
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
        with _in_browser(server.url) if options.open else contextlib.nullcontext():
            server.serve()
    return 0


@contextlib.contextmanager
def _in_browser(url: str) -> Iterator[None]:
    """Open a URL in the browser.

    All users of the machine can see the command line of the browser, and the URL has the token. So
    the browser is given a file of this user, which leads there.
    """
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="ffrecord-view-") as folder:
        page = Path(folder, "open.html")
        page.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">\n')
        if not webbrowser.open(page.as_uri()):
            note("no browser was found; open the URL in one")
        yield

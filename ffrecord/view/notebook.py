"""`show`: the page in a notebook."""

from __future__ import annotations

import html
import os

from ffrecord.aliases import Closing
from ffrecord.view.opening import open_path
from ffrecord.view.server import Server


class Page(Closing):
    """A page that is served until `close` is called or the program ends.

    A notebook shows it as a frame. Elsewhere, open `url` in a browser.
    """

    def __init__(self, server: Server, height: int) -> None:
        self._server = server
        self._height = height

    @property
    def url(self) -> str:
        """The URL of the page. Everybody who knows it can read the files."""
        return self._server.url

    def close(self) -> None:
        """Stop the server, and close the files."""
        self._server.close()

    def _repr_html_(self) -> str:
        style = "width: 100%; border: 1px solid #8884; border-radius: 6px"
        return (
            f'<iframe src="{html.escape(self.url)}" height="{self._height}" style="{style}" '
            'title="ffrecord view"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Page {self.url}>"


def show(path: str | os.PathLike[str], *, port: int = 0, height: int = 640) -> Page:
    """Serve a page about a packed folder, a record file or a dataset, and return it.

    As the last line of a notebook's cell, the page is shown below the cell. The browser must reach
    this machine's 127.0.0.1: if the notebook runs on another machine, forward the port.

    Args:
        path: the path or URL.
        port: the port to listen on; 0 chooses a free one.
        height: the height of the frame in pixels.
    """
    server = Server(open_path(path), port=port, framed=True)
    server.start()
    return Page(server, height)

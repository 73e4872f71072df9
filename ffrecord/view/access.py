"""Access to the page: the token, the name of the host, and the headers that confine contents.

The token is the first part of every path: `http://127.0.0.1:8000/TOKEN/`. Pictures, sound and
requests of the page use relative URLs, so they carry the token too. A cookie would not do: browsers
send it to every port of a host, and refuse it in the frames of notebooks.

A page of another site may let its own host name lead to 127.0.0.1 (DNS rebinding), and then call
this server. The `Host` header tells: it must be an address, or a name that the user chose.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
from urllib.parse import urlsplit

TOKEN_BYTES = 18  # 144 bits, written as 24 letters

_PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self'; connect-src 'self'; frame-src blob:; base-uri 'none'; form-action 'none'; "
)
_CONTENTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""For contents that somebody opens by themselves: no scripts, no requests, no origin."""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


class Access:
    """Decides which requests are answered.

    Args:
        token: the token of every path.
        host: the host that the server listens on. Requests may use this name, `localhost`, or any
            address.
        framed: allow pages of other sites, such as notebooks, to show the page in a frame.
    """

    def __init__(self, token: str, host: str, *, framed: bool = False) -> None:
        self.token = token
        self._names = {"localhost", host.lower()}
        self._ancestors = "frame-ancestors *" if framed else "frame-ancestors 'none'"

    def path(self, path: str, host: str | None) -> str | None:
        """Return a request's path behind the token, or None if the request is not allowed."""
        given, slash, rest = path.lstrip("/").partition("/")
        # Compare bytes: compare_digest refuses text that is not ASCII.
        is_token = hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())
        if not (is_token and slash and self._is_ours(host)):
            return None
        return rest

    def _is_ours(self, host: str | None) -> bool:
        if not host:
            return False
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name.partition("%")[0])
            return True
        return False

    def headers(self, *, contents: bool) -> dict[str, str]:
        """Return the headers of every answer. `contents` is for bytes of the user's files."""
        return {
            "Content-Security-Policy": _CONTENTS if contents else _PAGE + self._ancestors,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

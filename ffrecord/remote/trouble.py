"""Failed requests: kinds of failure, and the errors that users see.

The libraries put whole URLs, with signatures, into their messages. So no message of theirs is ever
shown: a failure is described by its kind and its status.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from enum import Enum

from ffrecord.errors import ChangedError, RemoteError, UploadError
from ffrecord.remote.urls import WEB


class Kind(Enum):
    """Ways in which a request can fail."""

    BUSY = "busy"  # 429, 5xx, a reset, a timeout, a wrong body: worth another attempt
    CONNECT = "connect"  # no connection: the server is down, or its name is wrong
    MISSING = "missing"
    DENIED = "denied"
    CHANGED = "changed"
    UNCHANGED = "unchanged"  # the answer to a request for another version
    EXISTS = "exists"  # an object that must be new is there already
    BEYOND = "beyond"  # the range begins after the end of the object
    WHOLE = "whole"  # an answer without a range: the server knows none, or the object is empty
    NO_SUFFIX = "no suffix"  # the provider cannot be asked for the last bytes
    OTHER = "other"


@dataclass(slots=True)
class Trouble(Exception):  # noqa: N818 - users never see it
    """A failed attempt. It never leaves this room."""

    kind: Kind
    what: str
    status: int | None = None
    is_late: bool = False  # the time limit of the attempt was over

    def __post_init__(self) -> None:
        Exception.__init__(self, self.what)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of an object from `begin` up to `end`; or its last bytes, if `begin` is negative."""

    begin: int
    end: int = 0

    @property
    def is_suffix(self) -> bool:
        return self.begin < 0

    def within(self, size: int) -> tuple[int, int]:
        """Return the bytes that an object of this size has to answer with."""
        if self.is_suffix:
            return max(0, size + self.begin), size
        return self.begin, min(self.end, size)


BUSY_STATUSES = frozenset({408, 425, 429})
_URL = re.compile(r"[a-z0-9+.-]+://[^\s\"']*", re.IGNORECASE)
_SERVER = re.compile(r"://(?:[^/\s\"'?#]*@)?([^/@\s\"',?#]+)")
_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_METADATA = re.compile(r"://(?:169\.254\.|metadata\.google)")
"""Servers in a cloud that give a machine its credentials."""
_NO_CREDENTIALS = re.compile(r"InvalidGrant|credential", re.IGNORECASE)
_CONNECT = re.compile(r"ConnectError|tcp connect|dns error|Connection refused|Connect,", re.I)
_TRANSPORT = re.compile(
    r"reset|timed? ?out|timeout|incomplete|end of file|unexpected eof|closed|HttpError|"
    r"error sending|error decoding|decode|hyper|body",
    re.IGNORECASE,
)
MEANWHILE = (
    "already exists: another program created it meanwhile, and it is not replaced; choose another "
    "name"
)
NO_RANGES = "the server does not answer requests for ranges; use a server that does"


_CODE = re.compile(r"<Code>(\w{1,50})</Code>")
_DENIED_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_BUSY_CODES = frozenset({"RequestTimeout"})
"""Codes that S3 sends with status 400."""


def of_status(status: int, body: str = "") -> Trouble:
    """Return the failure that a status of HTTP stands for, and the code in the body of S3."""
    said = f"the server answered with status {status}"
    code = _CODE.search(body)
    if code:
        said += f" ({code[1]})"
    if status in BUSY_STATUSES or status >= 500 or (code and code[1] in _BUSY_CODES):
        return Trouble(Kind.BUSY, said, status)
    if code and code[1] in _DENIED_CODES:
        return Trouble(Kind.DENIED, said, status)
    kinds = {
        401: Kind.DENIED, 403: Kind.DENIED, 404: Kind.MISSING, 410: Kind.MISSING,
        412: Kind.CHANGED, 416: Kind.BEYOND,
    }  # fmt: skip
    return Trouble(kinds.get(status, Kind.OTHER), said, status)


def of_obstore(error: BaseException, span: Span | None) -> Trouble:
    """Return the failure that an exception of obstore stands for.

    obstore has few classes, and the status is only in the text. The text also has the URL, which is
    left out: an object may be called `partial` or `credentials`.
    """
    name, said = type(error).__name__, str(error)
    text = _URL.sub("", said)
    if name == "AlreadyExistsError":
        return Trouble(Kind.EXISTS, "already exists")
    found = _STATUS.search(text)
    if found and int(found[1]) >= 400:
        return of_status(int(found[1]), text)
    if isinstance(error, FileNotFoundError):
        return of_status(404)
    if name == "NotModifiedError":
        return Trouble(Kind.UNCHANGED, "not replaced")
    if name == "PreconditionError":
        return of_status(412)
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return of_status(403)
    if span is not None and span.is_suffix and re.search("suffix", text, re.IGNORECASE):
        return Trouble(Kind.NO_SUFFIX, "the server does not answer requests for the last bytes")
    if re.search(r"Requested .* got ", text):
        return Trouble(Kind.BUSY, "the answer has other bytes than those that were asked for")
    if name == "NotSupportedError" or "partial" in text:
        return Trouble(Kind.WHOLE, NO_RANGES)
    if isinstance(error, ValueError) and said.startswith("Could not parse path"):
        what = "no object can have this name: a part of it is empty, `.` or `..`, or has a control "
        return Trouble(Kind.OTHER, what + "character; check the URL or key")
    if "scheme is not allowed" in text or "BadScheme" in text:
        what = "plain http is not allowed for this store; set allow_http in storage_options, or in "
        return Trouble(Kind.OTHER, what + "the client_options of your own store")
    if _CONNECT.search(text):
        if _METADATA.search(said):
            what = "no credentials were found, and this machine has no role in a cloud"
            return Trouble(Kind.CONNECT, what)
        server = _SERVER.search(said)
        return Trouble(Kind.CONNECT, f"no connection to {server[1] if server else 'the server'}")
    if _METADATA.search(said) or _NO_CREDENTIALS.search(text):
        return Trouble(Kind.DENIED, "no credentials were found")
    if _TRANSPORT.search(text):
        return Trouble(Kind.BUSY, "the connection broke, or took too long")
    return Trouble(Kind.OTHER, f"the request failed ({name})")


def of_exception(error: BaseException) -> Trouble:
    """Return the failure that an exception of a file system of fsspec stands for."""
    status = getattr(error, "status", None)
    if isinstance(status, int) and status >= 400:
        return of_status(status)
    if isinstance(error, FileNotFoundError):
        return Trouble(Kind.MISSING, "not found")
    if isinstance(error, PermissionError):
        return Trouble(Kind.DENIED, "not permitted")
    if isinstance(error, (OSError, TimeoutError, EOFError)) or "Client" in type(error).__name__:
        return Trouble(Kind.BUSY, "the connection broke, or took too long")
    return Trouble(Kind.OTHER, f"the request failed ({type(error).__name__})")


def error_for(
    shown: str, trouble: Trouble, span: Span | None, attempts: int, *, writing: bool = False
) -> Exception:
    """Return the error that a user sees after the last attempt."""
    if writing and trouble.kind is Kind.MISSING:
        what = "the server has no such bucket, or lost a part of the upload"
        return UploadError(shown, what, trouble.status, attempts)
    if trouble.kind is Kind.MISSING:
        return FileNotFoundError(errno.ENOENT, "no such object; check the URL", shown)
    if trouble.kind is Kind.DENIED:
        what = f"access denied: {trouble.what}; check "
        if shown.partition("://")[0] in WEB:
            what += "the URL: its signature, if it has one, may be wrong or expired"
        else:
            what += "the credentials in storage_options, the environment or the profile"
        return PermissionError(errno.EACCES, what, shown)
    if trouble.kind is Kind.CHANGED:
        return replaced(shown)
    if trouble.kind is Kind.EXISTS:
        return FileExistsError(errno.EEXIST, MEANWHILE, shown)
    if writing:
        return UploadError(shown, trouble.what, trouble.status, attempts)
    return RemoteError(
        shown, trouble.what, None if span is None else (span.begin, span.end), trouble.status,
        attempts,
    )  # fmt: skip


def replaced(shown: str) -> ChangedError:
    """Return the error for an object that was replaced while it was open."""
    return ChangedError(
        f"{shown}: replaced since it was opened; open it again to read the new version"
    )

"""URLs: recognise them, join them with names, and show them without secrets. No I/O.

A URL is text that begins with a scheme of at least two letters and `://`. All other text is a local
path, so `C://x` and `a/b://c` are paths.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from ffrecord.errors import UrlError

if TYPE_CHECKING:
    from ffrecord.remote.options import RemoteOptions

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_PARTS = re.compile(r"([^:]+)://([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_BUCKET_PARTS = re.compile(r"([^:]+)://([^/?#]*)(.*)()", re.DOTALL)
_LOCAL_PROTOCOLS = ("", "file", "local")

WEB = frozenset({"http", "https"})
BUCKETS = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl"})
"""Schemes of buckets. After the bucket there is only a key, which may contain ? and #."""


def is_url(path: object) -> TypeGuard[str]:
    """Return True for text that begins like a URL."""
    return isinstance(path, str) and "://" in path and _URL.match(path) is not None


def is_upath(path: object) -> bool:
    """Return True for a path of universal-pathlib that is not on a local disk."""
    protocol = getattr(path, "protocol", None)
    return isinstance(protocol, str) and hasattr(path, "storage_options") and (
        protocol not in _LOCAL_PROTOCOLS
    )  # fmt: skip


def is_remote(path: object, options: RemoteOptions | None = None) -> bool:
    """Return True if a path, or the first path of a list, is read over the network."""
    if options and (options.get("store") is not None or options.get("fs") is not None):
        return True
    if isinstance(path, str):  # first, because most paths are
        return is_url(path)
    if isinstance(path, Sequence):
        return any(is_remote(each) for each in path[:1])
    return is_upath(path)


def shown(url: str) -> str:
    """Return a URL for messages: without user, password, query and fragment.

    Signatures of signed URLs are in the query. A key with a ? is shown as it is, unless a signature
    follows, which somebody added by mistake. Wrong URLs are accepted: messages name them, too.
    """
    if not is_url(url):
        return url
    scheme, place, path, _ = _parts(url)
    key, _, query = path.partition("?")
    if any(_SIGNATURES.fullmatch(name) for name, _ in parse_qsl(query, keep_blank_values=True)):
        path = key
    return f"{scheme.lower()}://{place.rpartition('@')[2]}{path}"


def is_folder(path: str) -> bool:
    """Return True if the path in a URL, or a key, ends with a slash."""
    return (_parts(path)[2] if is_url(path) else path).endswith("/")


def _parts(url: str) -> tuple[str, str, str, str]:
    """Return the scheme, the user and host or bucket, the path, and the query with the fragment."""
    is_bucket = url.partition("://")[0].lower() in BUCKETS
    found = (_BUCKET_PARTS if is_bucket else _PARTS).fullmatch(url)
    assert found is not None  # `is_url` has found a scheme
    scheme, place, path, end = found.groups()
    return scheme, place, path, end


def not_local(url: str) -> UrlError:
    """Return the error for a URL in the place of a local file that is read."""
    return UrlError(f"{shown(url)}: this needs a local file; download it first")


def split(url: str) -> SplitResult:
    """Return the parts of a URL; raise UrlError if it cannot be split."""
    try:
        return urlsplit(url)
    except ValueError:  # its message may have the password
        raise UrlError(f"{shown(url)}: the host of this URL is not valid; correct it") from None


_SIGNATURES = re.compile(
    r"x-amz-.*|x-goog-.*|awsaccesskeyid|googleaccessid|signature|expires|key-pair-id|policy|token|"
    r"sig|sv|se|st|sp|sr|spr|sip|ss|srt|skoid|sktid|skt|ske|sks|skv|.*token|.*signature",
    re.IGNORECASE,
)
"""Parameters that sign a URL at S3, GCS, Azure, CloudFront and others."""


def unsigned(url: str) -> str:
    """Return a URL without user, password and signature: the same for all signed forms of it.

    Only for comparisons: other parameters, which may be secret, are still in it.
    """
    pairs = parse_qsl(split(url).query, keep_blank_values=True)
    kept = [(name, value) for name, value in pairs if not _SIGNATURES.fullmatch(name)]
    return f"{shown(url)}?{urlencode(sorted(kept), errors='surrogatepass')}" if kept else shown(url)


def joined(url: str, name: str) -> str:
    """Return the URL of a file in a folder, or its key. The query of a URL stays at the end."""
    if not is_url(url):
        return f"{url.rstrip('/')}/{name}" if url else name
    scheme, place, path, end = _parts(url)
    if scheme.lower() in WEB:
        name = quote(name)
    return f"{scheme}://{place}{path.rstrip('/')}/{name}{end}"

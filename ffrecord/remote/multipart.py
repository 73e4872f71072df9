"""Uploads to S3 that were begun in parts and never completed: list them, and abort them.

The parts of such an upload are invisible and cost money until the upload is aborted. obstore
uploads in parts, but has no functions to list or abort an upload. It does sign URLs, with any kind
of credentials. It puts the key after the endpoint, so an endpoint that ends with a query gives
signed URLs for every operation of S3. S3 ignores parameters whose names begin with `x-`.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from datetime import timedelta
from types import ModuleType
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from ffrecord.remote.trouble import Kind, Trouble, of_obstore, of_status

VALID = timedelta(minutes=5)  # of a signed URL; clocks may differ by some minutes
SECONDS = 30.0  # of one request
LONGEST_LIST = 4 << 20
"""Bytes of an answer. One page lists 1,000 uploads, of the shortest keys first: our key is the
prefix, so its uploads are at the beginning."""


class Unfinished:
    """The unfinished uploads of one key. All methods send requests and raise `Trouble`."""

    def __init__(self, library: ModuleType, store: Any, key: str) -> None:
        self._library = library
        self._store = store
        self._key = f"{store.prefix}/{key}".strip("/") if store.prefix else key
        # A signed URL shows the address of the bucket, which depends on many options.
        self._object = self._signed("GET", self._key).partition("?")[0]
        self._bucket = self._signed("GET", "k").partition("?")[0].removesuffix("/k")

    def ids(self) -> list[str]:
        """Return the ids of the key's unfinished uploads."""
        return [each for key, each in self._listed(self._key) if key == self._key]

    def inside(self) -> list[tuple[str, str]]:
        """Return unfinished uploads in the folder of this key: names in the folder, and ids.

        There may be more of them when these have been aborted.
        """
        folder = f"{self._key}/"
        return [(key.removeprefix(folder), each) for key, each in self._listed(folder)]

    def _listed(self, prefix: str) -> list[tuple[str, str]]:
        """Return the keys and ids of unfinished uploads, as many as one page has."""
        query = f"uploads=&prefix={quote(prefix, safe='')}"
        text = self._request("GET", self._bucket, query) or b"<none/>"
        try:
            tree = ElementTree.fromstring(text)
        except (ElementTree.ParseError, LookupError, ValueError):
            # A list that breaks off is worth another attempt. Other servers send a page of HTML.
            kind = Kind.BUSY if b"ListMultipartUploadsResult" in text else Kind.OTHER
            raise Trouble(kind, "the answer is not a list of unfinished uploads") from None
        found = []
        for upload in tree.iter():
            if upload.tag.rpartition("}")[2] == "Upload":
                facts = {each.tag.rpartition("}")[2]: each.text for each in upload}
                key, number = facts.get("Key"), facts.get("UploadId")
                if key and number and key.startswith(prefix):
                    found.append((key, number))
        return found

    def abort(self, upload: str) -> None:
        """Remove the parts of an upload. An upload that does not exist any more is no error."""
        try:
            self._request("DELETE", self._object, f"uploadId={quote(upload, safe='')}")
        except Trouble as trouble:
            if trouble.kind is not Kind.MISSING:
                raise

    def _request(self, method: str, url: str, query: str) -> bytes:
        endpoint = f"{url}?{query}&x-ffrecord="
        signed = self._signed(method, "-", endpoint=endpoint, virtual_hosted_style_request=True)
        try:
            request = urllib.request.Request(signed, method=method)
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return bytes(answer.read(LONGEST_LIST))
        except urllib.error.HTTPError as error:
            error.close()
            raise of_status(error.code) from None
        except (OSError, ValueError, http.client.HTTPException):
            raise Trouble(Kind.CONNECT, "no connection to the server") from None

    def _signed(self, method: str, key: str, **options: Any) -> str:
        """Return a signed URL of a store like the given one, without its prefix."""
        store, kind = self._store, type(self._store)
        config = {name: value for name, value in store.config.items() if name != "bucket"}
        try:
            asked = kind(
                store.config["bucket"], config={**config, **options},
                client_options=store.client_options,
                credential_provider=store.credential_provider,
            )  # fmt: skip
            return str(self._library.sign(asked, method, key, VALID))
        except Exception as error:
            raise of_obstore(error, None) from None

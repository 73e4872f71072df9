"""Object stores and web servers, through obstore."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ffrecord.errors import MissingPackageError, UrlError
from ffrecord.remote import endpoints, profiles, retries, urls
from ffrecord.remote.answers import Answer, Version
from ffrecord.remote.library import abandon, copied, library
from ffrecord.remote.multipart import Unfinished
from ffrecord.remote.parts import AT_ONCE, Parts
from ffrecord.remote.trouble import Kind, Span, Trouble, of_obstore

SCHEMES = urls.BUCKETS | urls.WEB

# Our own retries replace those of obstore, and our time limits are shorter than these.
NO_RETRIES = {"max_retries": 0}
CLIENT = {"timeout": "10m", "connect_timeout": "10s"}

FSSPEC_NAMES = {
    "key": "access_key_id", "secret": "secret_access_key", "token": "session_token",
    "anon": "skip_signature", "endpoint_url": "endpoint",
}  # fmt: skip
"""Options of s3fs, which other libraries pass too -> their names in obstore."""

APART = ("client_options", "retry_config", "credential_provider")
"""Options that are arguments of obstore's stores by themselves."""

CLIENT_OPTIONS = frozenset({
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
    "default_headers", "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host",
    "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout",
    "root_certificate", "timeout", "user_agent",
})  # fmt: skip
"""Options of obstore's HTTP client. obstore panics if they are among those of the store."""

_PLAIN_PATH = re.compile(r"(/(?!\.\.?(/|$))[\w.~-]+)+/?", re.ASCII)
"""Paths of web servers that are also keys: nothing is quoted, and no part is `.` or `..`."""

_MISSING = re.compile("Missing (AccessKeyId|SecretAccessKey)")
"""Message of obstore for a secret without its key, or a key without its secret."""

_PLACES = ("bucket", "endpoint", "account_name", "container_name")
"""Options that say where a store is."""

_PROVIDERS = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"}  # all other schemes are AZURE


class ObjectStore:
    """A store of obstore. `make` makes it; a forked child makes it again.

    obstore repeats the parts of uploads by itself, with other options: `make_for_parts` makes the
    store for them.
    """

    def __init__(
        self, make: Callable[[ModuleType], Any],
        make_for_parts: Callable[[ModuleType], Any] | None = None,
    ) -> None:  # fmt: skip
        self._make = make
        self._make_for_parts = make_for_parts
        library_now = library()
        self._made = library_now, make(library_now)

    def _now(self) -> tuple[ModuleType, Any]:
        current = library()
        if self._made[0] is not current:
            abandon(self._made)
            self._made = current, self._make(current)
        return self._made

    async def get(self, key: str, span: Span, pinned: Version | None) -> Answer:
        demanded = {} if pinned is None or pinned.match is None else {"if_match": pinned.match}
        return await self._get(key, span, demanded, opening=pinned is None)

    async def get_unless(self, key: str, span: Span, known: Version) -> Answer | None:
        try:
            return await self._get(key, span, {"if_none_match": known.match}, opening=True)
        except Trouble as trouble:
            if trouble.kind is Kind.UNCHANGED:
                return None
            raise

    async def _get(
        self, key: str, span: Span, conditions: Mapping[str, Any], *, opening: bool
    ) -> Answer:
        obstore, store = self._now()
        span_of = {"suffix": -span.begin} if span.is_suffix else (span.begin, span.end)
        options = {"range": span_of, **conditions}
        try:
            began = time.perf_counter()
            result = await obstore.get_async(store, key, options=options)
            waited = time.perf_counter() - began
            meta = result.meta
            begin, end = result.range
            body = await result.bytes_async()
        except Exception as error:
            trouble = of_obstore(error, span)
            if opening and trouble.kind in (Kind.BEYOND, Kind.WHOLE):
                return await self._empty(key, trouble)
            raise trouble from None
        if len(body) != end - begin:
            raise Trouble(Kind.BUSY, f"the answer has {len(body)} bytes instead of {end - begin}")
        return Answer(body, begin, _version(meta), waited)

    async def _empty(self, key: str, trouble: Trouble) -> Answer:
        """Return no bytes if the object is empty: it has no ranges. Otherwise raise `trouble`."""
        obstore, store = self._now()
        try:
            version = _version(await obstore.head_async(store, key))
        except Exception as error:
            raise of_obstore(error, None) from None
        if version.size:
            raise trouble
        return Answer(b"", 0, version)

    def object_identity(self, key: str) -> str | None:
        """Return kind, place and key of an object. Of the configuration, only names are taken."""
        store = self._now()[1]
        url = getattr(store, "url", None)
        if url is not None:
            place = urls.unsigned(url)
            return urls.joined(place, key) if key else place
        config = getattr(store, "config", None)
        if not isinstance(config, Mapping):
            return None
        parts = [type(store).__name__, str(getattr(store, "prefix", None) or "")]
        variable = endpoints.in_environment("")
        config = {"endpoint": os.environ[variable] if variable else "", **config}
        parts += [f"{name}={config[name]}" for name in _PLACES if config.get(name)]
        return "\0".join([*parts, key])

    async def recheck(self, key: str, pinned: Version) -> None:
        """Do nothing: every request demands the version, and every answer states it."""

    async def names(self, key: str) -> list[str]:
        obstore, store = self._now()
        try:
            prefix = key.rstrip("/")
            found = await obstore.list_with_delimiter_async(store, prefix or None)
        except Exception as error:
            raise of_obstore(error, None) from None
        paths = [each["path"] for each in found["objects"]] + list(found["common_prefixes"])
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    async def version(self, key: str) -> Version | None:
        obstore, store = self._now()
        try:
            return _version(await obstore.head_async(store, key))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise of_obstore(error, None) from None

    async def is_empty(self, key: str) -> bool:
        obstore, store = self._now()
        try:
            # Only the first page is fetched.
            async for page in obstore.list(store, key.rstrip("/") or None, chunk_size=1):
                if page:
                    return False
        except Exception as error:
            raise of_obstore(error, None) from None
        return True

    async def objects(self, key: str) -> dict[str, int]:
        obstore, store = self._now()
        prefix = key.strip("/")
        found = {}
        try:
            async for page in obstore.list(store, prefix or None):
                for each in page:
                    found[each["path"][len(prefix) :].lstrip("/")] = each["size"]
        except Exception as error:
            raise of_obstore(error, None) from None
        return found

    async def put(self, key: str, parts: Parts, *, new: bool, over: Version | None = None) -> None:
        obstore, store = self._now()
        try:
            if parts.is_single:
                mode: Any = "create" if new else "overwrite"
                if over is not None and over.match is not None:
                    mode = {"e_tag": over.match}
                await self._put_single(key, parts.content, mode)
            else:
                if self._make_for_parts is not None:
                    store = self._make_for_parts(obstore)
                await obstore.put_async(
                    store, key, iter(parts), use_multipart=True, chunk_size=parts.length,
                    max_concurrency=AT_ONCE,
                )  # fmt: skip
        except Exception as error:
            raise of_obstore(error, None) from None

    async def _put_single(self, key: str, content: bytes, mode: Any) -> None:
        obstore, store = self._now()
        if mode != "overwrite":
            try:
                await obstore.put_async(store, key, content, mode=mode, use_multipart=False)
                return
            except Exception as error:
                # Some stores do not know the condition. The caller has looked for the object.
                if not isinstance(error, NotImplementedError) and "status code: 501" not in str(
                    error
                ):
                    raise
        await obstore.put_async(store, key, content, mode="overwrite", use_multipart=False)

    async def delete(self, key: str) -> None:
        obstore, store = self._now()
        try:
            await obstore.delete_async(store, key)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise of_obstore(error, None) from None

    async def remove_folders(self, key: str) -> None:
        """Do nothing: object stores have no folders."""

    def unfinished(self, key: str) -> Unfinished | None:
        obstore, store = self._now()
        if not isinstance(store, obstore.store.S3Store):
            return None
        return Unfinished(obstore, store, key)

    def address(self, key: str) -> tuple[str | None, dict[str, str]]:
        obstore, store = self._now()
        scheme = "s3" if isinstance(store, obstore.store.S3Store) else "gs"
        if scheme == "gs" and not isinstance(store, obstore.store.GCSStore):
            return None, {}
        config = store.config
        options = {
            name: urls.shown(config[name]) for name in ("endpoint", "region") if name in config
        }
        whole = f"{store.prefix}/{key}" if store.prefix else key
        return f"{scheme}://{config['bucket']}/{whole}", options


def _version(meta: Mapping[str, Any]) -> Version:
    modified = meta["last_modified"]
    return Version(meta["size"], meta["e_tag"], None if modified is None else modified.timestamp())


def given(store: Any) -> ObjectStore:
    """Return the store that a user made. A forked child gets a copy of it.

    A child that unpickles a store gets one of the parent's module, too.
    """

    def make(current: ModuleType) -> Any:
        kind = getattr(current.store, type(store).__name__, None)
        return store if kind is None or isinstance(store, kind) else copied(store, current)

    return ObjectStore(make)


def from_url(url: str) -> tuple[tuple[str, str], str]:
    """Return the root of the store of a URL, as scheme and URL, and the key in this store."""
    parts = urls.split(url)
    scheme = parts.scheme.lower()
    if scheme in urls.WEB:
        # A key is quoted again, and has no query. Other URLs are a store by themselves.
        if _PLAIN_PATH.fullmatch(parts.path) and not parts.query:
            return (scheme, f"{scheme}://{parts.netloc}/"), parts.path.strip("/")
        return (scheme, url), ""
    # Everything after the bucket is the key, even ? and #.
    bucket, _, key = url[len(parts.scheme) + 3 :].partition("/")
    if not bucket:
        raise UrlError(f"{urls.shown(url)}: the URL has no bucket; write {scheme}://BUCKET/KEY")
    return (scheme, f"{scheme}://{bucket}"), key


def open_store(root: tuple[str, str], options: Mapping[str, Any], deadline: float) -> ObjectStore:
    """Open the store with this root. `deadline` is that of the parts of uploads."""
    scheme, url = root
    apart = {name: options[name] for name in APART if options.get(name) is not None}
    config = {name: value for name, value in options.items() if name not in (*APART, "config")}
    config |= options.get("config") or {}
    if scheme in ("s3", "s3a"):
        config = {FSSPEC_NAMES.get(name, name): value for name, value in config.items()}
        config, provider = profiles.completed(config)
        if provider is not None:
            apart.setdefault("credential_provider", provider)
    if scheme not in urls.WEB:
        config = endpoints.completed(config, _PROVIDERS.get(scheme, "AZURE"))
    moved = {name: config.pop(name) for name in CLIENT_OPTIONS & config.keys()}
    client = {**CLIENT, **moved, **apart.get("client_options", {})}
    if scheme == "http" or str(config.get("endpoint")).lower().startswith("http:"):
        client.setdefault("allow_http", True)
    apart |= {"client_options": client, "retry_config": apart.get("retry_config", NO_RETRIES)}

    def make(current: ModuleType, **more: Any) -> Any:
        stores = current.store
        if scheme in urls.WEB:
            return stores.HTTPStore.from_url(url, **apart)
        kind = {"s3": stores.S3Store, "s3a": stores.S3Store, "gs": stores.GCSStore}
        return kind.get(scheme, stores.AzureStore).from_url(url, **{**apart, **more}, **config)

    def make_for_parts(current: ModuleType) -> Any:
        again = options.get("retry_config") or retries.of_parts(deadline)
        limited = {**client, "timeout": retries.part_limit(deadline)}
        return make(current, retry_config=again, client_options=limited)

    try:
        return ObjectStore(make, make_for_parts)
    except MissingPackageError:
        raise
    except BaseException as error:
        # A panic of obstore is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        missing = _MISSING.search(str(error))
        if missing:
            name = "_".join(re.findall("[A-Z][a-z]+", missing[1]))
            what = f"the credentials lack a part; set AWS_{name.upper()}, or {name.lower()} in "
            raise UrlError(f"{urls.shown(url)}: {what}storage_options") from None
        names = ", ".join(map(repr, options)) or "none"
        what = f"{urls.shown(url)}: cannot be opened with these "
        what += f"options ({type(error).__name__}); storage_options has the names {names}"
        raise UrlError(what) from None

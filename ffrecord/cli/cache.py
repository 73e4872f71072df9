"""`ffrecord cache ls|rm|verify [URL…]`: copies of remote files, and uploads of killed processes."""

from __future__ import annotations

import argparse
import errno
import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from ffrecord.cli.quoting import quoted
from ffrecord.remote import uploads
from ffrecord.remote.cache import listing
from ffrecord.remote.cache.folder import CacheFolder
from ffrecord.remote.cache.listing import Listed
from ffrecord.remote.options import CACHE, cache_folder
from ffrecord.remote.uploads import Leftover
from ffrecord.remote.urls import shown
from ffrecord.terminal import printable
from ffrecord.text import counted, human

AGES = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def run(options: argparse.Namespace) -> int:
    path = options.cache or os.environ.get(CACHE)
    if not path and options.action == "verify":
        options.parser.error(f"name the folder of the cache with --cache, or set {CACHE}")
    is_chosen = (bool(options.url), options.all, options.unfinished)
    if options.action == "rm" and sum(is_chosen) != 1:
        options.parser.error("name the URLs to remove, or use --all or --unfinished alone")
    folder = CacheFolder(cache_folder(path or uploads.default_folder()), None)
    if path and not os.path.exists(folder.path):
        why = f"no such folder; check --cache or {CACHE}"
        raise FileNotFoundError(errno.ENOENT, why, folder.path)
    chosen = _chosen(folder, options)
    actions: dict[str, Callable[[CacheFolder, _Chosen, argparse.Namespace], int]]
    actions = {"ls": _ls, "rm": _rm, "verify": _verify}
    return actions[options.action](folder, chosen, options)


class _Chosen(NamedTuple):
    copies: list[Listed]
    unfinished: list[Leftover]


def _chosen(folder: CacheFolder, options: argparse.Namespace) -> _Chosen:
    """Return the copies and uploads of a command: all, or those at its URLs and below them."""
    copies = [] if options.unfinished else listing.listed(folder)
    unfinished = [] if options.action == "verify" else uploads.leftovers(folder.path)
    names = {shown(url) for url in options.url}
    known = {copy.url for copy in copies} | {each.name for each in unfinished}
    for url in sorted(names):
        if not any(_is_at(each, url) for each in known):
            why = "not in the cache; `ffrecord cache ls` shows the URLs in it"
            raise FileNotFoundError(errno.ENOENT, why, url)

    def is_named(url: str) -> bool:
        return not names or any(_is_at(url, name) for name in names)

    return _Chosen(
        [copy for copy in copies if is_named(copy.url)],
        [each for each in unfinished if is_named(each.name)],
    )


def _is_at(url: str, name: str) -> bool:
    """Return True if a URL is `name`, or is in the folder of that name."""
    return url == name or url.startswith(f"{name.rstrip('/')}/")


def _ls(folder: CacheFolder, chosen: _Chosen, options: argparse.Namespace) -> int:
    copies = chosen.copies
    if options.json:
        facts = [
            {
                "url": copy.url, "size": copy.size, "there": copy.there, "on_disk": copy.on_disk,
                "used": round(copy.used), "in_use": copy.in_use,
            }
            for copy in copies
        ]  # fmt: skip
        left = [
            {"url": each.name, "began": round(each.began), "bytes": each.size}
            for each in chosen.unfinished
        ]
        whole = {"folder": folder.path, "copies": facts, "unfinished_uploads": left}
        print(json.dumps(whole, indent=2))
        return 0
    for copy in copies:
        share = 100 * copy.there // copy.size
        used = "in use" if copy.in_use else f"{_age(time.time() - copy.used)} ago"
        line = f"{human(copy.there):>8} of {human(copy.size):>8} {share:3} %  {used:>14}  "
        print(line + printable(copy.url))
    total = human(sum(copy.on_disk for copy in copies))
    print(f"{counted(len(copies), 'file')}, {total} on disk")
    for each in chosen.unfinished:
        began = f"{_age(time.time() - each.began)} ago"
        print(f"unfinished upload, begun {began}: {printable(each.name)}")
    if chosen.unfinished:
        where = f" --cache {quoted(options.cache)}" if options.cache else ""
        print(f"their processes were killed; `ffrecord cache rm --unfinished{where}` aborts them")
    return 0


def _age(seconds: float) -> str:
    unit, name = next((each for each in AGES if seconds >= each[0]), AGES[-1])
    return counted(int(seconds // unit), name)


def _rm(folder: CacheFolder, chosen: _Chosen, options: argparse.Namespace) -> int:
    copies = chosen.copies
    freed = sum(listing.remove(folder, copy.name) for copy in copies)
    for each in chosen.unfinished:
        uploads.abort(each)
        freed += each.size
    aborted = len(chosen.unfinished)
    if options.json:
        facts = {"removed": len(copies), "aborted_uploads": aborted, "bytes": freed}
        print(json.dumps(facts, indent=2))
    else:
        more = f" and aborted {counted(aborted, 'unfinished upload')}" if aborted else ""
        print(f"removed {counted(len(copies), 'file')}{more}, {human(freed)}")
    return 0


def _verify(folder: CacheFolder, chosen: _Chosen, options: argparse.Namespace) -> int:
    results = [(copy, listing.check(folder, copy.name)) for copy in chosen.copies]
    if options.json:
        facts = [
            {"url": copy.url, "blocks": found.blocks, "damaged": found.damaged}
            for copy, found in results
        ]
        print(json.dumps({"folder": folder.path, "copies": facts}, indent=2))
    else:
        for copy, found in results:
            what = f"OK, {counted(found.blocks, 'block')}"
            if found.damaged:
                what = f"{found.damaged} of {counted(found.blocks, 'block')} damaged and dropped; "
                what += "they are fetched again when they are needed"
            print(f"{printable(copy.url)}: {what}")
    return 1 if any(found.damaged for _, found in results) else 0

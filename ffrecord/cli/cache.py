"""`ffrecord cache ls|rm|verify [URL…]`: the copies of remote files in a cache."""

from __future__ import annotations

import argparse
import errno
import json
import os
import time
from collections.abc import Callable

from ffrecord.remote.cache import listing
from ffrecord.remote.cache.folder import CacheFolder
from ffrecord.remote.cache.listing import Listed
from ffrecord.remote.options import CACHE
from ffrecord.remote.urls import shown
from ffrecord.terminal import printable
from ffrecord.text import counted, human

AGES = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def run(options: argparse.Namespace) -> int:
    path = options.cache or os.environ.get(CACHE)
    if not path:
        options.parser.error(f"name the folder of the cache with --cache, or set {CACHE}")
    assert isinstance(path, str)
    if options.action == "rm" and bool(options.url) == options.all:
        options.parser.error("name the URLs to remove, or use --all alone")
    folder = CacheFolder(os.path.abspath(path), None)
    copies = _chosen(listing.listed(folder), options.url)
    actions: dict[str, Callable[[CacheFolder, list[Listed], argparse.Namespace], int]]
    actions = {"ls": _ls, "rm": _rm, "verify": _verify}
    return actions[options.action](folder, copies, options)


def _chosen(copies: list[Listed], urls: list[str]) -> list[Listed]:
    """Return the copies of these URLs; all copies if there are no URLs."""
    names = {shown(url) for url in urls}
    for url in sorted(names - {copy.url for copy in copies}):
        why = "not in the cache; `ffrecord cache ls` shows the URLs in it"
        raise FileNotFoundError(errno.ENOENT, why, url)
    return [copy for copy in copies if not names or copy.url in names]


def _ls(folder: CacheFolder, copies: list[Listed], options: argparse.Namespace) -> int:
    if options.json:
        facts = [
            {
                "url": copy.url, "size": copy.size, "there": copy.there, "on_disk": copy.on_disk,
                "used": round(copy.used), "in_use": copy.in_use,
            }
            for copy in copies
        ]  # fmt: skip
        print(json.dumps({"folder": folder.path, "copies": facts}, indent=2))
        return 0
    for copy in copies:
        share = 100 * copy.there // copy.size
        used = "in use" if copy.in_use else f"{_age(time.time() - copy.used)} ago"
        line = f"{human(copy.there):>8} of {human(copy.size):>8} {share:3} %  {used:>14}  "
        print(line + printable(copy.url))
    total = human(sum(copy.on_disk for copy in copies))
    print(f"{counted(len(copies), 'file')}, {total} on disk")
    return 0


def _age(seconds: float) -> str:
    unit, name = next((each for each in AGES if seconds >= each[0]), AGES[-1])
    return counted(int(seconds // unit), name)


def _rm(folder: CacheFolder, copies: list[Listed], options: argparse.Namespace) -> int:
    freed = sum(listing.remove(folder, copy.name) for copy in copies)
    if options.json:
        print(json.dumps({"removed": len(copies), "bytes": freed}, indent=2))
    else:
        print(f"removed {counted(len(copies), 'file')}, {human(freed)}")
    return 0


def _verify(folder: CacheFolder, copies: list[Listed], options: argparse.Namespace) -> int:
    results = [(copy, listing.check(folder, copy.name)) for copy in copies]
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

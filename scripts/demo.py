"""The Python part of `scripts/demo`: write records, read records and files, read from a server, and
show an archive in the browser. Every server that it starts ends with it, also on Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ffrecord import FileReader, FileWriter, PackedFolder

N = 10_000
BATCH = 256
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60  # seconds for an answer or a screenshot


def records(path: str) -> None:
    """Write records to a file, read all of them in random batches, and compare."""
    random = np.random.default_rng(1)
    noise = random.bytes(1 << 20)
    lengths = random.lognormal(np.log(9_400), 0.35, N).astype(int)
    written = [b"record %d " % i + noise[i : i + size] for i, size in enumerate(lengths)]

    began = time.perf_counter()
    with FileWriter(path, n=N) as writer:
        for record in written:
            writer.write_one(record)
    took = time.perf_counter() - began
    total = sum(map(len, written))
    print(f"wrote {N:,} records, {total / 1e6:.0f} MB, synced to disk, in {took:.2f} s")

    with FileReader(path) as reader:
        order = random.permutation(reader.n)
        began = time.perf_counter()
        right = 0
        for start in range(0, N, BATCH):
            indices = order[start : start + BATCH]
            batch = reader.read(indices)
            pairs = zip(batch, indices.tolist(), strict=True)
            right += sum(record.tobytes() == written[i] for record, i in pairs)
        took = time.perf_counter() - began
    print(f"read {right:,} records in random batches of {BATCH} in {took:.2f} s;")
    print("every checksum was verified, and every record compared with the written one")
    if right != N:
        raise SystemExit(f"demo: {N - right} records differ from the written ones")


def folder(archive: str, source: str) -> None:
    """Compare every file of a packed folder with its source, and show other ways to read."""
    with PackedFolder(archive) as packed:
        names = list(packed)
        began = time.perf_counter()
        contents = packed.read(names)
        took = time.perf_counter() - began
        for name, content in zip(names, contents, strict=True):
            if content.tobytes() != Path(source, name).read_bytes():
                raise SystemExit(f"demo: {name} in {archive} differs from {source}/{name}")
        print(f"folder.read of all {len(names)} names: {took * 1e3:.1f} ms, each compared")
        print(f"folder.glob('docs/*.md'): {packed.glob('docs/*.md')}")
        with packed.open("README.md", "r", encoding="utf-8") as file:
            print(f"folder.open('README.md').readline(): {file.readline()!r}")
        print(f"folder.readlink('a folder/symlink'): {packed.readlink('a folder/symlink')!r}")
        print(f"folder.stat('README.md').st_nlink: {packed.stat('README.md').st_nlink}")


class Ranges(SimpleHTTPRequestHandler):
    """Sends parts of files, as object stores do.

    The handler of Python sends whole files only. RangeHTTPServer from PyPI refuses to send the end
    of a file, which is read first.
    """

    protocol_version = "HTTP/1.1"
    requests = 0
    sent = 0

    def send_head(self) -> BinaryIO | io.BytesIO | None:
        path = Path(self.translate_path(self.path))
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked is None or not path.is_file():
            return super().send_head()
        size = path.stat().st_size
        first = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
        after = min(size, int(asked[2]) + 1) if asked[1] and asked[2] else size
        with path.open("rb") as file:
            file.seek(first)
            part = file.read(after - first)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{after - 1}/{size}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        Ranges.requests += 1
        Ranges.sent += len(part)
        return io.BytesIO(part)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
        """Print no line for each request."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve the current folder on 127.0.0.1, and yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def remote(archive: str, source: str) -> None:
    """List and read an archive behind a URL, and compare what was read with the source."""
    with serving() as server:
        url = f"{server}/{archive}"
        print(f"$ ffrecord ls -l {url}", flush=True)
        subprocess.run(["ffrecord", "ls", "-l", url], check=True)
        Ranges.requests = Ranges.sent = 0
        with PackedFolder(url) as packed:
            names = packed.glob("docs/*.md")
            for name, content in zip(names, packed.read(names), strict=True):
                if content.tobytes() != Path(source, name).read_bytes():
                    raise SystemExit(f"demo: {url}: {name} differs from {source}/{name}")
            total = os.path.getsize(archive)
            print(f"PackedFolder({url!r}).read of {len(names)} names, each compared:")
            print(f"{Ranges.requests} requests for {Ranges.sent:,} of {total:,} bytes")


def view(archive: str, picture: str) -> None:
    """Serve the page of an archive, ask for it with its token and without, and take a picture."""
    print(f"$ ffrecord view {archive}", flush=True)
    # Its second line, "press Ctrl-C to stop", is not for readers of the demo.
    with subprocess.Popen(
        ["ffrecord", "view", archive], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as page:
        assert page.stdout is not None
        assert page.stderr is not None
        try:
            url = page.stdout.readline().strip()
            if not url:
                raise SystemExit(page.stderr.read())
            print(url)
            without_token = url.rsplit("/", 2)[0] + "/"
            for what, asked in (("with", url), ("without", without_token)):
                print(f"a request {what} the token in its URL: status {status(asked)}")
            if (browser := next(filter(None, map(shutil.which, BROWSERS)), None)) is None:
                print("no picture of the page: chromium is not installed")
            else:
                screenshot(browser, f"{url}#/docs/pictures", picture)
        finally:
            page.terminate()


def status(url: str) -> int:
    """Return the status of the answer to a request."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def screenshot(browser: str, url: str, picture: str) -> None:
    """Let a browser without a window write a picture of a page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1280,800",
            "--virtual-time-budget=5000", f"--user-data-dir={profile}",
            f"--screenshot={picture}", url,
        ]  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):  # there is no picture then
            subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    written = os.path.exists(picture)
    print(f"a picture of the page: {picture}" if written else f"{browser} wrote no picture")


def by_path(top: str) -> None:
    """Open files by their paths, like a program that knows nothing of archives."""
    for path in sorted(Path(top).rglob("*.py")):
        with path.open(encoding="utf-8") as file:
            print(path, sum(1 for _ in file), path.stat().st_mtime_ns)


PARTS: dict[str, Callable[..., None]] = {
    "records": records, "folder": folder, "by-path": by_path, "remote": remote, "view": view,
}  # fmt: skip

if __name__ == "__main__":
    try:
        PARTS[sys.argv[1]](*sys.argv[2:])
    except KeyboardInterrupt:
        sys.exit(130)

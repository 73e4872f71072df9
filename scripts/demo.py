"""The Python part of `scripts/demo`: write records, and read records and files."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from ffrecord import FileReader, FileWriter, PackedFolder

N = 10_000
BATCH = 256


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


def by_path(top: str) -> None:
    """Open files by their paths, like a program that knows nothing of archives."""
    for path in sorted(Path(top).rglob("*.py")):
        with path.open(encoding="utf-8") as file:
            print(path, sum(1 for _ in file), path.stat().st_mtime_ns)


if __name__ == "__main__":
    if sys.argv[1] == "--folder":
        folder(*sys.argv[2:])
    elif sys.argv[1] == "--by-path":
        by_path(sys.argv[2])
    else:
        records(sys.argv[1])

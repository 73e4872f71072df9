"""The files that the contestants of `loader` read: the same pictures in every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ffrecord.format import index as index_layout

from . import datasets, packers, peers, pictures
from .pictures import PictureSet

FOLDER = "folder"
PACKED = "packed"
ALIGNED = "aligned"
SHARDS = "webdataset"
ARRAY_RECORD = "array_record"

RECIPE = f"1/{pictures.RECIPE}/{index_layout.VERSION}"
"""Raise the first number when a layout's bytes change; then all are made again."""

SHARD_BYTES = 100_000_000
"""Size of a tar file of WebDataset; its documentation recommends about 100 MB to 1 GB."""


def source(layout: str, taken: PictureSet, root: Path) -> Path:
    """Return the path that a contestant opens: a file, or a folder of files."""
    if layout == FOLDER:
        return taken.top(root)
    names = {
        PACKED: packers.OURS.result,
        ALIGNED: packers.OURS_ALIGNED.result,
        SHARDS: "shards",
        ARRAY_RECORD: peers.ARRAY_RECORD.file,
    }
    return taken.place(root) / layout / names[layout]


def create(layout: str, root: str, mean: int, count: int, per_class: int) -> None:
    """Make a layout unless it exists; called in a fresh process. The folder must be made first."""
    taken, data = PictureSet(mean, count, per_class), Path(root)
    out = source(layout, taken, data)
    makers: dict[str, Callable[[], None]] = {
        FOLDER: lambda: taken.write(data),
        PACKED: packers.OURS.ready(taken.top(data), out),
        ALIGNED: packers.OURS_ALIGNED.ready(taken.top(data), out),
        SHARDS: lambda: _write_shards(taken, data, out),
        ARRAY_RECORD: lambda: peers.ARRAY_RECORD.write(out, taken.files(data), taken.count),
    }
    datasets.make_once(out.parent, f"{RECIPE}/{per_class}", makers[layout])


def _write_shards(taken: PictureSet, root: Path, out: Path) -> None:
    """Write shuffled shards, as WebDataset requires: otherwise a shard would have few classes."""
    import webdataset

    out.mkdir()
    checksums = taken.checksums(root)
    order = sorted(range(taken.count), key=lambda number: int(checksums[number]))
    # An even number of shards gives two workers the same amount of work.
    shards = 2 * max(1, round(taken.mean * taken.count / SHARD_BYTES / 2))
    for shard in range(shards):
        with webdataset.TarWriter(str(out / f"{shard:04d}.tar")) as writer:
            for number in order[shard::shards]:
                data = (taken.top(root) / taken.path(number)).read_bytes()
                label = taken.label(number)
                writer.write({"__key__": f"{number:06d}", "jpg": data, "cls": label})

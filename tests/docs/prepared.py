"""Files that a page's blocks need and do not create themselves."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from tests.convert import foreign
from tests.docs.pages import ROOT


def _photos(place: Path) -> None:
    folder = place / "photos" / "cats"
    folder.mkdir(parents=True)
    for i in range(10):
        (folder / f"{i:04}.jpg").write_bytes(bytes([i]) * 1000)


def _other_formats(place: Path) -> None:
    for shard in range(2):
        _samples(place / f"shard-00{shard}.tar", range(5 * shard, 5 * shard + 5))
    _samples(place / "shard.tar", range(10))
    (place / "train.tfrecord").write_bytes(foreign.tfrecord([b"record %d" % i for i in range(10)]))
    with h5py.File(place / "train.h5", "w") as file:
        file["pixels"] = np.zeros((10, 8, 8), np.uint8)
        file["label"] = np.arange(10)


def _samples(path: Path, keys: range) -> None:
    with tarfile.open(path, "w") as tar:
        for key in keys:
            for name, content in ((f"{key:06}.txt", b"text"), (f"{key:06}.cls", b"%d" % key)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _h5record(place: Path) -> None:
    """Unpack files written by H5Record itself; tests/convert/stored/README.md says how."""
    for stored, name in (("question_pair", "question_pair"), ("h5record-1.0.4", "h5record")):
        packed = ROOT / "tests" / "convert" / "stored" / f"{stored}.h5.gz"
        (place / f"{name}.h5").write_bytes(gzip.decompress(packed.read_bytes()))


PREPARE: dict[str, Callable[[Path], None]] = {
    "README.md": _photos,
    "docs/mount.md": _photos,
    "docs/converting.md": _other_formats,
    "docs/migrating.md": _h5record,
}

"""Files that a page's blocks need and do not create themselves."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import obstore

import ffrecord
from tests.convert import foreign
from tests.docs.pages import ROOT
from tests.remote.buckets import bucket
from tests.remote.servers import empty_bucket, variables
from tests.support import archives, handmade


def _photos(place: Path) -> None:
    folder = place / "photos" / "cats"
    folder.mkdir(parents=True)
    for i in range(10):
        (folder / f"{i:04}.jpg").write_bytes(bytes([i]) * 1000)


def _packed_photos(place: Path) -> None:
    _photos(place)
    archives.pack(place / "photos", place / "photos.ffr")


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


@contextlib.contextmanager
def _empty_bucket(place: Path) -> Iterator[dict[str, str]]:
    yield {**variables(empty_bucket()), "AWS_ALLOW_HTTP": "true"}


@contextlib.contextmanager
def _bucket(place: Path) -> Iterator[dict[str, str]]:
    """Put the files of the page into a bucket; yield the variables that lead to it."""
    _packed_photos(place)
    handmade.write_records(place / "train.ffr", handmade.random_records([100] * 1000))
    spec = {"number": "int"}
    with (
        ffrecord.DatasetWriter(place / "points", spec) as points,
        ffrecord.ShardedDatasetWriter(place / "sharded", spec, shardlen=4) as sharded,
    ):
        for number in range(10):
            points.append({"number": number})
            sharded.append({"number": number})
    with _empty_bucket(place) as found:
        store = bucket(found["AWS_ENDPOINT_URL"])
        for path in place.rglob("*"):
            if path.is_file():
                obstore.put(store, str(path.relative_to(place)), path)
        yield found


@contextlib.contextmanager
def _engines(place: Path) -> Iterator[dict[str, str]]:
    """Do the same as `_bucket`, and keep Spark on loopback."""
    with _bucket(place) as found:
        yield {**found, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}


SERVE: dict[str, Callable[[Path], contextlib.AbstractContextManager[dict[str, str]]]] = {
    "README.md": _empty_bucket,
    "docs/comparison.md": _empty_bucket,
    "docs/remote.md": _bucket,
    "docs/cluster.md": _engines,
}
"""Page -> servers that its blocks need; the variables that lead to them."""

PREPARE: dict[str, Callable[[Path], None]] = {
    "README.md": _photos,
    "docs/mount.md": _photos,
    "docs/comparison.md": _photos,
    "docs/converting.md": _other_formats,
    "docs/migrating.md": _h5record,
    "docs/view.md": _packed_photos,
}

"""All formats, and the detection of a path's format: by its first bytes, then by its name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ffrecord.archive.counts import Counts
from ffrecord.archive.detect import open_if_packed
from ffrecord.convert.files import read_start
from ffrecord.convert.formats import (
    bag,
    dataset,
    folder,
    granular,
    hdf5,
    packed,
    recordio,
    records,
    tar,
    tfrecord,
)
from ffrecord.convert.shapes import ConvertOptions, NamedFiles, Records, Rows, Shape, Written
from ffrecord.dataset.remote import entries, has_spec
from ffrecord.dataset.sharded import shards_among
from ffrecord.dataset.spec import FORMAT, LARGEST_SPEC, SPEC_NAME
from ffrecord.errors import (
    ConversionError,
    FFRecordError,
    MissingPackageError,
    NotFFRecordError,
    UrlError,
)
from ffrecord.format.index import INDEX_NAME
from ffrecord.format.records import PART_NAME
from ffrecord.records.opening import refuse_other_kinds
from ffrecord.records.reader import FileReader
from ffrecord.remote.urls import is_url, joined, shown
from ffrecord.text import Advised

Reads: TypeAlias = Callable[[str, ConvertOptions], AbstractContextManager[Shape]]

START = 512  # bytes; a tar's magic is at byte 257


@dataclass(frozen=True, slots=True)
class Format:
    """One format: its name, its shape, and its functions."""

    name: str
    shape: type[Shape]
    read: Reads
    write: Callable[[str, Any, ConvertOptions], Written]
    count: Callable[[str], int | Counts]
    """Function that returns the number of items in a file, or the number of files by kind."""
    suffixes: tuple[str, ...] = ()
    is_folder: bool = False


FORMATS = {
    each.name: each
    for each in (
        Format("records", Records, records.read, records.write, records.count),
        Format("packed", NamedFiles, packed.read, packed.write, packed.count),
        Format("dataset", Rows, dataset.read, dataset.write, dataset.count, is_folder=True),
        Format("folder", NamedFiles, folder.read, folder.write, folder.count, is_folder=True),
        Format("tar", NamedFiles, tar.read, tar.write, tar.count, tar.SUFFIXES),
        Format("tfrecord", Records, tfrecord.read, tfrecord.write, tfrecord.count,
               (".tfrecord", ".tfrecords")),
        Format("recordio", Records, recordio.read, recordio.write, recordio.count,
               (".recordio", ".rio")),
        Format("recordio-go", Records, recordio.read,
               partial(recordio.write, dialect=recordio.GO), recordio.count),
        Format("bag", Records, bag.read, bag.write, bag.count, (".bag",)),
        Format("bag-single", Records, bag.read, partial(bag.write, single=True), bag.count),
        Format("granular", Rows, granular.read, granular.write, granular.count, is_folder=True),
        Format("hdf5", Rows, hdf5.read, hdf5.write, hdf5.count, (".h5", ".hdf5")),
    )
}  # fmt: skip
COMPRESSIONS = frozenset({
    ".br", ".bz2", ".gz", ".lz", ".lz4", ".lzma", ".lzo", ".sz", ".tbz", ".tbz2", ".tgz", ".tlz",
    ".txz", ".tzst", ".xz", ".z", ".zst", ".zstd",
})  # fmt: skip
"""Suffixes of compressed files. A target with one of these names must not be written plain."""

REMOTE = ("records", "packed", "dataset")  # formats that are read over the network
KNOWN = ", ".join([*FORMATS, "webdataset"])
OURS = ".ffr"
AS_RECORDS = Advised("pass ", 'source_format="records"', "--from records")


def named(name: str) -> Format:
    """Return the format with a name."""
    if name == "webdataset":
        name = "tar"
    if name not in FORMATS:
        raise ConversionError(f"unknown format {name!r}; choose one of {KNOWN}")
    return FORMATS[name]


def find(path: str) -> Format:
    """Return the format of an existing file or folder."""
    if is_url(path):
        name: str | None = _remote_format(path)
    else:
        name = _folder_format(path) if os.path.isdir(path) else _file_format(path)
    if name is None:
        message = f"{shown(path)}: cannot detect the format from its content or its name; "
        message += "choose one with "
        raise ConversionError(Advised(message, "source_format", "--from", f": {KNOWN}"))
    return FORMATS[name]


def find_target(path: str, shape: type[Shape]) -> Format:
    """Return the format for a target's name, given the shape of the source."""
    if path.endswith(OURS):
        return FORMATS[{Records: "records", NamedFiles: "packed"}.get(shape, "records")]
    by_name = _by_name(path)
    if by_name is not None:
        return FORMATS[by_name]
    if os.path.splitext(path)[1] and not path.endswith("/") and not os.path.isdir(path):
        refuse_compression(path)
        message = f"{path}: no known format has the suffix of this target; choose one with "
        raise ConversionError(Advised(message, "target_format", "--to", f": {KNOWN}"))
    return FORMATS["dataset" if shape is Rows else "folder"]


def refuse_compression(path: str, target: Format | None = None) -> None:
    """Raise an error if a file's name promises a compression that the target does not have."""
    suffix = os.path.splitext(path)[1]
    if suffix.lower() in COMPRESSIONS and not (
        target is FORMATS["tar"] and suffix in tar.COMPRESSED
    ):
        what = "compressed targets are tar files that end in"
        names = ", ".join(each for each in tar.SUFFIXES if each != ".tar")
        raise ConversionError(f"{path}: cannot be compressed as {suffix}; {what} {names}")


def _by_name(path: str) -> str | None:
    for each in FORMATS.values():
        if path.endswith(each.suffixes or "\0"):
            return each.name
    return None


def _file_format(path: str) -> str | None:
    refuse_other_kinds(path, "a file or folder")
    start = read_start(path, START)
    if hdf5.begins(start):
        return "hdf5"
    if recordio.begins(start):
        return "recordio"
    if tar.begins(start):
        return "tar"
    by_name = _by_name(path)
    if by_name is not None:
        return by_name
    if path.endswith(OURS):
        return _ours(path)
    try:
        if tfrecord.begins(start):
            return "tfrecord"
    except MissingPackageError:  # the file may well be of another format
        pass
    try:
        return _ours(path)
    except FFRecordError:
        return None


def _ours(path: str) -> str:
    """Return "packed" if the last record is the index of a packed folder, otherwise "records"."""
    with FileReader(path) as reader:
        return "records" if open_if_packed(reader, AS_RECORDS) is None else "packed"


def _remote_format(url: str) -> str:
    """Return which of our formats a URL leads to. Other formats are not read over the network."""
    if has_spec(url):
        return "dataset"
    shards = shards_among(entries(url))
    if shards and has_spec(joined(url, shards[0])):
        return "dataset"
    try:
        return _ours(url)
    except NotFFRecordError:
        why = "not an FFRecord file; other formats are not read over the network; download it first"
        raise UrlError(f"{shown(url)}: {why}") from None


def _folder_format(path: str) -> str:
    names = os.listdir(path)
    if SPEC_NAME in names:
        return _dataset_format(os.path.join(path, SPEC_NAME)) or "folder"
    shards = shards_among(names)
    if shards and len(shards) == len(names):
        spec = os.path.join(path, shards[0], SPEC_NAME)
        if os.path.isfile(spec):
            return _dataset_format(spec) or "folder"
    if names and all(name.endswith(tar.SUFFIXES) for name in names):  # WebDataset's shards
        return "tar"
    if names and all(PART_NAME.fullmatch(name) for name in {*names} - {INDEX_NAME}):
        return "packed" if INDEX_NAME in names else "records"
    return "folder"


def _dataset_format(spec: str) -> str | None:
    """Return "dataset" or "granular", whichever wrote a `spec.json`, or None."""
    if not os.path.isfile(spec):
        return None
    text = read_start(spec, LARGEST_SPEC + 1)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(content, dict) and content.get("format") == FORMAT:
        return "dataset"
    beside = os.listdir(os.path.dirname(spec))
    fields = content if isinstance(content, dict) else {}
    if granular.is_spec(content) and any(f"{name}.bag" in beside for name in fields):
        return "granular"
    return None

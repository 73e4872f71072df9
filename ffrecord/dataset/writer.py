"""`DatasetWriter`: datapoints into a folder that appears when it is whole.

The folder is filled beside its target under the name `.NAME.writing` and gets its own name in
`close`, when every file in it is on disk; `spec.json` is the last of them. A writer that fails, is
killed, or is left by an exception leaves no dataset, and what a killed one left behind is removed
by the next that writes there. A dataset that exists is never replaced, unless by one that has all
of its datapoints and more: `append=True` fills a folder that begins with the old one's values, and
exchanges the two in one step (`ffrecord.atomic.grown_folder`).

A writer belongs to one thread and to the process that made it.
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ffrecord.aliases import Finishing, Path
from ffrecord.atomic.file import Naming, NewFile, writing
from ffrecord.atomic.folder import NewFolder, check_new_folder
from ffrecord.atomic.grown_folder import GrownFolder
from ffrecord.atomic.locks import is_at
from ffrecord.dataset import codecs, compression
from ffrecord.dataset.codecs import Encoder
from ffrecord.dataset.continuing import OldField, open_old, require_same
from ffrecord.dataset.optional import reason
from ffrecord.dataset.spec import (
    BOUND,
    SPEC_NAME,
    Manifest,
    check_spec,
    dump,
    file_name,
    load,
    parse_type,
)
from ffrecord.errors import ClosedError, EncodeError, FFRecordError, SpecError
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter

# A dictionary is made of the first values: this many bytes of them, or this many values.
SAMPLE_BYTES = 4 << 20
SAMPLE_VALUES = 20_000


class DatasetWriter(Finishing):
    """Writes a dataset.

    Args:
        directory: the folder to make; it may be there already if it is empty.
        spec: field -> type, `{"image": "jpg", "words": "utf8[]", "notes": "json+zstd"}`. With
            `append` it may be left out; given, it must be that of the dataset.
        encoders: type name -> function from a value to bytes.
        append: go on with a dataset that is there; without one, begin it. Its files are copied,
            which takes a moment on file systems that share blocks between files (XFS, btrfs) and
            as long as `cp` on others: for many small additions, write shards instead. A crash
            leaves the old dataset or the new one, and open readers keep the old one.
    """

    def __init__(
        self,
        directory: Path,
        spec: Mapping[str, str] | None = None,
        encoders: Mapping[str, Encoder] = codecs.encoders,
        *,
        append: bool = False,
    ) -> None:
        self._length = self._before = 0
        self._whole = True
        self._pid = os.getpid()
        self.directory = os.path.abspath(os.fsdecode(directory))
        self._folder: NewFolder | None = None
        self._fields: list[_FieldWriter] = []
        try:
            if append and not is_new(self.directory):
                self._continue(spec, encoders)
            else:
                self._begin(spec, encoders)
        except BaseException:
            self.discard()
            raise

    def _begin(self, spec: Mapping[str, str] | None, encoders: Mapping[str, Encoder]) -> None:
        if spec is None:
            raise SpecError(f"{self.directory}: a new dataset needs a spec")
        self._spec = _check(spec, encoders)
        check = partial(check_new_folder, self.directory, "a dataset wants a")
        self._folder = NewFolder(self.directory, "writing", check)
        for name, text in self._spec.items():
            self._fields.append(_FieldWriter(self._folder.path, name, text, encoders))

    def _continue(self, spec: Mapping[str, str] | None, encoders: Mapping[str, Encoder]) -> None:
        # Through a symlink to what it points at: the link stays.
        self.directory = os.path.realpath(self.directory)
        self._spec = load(self.directory).spec
        if spec is not None:
            require_same(self.directory, self._spec, spec)
        _check(self._spec, encoders)
        replaced = {SPEC_NAME, *map(file_name, self._spec)}
        self._folder = GrownFolder(self.directory, "writing", replaced)
        # Read when no other writer can change it any more.
        self._length, fields = open_old(self.directory, self._spec, encoders)
        self._before = self._length
        for name, text in self._spec.items():
            field = _FieldWriter(self._folder.path, name, text, encoders, fields[name])
            self._fields.append(field)

    @property
    def spec(self) -> dict[str, str]:
        return dict(self._spec)

    def __len__(self) -> int:
        return self._length

    def append(self, datapoint: Mapping[str, Any]) -> int:
        """Add a datapoint, a dict with a value for every field, and return its number. A value
        that cannot be encoded is an error, and nothing of that datapoint is kept."""
        self._opened()
        if not isinstance(datapoint, Mapping):
            raise EncodeError(
                f"{self.directory}: a datapoint is a dict, not {type(datapoint).__name__}"
            )
        if datapoint.keys() != self._spec.keys():
            raise EncodeError(f"{self.directory}: {_difference(datapoint, self._spec)}")
        encoded = [self._encode(field, datapoint[field.name]) for field in self._fields]
        self._whole = False
        for field, records in zip(self._fields, encoded, strict=True):
            field.add(records)
        self._length += 1  # before it is whole again: an interrupt may come in between
        self._whole = True
        return self._length - 1

    def close(self) -> None:
        """Finish the dataset and put it under its name. Without that, nothing is there."""
        if self._folder is None or not self._mine:
            return
        try:
            self._require_whole()
            if self._before and self._length == self._before:
                return  # nothing was added
            checksums = {field.name: field.close() for field in self._fields}
            manifest = Manifest(self._length, self._spec, checksums)
            path = os.path.join(self._folder.path, SPEC_NAME)
            _write_file(path, dump(manifest))
            self._folder.publish()
        finally:
            self.discard()

    def discard(self) -> None:
        """Give up: leave nothing, or with `append` the dataset as it was."""
        if self._folder is not None and self._mine:
            for field in self._fields:
                field.discard()
            self._folder.discard()
            self._folder = None

    def _give_up(self) -> None:
        self.discard()

    def __del__(self) -> None:
        if getattr(self, "_folder", None) is not None and self._mine:
            message = f"{self.directory}: the writer was dropped without close(); nothing was kept"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            self.discard()

    @property
    def _mine(self) -> bool:
        return self._pid == os.getpid()

    def _opened(self) -> None:
        if self._folder is None:
            raise ClosedError(f"{self.directory}: this writer is closed")
        if not self._mine:
            raise ClosedError(f"{self.directory}: this writer belongs to another process")
        self._require_whole()

    def _require_whole(self) -> None:
        if not self._whole:
            raise ClosedError(
                f"{self.directory}: this writer failed in the middle of datapoint {self._length}; "
                "the dataset is not kept"
            )

    def _encode(self, field: _FieldWriter, value: Any) -> list[bytes]:
        try:
            return field.encode(value)
        except Exception as error:
            if isinstance(error, FFRecordError) and not isinstance(error, EncodeError):
                raise
            raise EncodeError(
                f"{self.directory}: datapoint {self._length}: {field.name!r} is no "
                f"{field.type.text}: {reason(error)}"
            ) from error


class _FieldWriter:
    """One field's file: its values, then the dictionary if its type has one, then the bounds of
    its sequences if it is one. `old` is the file that it begins with."""

    def __init__(
        self, folder: str, name: str, text: str, encoders: Mapping[str, Encoder],
        old: OldField | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.type = parse_type(text, encoders)
        self._path = os.path.join(folder, file_name(name))
        self._encoder = encoders[self.type.name]
        self._bounds = array("q", [0]) if old is None else old.bounds()
        self._dictionary = b"" if old is None else old.dictionary()
        self._samples: list[bytes] | None = None
        self._compress: compression.Compress | None = None
        how = self.type.compression
        if how is not None:
            self._compress = compression.compressor(how, self._dictionary)
            if how.dictionary and not self._dictionary:
                # Too little to learn from so far: those values are samples once more.
                limits = SAMPLE_VALUES, SAMPLE_BYTES
                self._samples = [] if old is None else old.values(*limits)
        self._sample_bytes = sum(map(len, self._samples or ()))
        if old is None or self._samples is not None:
            self._writer = FileWriter(self._path)
        else:
            self._writer = old.writer(self._path)

    def encode(self, value: Any) -> list[bytes]:
        """The records of a value: one, or one for each element of a sequence."""
        if not self.type.sequence:
            return [self._encode_one(value)]
        if isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
            raise TypeError(
                f"a sequence is a list, a tuple or an array, not {type(value).__name__}"
            )
        return [self._encode_one(element) for element in value]

    def _encode_one(self, value: Any) -> Any:
        encoded = self._encoder(value)
        if self._compress is None:
            # A copy of what is a view: the value may change before it is written.
            return encoded if isinstance(encoded, bytes) else memoryview(encoded).tobytes()
        if self._samples is not None:  # compressed when there is a dictionary
            compression.refuse_large(encoded)
            return bytes(encoded)
        return self._compress(encoded)

    def add(self, records: list[bytes]) -> None:
        self._bounds.append(self._bounds[-1] + len(records))
        if self._samples is None:
            self._writer.write(records)
            return
        self._samples += records
        self._sample_bytes += sum(map(len, records))
        if self._sample_bytes >= SAMPLE_BYTES or len(self._samples) >= SAMPLE_VALUES:
            self._settle()

    def _settle(self) -> None:
        """Make the dictionary, and write what has waited for it."""
        samples, self._samples = self._samples, None
        if samples is not None:
            assert self.type.compression is not None
            self._dictionary = compression.train(samples)
            self._compress = compression.compressor(self.type.compression, self._dictionary)
            self._writer.write(map(self._compress, samples))

    def close(self) -> int:
        """Finish the file; the checksum of its header."""
        self._settle()
        if self.type.compression is not None and self.type.compression.dictionary:
            self._writer.write_one(self._dictionary)
        if self.type.sequence:
            self._writer.write_one(np.array(self._bounds, BOUND))
        self._writer.close()
        with FileReader(self._path, check_data=False) as reader:
            return reader.header_crc(0)

    def discard(self) -> None:
        self._writer.discard()


def is_new(directory: str) -> bool:
    """Whether there is nothing yet, or an empty folder."""
    while True:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return not os.path.islink(directory)
        try:
            if os.listdir(fd):
                return False
            # A writer that appends exchanges the folder, then empties the one that was listed.
            if is_at(fd, directory):
                return True
        finally:
            os.close(fd)


def _check(given: Mapping[str, str], encoders: Mapping[str, Encoder]) -> dict[str, str]:
    """The spec, if all its types can be encoded: before a folder is made."""
    checked = check_spec(given)
    for name, text in checked.items():
        try:
            parse_type(text, encoders)
        except SpecError as error:
            known = ", ".join(sorted(encoders))
            raise SpecError(f"field {name!r}: {error}; encoders: {known}") from None
    return checked


def _difference(datapoint: Iterable[str], due: Iterable[str]) -> str:
    missing = ", ".join(repr(name) for name in due if name not in set(datapoint))
    more = ", ".join(repr(name) for name in datapoint if name not in set(due))
    parts = [f"lacks {missing}" if missing else "", f"has {more} beyond its spec" if more else ""]
    return "a datapoint " + " and ".join(filter(None, parts))


def _write_file(path: str, content: bytes) -> None:
    file = NewFile(Naming(path))
    try:
        with writing(path):
            file.write(np.frombuffer(content, np.uint8))
            file.publish()
    finally:
        file.discard()

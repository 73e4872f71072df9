"""`DatasetWriter`: write datapoints into a folder that appears when it is complete.

The writer fills a folder named `.NAME.writing` beside the target. `close` renames it when every
file in it is on disk; `spec.json` is written last. If the writer fails or is killed, or if its
`with` block ends with an exception, there is no dataset. The next writer of the same target removes
the leftovers of a killed one.

An existing dataset is only ever replaced by one with all of its datapoints and more. `append=True`
fills a new folder that begins with the old values, and exchanges the two folders in one step
(`ffrecord.atomic.grown_folder`).

A writer belongs to one thread and to the process that created it.
"""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ffrecord.aliases import Finishing, Path
from ffrecord.atomic.file import write_file
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
from ffrecord.errors import (
    ClosedError,
    EncodeError,
    FFRecordError,
    SpecError,
    UnclosedWarning,
)
from ffrecord.progress import sending_bar
from ffrecord.records.opening import refuse_remote_options
from ffrecord.records.reader import FileReader
from ffrecord.records.writer import FileWriter
from ffrecord.remote.urls import is_remote
from ffrecord.text import counted, path_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions
    from ffrecord.remote.target import Target

# The first values train a dictionary: this many bytes of them, or this many values.
SAMPLE_BYTES = 4 << 20
SAMPLE_VALUES = 20_000


class DatasetWriter(Finishing):
    """Writer of a dataset.

    Args:
        directory: The folder to create. An empty folder may exist already. A URL is uploaded when
            the writer is closed; the files are made in a temporary folder (`TMPDIR`) before.
        spec: The type of each field, such as
            `{"image": "jpg", "words": "utf8[]", "notes": "json+zstd"}`. With `append` it may be
            left out; if it is given, it must equal the dataset's own.
        encoders: A function for each type name, from a value to bytes.
        append: Add to an existing dataset, or create it. The writer copies the files first. That is
            almost instant on file systems that share blocks between files (XFS, btrfs), and takes
            as long as `cp` on others. For many small additions, write shards instead. A crash
            leaves the old dataset or the new one, and open readers keep the old one.
        remote: Options for URLs, as for `DatasetReader`.
    """

    def __init__(
        self,
        directory: Path,
        spec: Mapping[str, str] | None = None,
        encoders: Mapping[str, Encoder] = codecs.encoders,
        *,
        append: bool = False,
        **remote: Unpack[RemoteOptions],
    ) -> None:
        self._length = self._before = 0
        self._whole = True
        self._pid = os.getpid()
        self._folder: NewFolder | None = None
        self._fields: list[_FieldWriter] = []
        self._upload: Target | None = None
        self._drawn: bool | None = False  # a progress bar of the upload
        if is_remote(directory, remote):
            from ffrecord.remote.target import Target, refuse_append  # needed for URLs only

            refuse_append(directory, append=append)
            self._upload = Target(directory, remote, is_folder=True)
            self.directory, self._local = self._upload.name, self._upload.path
        else:
            refuse_remote_options(remote)
            self.directory = self._local = os.path.abspath(path_text(directory))
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
            raise SpecError(f"{self.directory}: a new dataset needs a spec; pass spec")
        self._spec = encodable(spec, encoders)
        check = partial(check_new_folder, self._local, "a dataset needs a")
        self._folder = NewFolder(self._local, "writing", check)
        for name, text in self._spec.items():
            self._fields.append(_FieldWriter(self._folder.path, name, text, encoders))

    def _continue(self, spec: Mapping[str, str] | None, encoders: Mapping[str, Encoder]) -> None:
        # Follow a symlink, so that the folder is replaced and not the link.
        self.directory = os.path.realpath(self.directory)
        self._spec = load(self.directory).spec
        if spec is not None:
            require_same(self.directory, self._spec, spec)
        encodable(self._spec, encoders)
        replaced = {SPEC_NAME, *map(file_name, self._spec)}
        self._folder = GrownFolder(self.directory, "writing", replaced)
        # Read the dataset under the lock: no other writer can change it now.
        self._length, fields = open_old(self.directory, self._spec, encoders)
        self._before = self._length
        for name, text in self._spec.items():
            field = _FieldWriter(self._folder.path, name, text, encoders, fields[name])
            self._fields.append(field)

    @property
    def spec(self) -> dict[str, str]:
        """The types of the fields, by name."""
        return dict(self._spec)

    def __len__(self) -> int:
        return self._length

    def append(self, datapoint: Mapping[str, Any]) -> int:
        """Add a datapoint, a dict with a value for every field, and return its number.

        Raises:
            EncodeError: A value cannot be encoded. The writer keeps nothing of that datapoint and
                can continue with others.
        """
        self._opened()
        if not isinstance(datapoint, Mapping):
            raise EncodeError(
                f"{self.directory}: datapoint {self._length} has type {type(datapoint).__name__}; "
                "pass a dict"
            )
        if datapoint.keys() != self._spec.keys():
            raise EncodeError(
                f"{self.directory}: datapoint {self._length} {_difference(datapoint, self._spec)}; "
                "pass a value for every field of the spec and no others"
            )
        encoded = [self._encode(field, datapoint[field.name]) for field in self._fields]
        self._whole = False
        for field, records in zip(self._fields, encoded, strict=True):
            field.add(records)
        self._length += 1  # before _whole is set: an interrupt may come between the two lines
        self._whole = True
        return self._length - 1

    def close(self) -> None:
        """Finish the dataset and give it its name. Before that, a new dataset does not exist."""
        if self._folder is None or not self._mine:
            return
        try:
            self._require_whole()
            if self._before and self._length == self._before:
                return  # nothing was added
            checksums = {field.name: field.close() for field in self._fields}
            manifest = Manifest(self._length, self._spec, checksums)
            path = os.path.join(self._folder.path, SPEC_NAME)
            write_file(path, dump(manifest))
            self._folder.publish()
            if self._upload is not None:
                with sending_bar(shown=self._drawn) as tell:
                    self._upload.upload(SPEC_NAME, tell)
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop everything that was appended. With `append`, the dataset stays as it was."""
        if self._folder is not None and self._mine:
            for field in self._fields:
                field.discard()
            self._folder.discard()
            self._folder = None
        if self._upload is not None and self._mine:
            self._upload.close()

    def _give_up(self) -> None:
        self.discard()

    def __del__(self) -> None:
        if getattr(self, "_folder", None) is not None and self._mine:
            self.discard()
            kept = "stays as it was" if self._before else "does not exist"
            warnings.warn(
                f"{self.directory}: the writer was never closed: {self._lost()}, and the dataset "
                f"{kept}; use a with block, or call close()",
                UnclosedWarning,
                stacklevel=2,
            )

    def _lost(self) -> str:
        added = self._length - self._before
        return f"{counted(added, 'datapoint')} {'is' if added == 1 else 'are'} lost"

    @property
    def _mine(self) -> bool:
        """True in the process that created the writer."""
        return self._pid == os.getpid()

    def _opened(self) -> None:
        if self._folder is None:
            raise ClosedError(
                f"{self.directory}: this writer is closed; open another one with append=True"
            )
        if not self._mine:
            raise ClosedError(
                f"{self.directory}: this writer belongs to process {self._pid}; create a writer in "
                "the process that uses it"
            )
        self._require_whole()

    def _require_whole(self) -> None:
        if not self._whole:
            raise ClosedError(
                f"{self.directory}: this writer failed in the middle of datapoint {self._length}, "
                "so its datapoints are not kept; write them again"
            )

    def _encode(self, field: _FieldWriter, value: Any) -> list[bytes]:
        try:
            return field.encode(value)
        except Exception as error:
            if isinstance(error, FFRecordError) and not isinstance(error, EncodeError):
                raise
            raise EncodeError(
                f"{self.directory}: datapoint {self._length}: field {field.name!r} cannot be "
                f"encoded as {field.type.text}: {reason(error)}"
            ) from error


class _FieldWriter:
    """Writer of one field's file: the values, then the dictionary and the bounds, if it has them.

    With `old`, the file begins with the values of that existing field.
    """

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
                # The old values were too few to train a dictionary: they are samples again.
                limits = SAMPLE_VALUES, SAMPLE_BYTES
                self._samples = [] if old is None else old.values(*limits)
        self._sample_bytes = sum(map(len, self._samples or ()))
        if old is None or self._samples is not None:
            self._writer = FileWriter(self._path)
        else:
            self._writer = old.writer(self._path)

    def encode(self, value: Any) -> list[bytes]:
        """Return the records of a value: one, or one for each element of a sequence."""
        if not self.type.sequence:
            return [self._encode_one(value)]
        try:
            single = isinstance(value, (str, bytes, bytearray, memoryview, Mapping))
            elements = None if single else iter(value)
        except TypeError:
            elements = None
        if elements is None:
            raise TypeError(f"expected a list, a tuple or an array, got {type(value).__name__}")
        return [self._encode_one(element) for element in elements]

    def _encode_one(self, value: Any) -> Any:
        encoded = self._encoder(value)
        if self._compress is None:
            # Copy views: the caller may change the value before it is written.
            return encoded if isinstance(encoded, bytes) else memoryview(encoded).tobytes()
        if self._samples is not None:  # compressed later, when the dictionary is trained
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
        """Train the dictionary, and write the values that waited for it."""
        samples, self._samples = self._samples, None
        if samples is not None:
            assert self.type.compression is not None
            self._dictionary = compression.train(samples)
            self._compress = compression.compressor(self.type.compression, self._dictionary)
            self._writer.write(map(self._compress, samples))

    def close(self) -> int:
        """Finish the file, and return the checksum of its header."""
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
    """Return True if the path does not exist or is an empty folder."""
    while True:
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return not os.path.islink(directory)
        try:
            if os.listdir(fd):
                return False
            # An appending writer may have exchanged the folder and emptied the old one just now.
            if is_at(fd, directory):
                return True
        finally:
            os.close(fd)


def encodable(given: Mapping[str, str], encoders: Mapping[str, Encoder]) -> dict[str, str]:
    """Return the spec if all its types can be encoded; otherwise raise SpecError."""
    checked = check_spec(given)
    for name, text in checked.items():
        try:
            parse_type(text, encoders)
        except SpecError as error:
            known = ", ".join(sorted(encoders))
            raise SpecError(f"field {name!r}: {error} (types with an encoder: {known})") from None
    return checked


def _difference(datapoint: Iterable[str], due: Iterable[str]) -> str:
    missing = ", ".join(repr(name) for name in due if name not in set(datapoint))
    more = ", ".join(repr(name) for name in datapoint if name not in set(due))
    parts = [f"lacks {missing}" if missing else "", f"has the extra {more}" if more else ""]
    return " and ".join(filter(None, parts))

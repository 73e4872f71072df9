"""Raise every error and warning of both packages on purpose, for the examples of docs/errors.md.

After a message has changed, write the new examples into the page, then read the diff:

    python -m tests.docs.provoked

The command changes only example lines. A class that is missing on the page, or no longer exists, is
reported by tests/docs/test_errors_page.py, which says what to write.

Each function below raises one class, through a command or the public Python API, in a temporary
folder that is also the working folder. In the examples that folder is called `/data`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec

import ffrecord
from ffrecord import DatasetReader, DatasetWriter, FileReader, FileWriter, cli, decoders, encoders
from ffrecord.archive.pack import plan_pack
from ffrecord.command import run_command
from ffrecord.convert import convert
from ffrecord.dataset import optional
from ffrecord.remote.cache import trouble
from ffrecord.text import for_shell
from tests.docs.pages import ROOT, text_of
from tests.support import archives, handmade, trees

PAGE = "docs/errors.md"
FOLDER = "/data"
"""Name of the temporary folder in the examples."""

RECORDS = [b"first", b"", b"the third record", b"\x00" * 7, b"last"]
EXAMPLE = re.compile(r"^### (\w+)\n(?:(?!^##).*\n)*?```text\n((?:.*\n)*?)```$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """Message of an error or warning, its class, and the exit code if a command printed it."""

    message: str
    kind: type[BaseException]
    exit_code: int | None = None


PROVOKE: dict[str, Callable[[], Example]] = {}
"""Name of a class -> function that raises it and returns its message."""


def provoke(name: str) -> Example:
    """Raise the error or warning of this name in a new folder, and return its message."""
    with tempfile.TemporaryDirectory(prefix="ffrecord-") as folder:
        real = os.path.realpath(folder)
        with _working_in(real), warnings.catch_warnings():
            found = PROVOKE[name]()
    return Example(found.message.replace(real, FOLDER), found.kind, found.exit_code)


def masked(message: str) -> str:
    """Return a message without its checksums: the times and owners of packed files change them."""
    return re.sub(r"0x[0-9a-f]{8}", "0x…", message)


def examples(text: str) -> dict[str, str]:
    """Return the example of each class on the page."""
    return {name: block.rstrip("\n") for name, block in EXAMPLE.findall(text)}


def updated(text: str) -> str:
    """Return the page with current messages. Correct examples stay, with their checksums."""
    for name, old in examples(text).items():
        new = provoke(name).message if name in PROVOKE else old
        if masked(new) != masked(old):
            before, heading, after = text.partition(f"### {name}\n")
            text = before + heading + after.replace(f"```text\n{old}\n", f"```text\n{new}\n", 1)
    return text


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# ---- how a class is raised ---------------------------------------------------------------------


def _raises(name: str) -> Callable[[Callable[[], Example]], Callable[[], Example]]:
    def register(function: Callable[[], Example]) -> Callable[[], Example]:
        PROVOKE[name] = function
        return function

    return register


def _command(*words: str) -> Example:
    """Run `ffrecord WORDS`, and return the line on standard error."""
    raised: list[BaseException] = []

    def told(error: object) -> str:
        if isinstance(error, BaseException):
            raised.append(error)
        return for_shell(error)

    line, output = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stderr(line), contextlib.redirect_stdout(output):
        code = run_command(lambda: cli._run(words), "ffrecord", told)
    return Example(line.getvalue().rstrip("\n"), type(raised[0]), code)


def _python(work: Callable[[], object]) -> Example:
    try:
        work()
    except ffrecord.FFRecordError as error:
        return Example(str(error), type(error))
    raise AssertionError("nothing was raised")


def _warning(work: Callable[[], object]) -> Example:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return Example(str(caught[0].message), caught[0].category)


def _failing(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def _records(name: str = "train.ffr") -> Path:
    return handmade.write_records(Path(name), RECORDS)


def _damage(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


def _photos() -> Path:
    return trees.plain_tree(Path("photos"), {"cats/0007.jpg": b"a cat", "dogs/0001.jpg": b"a dog"})


def _archive() -> Path:
    archives.pack(_photos(), Path("photos.ffr"))
    return Path("photos.ffr")


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Change a file at the moment when it is opened."""
    plain = os.open

    def opening(opened: Any, *args: Any, **kwargs: Any) -> int:
        if os.fsdecode(opened).endswith(str(path)):
            path.write_bytes(b"another cat, in more bytes")
        return plain(opened, *args, **kwargs)

    with mock.patch.object(os, "open", opening):
        yield


# ---- reading -----------------------------------------------------------------------------------


@_raises("NotFFRecordError")
def _not_ffrecord() -> Example:
    Path("cat.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(100)))
    return _command("info", "cat.png")


@_raises("TruncatedError")
def _truncated() -> Example:
    os.truncate(_records(), 90)
    return _command("info", "train.ffr")


@_raises("StructureError")
def _structure() -> Example:
    Path("train.ffr").write_bytes(handmade.sealed(2, [0, 0], [40, 38]) + bytes(20))
    return _command("info", "train.ffr")


@_raises("HeaderChecksumError")
def _header_checksum() -> Example:
    archives.flip(_records(), 12)
    return _command("info", "train.ffr")


@_raises("SampleChecksumError")
def _sample_checksum() -> Example:
    _damage(_records(), b"third", b"THIRD")
    return _command("cat", "train.ffr", "--record", "2")


@_raises("ReadFailedError")
def _read_failed() -> Example:
    with FileReader(_records()) as reader, mock.patch.object(os, "preadv", _failing(errno.EIO)):
        return _python(lambda: reader.read_one(2))


@_raises("RemoteError")
def _remote() -> Example:
    return _command("info", "http://127.0.0.1:1/train.ffr")  # no server has this port


@_raises("CacheWarning")
def _cache() -> Example:
    fsspec.filesystem("memory").pipe("/bucket/train.ffr", _records().read_bytes())
    with mock.patch.object(trouble, "_warned", set()):
        return _warning(lambda: FileReader("memory://bucket/train.ffr", cache="cached"))


@_raises("UrlError")
def _url() -> Example:
    return _command("ls", "clay-tablet://library/photos.ffr")


@_raises("UnfinishedError")
def _unfinished() -> Example:
    Path("train.ffr").write_bytes(bytes(1000))
    return _command("info", "train.ffr")


@_raises("TimedOutError")
def _timed_out() -> Example:
    writer = FileWriter("train.ffr", resumable=True)
    writer.write(RECORDS)
    writer.flush()
    with FileReader("train.ffr", unfinished=True) as reader:
        found = _python(lambda: list(reader.iterate(follow=True, timeout=0.1)))
    writer.discard()
    return found


@_raises("ClosedError")
def _closed() -> Example:
    reader = FileReader(_records())
    reader.close()
    return _python(lambda: reader.read([0]))


@_raises("LegacyFileWarning")
def _legacy_file() -> Example:
    path = _records()
    path.write_bytes(bytes(4) + path.read_bytes()[4:])
    return _warning(lambda: FileReader(path).close())


@_raises("BadRecordWarning")
def _bad_record() -> Example:
    _damage(_records(), b"third", b"THIRD")
    with FileReader("train.ffr", on_error="skip") as reader:
        return _warning(lambda: list(reader))


# ---- writing -----------------------------------------------------------------------------------


@_raises("CountError")
def _count() -> Example:
    writer = FileWriter("train.ffr", 2)
    writer.write_one(b"one")
    return _python(writer.close)


@_raises("BusyError")
def _busy() -> Example:
    first = FileWriter(_records(), append=True)
    found = _python(lambda: FileWriter("train.ffr", append=True))
    first.discard()
    return found


@_raises("AppendError")
def _append() -> Example:
    archive = _archive()
    return _python(lambda: FileWriter(archive, append=True))


@_raises("MissingFolderError")
def _missing_folder() -> Example:
    _photos()
    return _command("pack", "photos", "archives/photos.ffr")


def _written_with(failure: int) -> Example:
    writer = FileWriter("train.ffr", 1)
    writer.write_one(b"one")
    with mock.patch.object(os, "fsync", _failing(failure)):
        return _python(writer.close)


@_raises("NoRoomError")
def _no_room() -> Example:
    return _written_with(errno.ENOSPC)


@_raises("WriteFailedError")
def _write_failed() -> Example:
    return _written_with(errno.EIO)


@_raises("UploadError")
def _upload() -> Example:
    nowhere = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    Path("photos").mkdir()
    with mock.patch.dict(os.environ, nowhere):
        return _command("pack", "photos", "s3://bucket/photos.ffr")


@_raises("UnclosedWarning")
def _unclosed() -> Example:
    return _warning(lambda: FileWriter("train.ffr").write_one(b"one"))


# ---- packed folders ----------------------------------------------------------------------------


@_raises("NotPackedFolderError")
def _not_packed_folder() -> Example:
    _records()
    return _command("ls", "train.ffr")


@_raises("IndexChecksumError")
def _index_checksum() -> Example:
    archive = _archive()
    archives.flip(archive, archives.index_offsets(archive)[0] + 90)
    return _command("ls", "photos.ffr")


@_raises("IndexStructureError")
def _index_structure() -> Example:
    ffrecord.pack_folder(_photos(), "shards", shard_size=5)
    first, *_ = sorted(Path("shards").glob("*.ffr"))
    handmade.write_records(first, [b"a cow"])
    return _command("ls", "shards")


@_raises("ChangedError")
def _changed() -> Example:
    with _changing(_photos() / "cats/0007.jpg"):
        return _command("pack", "photos", "photos.ffr")


@_raises("ChangedWarning")
def _changed_warning() -> Example:
    with _changing(_photos() / "cats/0007.jpg"):
        return _warning(lambda: ffrecord.pack_folder("photos", "photos.ffr", ignore_changed=True))


@_raises("SkippedWarning")
def _skipped() -> Example:
    os.mkfifo(_photos() / "fifo")
    return _warning(lambda: ffrecord.pack_folder("photos", "photos.ffr"))


# ---- datasets ----------------------------------------------------------------------------------


def _dataset(spec: dict[str, str], **datapoint: object) -> None:
    with DatasetWriter("train", spec, encoders) as writer:
        writer.append(datapoint)


@_raises("DatasetError")
def _dataset_error() -> Example:
    _photos()
    return _python(lambda: DatasetReader("photos", decoders))


@_raises("SpecError")
def _spec() -> Example:
    return _python(lambda: DatasetWriter("train", {"image": "jpgg"}, encoders))


@_raises("EncodeError")
def _encode() -> Example:
    with DatasetWriter("train", {"label": "int"}, encoders) as writer:
        writer.append({"label": 1})
        return _python(lambda: writer.append({"label": "cat"}))


@_raises("DecodeError")
def _decode() -> Example:
    _dataset({"text": "bytes"}, text=b"caf\xe9")
    spec = Path("train/spec.json")
    spec.write_text(spec.read_text().replace("bytes", "utf8"))
    with DatasetReader("train", decoders) as reader:
        return _python(lambda: reader[0])


@_raises("MissingPackageError")
def _missing_package() -> Example:
    _records()
    optional.load.cache_clear()
    try:
        with mock.patch.dict(sys.modules, {"h5py": None}):
            return _command("convert", "train.ffr", "train.h5")
    finally:
        optional.load.cache_clear()


@_raises("MissingShardWarning")
def _missing_shard() -> Example:
    Path("train").mkdir()
    for number in (0, 2):
        with DatasetWriter(f"train/{number:06}", {"label": "int"}, encoders) as writer:
            writer.append({"label": number})
    return _warning(lambda: ffrecord.ShardedDatasetReader("train", decoders))


# ---- torch -------------------------------------------------------------------------------------


@_raises("StateError")
def _state() -> Example:
    from ffrecord.torch import ShuffleSampler

    state = ShuffleSampler(23).state_dict()
    return _python(lambda: ShuffleSampler(24).load_state_dict(state))


def _bytes_dataset(**options: Any) -> Any:
    from ffrecord.torch import Dataset

    class Samples(Dataset[bytes]):
        """Records as bytes."""

        def process(self, indices: list[int], data: Any) -> list[bytes]:
            return [each.tobytes() for each in data]

    return Samples("train.ffr", **options)


@_raises("FFRecordError")
def _ffrecord_error() -> Example:
    _damage(_records(), b"third", b"THIRD")
    dataset = _bytes_dataset(on_error="skip")
    warnings.simplefilter("ignore")
    return _python(lambda: dataset.__getitems__([2]))


@_raises("RemoteShuffleWarning")
def _remote_shuffle() -> Example:
    import fsspec

    from ffrecord.remote import meter
    from ffrecord.torch import DataLoader, Dataset, remote_shuffle

    _records()
    told = mock.patch.object(remote_shuffle, "_told", False)
    with told, mock.patch.object(meter, "LARGEST_GAP", 0):  # as for a file of many megabytes
        dataset: Dataset[bytes] = Dataset(
            os.path.abspath("train.ffr"), fs=fsspec.filesystem("local")
        )
        return _warning(lambda: DataLoader(dataset, batch_size=256, shuffle=True))


@_raises("ReplacedLoaderWarning")
def _replaced_loader() -> Example:
    from torch.utils.data import DataLoader as TorchDataLoader

    from ffrecord.torch import DataLoader

    _records()
    ours = DataLoader(_bytes_dataset(), batch_size=2)
    theirs = TorchDataLoader(ours.dataset, batch_size=2, collate_fn=ours.collate_fn)
    return _warning(lambda: list(theirs))


@_raises("PlanError")
def _plan() -> Example:
    trees.plain_tree(Path("photos"), {"a": b"1", "b": b"2"})
    plan_pack("photos", "shards", 1).save("plan.json")
    return _command("pack", "--commit", "plan.json")


# ---- converting --------------------------------------------------------------------------------


@_raises("DamagedSourceError")
def _damaged_source() -> Example:
    convert(_records(), "train.tfrecord")
    _damage(Path("train.tfrecord"), b"third", b"THIRD")
    return _command("convert", "train.tfrecord", "again.ffr")


@_raises("ConversionError")
def _conversion() -> Example:
    _archive()
    return _command("convert", "photos.ffr", "photos.tfrecord")


# ---- mounting ----------------------------------------------------------------------------------


@_raises("OptionError")
def _option() -> Example:
    _archive()
    Path("mounted").mkdir()
    return _command("mount", "photos.ffr", "mounted", "-o", "rw")


@_raises("MountError")
def _mount() -> Example:
    Path("mounted").mkdir()
    return _command("umount", "mounted")


if __name__ == "__main__":
    (ROOT / PAGE).write_text(updated(text_of(PAGE)), encoding="utf-8")

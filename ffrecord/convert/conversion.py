"""`convert`: convert files from one format to another, item by item, and count the result.

The target is written into a hidden folder beside its final place. There it is opened again, its
items are counted, and only then is it moved to its final name. So the target appears complete or
not at all, and an existing file stays until it is replaced.
"""

from __future__ import annotations

import errno
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ffrecord.aliases import Path
from ffrecord.archive.archive import Archive
from ffrecord.archive.counts import Counts, count_index, count_name
from ffrecord.archive.extract import extract
from ffrecord.archive.names import absolute
from ffrecord.archive.pack import pack_folder, packing_bar
from ffrecord.atomic.file import check_target
from ffrecord.atomic.folder import NewFolder, remove_abandoned
from ffrecord.convert import field_types, registry
from ffrecord.convert.formats import bag
from ffrecord.convert.formats.tar import tars
from ffrecord.convert.publish import publish_files, publish_folder
from ffrecord.convert.registry import Format
from ffrecord.convert.reports import ConversionReport
from ffrecord.convert.reshape import reshape
from ffrecord.convert.shapes import ConvertOptions, NamedFiles, Rows, Shape, Written
from ffrecord.convert.sources import KINDS, SourceTask, convert_in_tasks
from ffrecord.dataset.spec import SPEC_NAME
from ffrecord.errors import (
    ConversionError,
    CountError,
    FFRecordError,
    NoRoomError,
    SkippedWarning,
    UrlError,
    WriteFailedError,
)
from ffrecord.format import padding
from ffrecord.format.index import INDEX_NAME
from ffrecord.plan.work import locate
from ffrecord.progress import bar, sending_bar
from ffrecord.records.opening import refuse_remote_options, refuse_unfinished
from ffrecord.remote.urls import is_remote, is_upath, is_url, shown
from ffrecord.text import Advised, counted, listed, parse_size, path_text, there_already

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions
    from ffrecord.remote.target import Target

NEVER_REPLACED = "folders are never replaced; remove it or choose another target"
DOING = "converting"  # part of the name of the hidden folder
LAST = {"dataset": SPEC_NAME, "granular": SPEC_NAME, "packed": INDEX_NAME}
"""Formats of several files -> the file that is uploaded last, because it completes the others."""

NOT_UPLOADED = {
    "folder": "a folder of files is not written to a URL, because object stores have no modes and "
    "links; write a packed folder or a tar",
    "bag": "a bag of two files cannot appear in a store in one step; write the format bag-single",
}
"""Formats that are not written to URLs -> the reason."""


def convert(
    src: Path | Sequence[Path],
    dst: Path,
    *,
    source_format: str | None = None,
    target_format: str | None = None,
    field: str | None = None,
    types: Mapping[str, str] | None = None,
    drop_names: bool = False,
    codec: str | None = None,
    shard_size: int | str | None = None,
    align: int | None = None,
    force: bool = False,
    verbose: bool = False,
    shard_per_source: bool = False,
    executor: Executor | None = None,
    **remote: Unpack[RemoteOptions],
) -> ConversionReport:
    """Convert files of one format into another. An error leaves the target as it was.

    docs/converting.md lists how each format is converted into the others.

    Args:
        src: A file or folder, or several of the same format, which are read one after the other.
        dst: The file or folder to create. A URL is uploaded when the target is complete; it is made
            in a temporary folder (`TMPDIR`) before. With `shard_per_source`, each shard is uploaded
            by itself.
        source_format: A name in `ffrecord.convert.FORMATS`. By default, the content and the name of
            the source decide.
        target_format: A name in `ffrecord.convert.FORMATS`. By default, the name of the target
            decides.
        field: For a source with rows, the field to convert. For records that become rows, the name
            of the new field.
        types: The type of each field, by name, if files or records become rows.
        drop_names: Allow the conversion of files into records, which have no names.
        codec: The codec of RecordIO: none, snappy or gzip.
        shard_size: Write a folder of tars of about this size, such as "1GB". If a folder becomes a
            packed folder, write its shards, as `pack_folder` does.
        align: 512 aligns the files of a new packed folder, see `pack_folder`.
        force: Replace an existing file. A folder is never replaced.
        verbose: Show a progress bar.
        shard_per_source: Write a folder with one shard for each source (of a folder of tars, for
            each tar), in the order of the sources. For records and datasets.
        executor: A `concurrent.futures.Executor` that converts the sources at the same time, with
            `shard_per_source`, or packs a folder, with `shard_size`.
        remote: Options for a target that is a URL, as for `FileReader`.

    Returns:
        The numbers of items read and written.
    """
    padding.checked(align)
    paths = _source_paths(src)
    options = ConvertOptions(
        field, dict(types or {}), drop_names, codec,
        None if shard_size is None else parse_size(shard_size), align,
        mtime_ns=max(map(_mtime_ns, paths)), executor=executor,
    )  # fmt: skip
    source = _source_format(paths, source_format)
    for name, text in options.types.items():
        field_types.check_type(name, text)
    is_url_target = is_remote(dst, remote)
    name = shown(str(dst)) if is_url_target else path_text(dst)
    target = _target_format(name, source, target_format, options)
    _check_executor(source, target, options, shard_per_source)
    if shard_per_source:
        target = replace(target, is_folder=True)
        if source.name == "tar":  # a folder of tars is a source for each
            paths = [each for path in paths for each in tars(path)]
    with ExitStack() as stack:
        upload = None
        if is_url_target and shard_per_source:  # each task uploads its shard
            path, remote = locate(dst, remote)
        elif is_url_target:
            upload = stack.enter_context(_upload_target(dst, name, target, remote, force=force))
            path = upload.path
        else:
            refuse_remote_options(remote)
            if target.name == source.name and options.codec is None:
                _refuse_itself(name, paths)
            path = _target_path(name)
            # Even if the target exists: an earlier run may have been killed after naming it.
            remove_abandoned(path, DOING)
        check = partial(_check_target, name, path, target, paths, force)
        if shard_per_source:
            if not is_url_target:
                check()
            tasks = [SourceTask(each, source.name, target.name, options) for each in paths]
            report = convert_in_tasks(
                tasks, path, executor, _convert_source, shown=verbose, remote=remote
            )
            has_warned = False
        else:
            job = _Job(paths, source, path, target, options, force, verbose, check)
            report = job.run()
            report.skipped = dict(options.skipped)
            has_warned = job.shortcut is _pack  # pack_folder has warned already
        if upload is not None:
            with sending_bar(shown=verbose) as tell:
                upload.upload(LAST.get(target.name) if target.is_folder else None, tell)
    for end, given in (("source_format", source_format), ("target_format", target_format)):
        if given is not None:  # "webdataset" is another name of "tar"
            setattr(report, end, given)
    if report.replaced and (len(paths) > 1 or os.path.isdir(paths[0])):
        warnings.warn(_replaced(report.replaced, paths), SkippedWarning, stacklevel=2)
    if report.skipped and not has_warned:
        what = f"{shown(paths[0])}: not converted: {listed(report.skipped)}"
        warnings.warn(what, SkippedWarning, stacklevel=2)
    return report


def _replaced(count: int, paths: list[str]) -> str:
    more = f" and {counted(len(paths) - 1, 'more source')}" if len(paths) > 1 else ""
    what = f"{counted(count, 'file')} of these replaced earlier ones of the same name"
    return f"{shown(paths[0])}{more}: {what}; to keep both, convert the sources one by one"


def _upload_target(
    dst: Any, name: str, target: Format, remote: RemoteOptions, *, force: bool
) -> Target:
    """Return the place to upload to."""
    from ffrecord.remote.target import Target  # needed for URLs only

    if target.name in NOT_UPLOADED:
        raise UrlError(f"{name}: {NOT_UPLOADED[target.name]}")
    return Target(dst, remote, is_folder=target.is_folder, new=not force)


def _convert_source(task: SourceTask, path: str) -> ConversionReport:
    """Convert one source to a new file or folder at `path`. Runs in a worker."""
    source, target = registry.named(task.source_format), registry.named(task.target_format)
    job = _Job([task.path], source, path, target, task.options, False, False, lambda: None)
    report = job.run()
    report.skipped = dict(task.options.skipped)
    return report


def _check_executor(
    source: Format, target: Format, options: ConvertOptions, shard_per_source: bool
) -> None:
    """Raise an error if there is nothing that several workers could do."""
    if shard_per_source and target.name not in KINDS:
        message = " is for records and datasets, and the target has the format "
        how = "shard_per_source", "--shard-per-source"
        raise ConversionError(Advised("", *how, f"{message}{target.name}; leave it out"))
    packs = (source.name, target.name) == ("folder", "packed") and options.shard_size is not None
    if options.executor is not None and not (shard_per_source or packs):
        raise ConversionError(
            "executor needs shard_per_source=True, or a folder that is packed with shard_size; "
            "otherwise one process writes the target, so leave it out"
        )


def _source_paths(src: Path | Sequence[Path]) -> list[str]:
    is_one = isinstance(src, (str, os.PathLike)) or is_upath(src)
    sources: list[Any] = [src] if is_one else list(src)  # type: ignore[arg-type]
    if not sources:
        raise ValueError("src is an empty list; pass at least one source")
    return [str(path) if is_remote(path) else absolute(path) for path in sources]


def _mtime_ns(path: str) -> int:
    if is_url(path):
        return time.time_ns()  # the records have no times of their own
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        refuse_unfinished(path)
        raise


def _source_format(paths: list[str], name: str | None) -> Format:
    if name is not None:
        return _readable(registry.named(name), paths)
    first = _readable(registry.find(paths[0]), paths[:1])
    for path in paths[1:]:
        other = registry.find(path)
        if other.name != first.name:
            message = (
                f"{shown(path)}: has the format {other.name}, but {shown(paths[0])} has the format "
                f"{first.name}; "
                "convert them one by one, or name one format for all with "
            )
            raise ConversionError(Advised(message, "source_format", "--from"))
    return first


def _readable(source: Format, paths: list[str]) -> Format:
    """Raise an error if a source of another format than ours is a URL."""
    if source.name not in registry.REMOTE:
        for path in filter(is_url, paths):
            raise UrlError(
                f"{shown(path)}: {source.name} is not read over the network; download it first"
            )
    return source


def _target_format(dst: str, source: Format, name: str | None, options: ConvertOptions) -> Format:
    shape = source.shape if options.field is None else Rows
    target = registry.find_target(dst, shape) if name is None else registry.named(name)
    packs = (source.name, target.name) == ("folder", "packed")
    if options.shard_size is not None and target.name != "tar" and not packs:
        size = "shard_size", "--shard-size"
        message = f" is for tar and for packing a folder, and {dst} has the format {target.name}; "
        message += "leave it out"
        raise ConversionError(Advised("", *size, message))
    if options.align is not None and target.name != "packed":
        message = f" is for packed folders only, and {dst} has the format {target.name}; "
        raise ConversionError(Advised("", "align", "--align", f"{message}leave it out"))
    if options.shard_size is not None:
        target = replace(target, is_folder=True)
    if not target.is_folder:
        registry.refuse_compression(dst, target)
    if options.codec is not None and not target.name.startswith("recordio"):
        message = f" is for RecordIO only, and {dst} has the format {target.name}; leave it out"
        raise ConversionError(Advised("", "codec", "--codec", message))
    return target


def _refuse_itself(dst: str, sources: list[str]) -> None:
    """Raise ConversionError if the target is a source. Called only if both have the same format.

    With different formats, a file may be replaced by its own conversion.
    """
    for source in sources:
        if not is_url(source) and os.path.exists(dst) and os.path.samefile(dst, source):
            raise ConversionError(
                f"{dst}: is a source as well as the target, and already has the target's format; "
                "choose another target or another format"
            )


def _target_path(dst: str) -> str:
    """Return the path to write to. A symlink is followed, so that it stays a link."""
    path = os.path.abspath(dst)
    return os.path.realpath(path) if os.path.islink(path) else path


def _check_target(dst: str, path: str, target: Format, sources: list[str], force: bool) -> None:
    """Raise an error if the target lies in a source, or exists and may not be replaced."""
    for source in sources:
        if os.path.isdir(source) and os.path.realpath(path).startswith(
            os.path.join(os.path.realpath(source), "")
        ):
            raise ConversionError(
                f"{dst}: is inside the source {source}; choose a target outside of it"
            )
    if os.path.isdir(path):
        if os.listdir(path):
            raise FileExistsError(
                errno.EEXIST, f"this folder already exists; {NEVER_REPLACED}", dst
            )
        if not target.is_folder:
            raise IsADirectoryError(errno.EISDIR, f"this is a folder; {NEVER_REPLACED}", dst)
        return
    check_target(path)
    for name in _products(path, target, both=True):
        if os.path.lexists(name) and (not force or target.is_folder):
            shown = dst if name == path else name
            if target.is_folder:
                message = "this file already exists; remove it or choose another target"
                raise FileExistsError(errno.EEXIST, message, shown)
            raise there_already(shown, argument="force")


def _products(path: str, target: Format, *, both: bool = False) -> list[str]:
    """Return the paths of the files of a target.

    With `both`, include the index beside a bag of one file: if a file of that name exists, it would
    be taken for the index of the new bag.
    """
    is_two = target.name == "bag" or (both and target.name == "bag-single")
    return [path, bag.index_path(path)] if is_two else [path]


class _Job:
    """One conversion."""

    def __init__(
        self, paths: list[str], source: Format, path: str, target: Format, options: ConvertOptions,
        force: bool, verbose: bool, check: Callable[[], None],
    ) -> None:  # fmt: skip
        self._check = check
        self._paths = paths
        self._source = source
        self._path = path
        self._target = target
        self._options = options
        self._force = force
        self._verbose = verbose
        self._read = 0
        self._counts = Counts() if source.shape is NamedFiles else None
        self.shortcut = None
        if len(paths) == 1:
            self.shortcut = _SHORTCUTS.get((source.name, target.name))

    def run(self) -> ConversionReport:
        """Write the target in a hidden folder, count its items, and give it its name."""
        folder = NewFolder(self._path, DOING, self._check)
        try:
            with self._failing_as_the_target(folder.path):
                staged = os.path.join(folder.path, os.path.basename(self._path))
                written = self._write(staged)
                there = self._target.count(staged)
                found = there.names if isinstance(there, Counts) else there
                if found != written.items:
                    raise CountError(
                        f"{self._path}: {written.items} items were written, but the finished file "
                        f"has {found}, so it is not kept; please report this"
                    )
                self._publish(folder.path)
        finally:
            folder.discard()
        return ConversionReport(
            self._source.name, self._target.name, self._read, found, written.replaced,
            source_contents=self._counts,
            target_contents=there if isinstance(there, Counts) else None,
        )  # fmt: skip

    def _write(self, staged: str) -> Written:
        if self.shortcut is not None:
            found = self.shortcut(self._paths[0], staged, self._verbose, self._options)
            self._counts, self._read = found, found.names
            return Written(self._read)
        with _opened(self._paths, self._source, self._options) as opened:
            total = opened.count
            opened.items = self._count_read(opened.items, total)
            reshaped = reshape(opened, self._target.shape, self._options)
            given = _Counted(reshaped.items)
            reshaped.items = given
            written = self._target.write(staged, reshaped, self._options)
        if total not in (None, self._read):
            raise CountError(
                f"{self._path}: not written: {shown(self._paths[0])} says it has {total} items, "
                f"but {self._read} were read; if the source changed meanwhile, convert it again"
            )
        if self._target.shape is not NamedFiles and given.count != written.items:
            raise CountError(
                f"{self._path}: not written: the writer got {given.count} items and reports "
                f"{written.items}; please report this"
            )
        return written

    def _count_read(self, items: Iterable[Any], total: int | None) -> Iterator[Any]:
        kind = self._source.shape.item_name
        with bar(
            shown=self._verbose, total=total, unit=f" {kind}s", desc="converting", leave=False
        ) as drawn:
            for item in items:
                if self._counts is not None and (item.path or not item.is_folder):
                    is_hard_link = bool(item.hard_link)
                    count_name(self._counts, item.mode, item.size, is_hard_link=is_hard_link)
                if not getattr(item, "is_folder", False):
                    self._read += 1
                    drawn.update()
                yield item

    def _publish(self, folder: str) -> None:
        """Give the target its name, durably."""
        if self._target.is_folder:
            publish_folder(folder, self._path)
            return
        names = _products(self._path, self._target)
        stale = _products(self._path, self._target, both=True)[::-1]
        if len(names) == 1:  # a rename replaces the old file
            stale = stale[:-1]
        publish_files(folder, names, stale, force=self._force)

    @contextmanager
    def _failing_as_the_target(self, folder: str) -> Iterator[None]:
        """Make write errors name the target instead of the file in the hidden folder."""
        try:
            yield
        except (NoRoomError, WriteFailedError) as error:
            if os.fsdecode(error.filename).startswith(os.path.join(folder, "")):
                raise type(error)(self._path, error.errno or errno.EIO) from error
            raise
        except OSError as error:
            if error.errno in NoRoomError.ERRNOS and not isinstance(error, FFRecordError):
                raise NoRoomError(self._path, error.errno) from error
            raise


class _Counted:
    """An iterable that counts the items that it has yielded."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.count = 0
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self.count += 1
            yield item


@contextmanager
def _opened(paths: list[str], source: Format, options: ConvertOptions) -> Iterator[Shape]:
    """Open the first source, and chain the items of the others to it."""
    with source.read(paths[0], options) as first:
        if len(paths) > 1:
            spec = first.spec if isinstance(first, Rows) else {}
            first.items = _chained(first.items, spec, paths[1:], source, options)
            first.count = None
        yield first


def _chained(
    items: Iterable[Any], spec: Mapping[str, str], others: list[str], source: Format,
    options: ConvertOptions,
) -> Iterator[Any]:  # fmt: skip
    yield from items
    for path in others:
        with source.read(path, options) as shape:
            if isinstance(shape, Rows) and shape.spec != spec:
                raise ConversionError(
                    f"{shown(path)}: its fields are {shape.spec}, but the first source has {spec}; "
                    "convert them one by one"
                )
            yield from shape.items


def _pack(path: str, staged: str, verbose: bool, options: ConvertOptions) -> Counts:
    with packing_bar(shown=verbose) as progress:
        report = pack_folder(
            path, staged, progress=progress, align=options.align, shard_size=options.shard_size,
            executor=options.executor,
        )  # fmt: skip
    options.skipped.update(report.skipped)
    return Counts(report.files, report.folders, report.symlinks, report.hard_links, report.bytes)


def _extract(path: str, staged: str, verbose: bool, options: ConvertOptions) -> Counts:
    with Archive.open(path) as archive:
        found = count_index(archive.index)
        with bar(
            shown=verbose, total=found.names, unit=" files", desc="converting", leave=False
        ) as drawn:
            extract(archive, staged, progress=lambda files, size: drawn.update(files))
        return found


# These pairs have code that is faster than copying items one by one.
_SHORTCUTS = {("folder", "packed"): _pack, ("packed", "folder"): _extract}

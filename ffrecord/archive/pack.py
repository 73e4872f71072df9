"""`pack_folder`: pack a whole folder into one archive, or into a folder of shards.

Each file becomes one record, in the order of the paths. A file with several hard links is stored
once. In an aligned archive, records of padding lie between the files. The last record is the index.
The same folder always gives the same bytes. The archive gets its name only when it is complete and
on disk, as with every writer of this library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ffrecord.aliases import Ints, Path
from ffrecord.archive.counts import Counts, count_tree
from ffrecord.archive.index import Index, legacy
from ffrecord.archive.index.build import Shard, Tree, build
from ffrecord.archive.index.resolve import readable_record
from ffrecord.archive.names import absolute
from ffrecord.archive.scan import Scan, change_advice
from ffrecord.archive.source_files import read_ahead
from ffrecord.atomic import tempnames
from ffrecord.atomic.file import check_target
from ffrecord.atomic.folder import NewFolder, check_new_folder, hidden_name
from ffrecord.disk.longpaths import open_path
from ffrecord.disk.source import Source
from ffrecord.errors import ChangedError, ChangedWarning, SkippedWarning
from ffrecord.format import index as index_layout
from ffrecord.format import padding
from ffrecord.format.checksum import crc32, crc32_joined
from ffrecord.format.index import BLOCK, INDEX_NAME
from ffrecord.format.records import CRC_SIZE, part_name
from ffrecord.progress import bar, sending_bar
from ffrecord.records.opening import refuse_remote_options
from ffrecord.records.writer import FileWriter, writer_class
from ffrecord.remote.urls import is_remote
from ffrecord.terminal import printable
from ffrecord.text import Advised, integer, listed, parse_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

DOING = "packing"  # part of the name of a folder whose shards are not complete yet
MOST_SHARDS = 100_000  # the names PART_00000.ffr to PART_99999.ffr sort by number


@dataclass(slots=True)
class PackProgress:
    """Progress of packing: files and bytes done so far, and in total."""

    files: int
    total_files: int
    bytes: int
    total_bytes: int
    sent: int = 0
    """Bytes that were uploaded. They follow when the archive is complete."""
    to_send: int = 0
    """Size of the archive that is uploaded; 0 while it is not complete, or if it is local."""


@dataclass(slots=True)
class PackReport(Counts):
    """Counts of packed files, folders and links, and of files that were left out."""

    shards: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Number of sockets, fifos and devices, by kind."""
    changed: list[str] = field(default_factory=list)
    """With `ignore_changed`, the paths of files that changed or disappeared."""


def pack_folder(
    folder: Path,
    out_file: Path,
    verbose: bool = False,
    *,
    jobs: int | None = None,
    dereference: bool = False,
    exclude: Iterable[str] = (),
    progress: Callable[[PackProgress], None] | None = None,
    legacy_index: bool = True,
    ignore_changed: bool = False,
    shard_size: int | str | None = None,
    align: int | None = None,
    **remote: Unpack[RemoteOptions],
) -> PackReport:
    """Pack a folder into an archive that `PackedFolder` reads and `ffrecord mount` mounts.

    Args:
        folder: the folder to pack.
        out_file: the archive to write. An existing archive is replaced when the new one is
            complete. With `shard_size`, a new folder. A URL is uploaded when the archive is
            complete; it is made in a temporary folder (`TMPDIR`) before.
        verbose: print the number and the path of each file, like the original FFRecord. To show
            progress in a program, use `progress` and `packing_bar` instead.
        jobs: read at most this many files at once; 8 by default.
        dereference: pack the files that symlinks point to, like the original FFRecord, instead of
            the symlinks.
        exclude: patterns of names (`*.tmp`) or paths (`logs/*`) to leave out.
        progress: called now and then with a `PackProgress`.
        legacy_index: also write the index that the original FFRecord reads.
        ignore_changed: warn about a file that changes or disappears during packing, instead of
            raising an error. A changed file is packed as it was read; a missing one is left out.
        shard_size: write shards PART_00000.ffr … of about this size ("10GB") and an index. Together
            they open as one archive.
        align: 512 lets the content of every file begin at a multiple of 512 bytes, with zeros
            between the files. The kernel can then serve the files of a mounted archive in place.
        remote: options for URLs, as for `PackedFolder`.
    """
    aligned = padding.checked(align)
    top = absolute(folder)
    _require_folder(top)
    if jobs is not None and integer(jobs, "jobs") < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs}")
    largest = None if shard_size is None else parse_size(shard_size)
    if is_remote(out_file, remote):
        from ffrecord.remote.target import Target  # needed for URLs only

        with Target(out_file, remote, is_folder=largest is not None) as upload:
            report = pack_folder(
                folder, upload.path, verbose, jobs=jobs, dereference=dereference, exclude=exclude,
                progress=progress, legacy_index=legacy_index, ignore_changed=ignore_changed,
                shard_size=shard_size, align=align,
            )  # fmt: skip
            tell = _upload_teller(report, progress)
            upload.upload(None if largest is None else INDEX_NAME, tell)
        return report
    refuse_remote_options(remote)
    target = os.path.abspath(os.fsdecode(out_file))
    with _place(target, sharded=largest is not None) as place:
        with _names_as_text():
            scan = Scan(
                top, dereference=dereference, exclude=exclude,
                leave_out=(target, hidden_name(target, DOING), *tempnames.names(target)),
                ignore_changed=ignore_changed,
            )  # fmt: skip
        if scan.skipped:
            what = f"{top}: not packed: {listed(scan.skipped)}"
            warnings.warn(what, SkippedWarning, stacklevel=2)
        packer = _Packer(scan, ignore_changed, legacy_index, jobs, aligned)
        packer.tell = _teller(packer.done, packer.paths() if verbose else None, progress)
        if largest is None:
            packer.write_file(target)
        else:
            packer.write_shards(place, target, largest)
    return packer.report


@contextlib.contextmanager
def packing_bar(*, shown: bool) -> Iterator[Callable[[PackProgress], None]]:
    """Draw a progress bar on standard error. Yield the function for `pack_folder(progress=…)`."""
    drawn = None
    with contextlib.ExitStack() as stack:
        tell_upload = stack.enter_context(sending_bar(shown=shown))

        def show(now: PackProgress) -> None:
            nonlocal drawn
            if now.to_send:
                tell_upload(now.sent, now.to_send)
                return
            if drawn is None:  # not earlier, because packing may fail before it begins
                total, unit = now.total_bytes, "B"
                made = bar(shown=shown, total=total, unit=unit, unit_scale=True, desc="packing")
                drawn = stack.enter_context(made)
            drawn.set_postfix_str(f"{now.files:,} of {now.total_files:,} files", refresh=False)
            drawn.update(now.bytes - drawn.n)

        yield show


def _require_folder(top: str) -> None:
    fd = open_path(top, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder; pass the folder to pack", top)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _place(target: str, *, sharded: bool) -> Iterator[str]:
    """Yield the path to write to: the archive, or a folder that is renamed to `target` at the end.

    If the target cannot be written, raise an error before any file is read.
    """
    if not sharded:
        check_target(target)
        yield target
        return
    folder = NewFolder(target, DOING, partial(check_new_folder, target, "shards need a"))
    try:
        yield folder.path
        folder.publish()
    finally:
        folder.discard()


@contextlib.contextmanager
def _names_as_text() -> Iterator[None]:
    """Turn the path in an error from bytes, which the walk uses, into text."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, bytes):
            error.filename = os.fsdecode(error.filename)
        raise


class _Packer:
    """Writer of an archive from the results of a scan."""

    def __init__(
        self, scan: Scan, ignore_changed: bool, legacy_index: bool, jobs: int | None, align: int
    ) -> None:
        self._scan = scan
        self._ignore_changed = ignore_changed
        self._legacy_index = legacy_index
        self._jobs = jobs
        self._gone: set[int] = set()
        self._align = align
        self._open = writer_class(align)
        self._files, self._records = _number_files(scan.tree, align)
        self.report = PackReport(
            **asdict(count_tree(scan.tree)), skipped=dict(scan.skipped), changed=list(scan.changed)
        )
        self.done = PackProgress(0, len(self._files), 0, self.report.bytes)
        self.tell: Callable[[int, int], None] = lambda files, size: None

    def paths(self) -> Iterator[str]:
        """Yield one path of each file, in the order of the records."""
        return (os.fsdecode(self._scan.path(inode)) for inode in self._files)

    def write_file(self, target: str) -> None:
        """Write all files and the index into one archive."""
        with self._open(target, self._records + 1) as writer:
            self._write(writer, self._files)
            self._write_index(writer, target, [])

    def write_shards(self, folder: str, target: str, largest: int) -> None:
        """Write shards of about `largest` bytes and an index file into `folder`.

        `folder` gets the name `target` later.
        """
        parts = self._parts(largest)
        if len(parts) > MOST_SHARDS:
            many = f"{target}: {len(parts)} shards, but at most {MOST_SHARDS} are possible; pass a "
            raise ValueError(Advised(many, "larger shard_size", "larger --shard-size"))
        self.report.shards = len(parts)
        shards = []
        for number, part in enumerate(parts):
            name = part_name(number)
            path = os.path.join(folder, name)
            records = self._first_record(part.stop) - self._first_record(part.start)
            with self._open(path, records) as writer:
                self._write(writer, self._files[part.start : part.stop])
            shards.append(Shard(name.encode(), records, _header_crc(path)))
        with FileWriter(os.path.join(folder, INDEX_NAME), 1) as writer:
            self._write_index(writer, target, shards)

    def _parts(self, largest: int) -> list[range]:
        """Return the range of files for each shard: as many as fit, and at least one."""
        parts = []
        begin = size = 0
        for row, inode in enumerate(self._files):
            length = padding.rounded_up(self._scan.tree.length[inode], self._align)
            if row > begin and size + length > largest:
                parts.append(range(begin, row))
                begin, size = row, 0
            size += length
        return [*parts, range(begin, len(self._files))]

    def _first_record(self, row: int) -> int:
        """Return the record of file `row`, or the number of all records after the last file."""
        files = self._files
        return self._scan.tree.record[files[row]] if row < len(files) else self._records

    def _write(self, writer: FileWriter, inodes: Iterable[int]) -> None:
        """Write files and their padding, and add their block checksums and xattrs to the tree."""
        tree = self._scan.tree
        begun: list[int] = []  # block checksums of a large file that is not complete yet
        for batch in read_ahead(self._scan, inodes, self._jobs, self._align):
            piece, size = batch.piece, sum(batch.piece.lengths)
            writer.append(batch.memory[: batch.size])
            for inode in batch.changed + batch.gone:
                self._note_change(inode, gone=inode in batch.gone)
            for inode, xattrs in batch.xattrs.items():
                tree.xattrs[inode] = xattrs
            if not piece.is_last:
                begun += batch.checksums[0]
                self.tell(0, size)
                continue
            checksums, lengths = batch.checksums, piece.lengths
            if begun:
                checksums, lengths = [begun + checksums[0]], [tree.length[piece.inodes[0]]]
                begun = []
            joined = [blocks[0] for blocks in checksums]
            for k, (inode, blocks) in enumerate(zip(piece.inodes, checksums, strict=True)):
                if len(blocks) > 1:
                    joined[k] = crc32_joined(blocks, BLOCK, lengths[k])
                    tree.blocks[inode] = array("I", blocks)
            writer.seal(*padding.with_padding(lengths, joined, self._align))
            self.tell(len(lengths), size)

    def _note_change(self, inode: int, *, gone: bool) -> None:
        paths = [os.fsdecode(path) for path in self._scan.paths(inode)]
        what = "disappeared" if gone else "changed"
        if not self._ignore_changed:
            raise ChangedError(change_advice(f"{paths[0]}: {what}"))
        if gone and inode not in self._gone:
            self._gone.add(inode)
            self.report.files -= 1
            self.report.hard_links -= len(paths) - 1
            self.report.bytes -= self._scan.tree.length[inode]
        for path in paths:
            if path not in self.report.changed:
                self.report.changed.append(path)
                packed = "left out" if gone else "packed as it was read"
                message = f"{path}: {what} while its folder was packed; {packed}"
                warnings.warn(message, ChangedWarning, stacklevel=5)

    def _write_index(self, writer: FileWriter, target: str, shards: list[Shard]) -> None:
        """Write the index, as the last record."""
        self._scan.forget()
        tree, sizes = self._scan.tree, self._record_sizes()
        if self._gone:
            tree = tree.without(self._gone)
        write_index(writer, target, tree, sizes, shards, legacy_index=self._legacy_index)

    def _record_sizes(self) -> Ints:
        """Return the sizes of all records before the index: of the files and of their padding."""
        tree, files = self._scan.tree, np.frombuffer(self._files, np.uint32)
        lengths = np.frombuffer(tree.length, np.int64)[files]
        if self._records == len(files):  # no padding
            return lengths
        records = np.frombuffer(tree.record, np.int64)[files]
        missing = -lengths % self._align
        padded = missing.nonzero()[0]
        sizes = np.empty(self._records, np.int64)
        sizes[records] = lengths
        sizes[records[padded] + 1] = missing[padded]
        return sizes


def _number_files(tree: Tree, align: int) -> tuple[array[int], int]:
    """Give files their record numbers, in path order.

    Return the inodes in that order, and the number of records, with those of padding.
    """
    files = array("I")
    records = 0
    seen = bytearray(len(tree))
    for entry, _ in tree.in_path_order():
        inode = tree.inode[entry]
        if tree.is_file(inode) and not seen[inode]:
            seen[inode] = True
            tree.record[inode] = records
            files.append(inode)
            records += 1 + (tree.length[inode] % align > 0)
    return files, records


def write_index(
    writer: FileWriter, target: str, tree: Tree, sizes: Ints, shards: Sequence[Shard] = (),
    *, legacy_index: bool = True,
) -> None:  # fmt: skip
    """Write the index as the last record of an archive. `sizes`: the sizes of all other records."""
    size = crc = 0
    for piece in index_record(target, tree, sizes, shards, legacy_index=legacy_index):
        writer.append(memoryview(piece))
        size, crc = size + len(piece), crc32(piece, crc)
    writer.seal([size], [crc])


def index_record(
    target: str, tree: Tree, sizes: Ints, shards: Sequence[Shard] = (), *, legacy_index: bool = True
) -> Iterator[index_layout.Buffer]:
    """Yield the last record, the index, piece by piece."""
    image = build(tree, shards)
    # `Index` makes all checks of a reader. So a wrong index is never written.
    index = Index(target, image, sizes)
    if legacy_index:
        yield from legacy.pickled(tree, partial(_symlink_record, tree, index))
    yield image
    yield index_layout.trailer(image, crc32(image))


def _symlink_record(tree: Tree, index: Index, entry: int) -> int | None:
    """Return the record of the file in the archive that a symlink leads to.

    Takes an entry, not an inode: a relative symlink with several names can lead to several places.
    """
    return readable_record(index, tree.parent[entry], tree.names[entry], tree.inode[entry])


def _teller(
    done: PackProgress, paths: Iterator[str] | None, progress: Callable[[PackProgress], None] | None
) -> Callable[[int, int], None]:
    """Return a function that takes the files and bytes written since the last call.

    It updates `done`, calls `progress`, and prints `paths`, which are in the order of the records.
    """

    def tell(files: int, size: int) -> None:
        if paths is not None:
            for number, path in enumerate(islice(paths, files), done.files):
                print_file(number, done.total_files, path)
        done.files += files
        done.bytes += size
        if progress is not None:
            progress(done)

    return tell


def _upload_teller(
    report: PackReport, progress: Callable[[PackProgress], None] | None
) -> Callable[[int, int], None] | None:
    """Return a function that takes the bytes that were uploaded, and all of them."""
    if progress is None:
        return None
    files, size = report.files, report.bytes
    return lambda sent, total: progress(PackProgress(files, files, size, size, sent, total))


def print_file(number: int, files: int, path: str) -> None:
    """Print the number and path of a packed file, in the format of the original FFRecord."""
    line = f"{number:0{len(str(files))}d}/{files} {printable(path)}"
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _header_crc(path: str) -> int:
    return int.from_bytes(Source(path, direct=False).read_bytes(0, CRC_SIZE), "little")

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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from ffrecord.aliases import Path
from ffrecord.archive import planned
from ffrecord.archive.contents import write_contents
from ffrecord.archive.index.build import Shard
from ffrecord.archive.names import absolute
from ffrecord.archive.packer import Packer, PackReport, header_crc
from ffrecord.archive.scan import Scan
from ffrecord.archive.scan_parts import ScanInTasks
from ffrecord.atomic import tempnames
from ffrecord.atomic.file import check_target
from ffrecord.atomic.folder import NewFolder, check_new_folder, hidden_name
from ffrecord.disk.longpaths import open_path
from ffrecord.errors import NoRoomError, SkippedWarning, UrlError, WriteFailedError
from ffrecord.format import padding
from ffrecord.format.index import INDEX_NAME
from ffrecord.format.records import part_name
from ffrecord.plan.executors import run_all
from ffrecord.plan.values import PackPlan, Part
from ffrecord.plan.work import Receipt, locate, require_free, work_of
from ffrecord.plan.work_folder import leftovers, remove_leftovers
from ffrecord.progress import bar, sending_bar
from ffrecord.records.writer import ArchiveWriter, FileWriter
from ffrecord.remote.urls import is_remote
from ffrecord.remote.urls import shown as shown_url
from ffrecord.terminal import printable
from ffrecord.text import integer, listed, parse_size, there_already

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ffrecord.remote.options import RemoteOptions

__all__ = ["PackProgress", "PackReport", "pack_folder", "packing_bar", "plan_pack", "print_file"]

DOING = PackPlan.DOING  # part of the name of a folder whose shards are not complete yet


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
    executor: Executor | None = None,
    overwrite: bool = True,
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
        executor: a `concurrent.futures.Executor` that reads the folder and writes the shards, one
            in each task. Needs `shard_size`. Workers on other machines need the same file system
            for the folder, and for a local `out_file`. With a URL, each task uploads its shard.
        overwrite: replace an existing archive. With False, it is a `FileExistsError`, also if it
            appears during packing. An existing folder of shards is never replaced.
        remote: options for URLs, as for `PackedFolder`.
    """
    is_planned = executor is not None and shard_size is not None
    if is_remote(out_file, remote) and not is_planned:
        from ffrecord.remote.target import Target  # needed for URLs only

        _Job(folder, os.curdir, shard_size, align, jobs)  # check the arguments first
        sharded = shard_size is not None
        new, permit = not overwrite, "overwrite"
        with Target(out_file, remote, is_folder=sharded, new=new, permit=permit) as upload:
            report = pack_folder(
                folder, upload.path, verbose, jobs=jobs, dereference=dereference, exclude=exclude,
                progress=progress, legacy_index=legacy_index, ignore_changed=ignore_changed,
                shard_size=shard_size, align=align, executor=executor,
            )  # fmt: skip
            upload.upload(
                None if shard_size is None else INDEX_NAME, _upload_teller(report, progress)
            )
        return report
    if executor is not None and not is_planned:
        raise ValueError("executor needs shard_size, because each task writes one shard")
    target, remote = locate(out_file, remote)
    is_local = not is_remote(target, remote)
    job = _Job(folder, target, shard_size, align, jobs, is_local=is_local, overwrite=overwrite)
    if is_planned:
        require_free(target, remote)
    elif job.largest is None and not overwrite and os.path.isfile(target):
        raise there_already(os.fspath(out_file))
    with _place(target, sharded=job.largest is not None, planned=is_planned) as place:
        scan = job.scan(dereference, exclude, ignore_changed, executor)
        packer = job.packer(scan, ignore_changed, legacy_index)
        done = PackProgress(0, len(packer.files), 0, packer.report.bytes)
        paths = (os.fsdecode(scan.path(inode)) for inode in packer.files)
        tell = _teller(done, paths if verbose else None, progress)
        if job.largest is None:
            job.write_file(scan, packer, tell)
            return packer.report
        parts = packer.parts(job.target, job.largest)
        if executor is None:
            job.write_shards(place, scan, packer, parts, tell)
            return packer.report
        plan = planned.begin_plan(
            scan, packer, parts, job.target, dereference=dereference,
            ignore_changed=ignore_changed, legacy_index=legacy_index, remote=remote,
        )  # fmt: skip
    return _run(plan, packer, scan, executor, jobs, tell, remote)


def plan_pack(
    folder: Path,
    out_folder: Path,
    shard_size: int | str,
    *,
    dereference: bool = False,
    exclude: Iterable[str] = (),
    legacy_index: bool = True,
    ignore_changed: bool = False,
    align: int | None = None,
    executor: Executor | None = None,
    **remote: Unpack[RemoteOptions],
) -> PackPlan:
    """Return a plan to pack a folder. Each of its tasks writes one shard; a commit ends it.

    The arguments are those of `pack_folder`. The executor is for reading the folder only. The plan
    does not keep the options for URLs.
    """
    target, remote = locate(out_folder, remote)
    if remote.get("store") is not None or remote.get("fs") is not None:
        raise UrlError(
            f"{shown_url(target)}: a plan keeps neither a store nor a file system; pass the URL of "
            "the folder as text"
        )
    is_local = not is_remote(target, remote)
    job = _Job(folder, target, shard_size, align, None, is_local=is_local)
    assert job.largest is not None
    require_free(target, remote)
    scan = job.scan(dereference, exclude, ignore_changed, executor)
    packer = job.packer(scan, ignore_changed, legacy_index)
    return planned.begin_plan(
        scan, packer, packer.parts(job.target, job.largest), job.target, dereference=dereference,
        ignore_changed=ignore_changed, legacy_index=legacy_index, remote=remote,
    )  # fmt: skip


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
def _place(target: str, *, sharded: bool, planned: bool) -> Iterator[str]:
    """Yield the path to write to: the archive, or a folder that is renamed to `target` at the end.

    If the target cannot be written, raise an error before any file is read. A plan has its own
    work place to write to.
    """
    if planned:
        yield target
        return
    if not sharded:
        check_target(target)
        yield target
        return
    folder = NewFolder(target, DOING, partial(check_new_folder, target, "shards need a"))
    try:
        yield folder.path
        folder.publish()
    except (NoRoomError, WriteFailedError) as error:  # named after a file in the hidden folder
        raise type(error)(target, error.errno or errno.EIO) from error
    finally:
        folder.discard()
    remove_leftovers(target)


@contextlib.contextmanager
def _names_as_text() -> Iterator[None]:
    """Turn the path in an error from bytes, which the walk uses, into text."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, bytes):
            error.filename = os.fsdecode(error.filename)
        raise


class _Job:
    """The arguments of one call, checked, and the steps that write an archive in this process."""

    def __init__(
        self, folder: Path, target: str, shard_size: int | str | None, align: int | None,
        jobs: int | None, *, is_local: bool = True, overwrite: bool = True,
    ) -> None:  # fmt: skip
        self.align = padding.checked(align)
        self.top = absolute(folder)
        _require_folder(self.top)
        if jobs is not None and integer(jobs, "jobs") < 1:
            raise ValueError(f"jobs must be at least 1, not {jobs}")
        self.jobs = jobs
        self.target = target
        self._is_local = is_local
        self._overwrite = overwrite
        self.largest = None if shard_size is None else parse_size(shard_size)

    def scan(
        self, dereference: bool, exclude: Iterable[str], ignore_changed: bool,
        executor: Executor | None,
    ) -> Scan:  # fmt: skip
        """Walk the folder. Leave out the target, and the files of unfinished targets."""
        target = self.target
        leave_out = []
        if self._is_local:
            leave_out = [target, hidden_name(target, DOING)]
            leave_out += [*tempnames.names(target), *leftovers(target)]
        with _names_as_text():
            walk = Scan if executor is None else partial(ScanInTasks, executor)
            scan = walk(
                self.top, dereference=dereference, exclude=exclude,
                leave_out=leave_out, ignore_changed=ignore_changed,
            )  # fmt: skip
        if scan.skipped:
            what = f"{self.top}: not packed: {listed(scan.skipped)}"
            warnings.warn(what, SkippedWarning, stacklevel=3)
        return scan

    def packer(self, scan: Scan, ignore_changed: bool, legacy_index: bool) -> Packer:
        return Packer(
            scan.tree, scan.paths, align=self.align, skipped=scan.skipped, changed=scan.changed,
            ignore_changed=ignore_changed, legacy_index=legacy_index,
        )  # fmt: skip

    def write_file(self, scan: Scan, packer: Packer, tell: Callable[[int, int], None]) -> None:
        """Write all files and the index into one archive."""
        n = packer.records + 1
        with ArchiveWriter(self.target, n, align=self.align, replaces=self._overwrite) as writer:
            self._write(writer, scan, packer, range(len(packer.files)), tell)
            scan.forget()
            packer.write_index(writer, self.target, [])

    def write_shards(
        self, folder: str, scan: Scan, packer: Packer, parts: list[Part],
        tell: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        """Write the shards and an index file into `folder`, which gets its name later."""
        shards = []
        for number, part in enumerate(parts):
            name = part_name(number)
            path = os.path.join(folder, name)
            with ArchiveWriter(path, part.records, align=self.align) as writer:
                self._write(writer, scan, packer, part.rows, tell)
            shards.append(Shard(name.encode(), part.records, header_crc(path)))
        scan.forget()
        with FileWriter(os.path.join(folder, INDEX_NAME), 1) as writer:
            packer.write_index(writer, self.target, shards)

    def _write(
        self, writer: FileWriter, scan: Scan, packer: Packer, rows: range,
        tell: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        write_contents(
            writer, scan, packer.files[rows.start : rows.stop], packer.tree, jobs=self.jobs,
            align=self.align, changed=packer.note_change, tell=tell,
        )  # fmt: skip


def _run(
    plan: PackPlan, packer: Packer, scan: Scan, executor: Executor, jobs: int | None,
    tell: Callable[[int, int], None], remote: RemoteOptions,
) -> PackReport:  # fmt: skip
    """Run all tasks of a plan, and commit. A failure removes the work place."""
    receipts: dict[int, Receipt] = {}
    try:

        def count(receipt: Receipt) -> None:
            receipts[receipt.task] = receipt
            tell(receipt.count, plan.parts[receipt.task].bytes)

        numbers = range(len(plan.parts))
        tasks = ((planned.task_of(plan, number, jobs, remote),) for number in numbers)
        run_all(executor, planned.run_task, tasks, target=plan.name, done=count)
        scan.forget()
        return planned.commit(plan, packer, remote, receipts)
    except BaseException:
        work_of(plan, remote).discard()
        raise


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

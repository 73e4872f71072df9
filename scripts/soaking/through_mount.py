"""Operations that read a mounted folder as ordinary programs do."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import stat
import subprocess
import tarfile
import zlib
from functools import partial
from pathlib import Path

from .contents import KIB, MIB, File
from .operations import TIMEOUT, Answer, Setting, operation
from .stage import XATTR

PAGE = 4096
STREAMED = 8 * MIB


class MountReader:
    """The operations of one reader of a mount."""

    def __init__(self, setting: Setting, point: Path) -> None:
        self._setting = setting
        self._plan = setting.plan
        self._chance = setting.chance
        self._point = point
        self._is_by_kernel = point == setting.stage.kernel_point
        self._scratch = setting.stage.scratch(setting.name)
        self._scratch.mkdir(exist_ok=True)
        self._direct_memory = mmap.mmap(-1, MIB)
        self._small = [file for file in self._plan.files if file.size < MIB]
        self._middle = [file for file in self._plan.files if MIB <= file.size < 10 * MIB]
        self._has_xattrs = XATTR in os.listxattr(self._at(self._plan.files[0]))

    @operation("whole file", 40)
    def whole_files(self) -> list[Answer]:
        files = self._chance.choices(self._small, k=8)
        return [self._setting.whole(file, self._at(file).read_bytes()) for file in files]

    @operation("pread", 40)
    def preads(self) -> list[Answer]:
        file = self._any_file()
        fd = os.open(self._at(file), os.O_RDONLY)
        try:
            return [self._pread(fd, file) for _ in range(4)]
        finally:
            os.close(fd)

    def _pread(self, fd: int, file: File) -> Answer:
        """Read at an unaligned offset and length, sometimes beyond the end."""
        offset = self._chance.randrange(file.size + 100)
        length = self._chance.choice([1, 100, PAGE, 50_000, 300_000])
        found = b""
        while len(found) < length and (
            more := os.pread(fd, length - len(found), offset + len(found))
        ):
            found += more
        return self._setting.part(file, offset, length, found)

    @operation("O_DIRECT", 40)
    def direct(self) -> list[Answer]:
        """Read with O_DIRECT, past the page cache: every read is a request to the mount."""
        file = self._any_file()
        if self._is_by_kernel:
            return [Answer("errno of O_DIRECT", self._refusal(file), lambda: errno.EINVAL)]
        fd = os.open(self._at(file), os.O_RDONLY | os.O_DIRECT)
        try:
            offset = self._chance.randrange(file.size + 1) & -PAGE
            length = self._chance.choice([PAGE, 16 * KIB, 128 * KIB, MIB])
            memory, count = memoryview(self._direct_memory)[:length], 0
            while count < length and (more := os.preadv(fd, [memory[count:]], offset + count)):
                count += more
            return [self._setting.part(file, offset, length, bytes(memory[:count]))]
        finally:
            os.close(fd)

    def _refusal(self, file: File) -> int | None:
        """Return the error of opening a file with O_DIRECT."""
        try:
            os.close(os.open(self._at(file), os.O_RDONLY | os.O_DIRECT))
        except OSError as error:
            return error.errno
        return None

    @operation("mmap", 15)
    def mapped(self) -> list[Answer]:
        file = self._any_file()
        if not file.size:
            return []
        offset = self._chance.randrange(file.size)
        length = min(self._chance.choice([1, 10_000, 200_000]), file.size - offset)
        with (
            open(self._at(file), "rb", buffering=0) as opened,
            mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapping,
        ):
            return [self._setting.part(file, offset, length, mapping[offset : offset + length])]

    @operation("stream", 3)
    def streamed(self) -> list[Answer]:
        """Read some megabytes of the big file in order, so that the kernel reads ahead."""
        file = self._plan.big
        begin = self._chance.randrange(0, max(1, file.size - STREAMED))
        found = b""
        with open(self._at(file), "rb", buffering=0) as opened:
            opened.seek(begin)
            while len(found) < STREAMED and (more := opened.read(256 * KIB)):
                found += more
        return [self._setting.part(file, begin, STREAMED, found[:STREAMED])]

    @operation("walk", 3)
    def walk(self) -> list[Answer]:
        """List a folder, and call stat for each name."""
        folder = self._chance.choice(list(self._plan.listings))
        found = []
        with os.scandir(self._point / folder) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                is_file = stat.S_ISREG(status.st_mode)
                found.append((entry.name, (status.st_size, status.st_mtime) if is_file else None))
        return [Answer(f"listing of {folder!r}", sorted(found), lambda: self._listing(folder))]

    def _listing(self, folder: str) -> list[tuple[str, tuple[int, float] | None]]:
        files = {file.path: (file.size, float(file.mtime)) for file in self._plan.files}
        return [(name, files.get(f"{folder}/{name}")) for name in self._plan.listings[folder]]

    @operation("xattr", 10)
    def xattrs(self) -> list[Answer]:
        file = self._chance.choice(self._small)
        path, plan, answers = self._at(file), self._plan, []
        if not self._is_by_kernel:
            crc = os.getxattr(path, "user.ffrecord.crc32")
            answers = [
                Answer(
                    f"crc32 of {path}", crc, lambda: b"%08x" % zlib.crc32(plan.content(file).data)
                )
            ]
        if self._has_xattrs:
            found = (os.listxattr(path), os.getxattr(path, XATTR))
            answers.append(
                Answer(f"xattr of {file.path}", found, lambda: ([XATTR], b"%d" % file.number))
            )
        return answers

    @operation("symlink", 10)
    def symlinks(self) -> list[Answer]:
        name, target = self._chance.choice(list(self._plan.links.items()))
        file = self._plan.files[int(name.partition("/")[2])]
        found = os.readlink(self._point / name)
        answers = [Answer(f"target of {name}", found, lambda: target)]
        if file.size < MIB:
            answers.append(self._setting.whole(file, (self._point / name).read_bytes()))
        return answers

    @operation("missing", 5)
    def missing(self) -> list[Answer]:
        """Look up a name for the first time, so that the daemon must answer that it is missing."""
        name = f"folder 00/no {self._setting.name} {self._chance.random()}"
        return [Answer(f"lexists {name}", os.path.lexists(self._point / name), lambda: False)]

    # ---- programs ------------------------------------------------------------------------

    @operation("md5sum", 0.6)
    def md5sum(self) -> list[Answer]:
        files = [*self._chance.choices(self._small, k=5), self._chance.choice(self._middle)]
        said = _run("md5sum", *[self._at(file) for file in files]).decode().splitlines()
        return [
            Answer(f"md5sum of {file.path}", line.partition(" ")[0], partial(self._md5, file))
            for file, line in zip(files, said, strict=True)
        ]

    def _md5(self, file: File) -> str:
        return hashlib.md5(self._plan.content(file).data).hexdigest()

    @operation("cp", 0.4)
    def copied(self) -> list[Answer]:
        file = self._chance.choice(self._middle)
        copy = self._scratch / "copy"
        try:
            _run("cp", "--preserve=timestamps", self._at(file), copy)
            return [
                self._setting.whole(file, copy.read_bytes()),
                Answer(f"mtime of {file.path}", int(copy.stat().st_mtime), lambda: file.mtime),
            ]
        finally:
            copy.unlink(missing_ok=True)

    @operation("tar", 0.2)
    def tar(self) -> list[Answer]:
        """Read a folder with tar through a pipe, as a backup does."""
        folder = f"folder {self._chance.randrange(20):02}"
        files = {file.path: file for file in self._plan.files}
        answers, names = [], []
        command = ["tar", "-cf", "-", "-C", str(self._point), folder]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE) as process,
            tarfile.open(fileobj=process.stdout, mode="r|") as archive,
        ):
            for member in archive:
                if not member.isfile():
                    continue
                names.append(member.name.partition("/")[2])
                content = archive.extractfile(member)
                assert content is not None
                if member.size < MIB:
                    answers.append(self._setting.whole(files[member.name], content.read()))
            assert process.stdout is not None
            process.stdout.read()  # tar pads its last block; closing the pipe early would kill it
        answers.append(Answer("tar's exit code", process.returncode, lambda: 0))
        due = self._plan.listings[folder]
        return [*answers, Answer(f"tar of {folder}", sorted(names), lambda: due)]

    # ---- choices -------------------------------------------------------------------------

    def _any_file(self) -> File:
        """Return a random file: half of the time a small one, although nearly all are small."""
        drawn = self._chance.random()
        if drawn < 0.5:
            return self._chance.choice(self._small)
        return self._plan.big if drawn < 0.7 else self._chance.choice(self._middle)

    def _at(self, file: File) -> Path:
        return self._point / file.path


def _run(*command: str | Path) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{command[0]} ended with exit code {done.returncode}: {done.stderr.decode()}"
        )
    return done.stdout

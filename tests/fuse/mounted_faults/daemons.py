"""Mounts for tests that kill or damage them: their processes, resources and remains.

No function here looks into a mount, because a mount may be dead or hang. Child processes look into
it, because they can be killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[3]
LIMIT = PATIENCE
"""Seconds after which a step counts as hanging. No test depends on a shorter time."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


@dataclass
class Daemon:
    """A mount whose supervisor is a child of this process."""

    point: Path
    log_file: Path
    process: subprocess.Popen[str]

    @property
    def workers(self) -> list[int]:
        return children(self.process.pid)

    @property
    def processes(self) -> list[int]:
        return [self.process.pid, *self.workers]

    def log(self) -> list[str]:
        return self.log_file.read_text().splitlines()

    def kill_worker(self, number: int) -> None:
        """Kill a worker, and wait until another has started."""
        before = self.workers
        victim = before[number % len(before)]
        os.kill(victim, signal.SIGKILL)
        self.wait_for_others([victim], len(before))

    def wait_for_others(self, killed: Collection[int], due: int) -> None:
        """Wait until `due` workers run. Ignore killed workers, which are listed for a while."""
        wait_until(lambda: len({*self.workers} - {*killed}) == due, "no other worker was started")

    def end(self) -> int:
        """Wait until the daemon ends by itself, and return its exit code."""
        return self.process.wait(LIMIT)


@contextlib.contextmanager
def daemon(
    archive: Path,
    point: Path,
    *arguments: str,
    command: Sequence[str] = ("-m", "ffrecord_fuse"),
    before: Sequence[str] = (),
) -> Iterator[Daemon]:
    """Mount in the foreground, and clean up in every case."""
    point.mkdir(exist_ok=True)
    log = point.with_name(point.name + ".log")
    process = subprocess.Popen(
        [*before, sys.executable, *command, str(archive), str(point), "-f", "--log", str(log),
         *arguments],
        cwd=ROOT, env=ENVIRONMENT, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    mounted = Daemon(point, log, process)
    due = int(arguments[arguments.index("--workers") + 1]) if "--workers" in arguments else 1
    due = 0 if "fusepy" in arguments else due  # libfuse serves in the supervisor's process
    workers: list[int] = []
    try:
        wait_until(
            lambda: (
                process.poll() is not None or (is_mounted(point) and len(mounted.workers) >= due)
            ),
            "the daemon does not mount",
        )
        assert process.poll() is None, process.communicate()[0]
        yield mounted
        workers = mounted.workers
    finally:
        release(point)
        process.kill()
        process.communicate(timeout=LIMIT)
    wait_until(lambda: not any(map(is_alive, workers)), "workers are left")


def release(point: Path) -> None:
    """Unmount everything that is mounted there. A daemon that ends may unmount at the same time."""

    def gone() -> bool:
        if is_mounted(point):
            subprocess.run(["umount", "--lazy", str(point)], check=False, timeout=LIMIT)
        return not is_mounted(point)

    wait_until(gone, f"{point} cannot be unmounted")


def is_mounted(point: Path) -> bool:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        return any(line.split()[4] == str(point) for line in mounts)


def connection(point: Path) -> int:
    """Return the number of a mount's connection, which is its device's number."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        found = [line.split()[2] for line in mounts if line.split()[4] == str(point)]
    return int(found[-1].split(":")[1])


def wait_until(happened: Callable[[], bool], else_say: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < deadline, else_say
        time.sleep(0.005)


# ---- processes -----------------------------------------------------------------------------


def status(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; an empty list for an ended process."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return raw.rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    state = status(pid)
    return bool(state) and state[0] not in "ZX"


def children(pid: int) -> list[int]:
    """Return the living children of a process, oldest first."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            state = status(int(name))
            if state and state[1] == str(pid) and state[0] not in "ZX":
                found.append((int(state[19]), int(name)))
    return [number for _, number in sorted(found)]


def ticks(pids: Sequence[int]) -> int:
    """Return the CPU time of processes, in hundredths of a second."""
    return sum(int(state[11]) + int(state[12]) for state in map(status, pids) if state)


def resident(pid: int) -> int:
    """Return the private memory of a process in bytes. Pages of the archive's index are shared."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# ---- readers -------------------------------------------------------------------------------

# Reads with O_DIRECT, so that every read is a request, and sends requests that the kernel does not
# cache. Ends at the first error, or when its input has ended and it has read something.
_READER = """
import mmap, os, random, select, sys
point, source, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
generator = random.Random(seed)
paths = [os.path.relpath(os.path.join(folder, name), source)
         for folder, _, names in os.walk(source) for name in names]
due = {path: open(os.path.join(source, path), "rb").read() for path in paths}
memory = mmap.mmap(-1, 1 << 20)
done = 0
print("ready", flush=True)
try:
    while not (done and select.select([0], [], [], 0)[0]):
        path = generator.choice(paths)
        whole = due[path]
        fd = os.open(os.path.join(point, path), os.O_RDONLY | os.O_DIRECT)
        try:
            offset = generator.randrange(len(whole) + 1) & -4096
            count = os.preadv(fd, [memory], offset)
        finally:
            os.close(fd)
        if memory[:count] != whole[offset : offset + (1 << 20)]:
            print("wrong", path, offset, count, flush=True)
            sys.exit(1)
        os.getxattr(os.path.join(point, path), "user.ffrecord.crc32")
        if os.path.lexists(os.path.join(point, f"missing {seed} {done}")):
            print("a name was found that does not exist", flush=True)
            sys.exit(1)
        os.statvfs(point)
        done += 1
except OSError as error:
    print("error", error.errno, flush=True)
    sys.exit(2)
print("done", done, flush=True)
"""


@dataclass
class Readers:
    processes: list[subprocess.Popen[str]]

    def stop(self) -> list[int]:
        """Stop the readers; return how many files each has read without an error."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        lines = [self._last_line(process) for process in self.processes]
        assert all(line.startswith("done ") for line in lines), lines
        return [int(line.split()[1]) for line in lines]

    def errors(self) -> set[int]:
        """Wait until each reader has met an error, and return the errors."""
        lines = [self._last_line(process) for process in self.processes]
        assert all(line.startswith("error ") for line in lines), lines
        return {int(line.split()[1]) for line in lines}

    def _last_line(self, process: subprocess.Popen[str]) -> str:
        process.wait(LIMIT)
        assert process.stdout is not None
        return (process.stdout.read().splitlines() or ["nothing"])[-1]


@contextlib.contextmanager
def readers(point: Path, source: Path, count: int) -> Iterator[Readers]:
    """Start processes that read the mount and compare it with the packed files."""
    started = [script(_READER, point, source, str(seed)) for seed in range(count)]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield Readers(started)
    finally:
        for process in started:
            end(process)


def script(text: str, *arguments: Path | str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)], text=True, env=ENVIRONMENT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(LIMIT)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


_ONE_READ = """
import errno, os, sys
offset, size = int(sys.argv[2]), int(sys.argv[3])
try:
    fd = os.open(sys.argv[1], os.O_RDONLY)
    data = b""
    while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
        data += more
except OSError as error:
    sys.exit(error.errno)
sys.stdout.buffer.write(data)
"""


def read(path: Path, offset: int = 0, size: int = 1 << 30) -> bytes:
    """Read from a mount that may hang, in a process that can be killed. Raise the read's error."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _ONE_READ, str(path), str(offset), str(size)],
        capture_output=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise OSError(done.returncode, done.stderr.decode() or os.strerror(done.returncode))
    return done.stdout


def error_of(path: Path, offset: int = 0, size: int = 1 << 30) -> str:
    """Return the name of the error of a read; empty if the read succeeds."""
    try:
        read(path, offset, size)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return ""


def damage_lines(log: Sequence[str]) -> dict[str, str]:
    """Return the files that the log calls damaged, each with its record and archive."""
    found = (re.search(r"damaged: /(.*) \((record \d+ of .*?)\)", line) for line in log)
    return {match[1]: match[2] for match in found if match}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `ffrecord …`."""
    return subprocess.run(
        [sys.executable, "-m", "ffrecord", *map(str, arguments)],
        cwd=ROOT, env=ENVIRONMENT, text=True, check=False, timeout=LIMIT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip

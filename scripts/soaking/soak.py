"""One soak from start to end: start all processes, disturb them, stop them, look for leftovers."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ffrecord.disk.slabs import SlabPool
from ffrecord.records import batch
from ffrecord_fuse.errors import MountError
from ffrecord_fuse.mounting.mount import unmount
from ffrecord_fuse.mounting.mounttable import find

from . import crew as processes
from .contents import FULL, LITTLE, MIB, Plan
from .crew import Crew
from .disturbances import Disturber
from .ledger import FAILURES, MISMATCHES, OPERATIONS, Ledger
from .network import serving
from .operations import Setting, choices, kinds, live
from .report import Report, finding
from .served import (
    WORKERS,
    Mounted,
    mounted,
    mounted_by_kernel,
    mounted_from,
    news_of_url,
    unmount_all,
)
from .stage import Stage
from .through_library import LOADER, LibraryReader
from .through_mount import MountReader
from .through_network import NetworkReader
from .through_writing import Cycler, Writer
from .trends import Watch

TICK = 0.05
SAMPLE_EVERY = 1.0
SHORT = 120.0
"""Seconds. A shorter soak reads less data and runs without torch, which takes seconds to start."""
PATIENCE = 60.0
"""Seconds after which an operation counts as hanging, by default."""
FEWEST_READS = 100
FEWEST_WRITES = 2
"""Operations of each actor before its memory can be judged: by then its pools are full."""
WRITER_PAUSE = 0.3
CYCLER_PAUSE = 1.0
SPARED_READER = "library 0"
SMALL_POOL = 32 * MIB
"""Memory that the spared reader may keep for reuse; the usual pool takes minutes to fill."""
MOUNT, LIBRARY, KERNEL, NETWORK, URL = "mount", "library", "kernel", "network", "URL mount"
READERS = (MOUNT, LIBRARY, KERNEL, NETWORK, URL, MOUNT)
"""Doors of the first six readers; then they begin again."""
INSTEAD = {KERNEL: MOUNT, URL: MOUNT, NETWORK: LIBRARY}
"""Doors of readers for which something is missing."""


@dataclass(frozen=True, slots=True)
class Order:
    """The options of a soak."""

    seconds: float
    seed: int
    readers: int
    workers: int = WORKERS
    patience: float = PATIENCE


@dataclass(slots=True)
class Soak:
    """The state of a running soak."""

    order: Order
    stage: Stage
    plan: Plan
    say: Callable[[str], None]
    problems: list[str] = field(default_factory=list)
    url: str = ""
    doors: set[str] = field(default_factory=lambda: {MOUNT, LIBRARY})
    """Doors that are open on this machine."""

    @property
    def is_short(self) -> bool:
        return self.order.seconds < SHORT

    def run(self) -> Report:
        watch = Watch()
        with ExitStack() as undo:
            # Callbacks run in reverse order: first unmount, so that no process hangs in the mount,
            # then kill the remaining processes.
            undo.callback(_kill_the_rest)
            processes.wait_for(processes.fork(lambda: self.stage.make(self.plan)))
            served = undo.enter_context(mounted(self.stage, self.order.workers))
            doors = undo.enter_context(ExitStack())
            self._open(doors)
            undo.callback(_ignore_interrupts)
            processes.go_first()
            crew = self._hire()
            disturber = self._begin(crew, served)
            began = time.monotonic()
            interrupted = self._watch_over(crew, served, disturber, watch)
            seconds = time.monotonic() - began
            disturber.end()
            all_ended = crew.finish(self.order.patience)
            stats: dict[str, int] = {}
            if all_ended:
                stats = self._last_look(served)
                self._unmount()
                doors.close()  # ends the server
                self._look_around(crew)
            news = [*served.news(), *news_of_url(self.stage)]
            self.problems += [f"in the mount's log: {line}" for line in news]
        return finding(
            self.order, seconds, crew, served, disturber, watch, stats, self.problems, interrupted
        )

    def _open(self, doors: ExitStack) -> None:
        """Start the other mounts and the server, where this machine can."""
        if doors.enter_context(mounted_by_kernel(self.stage)):
            self.doors.add(KERNEL)
        if importlib.util.find_spec("obstore") is None:
            self.say("no reader reads from a URL: obstore is not installed")
            return
        self.url = doors.enter_context(serving(self.stage.top))
        self.doors.add(NETWORK)
        archive = f"{self.url}/{self.stage.archive.name}"
        if doors.enter_context(mounted_from(archive, self.stage)):
            self.doors.add(URL)

    # ---- actors ----------------------------------------------------------------------------

    def _hire(self) -> Crew:
        """Make the actors. The first reader of each door is never killed."""
        order = self.order
        doors = [READERS[number % len(READERS)] for number in range(order.readers)]
        doors = [door if door in self.doors else INSTEAD[door] for door in doors]
        roles: list[type] = [MountReader, LibraryReader, Writer, Cycler]
        roles += [NetworkReader] if NETWORK in doors else []
        every_kind = [kind for role in roles for kind in kinds(role) if kind not in self.left_out]
        crew = Crew(Ledger(order.readers + 2, every_kind, self.stage.failures), order.seed)
        for number, door in enumerate(doors):
            before = doors[:number].count(door)
            name = f"{door} {before}"
            crew.add(name, self._work(name), spared=before == 0, fewest=FEWEST_READS)
        for name in ("writer", "cycler"):
            crew.add(name, self._work(name), spared=True, fewest=FEWEST_WRITES)
        return crew

    @property
    def left_out(self) -> set[str]:
        has_torch = importlib.util.find_spec("torch") is not None
        return set() if has_torch and not self.is_short else {LOADER}

    def _work(self, name: str) -> processes.Work:
        def work(chance: random.Random, ledger: Ledger, number: int) -> None:
            setting = Setting(name, self.plan, self.stage, chance, self.url)
            role, pause = _role(setting)
            # Only one reader has a loader, and it is never killed: a kill would leave torch's
            # shared memory behind.
            without = self.left_out if name == SPARED_READER else {LOADER}
            if name == SPARED_READER:
                batch._slabs = SlabPool(SMALL_POOL)
            offered = [choice for choice in choices(role) if choice.kind not in without]
            if LOADER in [choice.kind for choice in offered]:
                # Import torch before the first memory sample.
                importlib.import_module(".loading", __package__)
            live(setting, offered, pause, ledger, number)

        return work

    def _begin(self, crew: Crew, served: Mounted) -> Disturber:
        for actor in crew.actors:
            crew.start(actor)
        chance = random.Random(f"{self.order.seed} disturbances")
        return Disturber(crew, served, self.stage, chance, self.order.seconds)

    # ---- running -------------------------------------------------------------------------

    def _watch_over(self, crew: Crew, served: Mounted, disturber: Disturber, watch: Watch) -> bool:
        """Watch until the time is over and there is enough to judge; return True if interrupted.

        A busy machine does little in the requested time, so the soak continues if necessary.
        """
        began = time.monotonic()
        end = began + self.order.seconds
        next_sample = next_word = began
        try:
            while (now := time.monotonic()) < end or self._lacking(crew, disturber, watch):
                if now > end + self.order.patience:
                    lacking = self._lacking(crew, disturber, watch)
                    self.problems.append(
                        f"{now - began:.0f} s were not enough for a verdict: {lacking[0]}"
                    )
                    break
                disturber.act()
                if served.supervisor in crew.reap():
                    self.problems.append("the mount's supervisor ended")
                    break
                crew.kill_those_that_hang(self.order.patience)
                if now >= next_sample:
                    next_sample = now + min(SAMPLE_EVERY, self.order.seconds / 40)
                    self._sample(crew, served, watch)
                if now >= next_word:
                    next_word = now + (10.0 if sys.stdout.isatty() else 60.0)
                    self.say(_progress(now - began, crew, served))
                time.sleep(TICK)
        except KeyboardInterrupt:
            return True
        return False

    def _lacking(self, crew: Crew, disturber: Disturber, watch: Watch) -> list[str]:
        """List the conditions of a verdict that are not met yet; an empty list after a failure."""
        ledger = crew.ledger
        if ledger.total(FAILURES) or ledger.total(MISMATCHES):
            return []
        found = [f"too few samples of {name}" for name in watch.untold()]
        for actor in crew.actors:
            count = ledger.of_reader(actor.number, OPERATIONS)
            if count < actor.fewest:
                found.append(f"{actor.name} has done only {count} of {actor.fewest} operations")
        never = [each.name for each in disturber.all if each.is_lacking]
        if not self.is_short:
            never += [kind for kind in ledger.kinds if not ledger.of_kind(kind, OPERATIONS)]
        return found + [f"never happened: {name}" for name in never]

    def _sample(self, crew: Crew, served: Mounted, watch: Watch) -> None:
        """Sample descriptors and memory; the keywords say how much growth is tolerated."""
        watch.note_process("supervisor", served.supervisor, descriptors=0.5, mebibytes=2)
        watch.note_process("a spared worker", served.elder, descriptors=0.5, mebibytes=8)
        for actor in crew.actors:
            if actor.spared and actor.pid:
                watch.note_process(actor.name, actor.pid, descriptors=2, mebibytes=24)
        daemon = [served.supervisor, *served.workers]
        watch.note_sum("the mount", daemon, descriptors=4, mebibytes=24)
        watch.note("processes", 0, len(processes.descendants(os.getpid())), 4)

    # ---- ending --------------------------------------------------------------------------

    def _last_look(self, served: Mounted) -> dict[str, int]:
        """Check the idle mount: all workers live and no request waits. Return its counts."""
        self._wait_until(lambda: len(served.workers) == self.order.workers)
        if len(served.workers) != self.order.workers:
            self.problems.append(f"workers alive: {len(served.workers)} of {self.order.workers}")
        self._wait_until(lambda: served.waiting() <= 0)
        if served.waiting() > 0:
            self.problems.append(f"{served.waiting()} requests were never answered")
        stats = served.stats()
        if not stats:
            self.problems.append("the mount does not answer")
        for name in ("errors", "damaged_reads"):
            if stats.get(name):
                self.problems.append(f"the mount reports {stats[name]} {name}")
        if stats.get("restarts") != served.kills:
            self.problems.append(
                f"{served.kills} workers killed, {stats.get('restarts')} restarted"
            )
        return stats

    def _unmount(self) -> None:
        """Unmount as a user would."""
        for point in self.stage.points:
            try:
                if find(str(point)) is not None:
                    unmount(str(point))
            except MountError as error:
                self.problems.append(f"unmounting failed: {error}")

    def _look_around(self, crew: Crew) -> None:
        """Check that no process and no mount is left."""
        self._wait_until(lambda: not (crew.reap(), processes.descendants(os.getpid()))[1])
        for pid in processes.descendants(os.getpid()):
            self.problems.append(f"process {pid} is left: {_command(pid)}")
        for point in self.stage.points:
            if find(str(point)) is not None:
                self.problems.append(f"{point} is still mounted")

    def _wait_until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.order.patience
        while not happened() and time.monotonic() < deadline:
            time.sleep(processes.POLL)


def soak(order: Order, say: Callable[[str], None]) -> Report:
    """Run a soak in a temporary folder, which is removed in any case."""
    processes.adopt_orphans()
    top = Path(tempfile.mkdtemp(prefix="ffrecord-soak-"))
    stage = Stage(top)
    try:
        amount = LITTLE if order.seconds < SHORT else FULL
        return Soak(order, stage, Plan(order.seed, amount), say).run()
    finally:
        _ignore_interrupts()
        unmount_all(stage)
        shutil.rmtree(top)


def _ignore_interrupts() -> None:
    """Ignore further interrupts: the rest takes only a moment."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _role(setting: Setting) -> tuple[object, float]:
    """Return the role of an actor, and the longest pause between two operations in seconds."""
    if setting.name == "writer":
        return Writer(setting), WRITER_PAUSE
    if setting.name == "cycler":
        return Cycler(setting), CYCLER_PAUSE
    door = setting.name.rpartition(" ")[0]
    if door == LIBRARY:
        return LibraryReader(setting), 0.0
    if door == NETWORK:
        return NetworkReader(setting), 0.0
    points = {
        MOUNT: setting.stage.point,
        KERNEL: setting.stage.kernel_point,
        URL: setting.stage.url_point,
    }
    return MountReader(setting, points[door]), 0.0


def _kill_the_rest() -> None:
    """Kill descendants until none is left, because a dying process may leave others behind."""
    deadline = time.monotonic() + PATIENCE
    while (rest := processes.descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in rest:
            processes.send(pid, signal.SIGKILL)
        list(processes.dead_children())
        time.sleep(processes.POLL)


def _progress(seconds: float, crew: Crew, served: Mounted) -> str:
    ledger = crew.ledger
    return (
        f"{int(seconds) // 60:3}:{int(seconds) % 60:02}  {ledger.total(OPERATIONS):,} operations, "
        f"{ledger.total(MISMATCHES)} mismatches, {ledger.total(FAILURES)} failures, "
        f"{served.kills} workers and {crew.kills} readers killed"
    )


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return "(already gone)"

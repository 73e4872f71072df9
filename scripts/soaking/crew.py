"""The processes of a soak: forked, killed and started again, without losing any.

This process becomes the parent of every orphan of its descendants (PR_SET_CHILD_SUBREAPER), such
as daemons and the tools of a killed reader. All processes of a soak are therefore descendants of
this one, and a descendant that exists at the end was left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .ledger import FAILURES, Ledger

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL = 0.02
FIRST = -10
"""Niceness of the watching process: ahead of the readers, which keep every core busy."""
_libc = ctypes.CDLL(None, use_errno=True)

Work = Callable[[random.Random, Ledger, int], None]


@dataclass(slots=True)
class Actor:
    """A reader or writer: a row of the ledger, and one process after another."""

    number: int
    name: str
    work: Work
    spared: bool  # never killed, because its memory is watched
    fewest: int  # operations that are needed for a verdict
    pid: int = 0
    starts: int = 0


@dataclass(slots=True)
class Crew:
    """All actors, and the processes that were killed on purpose."""

    ledger: Ledger
    seed: int
    actors: list[Actor] = field(default_factory=list)
    kills: int = 0
    _killed: set[int] = field(default_factory=set)

    def add(self, name: str, work: Work, *, spared: bool, fewest: int) -> None:
        self.actors.append(Actor(len(self.actors), name, work, spared, fewest))

    def start(self, actor: Actor) -> None:
        """Start the actor's process in a new session, out of reach of a terminal's Ctrl-C.

        The process that waits for all actors handles Ctrl-C.
        """
        actor.starts += 1
        chance = random.Random(f"{self.seed} {actor.name} {actor.starts}")
        actor.pid = fork(lambda: actor.work(chance, self.ledger, actor.number))

    def kill(self, actor: Actor) -> None:
        """Kill an actor and all processes that it has started; `reap` starts it again."""
        self._killed.add(actor.pid)
        try:
            os.killpg(actor.pid, signal.SIGKILL)
        except ProcessLookupError:  # just forked: it has no process group yet
            send(actor.pid, signal.SIGKILL)

    def kill_one(self, chance: random.Random) -> None:
        """Kill a random actor, in the middle of an operation if it starts one within 20 ms."""
        candidates = [actor for actor in self.actors if actor.pid and not actor.spared]
        if not candidates:
            return
        victim = chance.choice(candidates)
        for _ in range(20):
            if self.ledger.at_work(victim.number) is not None:
                break
            time.sleep(0.001)
        self.kills += 1
        self.kill(victim)

    def reap(self) -> list[int]:
        """Collect dead processes and restart their actors; return the pids of others."""
        unknown = []
        for pid, status in dead_children():
            actor = next((actor for actor in self.actors if actor.pid == pid), None)
            if actor is None:
                unknown.append(pid)
                continue
            self._bury(actor, status)
            if not self.ledger.stopped:
                self.start(actor)
        return unknown

    def _bury(self, actor: Actor, status: int) -> None:
        pid, actor.pid = actor.pid, 0
        at = self.ledger.at_work(actor.number)
        self.ledger.forget(actor.number)
        if pid in self._killed:
            self._killed.discard(pid)
        elif status or not self.ledger.stopped:
            code = os.waitstatus_to_exitcode(status)
            doing = f" in {at[0]}" if at else ""
            self._blame(
                actor,
                at[0] if at else self.ledger.kinds[0],
                f"the process ended{doing} with exit code {code}",
            )

    def kill_those_that_hang(self, patience: float) -> None:
        """Kill and report each actor whose operation takes more than `patience` seconds."""
        for actor in self.actors:
            at = self.ledger.at_work(actor.number)
            if actor.pid and at is not None and at[1] > patience and actor.pid not in self._killed:
                self._blame(actor, at[0], f"{at[0]} hangs: running for {at[1]:.0f} s")
                self.kill(actor)

    def finish(self, patience: float) -> bool:
        """Let all actors end, and return True if all did.

        Actors that hang are reported and keep running.
        """
        self.ledger.stop()
        deadline = time.monotonic() + patience
        while any(actor.pid for actor in self.actors):
            self.reap()
            if time.monotonic() > deadline:
                break
            time.sleep(POLL)
        for actor in self.actors:
            if actor.pid:
                at = self.ledger.at_work(actor.number)
                kind, seconds = at or (self.ledger.kinds[0], patience)
                self._blame(actor, kind, f"{kind} hangs at the end: running for {seconds:.0f} s")
        return not any(actor.pid for actor in self.actors)

    def _blame(self, actor: Actor, kind: str, what: str) -> None:
        self.ledger.tell(actor.number, actor.name, kind, FAILURES, what)


# ---- processes -------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, and ignore SIGUSR1.

    Children inherit the ignored signal: a signal storm cannot kill a child that has not installed
    its handler yet.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def go_first() -> None:
    """Raise the priority of this process, if permitted, so that kills and samples are on time.

    Children do not keep the priority.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, FIRST)


def fork(work: Callable[[], None]) -> int:
    """Do `work` in a child that dies with this process, and return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() == parent:
            work()
            code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait_for(pid: int) -> None:
    """Wait for a child, and raise `RuntimeError` unless it succeeds."""
    _, status = os.waitpid(pid, 0)
    if status:
        code = os.waitstatus_to_exitcode(status)
        raise RuntimeError(f"a child ended with exit code {code}; its traceback is above")


def dead_children() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


def children(pid: int) -> list[int]:
    """Return the living children of a process, sorted by pid."""
    return [child for child, parent in sorted(_parents().items()) if parent == pid]


def descendants(pid: int) -> list[int]:
    """Return all living descendants of a process: children, their children and so on."""
    parents = _parents()
    found, above = [], {pid}
    while above:
        above = {child for child, parent in parents.items() if parent in above}
        found += sorted(above)
    return found


def _parents() -> dict[int, int]:
    """Return the parent of every living process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            state = _state(int(name))
            if state and state[0] not in "ZX":
                found[int(name)] = int(state[1])
    return found


def _state(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; an empty list if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal, and return False if the process no longer exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True

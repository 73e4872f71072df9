"""Run an operation with one fault at a time, in forked children.

A case is good if all of these hold:

- The operation gives the right result, or an error that names the file. It leaves behind only
  files that it may leave (`check_left`).
- The same operation then succeeds in the same process.
- No descriptor, thread or exception is left over.

Some faults must have no effect (a short count, an interrupt, no AIO). Others must always be
reported (fsync).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ffrecord.disk import aio
from ffrecord.errors import NoRoomError, ReadFailedError, UnclosedWarning, WriteFailedError
from tests.robustness.faults import children, shim
from tests.robustness.faults.children import BAD
from tests.robustness.faults.shim import Fault
from tests.support import handmade
from tests.support.patience import PATIENCE

SECONDS = 300.0
"""A case that takes longer is considered to hang. Most cases take a few milliseconds."""

NOT_REACHED = "not reached"
RIGHT = "right"

# Calls that may fail without an effect, because the package retries them or does without them.
DISPENSABLE = (
    "cachestat", "io_setup", "io_submit", "io_getevents", "completion", "ioctl", "allocate"
)  # fmt: skip
TRIED_AGAIN = ("open", "read", "write", "fsync", "truncate", "sendfile", "copy", "lock")
ALLOWED = (ReadFailedError, WriteFailedError, NoRoomError)
# Calls whose failure must be reported: otherwise lost data would be taken for written data.
VITAL = ("write", "fsync")


class Operation:
    """An operation on files, and the checks of its result."""

    allowed: tuple[type[Exception], ...] = ()
    """Errors that it may raise, besides errors of reading, writing and the operating system."""

    def prepare(self) -> None:
        """Make the source files, and remove the target or replace it by an old one."""
        raise NotImplementedError

    def run(self) -> Any:
        """Run the operation and return its result."""
        raise NotImplementedError

    def check(self, result: Any) -> None:
        """Check that the result is right."""
        raise NotImplementedError

    def check_left(self, fault: Fault) -> None:
        """Check the files that are left after a failure."""

    def prepare_again(self) -> None:
        """Prepare a second run after a failure. Clean up only as much as a user has to."""

    def kinds(self, call: str) -> Iterable[str]:
        """Return the kinds of faults to try with a call."""
        return shim.kinds(call)


@dataclass
class Tally:
    """The results of the cases of one operation."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    calls: dict[str, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)

    def add(self, fault: Fault, outcome: str) -> None:
        self.cases += 1
        if outcome.startswith(BAD):
            self.bad.append(f"{fault}: {outcome}")
            outcome = BAD
        self.outcomes[outcome] += 1

    def as_json(self) -> str:
        return json.dumps(vars(self))


@dataclass
class Series:
    """One kind of fault, tried at each of several calls in turn."""

    call: str
    kind: str
    lasting: bool
    numbers: Sequence[int]
    taken: int = 0


class Queue:
    """The cases that are left to run.

    With `every`, a series continues beyond the counted number of calls, because threads and the
    page cache can change this number. It ends at the first such call that is not reached.
    """

    def __init__(self, operation: Operation, calls: dict[str, int], *, every: bool) -> None:
        self._calls = calls
        self._series: deque[Series] = deque()
        for call, count in calls.items():
            for kind in operation.kinds(call):
                for lasting in (False, True):
                    numbers = range(2 * count + 1000) if every else _some(count, kind, lasting)
                    self._series.append(Series(call, kind, lasting, numbers))

    def __bool__(self) -> bool:
        while self._series and self._series[0].taken == len(self._series[0].numbers):
            self._series.popleft()
        return bool(self._series)

    def take(self) -> Fault:
        series = self._series[0]
        series.taken += 1
        return Fault(series.call, series.kind, series.numbers[series.taken - 1], series.lasting)

    def note(self, fault: Fault, outcome: str) -> None:
        if outcome == NOT_REACHED and fault.number >= self._calls[fault.call]:
            self._series.popleft()


def _some(count: int, kind: str, lasting: bool) -> Sequence[int]:
    """Return the numbers of calls to try without `--long`."""
    if kind in ("EIO", shim.SHORT):
        return [count // 2] if lasting else sorted({0, count - 1})
    if kind in ("EAGAIN", "EINTR", shim.NONE):  # retries must end
        return [0] if lasting else []
    return [] if lasting else [count - 1]


def run_all(operation: Operation, *, every: bool) -> Tally:
    """Run all cases, or a few for each call and kind of fault."""
    operation.prepare()  # before fsync is skipped: only pages on the disk can be evicted
    shim.skip_syncing()
    operation.check(operation.run())  # so that all modules are loaded before the first fault
    gc.collect()
    gc.freeze()
    (counted,) = children.texts(partial(_count, operation), SECONDS)
    assert not counted.startswith(BAD), counted
    tally = Tally(calls=json.loads(counted))
    queue = Queue(operation, tally.calls, every=every)
    while queue:
        _run_until_bad(operation, queue, tally)
    return tally


def _count(operation: Operation) -> Iterator[str]:
    operation.prepare()
    shim.arm(None)
    result = operation.run()
    shim.disarm()
    operation.check(result)
    yield json.dumps(shim.seen())


def _run_until_bad(operation: Operation, queue: Queue, tally: Tally) -> None:
    """Run cases in one child until one is bad."""
    outcomes = children.texts(partial(_run_in_child, operation, queue), SECONDS)
    while queue:
        outcome = next(
            outcomes, f"{BAD}: the child ended without a result"
        )  # the first next() forks
        fault = queue.take()
        queue.note(fault, outcome)
        if outcome != NOT_REACHED:
            tally.add(fault, outcome)
        if outcome.startswith(BAD):
            break
    outcomes.close()


def _run_in_child(operation: Operation, queue: Queue) -> Iterator[str]:
    lost: list[str] = []
    sys.unraisablehook = lambda what: lost.append(repr(what.exc_value))
    threading.excepthook = lambda what: lost.append(repr(what.exc_value))
    warnings.simplefilter("error", ResourceWarning)
    warnings.simplefilter("error", UnclosedWarning)
    gc.freeze()  # keep older objects out of each collection
    while queue:
        fault = queue.take()
        if fault.call == "io_setup":  # drop the kept contexts, so that io_setup is called
            aio.contexts.clear()
        outcome = _case(operation, fault)
        assert not lost, f"uncaught exceptions: {lost}"
        queue.note(fault, outcome)
        yield outcome


# ---- one case ------------------------------------------------------------------------------


def _case(operation: Operation, fault: Fault) -> str:
    operation.prepare()
    descriptors = handmade.open_descriptors()
    outcome = _faulty_run(operation, fault)
    if not shim.made():
        return NOT_REACHED
    if outcome.startswith(BAD):
        return outcome
    assert outcome == RIGHT or not _must_be_right(fault), f"must have no effect, but {outcome}"
    assert outcome != RIGHT or not _must_fail(fault), "the fault was not reported"
    if outcome != RIGHT:
        operation.check_left(fault)
    operation.prepare_again()
    operation.check(operation.run())
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(PATIENCE)  # a thread that reads the rest of a file ends after its step
    assert threading.active_count() == 1, f"threads are left: {threading.enumerate()}"
    now = handmade.open_descriptors()
    assert now == descriptors, f"{now - descriptors} descriptors are left"
    return outcome


def _faulty_run(operation: Operation, fault: Fault) -> str:
    told: tuple[type[BaseException], ...] = (*ALLOWED, *operation.allowed)
    shim.arm(fault)
    try:
        result = operation.run()
    except told as error:
        shim.disarm()
        return type(error).__name__
    except OSError as error:
        shim.disarm()
        if type(error).__module__ == "builtins" and _names_a_file(error):
            return "OSError"
        return f"{BAD}: {error!r}\n{traceback.format_exc()}"
    except BaseException as error:
        shim.disarm()
        return f"{BAD}: {error!r}\n{traceback.format_exc()}"
    shim.disarm()
    operation.check(result)
    return RIGHT


def _names_a_file(error: OSError) -> bool:
    name = error.filename
    return isinstance(name, (str, bytes)) and not os.fsdecode(name).startswith("/proc/")


def _must_be_right(fault: Fault) -> bool:
    if fault.call in DISPENSABLE or fault.kind in (shim.SHORT, shim.NONE):
        return True
    return fault.kind == "EINTR" and fault.call in TRIED_AGAIN


def _must_fail(fault: Fault) -> bool:
    return fault.call in VITAL and fault.kind in ("EIO", "EAGAIN", "ENOSPC")

"""Operations of readers and writers, grouped in classes called roles.

An operation reads or writes something and returns answers, each with the expected result.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from .contents import File, Plan
from .ledger import FAILURES, MISMATCHES, Ledger
from .stage import Stage

TIMEOUT = 600.0
"""Seconds after which a called program counts as hanging, even on a busy machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A result, and the function that computes the expected one after the clock has stopped."""

    what: str
    found: Any
    due: Callable[[], Any]


Operation: TypeAlias = Callable[[], "Sequence[Answer]"]
Method = TypeVar("Method", bound=Callable[..., "Sequence[Answer]"])


class Choice(NamedTuple):
    """An operation and its weight in the random choice."""

    kind: str
    weight: float
    operation: Operation


def operation(kind: str, weight: float) -> Callable[[Method], Method]:
    """Mark a method of a role as an operation."""

    def mark(method: Method) -> Method:
        method.chosen = (kind, weight)  # type: ignore[attr-defined]
        return method

    return mark


def kinds(role: type) -> list[str]:
    """Return the kinds of all operations of a role."""
    return [method.chosen[0] for method in vars(role).values() if hasattr(method, "chosen")]


def choices(role: object) -> list[Choice]:
    """Return the operations of an actor with this role."""
    return [
        Choice(method.chosen[0], method.chosen[1], getattr(role, name))
        for name, method in vars(type(role)).items()
        if hasattr(method, "chosen")
    ]


@dataclass(frozen=True, slots=True)
class Setting:
    """The objects that every role needs."""

    name: str
    plan: Plan
    stage: Stage
    chance: random.Random
    url: str
    """URL of the folder of the stage; empty if there is no server."""

    def part(self, file: File, offset: int, length: int, found: Any) -> Answer:
        """Return found bytes of a file as an answer. At the end of the file, fewer are expected."""
        length = max(0, min(length, file.size - offset))
        what = f"{file.path} [{offset}, {offset + length})"
        return Answer(what, found, lambda: self.plan.contents.bytes(file.number, offset, length))

    def whole(self, file: File, found: Any) -> Answer:
        return self.part(file, 0, file.size, found)


def live(
    setting: Setting, choices: Sequence[Choice], pause: float, ledger: Ledger, number: int
) -> None:
    """Do one operation after another until the ledger says stop."""
    # With a Python handler, every system call that the signal interrupts returns EINTR.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    weights = [choice.weight for choice in choices]
    while not ledger.stopped:
        (choice,) = setting.chance.choices(choices, weights)
        _do(setting, choice, ledger, number)
        time.sleep(pause * setting.chance.random())


def _do(setting: Setting, choice: Choice, ledger: Ledger, number: int) -> None:
    kind = choice.kind
    try:
        with ledger.timed(number, kind):
            answers = choice.operation()
    except Exception:
        ledger.tell(number, setting.name, kind, FAILURES, traceback.format_exc())
        return
    for answer in answers:
        if isinstance(answer.found, (bytes, np.ndarray)):
            ledger.add_bytes(number, kind, len(answer.found))
        problem = difference(answer)
        if problem:
            ledger.tell(number, setting.name, kind, MISMATCHES, problem)


def difference(answer: Answer) -> str:
    """Describe the error of an answer; return an empty string if it is right."""
    found, due = answer.found, answer.due()
    if not isinstance(due, np.ndarray):
        return "" if found == due else f"{answer.what}: found {found!r:.300}, expected {due!r:.300}"
    found = np.frombuffer(found, np.uint8)
    if len(found) != len(due):
        return f"{answer.what}: {len(found)} bytes instead of {len(due)}"
    wrong = (found != due).nonzero()[0]
    if not len(wrong):
        return ""
    first = int(wrong[0])
    return (
        f"{answer.what}: wrong bytes: {len(wrong)}, the first at {first}, the last at "
        f"{int(wrong[-1])}: found {found[first : first + 16].tobytes().hex()}, "
        f"expected {due[first : first + 16].tobytes().hex()}"
    )


def in_a_fork(work: Callable[[], str]) -> str:
    """Run `work` in a forked child; return its result, or the traceback if it raises.

    If the child is killed, the returned text ends with its wait status.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(told)
            said = work()
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(tell, said.encode()[:4000])
            os._exit(0)
    os.close(tell)
    with open(told, "rb") as pipe:
        words = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return words if not status else f"{words} (wait status {status})"

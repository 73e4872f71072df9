"""The work place of a plan whose target is in a store, which cannot rename objects.

A task puts its shard under its final name. A marker in the target says that it is not finished, and
our readers refuse a folder with a marker. The commit removes the marker as its last step, so all
shards count in the same moment. The work place is a prefix beside the target:

    shards/.ffrecord-unfinished          the marker: the key of the plan that owns the target
    shards/PART_00003.ffr                the shard of task 3
    .shards.work/6f1c09ab/files          the files of each task, for a plan that packs a folder
    .shards.work/6f1c09ab/receipts/3     its receipt, put when the store has the shard

A shard does not depend on the attempt, so it may be put twice. A new plan for the same target puts
its own key into the marker, which ends the plan before it: its tasks put nothing more. These rules
keep a late task of an ended plan from replacing a shard of the new one:

- A task first looks at the object, then at the marker, and then puts its shard. The put demands
  that the object is still the same. So if the new plan has put its shard before or since, the put
  fails, or the task sees the other key.
- A store cannot demand that for a shard in parts. So the commit first aborts all unfinished uploads
  to the target, and then compares every shard with its receipt.

Objects and receipts contain no credentials. Each process that uploads a shard has a record of it in
its cache folder (`ffrecord.remote.uploads`), so `ffrecord cache rm --unfinished` removes what a
kill left.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from ffrecord.errors import ChangedError, FFRecordError, PlanError, UrlError
from ffrecord.format.index import INDEX_NAME
from ffrecord.format.records import PART_NAME
from ffrecord.plan.receipts import (
    Receipt,
    Status,
    compared,
    damaged_receipt,
    files_of,
    parsed,
    require_all,
    wrong_shard,
)
from ffrecord.plan.requests import LONGEST_RECEIPT, Requests
from ffrecord.plan.values import Plan
from ffrecord.remote.answers import Place
from ffrecord.remote.files import MARKER, located
from ffrecord.remote.options import RemoteOptions
from ffrecord.remote.sending import Sent
from ffrecord.remote.target import files_inside, refuse_protocol
from ffrecord.remote.uploads import Record

TRIES = 5
"""Times that a task puts a shard. A try fails only if another process puts the same object."""

_NOBODY = ""  # key in the marker of a plan that is being discarded
_OURS = re.compile(
    rf"{PART_NAME.pattern}|{re.escape(INDEX_NAME)}|\d{{6,}}/[^/]+|(.+/)?\.[^/]+\.uploading"
)
"""Names that plans give to objects of a target."""


def located_target(target: Any, remote: RemoteOptions) -> tuple[str, RemoteOptions]:
    """Return the URL or key of a target, and the options that lead there."""
    path, options = located(target, remote)
    refuse_protocol(path, options.fs)
    if options.fs is not None:
        remote = {**remote, "fs": options.fs}
    return path.rstrip("/"), remote


class WorkPrefix:
    """The work prefix of one plan. `Work` explains the methods.

    Args:
        plan: the plan. Its target is a URL, or a key if `remote` has a store or a file system.
        remote: options for URLs.
    """

    def __init__(self, plan: Plan, remote: RemoteOptions) -> None:
        url, options = located(plan.target, remote)
        refuse_protocol(url, options.fs)
        self._plan = plan
        self._requests = Requests(options)
        self._target = self._requests.place(url.rstrip("/"))
        self.target = self._target.shown
        above, slash, name = url.rstrip("/").rpartition("/")
        if not name or not self._target.key.strip("/"):
            raise UrlError(f"{self.target}: is a whole bucket; name a folder in it")
        self._works = f"{above}{slash}.{name}.work"
        self._work = self._requests.place(self.inside(""))
        self._remote = remote

    @property
    def place(self) -> str:
        return self._work.shown.rstrip("/")

    @property
    def reading(self) -> RemoteOptions:
        return {**self._remote, "cache": False}

    def inside(self, name: str) -> str:
        return f"{self._works}/{self._plan.key}/{name}".rstrip("/")

    # ---- the marker ------------------------------------------------------------------------

    def owner(self) -> str | None:
        """Return the key in the marker; None if there is none, and the target is free.

        Raises:
            FileExistsError: the target has objects that no plan is writing.
        """
        owner = self._owner()
        if owner is None and self._objects():
            what = "already has objects, and nothing is added to them; choose another name"
            raise FileExistsError(errno.EEXIST, what, self.target)
        return owner

    def _owner(self) -> str | None:
        text = self._requests.read(self._target.inside(MARKER))
        return None if text is None else owner_in(text)

    def _mark(self, key: str, *, new: bool) -> None:
        self._requests.put(self._target, MARKER, {"plan": key}, new=new)

    def _require_own(self) -> None:
        """Raise PlanError unless this plan still owns the target."""
        if self._owner() != self._plan.key:
            raise self.gone()

    def gone(self) -> PlanError:
        """Return the error for a plan that does not own the target."""
        return PlanError(
            f"{self.target}: this plan has ended: the job was cancelled, or another plan for this "
            "target was made or committed; make a new plan"
        )

    def begin(self) -> None:
        owner = self.owner()
        self._mark(self._plan.key, new=owner is None)

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[str]:
        with self._requests.record(self._work) as record:
            path = os.path.join(record.staging, name)
            yield path
            record.plan([name], None)
            self._requests.send(record, [Sent(name, self._work.inside(name), path)])

    def discard(self) -> None:
        with contextlib.suppress(FFRecordError, OSError):
            if self._owner() == self._plan.key:
                self._mark(_NOBODY, new=False)  # from now on, tasks put nothing
                self._requests.abort_inside(self._target)
                names = [name for name in self._objects() if _OURS.fullmatch(name)]
                self._requests.remove(self._target, names)
                self._requests.remove(self._target, [MARKER])
                if not self._objects():
                    self._requests.remove_folders(self._target)
            self._remove_works([self._plan.key])

    def _objects(self) -> dict[str, int]:
        """Return the size of every object in the target."""
        return self._requests.objects(self._target)

    # ---- tasks -----------------------------------------------------------------------------

    def run(self, number: int, write: Callable[[str], Receipt], *, reuse: bool = True) -> Receipt:
        self._require_own()
        if reuse and (found := self._receipt(number)) is not None:
            return found
        try:
            receipt = self._write(number, write)
        except (FFRecordError, OSError) as error:
            if self._has_ended:  # that is the reason, such as an aborted upload
                raise self.gone() from error
            raise
        return self._leave(receipt)

    @property
    def _has_ended(self) -> bool:
        try:
            return self._owner() != self._plan.key
        except (FFRecordError, OSError):
            return False

    def _write(self, number: int, write: Callable[[str], Receipt]) -> Receipt:
        """Put the shard of a task; return its receipt."""
        with self._requests.record(self._target) as record:
            name = self._plan.shard_name(number)
            path = os.path.join(record.staging, name)
            receipt = write(path)
            receipt = replace(receipt, attempt=name, files=files_of(path))
            names = sorted(receipt.files, key=lambda each: (each == self._plan.COMPLETING, each))
            record.plan([_joined(name, each) for each in names], None)
            for each in names:
                self._put_shard(record, _joined(name, each), os.path.join(path, each).rstrip("/"))
        return receipt

    def _put_shard(self, record: Record, name: str, path: str) -> None:
        """Put a file of a shard, unless the target has it. See the rules above."""
        place = self._target.inside(name)
        for tries_left in reversed(range(TRIES)):
            found = self._requests.version(place)
            if found is not None and self._requests.is_same(found, path):
                return
            self._require_own()
            try:
                files = [Sent(name, place, path)]
                self._requests.send(record, files, new=found is None, over=found)
                return
            except (FileExistsError, ChangedError):
                if not tries_left:
                    raise

    def _leave(self, receipt: Receipt) -> Receipt:
        """Put the receipt of a task; return it, or the one of another attempt that was earlier."""
        name = _receipt_name(receipt.task)
        try:
            self._requests.put(self._work, name, asdict(receipt), new=True)
        except FileExistsError:
            receipt = self._receipt(receipt.task) or receipt
        if self._owner() != self._plan.key:  # nobody will read the receipt, or remove it
            self._remove_works([self._plan.key])
            raise self.gone()
        return receipt

    def receipts(self) -> dict[int, Receipt]:
        return self._receipts_of(self._receipt_numbers())

    def _receipts_of(self, tasks: list[int]) -> dict[int, Receipt]:
        """Return the receipts of these tasks that are there."""
        found = [self._work.inside(_receipt_name(task)) for task in tasks]
        texts = self._requests.read_all([(place, LONGEST_RECEIPT) for place in found])
        receipts = [
            _parsed(text, place.shown) for place, text in zip(found, texts, strict=True)
            if text is not None
        ]  # fmt: skip
        return {receipt.task: receipt for receipt in receipts}

    def _receipt_numbers(self) -> list[int]:
        names = self._requests.objects(self._work.inside("receipts"))
        return sorted(int(name) for name in names if re.fullmatch(r"\d+", name, re.ASCII))

    def _receipt_place(self, number: int) -> Place:
        return self._work.inside(_receipt_name(number))

    def _receipt(self, number: int) -> Receipt | None:
        place = self._receipt_place(number)
        text = self._requests.read(place)
        return None if text is None else _parsed(text, place.shown)

    # ---- the commit ------------------------------------------------------------------------

    def commit(
        self, is_committed: Callable[[Mapping[int, Receipt]], bool],
        finish: Callable[[str, Mapping[int, Receipt]], None] | None = None,
        receipts: Mapping[int, Receipt] | None = None,
    ) -> bool:  # fmt: skip
        """Compare the shards with their receipts, put the index, and remove the marker.

        `finish` writes the index into a local folder.
        """
        if self._is_published(is_committed):
            return False
        try:
            self._publish(finish, self.receipts() if receipts is None else receipts)
        except (PlanError, FileNotFoundError):  # another commit may have ended since
            if not self._is_published(is_committed):
                raise
            return False
        self._remove_works()
        return True

    def _is_published(self, is_committed: Callable[[Mapping[int, Receipt]], bool]) -> bool:
        """Return True if the plan was committed, and tidy up. Raise PlanError if it has ended."""
        owner = self._owner()
        if owner == self._plan.key:
            return False
        if owner is not None or not is_committed({}):
            raise self.gone()
        self._remove_works()
        return True

    def _publish(
        self, finish: Callable[[str, Mapping[int, Receipt]], None] | None,
        receipts: Mapping[int, Receipt],
    ) -> None:  # fmt: skip
        require_all(self._plan, receipts)
        self._requests.abort_inside(self._target)
        there = self._objects()
        due = self._compare(receipts, there)
        self._requests.remove(self._target, self._strays(there, due))
        with self._requests.record(self._target) as record:
            folder = os.path.join(record.staging, "index")
            os.mkdir(folder)
            if finish is not None:
                finish(folder, receipts)
            names = files_inside(folder)
            record.plan(names, None)
            files = [Sent(each, self._target.inside(each), f"{folder}/{each}") for each in names]
            self._requests.send(record, files)
        self._require_own()
        self._requests.remove(self._target, [MARKER])

    def _compare(self, receipts: Mapping[int, Receipt], there: Mapping[str, int]) -> set[str]:
        """Return the names of all objects of the shards, after comparing them with the receipts."""
        due: dict[str, tuple[int, list[int]]] = {}
        for number in range(len(self._plan.parts)):
            name = self._plan.shard_name(number)
            for each, facts in receipts[number].files.items():
                due[_joined(name, each)] = number, facts
        names = list(due)
        for name, (number, facts) in due.items():
            if there.get(name) != facts[0]:
                raise self._wrong(number)
        begins = self._requests.read_all(
            [(self._target.inside(name), compared(there[name])) for name in names]
        )
        for name, text in zip(names, begins, strict=True):
            number, facts = due[name]
            if text is None or zlib.crc32(text) != facts[1]:
                raise self._wrong(number)
        return set(due)

    def _wrong(self, number: int) -> PlanError:
        return wrong_shard(self._plan, number, self._receipt_place(number).shown)

    def _strays(self, there: Iterable[str], due: set[str]) -> list[str]:
        """Return the names of objects that earlier plans left in the target."""
        strays = sorted(set(there) - due - {MARKER})
        for name in strays:
            if not _OURS.fullmatch(name):
                what = "is not part of any plan; move it elsewhere, then commit again"
                raise FileExistsError(errno.EEXIST, what, f"{self.target}/{name}")
        return strays

    def status(self, is_committed: Callable[[Mapping[int, Receipt]], bool]) -> Status:
        tasks = len(self._plan.parts)
        owner = self._owner()
        works = self._listed_works()
        if owner is None and is_committed({}):
            return Status(tasks, [], True, self._shown_works(works))
        if owner != self._plan.key:
            return Status(tasks, [], False, self._shown_works(works), has_ended=True)
        done = set(self._receipt_numbers())
        missing = [number for number in range(tasks) if number not in done]
        names = tuple(self._plan.shard_name(number) for number in range(tasks))
        shards = {*names, MARKER}
        strays = sorted(
            f"{self.target}/{name}" for name in self._objects()
            if name.partition("/")[0] not in shards
        )  # fmt: skip
        works.discard(self._plan.key)
        return Status(tasks, missing, False, [*self._shown_works(works), *strays])

    # ---- work prefixes ---------------------------------------------------------------------

    def _listed_works(self) -> set[str]:
        """Return the keys of all plans for this target that left objects."""
        found = self._requests.objects(self._requests.place(self._works))
        return {name.partition("/")[0] for name in found}

    def _shown_works(self, keys: Iterable[str]) -> list[str]:
        top = self._requests.place(self._works).shown
        return [f"{top}/{key}" for key in sorted(keys)]

    def _remove_works(self, keys: Iterable[str] | None = None) -> None:
        """Remove the work prefixes of these plans, or of all plans for this target."""
        requests = self._requests
        top = requests.place(self._works)
        if keys is None:
            requests.abort_inside(top)
        for key in self._listed_works() if keys is None else keys:
            folder = top.inside(key)
            requests.abort_inside(folder)
            requests.remove(folder, requests.objects(folder))
            requests.remove_folders(folder)
        if not requests.objects(top):
            requests.remove_folders(top)


def _receipt_name(task: int) -> str:
    return f"receipts/{task}"


def _joined(shard: str, file: str) -> str:
    return f"{shard}/{file}" if file else shard


def _parsed(text: bytes, shown: str) -> Receipt:
    receipt = parsed(text, shown)
    if str(receipt.task) != shown.rpartition("/")[2]:  # that of another task
        raise damaged_receipt(shown)
    return receipt


def owner_in(marker: bytes) -> str:
    """Return the key in a marker; no text if the marker is damaged."""
    try:
        return str(json.loads(marker)["plan"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return _NOBODY

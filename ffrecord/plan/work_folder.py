"""The work folder of a plan with a local target: attempts of tasks, receipts, and the commit.

The folder is hidden beside the target: `.TARGET.KEY.packing`. Tasks may run on several machines
that share the file system. They may be killed, repeated, or run twice at once:

    attempts/0/000003-6f1c09ab       a shard, under a name that only this attempt uses
    attempts/0/000003-6f1c09ab.json  its receipt, written when the shard is on disk
    whole/PART_00003.ffr             a shard that a commit has named

An attempt counts when it has a receipt. The commit moves one attempt of each task to `whole`, adds
the index, and renames `whole` to the target. That last step is the only one that readers can see. A
commit that was killed is repeated from its first step: shards that have their name stay there.
Attempts that end during or after the commit never reach the target.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from ffrecord.atomic import locks
from ffrecord.atomic.file import sync_folder, write_file
from ffrecord.atomic.folder import (
    check_new_folder,
    hidden_name,
    make_hidden,
    remove_tree,
    rename_to_new,
)
from ffrecord.errors import FFRecordError, PlanError
from ffrecord.plan.receipts import (
    KEY_BYTES,
    Receipt,
    Status,
    damaged_receipt,
    files_of,
    new_key,
    parsed,
    require_all,
    wrong_shard,
)
from ffrecord.plan.values import PackPlan, Plan, WritePlan

if TYPE_CHECKING:
    from ffrecord.remote.options import RemoteOptions

_ATTEMPT = re.compile(r"(\d{6,})-[0-9a-f]+")
RECEIPT = ".json"
GROUP = 1000
"""Tasks whose attempts share a folder. A task lists that folder, so it must not be too long."""


class WorkFolder:
    """The work folder of one plan. `Work` explains the methods."""

    def __init__(self, plan: Plan) -> None:
        self.target = plan.target
        self._plan = plan
        self.path = hidden_name(plan.target, f"{plan.key}.{plan.DOING}")
        self._attempts = self.inside("attempts")
        self._whole = self.inside("whole")

    @property
    def place(self) -> str:
        return self.path

    @property
    def reading(self) -> RemoteOptions:
        return {}

    def inside(self, name: str) -> str:
        return os.path.join(self.path, name)

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[str]:
        yield self.inside(name)

    @property
    def exists(self) -> bool:
        return os.path.isdir(self._attempts) or os.path.isdir(self._whole)

    def begin(self) -> None:
        """Make the folder, for its owner only."""
        make_hidden(self.path, self.target)
        os.mkdir(self._attempts)

    def discard(self) -> None:
        """Remove the folder. An attempt that still runs may put its files there meanwhile."""
        for _ in range(3):
            if not os.path.lexists(self.path):
                return
            with contextlib.suppress(OSError):
                remove_tree(self.path)

    # ---- tasks -----------------------------------------------------------------------------

    def run(self, number: int, write: Callable[[str], Receipt], *, reuse: bool = True) -> Receipt:
        folder = self._folder(number)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            if reuse and (found := self._receipts_in(folder).get(number)) is not None:
                return self._receipt(found)
            return self._attempt(os.path.join(folder, f"{number:06}-{new_key()}"), write)
        except (FFRecordError, OSError) as error:
            if not os.path.isdir(self._attempts):  # that is the reason
                raise self.gone() from error
            raise

    def _attempt(self, path: str, write: Callable[[str], Receipt]) -> Receipt:
        try:
            receipt = replace(write(path), files=files_of(path))
            write_file(path + RECEIPT, json.dumps(asdict(receipt)).encode())
        except BaseException:
            with contextlib.suppress(OSError):
                remove_tree(path) if os.path.isdir(path) else os.unlink(path)
            raise
        return receipt

    def receipts(self) -> dict[int, Receipt]:
        """Return one receipt of each task that has one: of several, the first by name."""
        found: dict[int, str] = {}
        for folder in self._folders():
            found.update(self._receipts_in(folder))
        return {number: self._receipt(path) for number, path in found.items()}

    def _folder(self, number: int) -> str:
        """Return the folder for the attempts of a task."""
        return os.path.join(self._attempts, str(number // GROUP))

    def _folders(self) -> list[str]:
        try:
            return [os.path.join(self._attempts, name) for name in os.listdir(self._attempts)]
        except FileNotFoundError as error:
            raise self.gone() from error

    def _receipts_in(self, folder: str) -> dict[int, str]:
        """Return the path of one receipt of each task in a folder of attempts."""
        found: dict[int, str] = {}
        for name in sorted(_listed(folder), reverse=True):
            stem, suffix = os.path.splitext(name)
            if suffix == RECEIPT and (match := _ATTEMPT.fullmatch(stem)) is not None:
                found[int(match[1])] = os.path.join(folder, name)
        return found

    def _receipt(self, path: str) -> Receipt:
        with open(path, "rb") as file:
            receipt = parsed(file.read(), path)
        if receipt.attempt + RECEIPT != os.path.basename(path):  # that of another attempt
            raise damaged_receipt(path)
        return receipt

    def gone(self) -> PlanError:
        """Return the error for a plan whose work folder is missing, or that of another user."""
        if os.path.lexists(self.path) and not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            return PlanError(
                f"{self.path}: permission denied: only the user who made a plan can run its "
                "steps; run them as that user"
            )
        return PlanError(
            f"{self.target}: the work folder of this plan is missing: the job was cancelled, "
            "another plan was committed, or this machine does not share the folder of the target; "
            "make a new plan, with a target that all machines see"
        )

    # ---- the commit ------------------------------------------------------------------------

    def commit(
        self, is_committed: Callable[[Mapping[int, Receipt]], bool],
        finish: Callable[[str, Mapping[int, Receipt]], None] | None = None,
        receipts: Mapping[int, Receipt] | None = None,
    ) -> bool:  # fmt: skip
        """Name the shards and publish the target; return False if that was done before.

        `finish` adds the index to the folder of the named shards.
        """
        try:
            with self._locked():
                is_new = self._publish(is_committed, finish, receipts)
        except (PlanError, FileNotFoundError):  # another commit may have ended since
            if self.exists or not is_committed({}):
                raise
            is_new = False
        self.clean()
        return is_new

    def _publish(
        self, is_committed: Callable[[Mapping[int, Receipt]], bool],
        finish: Callable[[str, Mapping[int, Receipt]], None] | None,
        receipts: Mapping[int, Receipt] | None,
    ) -> bool:  # fmt: skip
        if not self.exists:
            raise self.gone()
        if receipts is None:
            receipts = self.receipts() if self._has_attempts else {}
        if self._may_be_published and is_committed(receipts):
            return False
        try:
            check_new_folder(self.target, "shards need a")
        except FileExistsError as error:
            error.strerror = "already exists; move it elsewhere, then commit again"
            raise
        require_all(self._plan, receipts)
        self._name_shards(receipts)
        if finish is not None:
            finish(self._whole, receipts)
        sync_folder(self._whole)
        rename_to_new(self._whole, self.target)
        sync_folder(os.path.dirname(self.target))
        return True

    @property
    def _may_be_published(self) -> bool:
        return not os.path.isdir(self._whole) and os.path.lexists(self.target)

    @property
    def _has_attempts(self) -> bool:
        return os.path.isdir(self._attempts)

    def clean(self) -> None:
        """Remove this folder, and those of cancelled plans for the same target."""
        remove_leftovers(self.target)
        self.discard()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other commits of this plan out."""
        try:
            fd = locks.open_locked(self.inside("lock"), 0o600, target=self.target)
        except OSError as error:
            if self.exists:
                raise
            raise self.gone() from error  # also if another commit has just removed the folder
        try:
            yield
        finally:
            locks.unlock(fd)
            os.close(fd)

    def _name_shards(self, receipts: Mapping[int, Receipt]) -> None:
        """Move one attempt of each task to its final name, in the folder that becomes the target.

        After a killed commit, some shards have their name already.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._whole)
        for number in range(len(self._plan.parts)):
            receipt = receipts[number]
            place = os.path.join(self._whole, self._plan.shard_name(number))
            attempt = os.path.join(self._folder(number), receipt.attempt)
            if os.path.lexists(attempt):  # otherwise it has been moved before
                if os.path.isdir(place):  # another attempt's, which a rename does not replace
                    remove_tree(place)
                os.rename(attempt, place)
            if files_of(place) != receipt.files:
                raise wrong_shard(self._plan, number, attempt + RECEIPT)

    def status(self, is_committed: Callable[[Mapping[int, Receipt]], bool]) -> Status:
        """Return the state of the plan."""
        tasks = len(self._plan.parts)
        if not self.exists:
            committed = is_committed({})
            litter = leftovers(self.target)
            return Status(tasks, [], committed, litter, has_ended=not committed)
        receipts = self.receipts() if self._has_attempts else {}
        others = [path for path in leftovers(self.target) if path != self.path]
        if self._may_be_published and is_committed(receipts):  # killed while it cleaned up
            return Status(tasks, [], True, [*others, self.path])
        missing = [number for number in range(tasks) if number not in receipts]
        used = {each.attempt for each in receipts.values()}
        used |= {each + RECEIPT for each in used}
        litter = [
            os.path.join(folder, name)
            for folder in self._folders() for name in sorted(_listed(folder)) if name not in used
        ]  # fmt: skip
        return Status(tasks, missing, False, [*others, *litter])


def _listed(folder: str) -> list[str]:
    """Return the names in a folder; none if it is missing, or a stray file."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def leftovers(target: str) -> list[str]:
    """Return the work folders of all plans for a target."""
    folder, name = os.path.split(target)
    ending = rf"[0-9a-f]{{{2 * KEY_BYTES}}}\.(?:{PackPlan.DOING}|{WritePlan.DOING})"
    pattern = re.compile(rf"\.{re.escape(name)}\.{ending}")
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.path for entry in entries
                if pattern.fullmatch(entry.name) and _is_own_folder(entry)
            )  # fmt: skip
    except PermissionError:  # the user may write to the folder but not read it
        return []
    except FileNotFoundError:  # this machine does not share it
        return []


def _is_own_folder(entry: os.DirEntry[str]) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # another commit has just removed it
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def remove_leftovers(target: str) -> None:
    """Remove the work folders of all plans for a target that has just been published."""
    for path in leftovers(target):
        with contextlib.suppress(OSError):
            remove_tree(path)


def size_of(path: str) -> int:
    """Return the size of a shard: a file, or a folder of files."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    with os.scandir(path) as entries:
        return sum(entry.stat().st_size for entry in entries)

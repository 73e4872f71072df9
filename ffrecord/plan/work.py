"""The work place of a plan: where its tasks leave shards and receipts until the commit.

There are two kinds: a hidden folder beside a local target, and a prefix beside a target in a store.
Both keep these promises. Tasks may run on several machines, be killed, repeated, or run twice at
once. A commit may be killed and repeated. Readers see the whole target or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ffrecord.atomic.folder import check_new_folder
from ffrecord.plan.receipts import Receipt, Status, new_key
from ffrecord.plan.values import Plan, WritePlan
from ffrecord.plan.work_folder import WorkFolder
from ffrecord.remote.urls import is_remote
from ffrecord.text import path_text

if TYPE_CHECKING:
    from ffrecord.errors import PlanError
    from ffrecord.remote.options import RemoteOptions

__all__ = [
    "IsCommitted",
    "Receipt",
    "Status",
    "Work",
    "locate",
    "new_key",
    "require_free",
    "work_of",
]

IsCommitted: TypeAlias = Callable[[Mapping[int, Receipt]], bool]
"""Tells whether the target has the shards of a plan, and of these receipts if there are any."""


class Work(Protocol):
    """The work place of one plan."""

    @property
    def place(self) -> str:
        """Path or URL of the work place, for messages."""

    @property
    def reading(self) -> RemoteOptions:
        """Options that a reader of a file inside needs."""

    def inside(self, name: str) -> str:
        """Return the path or the URL of a file inside."""

    def begin(self) -> None:
        """Make the work place of a new plan."""

    def new_file(self, name: str) -> AbstractContextManager[str]:
        """Yield the path at which to write a file that appears inside at the end of the block."""

    def discard(self) -> None:
        """Remove all that the plan left, after a failure. Nothing is raised."""

    def run(self, number: int, write: Callable[[str], Receipt], *, reuse: bool = True) -> Receipt:
        """Return the receipt of a task; let `write` write the shard to a path if there is none.

        `write` returns the receipt when the shard is on disk. An attempt that fails is removed.
        Without `reuse`, the shard is written in any case: it may have other rows than before.
        """

    def receipts(self) -> dict[int, Receipt]:
        """Return one receipt of each task that has one."""

    def commit(
        self, is_committed: IsCommitted,
        finish: Callable[[str, Mapping[int, Receipt]], None] | None = None,
        receipts: Mapping[int, Receipt] | None = None,
    ) -> bool:  # fmt: skip
        """Publish the shards; return False if that was done before.

        Args:
            is_committed: tells whether the target is complete.
            finish: writes the index into a folder. It may be called again after a kill.
            receipts: those that the tasks have returned to this process. Then the work place is
                not searched for them: on a network disk, its listing may be half a minute old.
        """

    def gone(self) -> PlanError:
        """Return the error for a plan that has ended, with the reason."""

    def status(self, is_committed: IsCommitted) -> Status:
        """Return the state of the plan."""


def work_of(plan: Plan, remote: RemoteOptions | None = None) -> Work:
    """Return the work place of a plan. A target behind a URL has the options `remote`."""
    if not is_remote(plan.target, remote):
        return WorkFolder(plan)
    from ffrecord.plan.work_prefix import WorkPrefix  # needed for URLs only

    return WorkPrefix(plan, remote or {})


def locate(target: Any, remote: RemoteOptions) -> tuple[str, RemoteOptions]:
    """Return the target of a plan as text, and the options that lead there."""
    from ffrecord.remote.options import refuse_for_paths  # needed only here

    if not is_remote(target, remote):
        refuse_for_paths(remote)
        return os.path.abspath(path_text(target)), {}
    from ffrecord.plan.work_prefix import located_target  # needed for URLs only

    return located_target(target, remote)


def require_free(target: str, remote: RemoteOptions) -> None:
    """Raise an error if a target from `locate` exists, or cannot be written."""
    if not is_remote(target, remote):
        check_new_folder(target, "shards need a")
        return
    from ffrecord.plan.work_prefix import WorkPrefix  # needed for URLs only

    WorkPrefix(WritePlan(target, "", (), "records"), remote).owner()

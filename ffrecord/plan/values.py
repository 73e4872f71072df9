"""Plans: small values that say which task writes which shard. They are picklable, and JSON.

A plan has only numbers for each task. The names of the files to pack are in the work folder, where
each task reads its own part. So a plan of 100,000 tasks has a few megabytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, fields
from typing import ClassVar, TypeVar

from ffrecord.aliases import Path
from ffrecord.atomic.file import write_file
from ffrecord.errors import PlanError, UrlError
from ffrecord.format import padding
from ffrecord.format.index import MAGIC
from ffrecord.format.records import part_name
from ffrecord.remote.urls import is_url, shown
from ffrecord.text import counted

VERSION = 1
LARGEST_PLAN = 1 << 28  # bytes: several times the plan of the most shards that are possible

AnyPlan = TypeVar("AnyPlan", bound="Plan")


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one shard. A row is a file of a folder, in path order, or a datapoint."""

    first: int
    count: int
    records: int = 0
    """Records of the shard: more than rows if there is padding."""
    bytes: int = 0
    """Bytes of the rows; 0 if they are not known beforehand."""

    @property
    def rows(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class Plan:
    """Base of plans: a target, and the rows of each of its shards.

    The target is an absolute path, a URL, or a key in a store that the caller has. `key` is a part
    of the name of the work place. It differs for every plan.
    """

    DOING: ClassVar[str]
    """Ending of the name of the work folder."""
    COMPLETING: ClassVar[str] = "spec.json"
    """The file that is put last of a shard with several files."""

    target: str
    key: str
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """The target for messages."""
        return shown(self.target)

    def shard_name(self, number: int) -> str:
        """Return the final name of a shard."""
        return part_name(number)

    def require_task(self, number: int) -> None:
        """Raise PlanError if the plan has no task of this number."""
        if not 0 <= number < len(self.parts):
            raise PlanError(
                f"{self.name}: the plan has no task {number}; it has "
                f"{counted(len(self.parts), 'task')}, numbered from 0"
            )

    def to_json(self) -> str:
        """Return the plan as text. `from_json` reads it."""
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        facts["parts"] = {
            each.name: [getattr(part, each.name) for part in self.parts] for each in fields(Part)
        }
        return json.dumps({"ffrecord": self.DOING, "version": VERSION, **facts}) + "\n"

    @classmethod
    def from_json(cls: type[AnyPlan], text: str | bytes, name: str = "the plan") -> AnyPlan:
        """Return the plan of a text. Errors call it `name`."""
        if isinstance(text, bytes) and text.endswith(MAGIC):
            raise PlanError(f"{name}: is a packed folder, not a plan; name the file of the plan")
        try:
            facts = json.loads(text)
            kind, version = facts.pop("ffrecord"), facts.pop("version")
            if kind != cls.DOING:
                raise PlanError(
                    f"{name}: this plan is for {kind!r}, not for {cls.DOING!r}; make a new plan"
                )
            if version != VERSION:
                raise PlanError(
                    f"{name}: the plan has version {version!r}, and this library reads version "
                    f"{VERSION}; make a new plan"
                )
            columns = facts.pop("parts")
            numbers = [each for some in columns.values() for each in some]
            if any(type(each) is not int or not 0 <= each < 1 << 63 for each in numbers):
                raise ValueError("a part is not made of whole numbers")
            rows = zip(*(columns[each.name] for each in fields(Part)), strict=True)
            plan = cls(parts=tuple(Part(*row) for row in rows), **facts)
            plan._check()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PlanError(f"{name}: not a plan, or damaged; make a new plan") from error
        return plan

    def _check(self) -> None:
        """Raise ValueError if a value of a plan that was read is wrong."""
        is_place = _is_path(self.target) or is_url(self.target)
        if not (is_place and self.key.isalnum() and self.key.isascii()):
            raise ValueError("its target or its key is wrong")
        rows = 0
        for part in self.parts:  # facts about files of other parts would be stored with wrong ones
            if part.first != rows:
                raise ValueError("its parts do not follow one another")
            rows += part.count

    def save(self, path: Path) -> None:
        """Write the plan to a file, in one step. The file has no credentials."""
        if not os.path.isabs(self.target) and self.target != self.name:
            raise UrlError(
                f"{self.name}: this URL has a user, a password or a query, which the file of the "
                "plan would keep; leave them out, and pass credentials in the environment"
            )
        write_file(os.path.abspath(os.fsdecode(path)), self.to_json().encode())

    @classmethod
    def load(cls: type[AnyPlan], path: Path) -> AnyPlan:
        """Read the plan from a file."""
        name = os.fsdecode(path)
        with open(path, "rb") as file:
            text = file.read(LARGEST_PLAN + 1)
        if len(text) > LARGEST_PLAN:
            raise PlanError(f"{name}: too large for a plan; name the file that --plan wrote")
        return cls.from_json(text, name)


def _is_path(path: str) -> bool:
    """Return True for an absolute path that a file can have."""
    return os.path.isabs(path) and b"\0" not in os.fsencode(path)


@dataclass(frozen=True)
class PackPlan(Plan):
    """Plan to pack a folder into shards."""

    DOING: ClassVar[str] = "packing"

    folder: str
    dereference: bool = False
    ignore_changed: bool = False
    legacy_index: bool = True
    align: int | None = None
    sizes: int = 0
    """CRC of the sizes of all records, as the shards will have them."""
    tree: int = 0
    """CRC of all names and times, as the index will have them."""

    def _check(self) -> None:
        super()._check()
        if any(type(each) is not int for each in (self.sizes, self.tree)):
            raise ValueError("a checksum is wrong")
        flags = self.dereference, self.ignore_changed, self.legacy_index
        if not _is_path(self.folder) or not all(isinstance(each, bool) for each in flags):
            raise ValueError("its folder or an option is wrong")
        padding.checked(self.align)


@dataclass(frozen=True)
class WritePlan(Plan):
    """Plan to write rows into shards: record files, or the parts of a typed dataset.

    The number of rows may be unknown until they are written: then the receipts say it.
    """

    DOING: ClassVar[str] = "writing"

    kind: str
    """`records` or `dataset`."""
    spec: dict[str, str] = field(default_factory=dict)
    """The type of each field of a dataset, if it is known beforehand."""

    def shard_name(self, number: int) -> str:
        return f"{number:06}" if self.kind == "dataset" else part_name(number)

    def _check(self) -> None:
        super()._check()
        if self.kind not in ("records", "dataset"):
            raise ValueError("its kind is wrong")
        if not all(isinstance(each, str) for pair in self.spec.items() for each in pair):
            raise ValueError("its spec is wrong")

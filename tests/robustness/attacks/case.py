"""`Case`: an attack's archives, and the result of opening and using them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ffrecord import PackedFolder
from ffrecord.archive.extract import extract
from ffrecord.errors import FFRecordError

Archive: TypeAlias = "bytes | dict[str, bytes]"  # a file, or a folder of files
Make: TypeAlias = "Callable[[], Archive | list[Archive]]"
Use: TypeAlias = "Callable[[PackedFolder], None]"

U64 = (1 << 64) - 1
U32 = (1 << 32) - 1


@dataclass(frozen=True)
class Case:
    """One attack.

    Without `use`, opening the case's archives must raise `error`, with `says` in the message. With
    `use`, opening must succeed, and `use` must raise the error. If `error` is None, the attack is
    harmless, and `use` must succeed.
    """

    title: str
    error: type[FFRecordError] | None
    says: str
    make: Make
    use: Use | None

    def archives(self) -> list[Archive]:
        made = self.make()
        if isinstance(made, list):
            return made
        return [made]


class Attacks:
    """The attacks of one module, in order."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def __call__(
        self, error: type[FFRecordError] | None, says: str = "", use: Use | None = None
    ) -> Callable[[Make], Make]:
        """Register a function that makes an archive, or a list of archives for several forms.

        The function's name is the attack's title in README.md and in the test's id.
        """

        def register(make: Make) -> Make:
            title = make.__name__.replace("_", " ")
            self.cases.append(Case(title, error, says, make, use))
            return make

        return register


def extracting(packed: PackedFolder) -> None:
    with tempfile.TemporaryDirectory() as dest:
        extract(packed.archive, dest)

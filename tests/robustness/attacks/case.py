"""What an attack is: archives, and what comes of opening and using them."""

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
    """One attack. Its archives must give `error`, with a message that has `says` in it, when they
    are opened; with `use`, when they were opened without one and are then used so. Without an
    error they are harmless, and `use` shows that."""

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
    """The attacks of one module, in its order."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def __call__(
        self, error: type[FFRecordError] | None, says: str = "", use: Use | None = None
    ) -> Callable[[Make], Make]:
        """A function that makes an archive, or several where one idea has several forms. Its name
        is the sentence that README.md and the test's id show."""

        def register(make: Make) -> Make:
            title = make.__name__.replace("_", " ")
            self.cases.append(Case(title, error, says, make, use))
            return make

        return register


def extracting(packed: PackedFolder) -> None:
    with tempfile.TemporaryDirectory() as dest:
        extract(packed.archive, dest)

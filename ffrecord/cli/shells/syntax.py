"""Words to complete: the commands, their arguments, and the kind of value of each argument."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Kind:
    """Kinds of values that arguments take. The bash script uses these words."""

    FILES, FOLDERS, WORDS, NOTHING = "files", "folders", "words", "nothing"
    INSIDE = "inside"  # paths in an archive
    LIST = "list"  # words separated by commas
    MOUNTS = "mounts"  # mountpoints of archives


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: an option, or a positional argument, which has no `names`."""

    names: tuple[str, ...]
    help: str
    kind: str | None  # kind of its value; None for a flag
    words: tuple[str, ...] = ()
    many: bool = False


@dataclass(frozen=True, slots=True)
class Syntax:
    """One command with its arguments."""

    name: str
    help: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> list[Argument]:
        return [each for each in self.arguments if each.names]

    @property
    def positional(self) -> list[Argument]:
        return [each for each in self.arguments if not each.names]


def names_of(arguments: Iterable[Argument]) -> str:
    return " ".join(name for each in arguments for name in each.names)


def filled(script: str, **parts: str) -> str:
    for name, part in parts.items():
        script = script.replace(f"@{name}@", part)
    return script

"""Words to complete: commands, their arguments, and what kind of thing each of those is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Kind:
    """The kinds of values that arguments take, as the script for bash has them."""

    FILES, FOLDERS, WORDS, NOTHING = "files", "folders", "words", "nothing"
    INSIDE = "inside"  # paths in an archive
    LIST = "list"  # words with commas between them
    MOUNTS = "mounts"  # where archives are mounted


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, or a positional argument, which has no `names`."""

    names: tuple[str, ...]
    help: str
    kind: str | None  # of its value; None for a flag
    words: tuple[str, ...] = ()
    many: bool = False


@dataclass(frozen=True, slots=True)
class Syntax:
    """A command's words."""

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

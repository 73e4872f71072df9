"""`ffrecord completion SHELL`: print a script that adds tab completion to bash, zsh or fish.

The script is generated from the parser of the command line. It completes commands, options, values
of options, files and folders. While the user types, it runs `ffrecord ls -p` for paths inside an
archive, and `ffrecord umount --list` for mountpoints.
"""

from __future__ import annotations

import argparse

from ffrecord.cli.arguments import COMMANDS, make_parser
from ffrecord.cli.shells.bash import bash_script
from ffrecord.cli.shells.fish import fish_script
from ffrecord.cli.shells.syntax import Argument, Kind, Syntax
from ffrecord.cli.shells.zsh import zsh_script
from ffrecord_fuse.mounting.options import offered

SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}

# Kinds of values by the argument's name. Other positional arguments take files. Values of other
# options are completed from their choices, or not at all.
KINDS = {
    "folder": Kind.FOLDERS, "mountpoint": Kind.FOLDERS, "directory": Kind.FOLDERS,
    "overlay": Kind.FOLDERS, "cache": Kind.FOLDERS, "url": Kind.NOTHING,
    "log": Kind.FILES, "path": Kind.INSIDE, "system": Kind.FILES,
}  # fmt: skip


def run(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell](syntaxes()), end="")
    return 0


def syntaxes() -> list[Syntax]:
    """Return the words of all commands."""
    parser = make_parser()
    # Private names: argparse has no public way to list a parser's arguments.
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    found = []
    for name, command in COMMANDS.items():
        actions = commands.choices[name]._actions
        found.append(Syntax(name, command.help, tuple(_argument(name, each) for each in actions)))
    return found


def _argument(command: str, action: argparse.Action) -> Argument:
    names, many = tuple(action.option_strings), action.nargs in ("*", "+")
    kind, words = _kind(command, action), tuple(map(str, action.choices or ()))
    if kind == Kind.LIST:
        words = tuple(offered())
    return Argument(names, action.help or "", kind, words, many)


def _kind(command: str, action: argparse.Action) -> str | None:
    if action.option_strings and action.nargs == 0:
        return None
    if action.choices is not None:
        return Kind.WORDS
    if (command, action.dest) == ("mount", "options"):
        return Kind.LIST
    if (command, action.dest) == ("umount", "mountpoint"):
        return Kind.MOUNTS
    return KINDS.get(action.dest, Kind.NOTHING if action.option_strings else Kind.FILES)

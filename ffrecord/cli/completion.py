"""`ffrecord completion SHELL`: a script that makes bash, zsh or fish complete the command's words.

It is made from the command line's own parser, so it knows what that knows: commands, options, the
values some options take, files and folders, the paths inside an archive, which `ffrecord ls -p`
lists when one is asked for, and what is mounted, which `ffrecord umount --list` does.
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

# What arguments are, by name; of the others, positional ones are files, and options words.
KINDS = {
    "folder": Kind.FOLDERS, "mountpoint": Kind.FOLDERS, "directory": Kind.FOLDERS,
    "log": Kind.FILES, "path": Kind.INSIDE, "system": Kind.FILES,
}  # fmt: skip


def run(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell](syntaxes()), end="")
    return 0


def syntaxes() -> list[Syntax]:
    """Return the words of all commands. argparse has no public way to list a parser's arguments."""
    parser = make_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    found = []
    for name, command in COMMANDS.items():
        actions = commands.choices[name]._actions
        found.append(Syntax(name, command.help, tuple(_argument(name, each) for each in actions)))
    return found


def _argument(command: str, action: argparse.Action) -> Argument:
    names, many = tuple(action.option_strings), action.nargs in ("*", "+")
    kind, words = _kind(command, action), tuple(action.choices or ())
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

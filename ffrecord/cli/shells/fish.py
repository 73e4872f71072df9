"""The script for fish."""

from __future__ import annotations

import shlex

from ffrecord.cli.shells.syntax import Argument, Kind, Syntax, filled

_FISH = r"""# fish completion of ffrecord; made by `ffrecord completion fish`

function __ffrecord_given # the arguments before the word that has been begun, without options
    set -l skip 2
    for word in (commandline -opc)
        if test $skip -gt 0
            set skip (math $skip - 1)
        else if contains -- $word @TAKING@
            set skip 1
        else if not string match -q -- '-*' $word
            echo -- $word
        end
    end
end

function __ffrecord_inside # what is in the folder of the path that has been begun
    set -l archive (__ffrecord_given)[1]
    set -l folder (string match -r -- '.*/' (commandline -ct))
    set -l listed .
    test -n "$folder"; and set listed $folder
    ffrecord ls -p --zero --color=never -- (string unescape -- $archive) $listed 2>/dev/null \
        | while read -z -l name
        # A completion is a line: it cannot have another one in it.
        string match -q -- '*'\n'*' $name; or echo -- "$folder$name"
    end
end

function __ffrecord_list # words, with commas between them
    set -l before (string match -r -- '.*,' (commandline -ct))
    for word in $argv
        echo -- "$before$word"
    end
end

function __ffrecord_mounts # where archives are mounted, and any folder
    set -l places (ffrecord umount --list 2>/dev/null)
    string replace -- "$PWD/" "" $places
    string join \n -- $places
    __fish_complete_directories
end

function __ffrecord_arguments # whether so many arguments have been given: at least, and at most
    set -l count (count (__ffrecord_given))
    test $count -ge $argv[1] -a $count -le $argv[2]
end

complete -c ffrecord -f
@LINES@
"""
_FISH_VALUES = {
    Kind.FILES: "-r -F", Kind.FOLDERS: "-x -a '(__fish_complete_directories)'",
    Kind.WORDS: "-x", Kind.NOTHING: "-x",
    Kind.INSIDE: "-x -a '(__ffrecord_inside)'", Kind.MOUNTS: "-x -a '(__ffrecord_mounts)'",
}  # fmt: skip
_MANY = 1_000_000


def fish_script(commands: list[Syntax]) -> str:
    lines = []
    for command in commands:
        lines.append(
            f"complete -c ffrecord -n __fish_use_subcommand -a {command.name} "
            f"-d {shlex.quote(command.help)}"
        )
        given = f"__fish_seen_subcommand_from {command.name}"
        for option in command.options:
            lines.append(_fish_line(option, given))
        for number, argument in enumerate(command.positional):
            most = _MANY if argument.many else number
            lines.append(_fish_line(argument, f"{given}; and __ffrecord_arguments {number} {most}"))
    taking = {name for each in commands for option in each.options if option.kind is not None
              for name in option.names}  # fmt: skip
    return filled(_FISH, LINES="\n".join(lines), TAKING=" ".join(sorted(taking)))


def _fish_line(argument: Argument, condition: str) -> str:
    words = ["complete -c ffrecord", f"-n {shlex.quote(condition)}"]
    for name in argument.names:
        words.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
    if argument.kind == Kind.LIST:
        words.append(f"-x -a {shlex.quote(f'(__ffrecord_list {chr(32).join(argument.words)})')}")
    elif argument.words:
        words.append(f"-x -a {shlex.quote(' '.join(argument.words))}")
    elif argument.kind is not None:
        words.append(_FISH_VALUES[argument.kind])
    if not argument.names:  # "required" is of an option's value
        words = [word.replace("-r -F", "-F").replace("-x -a", "-f -a") for word in words]
    else:
        words.append(f"-d {shlex.quote(argument.help)}")
    return " ".join(words)

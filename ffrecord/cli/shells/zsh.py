"""The script for zsh."""

from __future__ import annotations

import shlex

from ffrecord.cli.shells.syntax import Argument, Kind, Syntax, filled

_ZSH = r"""#compdef ffrecord
# zsh completion of ffrecord; made by `ffrecord completion zsh`

_ffrecord_inside() { # what is in the folder of the path that has been begun
    local folder archive=${(Q)line[1]}
    local -a names folders
    [[ $PREFIX == */* ]] && folder=${PREFIX%/*}/
    # Called as it is, not by _call_program, which evaluates: names are not ours to run.
    names=(${(0)"$(ffrecord ls -p --zero --color=never -- "$archive" \
        "${${(Q)folder}:-.}" 2>/dev/null)"})
    folders=(${(M)names:#*/})
    names=(${names:#*/})
    compadd -p "$folder" -a names
    compadd -p "$folder" -S '' -a folders
}

_ffrecord_list() { # words, with commas between them
    compset -P '*,'
    compadd -S '' -- ${(M)@:#*=}
    compadd -qS , -- ${@:#*=}
}

_ffrecord_mounts() { # where archives are mounted; else any folder
    local -a places
    places=(${(f)"$(ffrecord umount --list 2>/dev/null)"})
    [[ $PREFIX == /* ]] || places=(${places#$PWD/})
    compadd -a places || _files -/
}

_ffrecord() {
    local curcontext=$curcontext state
    local -a line commands
    typeset -A opt_args
    commands=(
@COMMANDS@
    )
    if ((CURRENT == 2)); then
        _describe command commands
        return
    fi
    local command=$words[2]
    shift words
    ((CURRENT--))
    case $command in
@CASES@
    esac
}

if [[ $funcstack[1] == _ffrecord ]]; then
    _ffrecord "$@"
else
    compdef _ffrecord ffrecord
fi
"""
_ZSH_VALUES = {
    Kind.FILES: "_files", Kind.FOLDERS: "_files -/", Kind.NOTHING: " ",
    Kind.INSIDE: "_ffrecord_inside", Kind.MOUNTS: "_ffrecord_mounts",
}  # fmt: skip


def zsh_script(commands: list[Syntax]) -> str:
    cases = []
    for command in commands:
        # In the order of the words: a list comes last.
        specs = [*map(_zsh_option, command.options), *_zsh_positional(command.positional)]
        lines = " \\\n".join(f"            {spec}" for spec in specs)
        cases.append(f"        {command.name})\n            _arguments -s \\\n{lines} ;;")
    names = [f"        {shlex.quote(f'{each.name}:{each.help}')}" for each in commands]
    return filled(_ZSH, COMMANDS="\n".join(names), CASES="\n".join(cases))


def _zsh_option(option: Argument) -> str:
    text = option.help.replace("]", r"\]").replace("[", r"\[").replace(":", r"\:")
    value = "" if option.kind is None else f":value:{_zsh_value(option)}"
    specs = []
    for name in option.names:
        # A long one may have its value behind "=", too.
        joined = "=" if value and name.startswith("--") else ""
        specs.append(shlex.quote(f"*{name}{joined}[{text}]{value}"))
    return " ".join(specs)


def _zsh_positional(arguments: list[Argument]) -> list[str]:
    return [
        shlex.quote(f"{'*' if each.many else number}:argument:{_zsh_value(each)}")
        for number, each in enumerate(arguments, 1)
    ]


def _zsh_value(argument: Argument) -> str:
    words = " ".join(argument.words)
    if argument.kind == Kind.LIST:
        return f" _ffrecord_list {words}"  # the space: without options for compadd
    return f"({words})" if words else _ZSH_VALUES[str(argument.kind)]

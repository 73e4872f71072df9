"""`ffrecord completion SHELL`: a script that makes bash, zsh or fish complete the command's words.

It is made from the command line's own parser, so it knows what that knows: commands, options, the
values some options take, files and folders, and the paths inside an archive, which `ffrecord ls -p`
lists when one is asked for.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ffrecord.cli.arguments import COMMANDS, make_parser

FILES, FOLDERS, INSIDE, WORDS, NOTHING = "files", "folders", "inside", "words", "nothing"

# What arguments are, by name; of the others, positional ones are files, and options words.
KINDS = {
    "folder": FOLDERS, "mountpoint": FOLDERS, "directory": FOLDERS, "log": FILES, "path": INSIDE,
}  # fmt: skip


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


def run(options: argparse.Namespace) -> int:
    print(SCRIPTS[options.shell](syntaxes()), end="")
    return 0


def syntaxes() -> list[Syntax]:
    """Of all commands. argparse has no public way to ask a parser for its arguments."""
    parser = make_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return [
        Syntax(name, COMMANDS[name].help, tuple(map(_argument, commands.choices[name]._actions)))
        for name in COMMANDS
    ]


def _argument(action: argparse.Action) -> Argument:
    names = tuple(action.option_strings)
    kind: str | None
    if names and action.nargs == 0:
        kind = None
    elif action.choices is not None:
        kind = WORDS
    else:
        kind = KINDS.get(action.dest, NOTHING if names else FILES)
    return Argument(
        names, action.help or "", kind, tuple(action.choices or ()), action.nargs in ("*", "+")
    )


# ---- bash ----------------------------------------------------------------------------------

_BASH = r"""# bash completion of ffrecord; made by `ffrecord completion bash`

_ffrecord_inside() { # archive, beginning of a path: what is in its folder
    local folder="" name
    [[ $2 == */* ]] && folder=${2%/*}/
    while IFS= read -r name; do
        [[ $folder$name == "$2"* ]] && COMPREPLY+=("$folder$name")
    done < <("$program" ls -p --color=never -- "$1" "${folder:-.}" 2>/dev/null)
    compopt -o filenames
    [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == */ ]] && compopt -o nospace
}

_ffrecord_value() { # kind, words
    case $1 in
        files) compopt -o default -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
        folders) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
        inside) _ffrecord_inside "$first" "$cur" ;;
        words) mapfile -t COMPREPLY < <(compgen -W "$2" -- "$cur") ;;
    esac
}

_ffrecord() {
    local program=${COMP_WORDS[0]/#\~\//"$HOME"/} command=${COMP_WORDS[1]}
    local cur=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} word first="" at
    local -i number=0 only_paths=0
    cur=${cur//\\/}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "@COMMANDS@" -- "$cur")
        return
    fi
    # "--option=value" comes as three words.
    [[ $cur == = ]] && cur="" && previous+==
    [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD - 2]}
    previous=${previous%=}
    local options="" with_value=" "
    case $command in
@OPTIONS@
        *) return ;;
    esac
    for ((at = 2; at < COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        if ((only_paths)); then :
        elif [[ $word == -- ]]; then only_paths=1; continue
        elif [[ $with_value == *" $word "* ]]; then
            ((at++))
            [[ ${COMP_WORDS[at]} == = ]] && ((at++))
            continue
        elif [[ $word == -?* ]]; then continue
        fi
        number+=1
        [[ $first ]] || first=${word//\\/}
    done
    if ((!only_paths)) && [[ $with_value == *" $previous "* ]]; then
        case $command:$previous in
@VALUES@
        esac
        return
    fi
    if ((!only_paths)) && [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi
    case $command:$number in
@POSITIONAL@
    esac
}

complete -F _ffrecord ffrecord
"""


def bash_script(commands: list[Syntax]) -> str:
    options, values, positional = [], [], []
    for command in commands:
        taking = [each for each in command.options if each.kind is not None]
        options.append(
            f'        {command.name}) options="{_names(command.options)}"'
            f' with_value=" {_names(taking)} " ;;'
        )
        for option in taking:
            patterns = "|".join(f"{command.name}:{name}" for name in option.names)
            values.append(f"            {patterns}) {_bash_value(option)} ;;")
        for number, argument in enumerate(command.positional):
            pattern = f"{command.name}:{'*' if argument.many else number}"
            positional.append(f"        {pattern}) {_bash_value(argument)} ;;")
    return _filled(
        _BASH, COMMANDS=" ".join(command.name for command in commands),
        OPTIONS="\n".join(options), VALUES="\n".join(values), POSITIONAL="\n".join(positional),
    )  # fmt: skip


def _bash_value(argument: Argument) -> str:
    words = f" {shlex.quote(' '.join(argument.words))}" if argument.words else ""
    return f"_ffrecord_value {argument.kind}{words}"


def _names(arguments: Iterable[Argument]) -> str:
    return " ".join(name for each in arguments for name in each.names)


def _filled(script: str, **parts: str) -> str:
    for name, part in parts.items():
        script = script.replace(f"@{name}@", part)
    return script


# ---- zsh -----------------------------------------------------------------------------------

_ZSH = r"""#compdef ffrecord
# zsh completion of ffrecord; made by `ffrecord completion zsh`

_ffrecord_inside() { # what is in the folder of the path that has been begun
    local folder archive=${(Q)line[1]}
    local -a names folders
    [[ $PREFIX == */* ]] && folder=${PREFIX%/*}/
    # Called as it is, not by _call_program, which evaluates: names are not ours to run.
    names=("${(@f)$(ffrecord ls -p --color=never -- "$archive" "${${(Q)folder}:-.}" 2>/dev/null)}")
    names=(${names:#})
    folders=(${(M)names:#*/})
    names=(${names:#*/})
    compadd -p "$folder" -a names
    compadd -p "$folder" -S '' -a folders
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
_ZSH_VALUES = {FILES: "_files", FOLDERS: "_files -/", INSIDE: "_ffrecord_inside", NOTHING: " "}


def zsh_script(commands: list[Syntax]) -> str:
    cases = []
    for command in commands:
        # In the order of the words: a list comes last.
        specs = [*map(_zsh_option, command.options), *_zsh_positional(command.positional)]
        lines = " \\\n".join(f"            {spec}" for spec in specs)
        cases.append(f"        {command.name})\n            _arguments -s \\\n{lines} ;;")
    names = [f"        {shlex.quote(f'{each.name}:{each.help}')}" for each in commands]
    return _filled(_ZSH, COMMANDS="\n".join(names), CASES="\n".join(cases))


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
    return f"({' '.join(argument.words)})" if argument.words else _ZSH_VALUES[str(argument.kind)]


# ---- fish ----------------------------------------------------------------------------------

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
    for name in (ffrecord ls -p --color=never -- (string unescape -- $archive) $listed 2>/dev/null)
        echo -- "$folder$name"
    end
end

function __ffrecord_arguments # whether so many arguments have been given: at least, and at most
    set -l count (count (__ffrecord_given))
    test $count -ge $argv[1] -a $count -le $argv[2]
end

complete -c ffrecord -f
@LINES@
"""
_FISH_VALUES = {
    FILES: "-r -F", FOLDERS: "-x -a '(__fish_complete_directories)'", WORDS: "-x", NOTHING: "-x",
    INSIDE: "-x -a '(__ffrecord_inside)'",
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
    return _filled(_FISH, LINES="\n".join(lines), TAKING=" ".join(sorted(taking)))


def _fish_line(argument: Argument, condition: str) -> str:
    words = ["complete -c ffrecord", f"-n {shlex.quote(condition)}"]
    for name in argument.names:
        words.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
    if argument.words:
        words.append(f"-x -a {shlex.quote(' '.join(argument.words))}")
    elif argument.kind is not None:
        words.append(_FISH_VALUES[argument.kind])
    if not argument.names:  # "required" is of an option's value
        words = [word.replace("-r -F", "-F").replace("-x -a", "-f -a") for word in words]
    else:
        words.append(f"-d {shlex.quote(argument.help)}")
    return " ".join(words)


SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}

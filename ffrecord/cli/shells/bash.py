"""The script for bash, 4.4 or newer.

Readline hands over the words as they stand on the line, with their quotes, and cut at every `=` and
`:`; what it is given back stands for the last of these pieces, and readline quotes it again.
Nothing of the line is ever evaluated: names are not ours to run.
"""

from __future__ import annotations

import shlex

from ffrecord.cli.shells.syntax import Argument, Syntax, filled, names_of

_BASH = r"""# bash completion of ffrecord; made by `ffrecord completion bash`

_ffrecord_unquote() { # word: REPLY is what the shell would make of it
    local text=$1 quote="" ansi="" char
    local -i at
    REPLY=""
    for ((at = 0; at < ${#text}; at++)); do
        char=${text:at:1}
        case $quote in
            "'")
                if [[ $char == "'" ]]; then quote=""; else REPLY+=$char; fi ;;
            '"')
                if [[ $char == '"' ]]; then quote=""
                elif [[ $char == \\ && ${text:at+1:1} == [\"\$\`\\] ]]; then
                    at+=1
                    REPLY+=${text:at:1}
                else REPLY+=$char; fi ;;
            '$')
                if [[ $char == "'" ]]; then quote="" REPLY+=${ansi@E} ansi=""
                elif [[ $char == \\ ]]; then
                    at+=1
                    ansi+=\\${text:at:1}
                else ansi+=$char; fi ;;
            *)
                if [[ $char == [\"\'] ]]; then quote=$char
                elif [[ ${text:at:2} == "\$'" ]]; then
                    at+=1
                    quote='$'
                elif [[ $char == \\ ]]; then
                    at+=1
                    REPLY+=${text:at:1}
                else REPLY+=$char; fi ;;
        esac
    done
    REPLY+=${ansi@E}
}

_ffrecord_words() { # words: those up to the cursor, put together again; piece: the last as it came
    local line=${COMP_LINE:0:COMP_POINT} rest
    local -i at
    words=()
    for ((at = 0; at <= COMP_CWORD; at++)); do
        rest=${line#"${line%%[![:space:]]*}"}
        piece=${COMP_WORDS[at]}
        ((at == COMP_CWORD)) && piece=$rest
        if ((at == 0)) || [[ $rest != "$line" ]]; then words+=("$piece")
        else words[${#words[@]} - 1]+=$piece; fi
        ((at)) && line=${rest#"$piece"} || line=${rest#*"$piece"}
    done
}

_ffrecord_offer() { # names: those that begin with $cur
    local name
    for name; do [[ $name == "$cur"* ]] && COMPREPLY+=("$name"); done
}

_ffrecord_inside() { # what is in the folder of the path that has been begun
    local folder="" name
    [[ $cur == */* ]] && folder=${cur%/*}/
    while IFS= read -r -d "" name; do
        _ffrecord_offer "$folder$name"
    done < <("$program" ls -p --zero --color=never -- "$first" "${folder:-.}" 2>/dev/null)
    compopt -o filenames
    [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == */ ]] && compopt -o nospace
}

_ffrecord_mounts() { # where archives are mounted; else any folder
    local place
    while IFS= read -r place; do
        [[ $cur != /* ]] && place=${place#"$PWD/"}
        _ffrecord_offer "$place"
    done < <("$program" umount --list 2>/dev/null)
    compopt -o filenames
    ((${#COMPREPLY[@]})) || mapfile -t COMPREPLY < <(compgen -d -- "$cur")
}

_ffrecord_value() { # kind, words
    local kind=$1 before=""
    shift
    case $kind in
        files) compopt -o default -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
        folders) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
        inside) _ffrecord_inside ;;
        mounts) _ffrecord_mounts ;;
        words) _ffrecord_offer "$@" ;;
        list)
            [[ $cur == *,* ]] && before=${cur%,*},
            _ffrecord_offer "${@/#/"$before"}"
            [[ ${#COMPREPLY[@]} -eq 1 && $COMPREPLY == *= ]] && compopt -o nospace ;;
    esac
}

_ffrecord_any() { # what may stand where the cursor is
    local command=${words[1]} previous=${words[last - 1]} options="" with_value=" " word first=""
    local -i number=0 only_paths=0 at
    if ((last == 1)); then
        _ffrecord_offer @COMMANDS@
        return
    fi
    case $command in
@OPTIONS@
        *) return ;;
    esac
    for ((at = 2; at < last; at++)); do
        word=${words[at]}
        if ((only_paths)); then :
        elif [[ $word == -- ]]; then only_paths=1; continue
        elif [[ $with_value == *" $word "* ]]; then ((at++)); continue
        elif [[ $word == -?* ]]; then continue
        fi
        number+=1
        if [[ ! $first ]]; then
            _ffrecord_unquote "${word/#\~\//"$HOME"/}"
            first=$REPLY
        fi
    done
    if ((!only_paths)) && [[ $cur == --*=* ]]; then
        previous=${cur%%=*} cur=${cur#*=}
    fi
    if ((!only_paths)) && [[ $with_value == *" $previous "* ]]; then
        case $command:$previous in
@VALUES@
        esac
    elif ((!only_paths)) && [[ $cur == -* ]]; then
        _ffrecord_offer $options
    else
        case $command:$number in
@POSITIONAL@
        esac
    fi
}

_ffrecord() {
    local program=${COMP_WORDS[0]/#\~\//"$HOME"/} piece whole cur REPLY
    local -a words
    local -i last before at
    COMPREPLY=()
    _ffrecord_words
    last=${#words[@]}-1
    _ffrecord_unquote "$piece"
    [[ $piece == [=:] ]] && REPLY=""
    before=-${#REPLY}
    _ffrecord_unquote "${words[last]}"
    whole=$REPLY cur=$REPLY
    _ffrecord_any
    # What stands before the last piece stays on the line.
    before+=${#whole}
    whole=${whole%"$cur"}
    for at in "${!COMPREPLY[@]}"; do
        COMPREPLY[at]=$whole${COMPREPLY[at]}
        COMPREPLY[at]=${COMPREPLY[at]:before}
    done
}

complete -F _ffrecord ffrecord
"""


def bash_script(commands: list[Syntax]) -> str:
    options, values, positional = [], [], []
    for command in commands:
        taking = [each for each in command.options if each.kind is not None]
        options.append(
            f'        {command.name}) options="{names_of(command.options)}"'
            f' with_value=" {names_of(taking)} " ;;'
        )
        for option in taking:
            patterns = "|".join(f"{command.name}:{name}" for name in option.names)
            values.append(f"            {patterns}) {_bash_value(option)} ;;")
        for number, argument in enumerate(command.positional):
            pattern = f"{command.name}:{'*' if argument.many else number}"
            positional.append(f"            {pattern}) {_bash_value(argument)} ;;")
    return filled(
        _BASH, COMMANDS=" ".join(command.name for command in commands),
        OPTIONS="\n".join(options), VALUES="\n".join(values), POSITIONAL="\n".join(positional),
    )  # fmt: skip


def _bash_value(argument: Argument) -> str:
    return " ".join([f"_ffrecord_value {argument.kind}", *map(shlex.quote, argument.words)])

"""`ffrecord completion`: the words that real shells offer for the beginning of a line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ffrecord.cli.completion import SCRIPTS, syntaxes
from ffrecord_fuse.mounting import options
from tests.cli.test_help import programs
from tests.support import archives, trees

# Words of a line, the last one incomplete -> completions.
OFFERED: dict[tuple[str, ...], set[str]] = {
    ("ffrecord", "ex"): {"extract"},
    ("ffrecord", "u"): {"umount"},
    ("ffrecord", "completion", ""): {"bash", "zsh", "fish"},
    ("ffrecord", "pack", "pho"): {"photos"},
    ("ffrecord", "pack", "--shard"): {"--shard-size"},
    ("ffrecord", "pack", "--align", ""): {"512"},
    ("ffrecord", "convert", "--to", "rec"): {"records", "recordio", "recordio-go"},
    ("ffrecord", "ls", "--color", "a"): {"auto", "always"},
    ("ffrecord", "ls", "photos.ffr", ""): {"cats/", "odd/", "top", "with space/"},
    ("ffrecord", "ls", "-l", "photos.ffr", "ca"): {"cats/"},
    ("ffrecord", "cat", "photos.ffr", "cats/"): {"cats/1", "cats/12", "cats/2"},
    ("ffrecord", "cat", "photos.ffr", "top", "cats/1"): {"cats/1", "cats/12"},
    ("ffrecord", "extract", "-C", "photos", "photos.ffr", "to"): {"top"},
    ("ffrecord", "extract", "photos.ffr", "-C", "pho"): {"photos"},
    ("ffrecord", "info", "photos."): {"photos.ffr"},
    ("ffrecord", "warm", "photos."): {"photos.ffr"},
    ("ffrecord", "warm", "photos.ffr", "ca"): {"cats/"},
    ("ffrecord", "mount", "photos.ffr", "ph"): {"photos"},
    ("ffrecord", "ls", "missing.ffr", ""): set(),
    ("ffrecord", "nonsense", ""): set(),
    ("ffrecord", "mount", "photos.ffr", "photos", "-o", "allow_r"): {"allow_root"},
    ("ffrecord", "mount", "-o", "wa"): {"warm"},
    ("ffrecord", "mount", "-o", "ro,no"): {f"ro,{word}" for word in options.offered()
                                          if word.startswith("no")},
    ("ffrecord", "umount", "pho"): {"photos"},  # nothing is mounted, so any folder is offered
}  # fmt: skip
BASH_ONLY: dict[tuple[str, ...], set[str]] = {
    ("ffrecord", "ls", "--color", "=", "al"): {"always"},
    ("ffrecord", "cat", "photos.ffr", "with\\ space/"): {"with space/in it"},
    ("ffrecord", "cat", "photos.ffr", "--", "to"): {"top"},
    ("ffrecord", "cat", "photos.ffr", '"with sp'): {"with space/"},
    ("ffrecord", "cat", "photos.ffr", "'with space/"): {"with space/in it"},
    ("ffrecord", "cat", "'photos.ffr'", "$'with\\x20sp"): {"with space/"},
    ("ffrecord", "cat", "photos.ffr", '"$(touch', "ran)"): set(),
    ("ffrecord", "cat", "photos.ffr", "odd/n"): {"odd/new\nline", "odd/not\udcff"},
    ("ffrecord", "cat", "photos.ffr", "odd/a", ":"): {"b=c"},  # the part after the colon
    ("ffrecord", "cat", "photos.ffr", "odd/a", ":", "b", "=", "c"): {"c"},
    ("ffrecord", "mount", "-o", "ro,verify", "=", "al"): {"always"},
    ("ffrecord", "mount", "-o", "ro,verify", "="): {"first", "always", "off"},
    ("ffrecord", "mount", "-o", "ui"): {"uid="},
}
BROKEN_AT = {":", "="}
"""Characters at which bash splits a word."""
BASH = """
compopt() { :; }  # works only while a user is typing
source "$1"
complete -p ffrecord >&2
shift
while [ $# -gt 0 ]; do
    COMP_WORDS=()
    while [ "$1" != ";" ]; do COMP_WORDS+=("$1"); shift; done
    COMP_LINE=$2 COMP_POINT=${#2}
    shift 2
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _ffrecord
    printf "%s\\t" "${COMPREPLY[@]}"
    printf "\\0"
done
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    names = ["cats/1", "cats/12", "cats/2", "top", "with space/in it"]
    names += ["odd/new\nline", "odd/not\udcff", "odd/a:b=c"]
    files = dict.fromkeys(names, b"")
    archives.pack(trees.plain_tree(tmp_path / "photos", files), tmp_path / "photos.ffr")
    for shell, script in SCRIPTS.items():
        (tmp_path / f".{shell}").write_text(script(syntaxes()))
    return tmp_path


def test_bash_offers_the_words_that_can_follow(place: Path, tmp_path: Path) -> None:
    cases = OFFERED | BASH_ONLY
    words = [word for line in cases for word in (*line, ";", typed(line))]
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", ".bash", *words], cwd=place, env=programs(tmp_path / "bin"),
        capture_output=True, check=True,
    )  # fmt: skip
    assert done.stderr == b"complete -F _ffrecord ffrecord\n"
    answers = done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    for line, offered in zip(cases, answers, strict=True):
        assert set(filter(None, offered.split("\t"))) == cases[line], line
    assert not (place / "ran").exists()


def typed(words: tuple[str, ...]) -> str:
    """Return the line that bash splits into these words."""
    line = ""
    for before, word in zip(("", *words), words, strict=False):
        line += word if not before or {before, word} & BROKEN_AT else f" {word}"
    return line


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_the_words_that_can_follow(place: Path, tmp_path: Path) -> None:
    lines = [" ".join(line) for line in OFFERED]
    script = "source .fish; for line in $argv; echo (string join '|' -- (complete -C $line)); end"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script, *lines], cwd=place,
        env={**programs(tmp_path / "bin"), "HOME": str(place)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for (line, due), answer in zip(OFFERED.items(), done.stdout.splitlines(), strict=True):
        # A description may follow a word, and a slash a folder on disk.
        found = {each.split("\t")[0] for each in answer.split("|")}
        assert due <= found | {each.rstrip("/") for each in found}, line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_an_installed_shell_accepts_its_script(shell: str, place: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", place / f".{shell}"], check=True)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_has_every_command_and_every_long_option(shell: str) -> None:
    script = SCRIPTS[shell](syntaxes())
    assert "@" not in script.replace("(@f)", "").replace('"$@"', "").replace("[@]", "").replace(
        "@:#", ""
    ).replace("@E", "").replace("{@", "")
    for command in syntaxes():
        assert command.name in script
        for option in command.options:
            name = max(option.names, key=len)
            due = (
                f"-l {name[2:]} " if shell == "fish" and name.startswith("--") else name.lstrip("-")
            )
            assert due in script, (command.name, name)

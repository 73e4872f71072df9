"""`--help`: its content, the modules that it imports, and examples, which must work as printed."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ffrecord import DatasetWriter, cli, encoders
from ffrecord.cli import arguments
from ffrecord.cli.arguments import COMMANDS, make_parser
from ffrecord.convert import FORMATS
from ffrecord.convert.formats.recordio import CODECS
from ffrecord.format.cachemap import MapHeader
from ffrecord.remote.cache.copy import Copy
from ffrecord.remote.cache.folder import CacheFolder
from ffrecord.version import __version__
from ffrecord_fuse import cli as fuse_cli
from tests.docs.pages import ROOT, table_rows
from tests.fuse.mounted import mounting
from tests.remote.servers import empty_bucket, variables
from tests.support import archives, handmade, trees
from tests.support.patience import PATIENCE

HEAVY = {
    "numpy",
    "torch",
    "tqdm",
    "isal",
    "libaio",
    "json",
    "ffrecord.records.reader",
    "ffrecord.convert",
}


def programs(folder: Path) -> dict[str, str]:
    """Return an environment in which `ffrecord` and `ffrecord-fuse` come from this checkout."""
    folder.mkdir()
    for name in ("ffrecord", "ffrecord_fuse"):
        program = folder / name.replace("_", "-")
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m {name} "$@"\n'
        )
        program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def examples_of(text: str) -> list[str]:
    """Return the commands below `examples:`, as a user would copy them."""
    _, found, lines = text.partition("\nexamples:\n")
    assert found
    return [line.strip() for line in lines.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with the files that the examples name. Unmount everything in it afterwards."""
    files = {f"cats/{i:04}.jpg": trees.content(1000 + i) for i in range(10)}
    trees.plain_tree(tmp_path / "photos", {**files, "a.tmp": b"x", "logs/1": b"line\n"})
    handmade.write_records(tmp_path / "train.ffr", [b"record %d" % i for i in range(10)])
    handmade.write_records(tmp_path / "broken.ffr", [b"record %d" % i for i in range(10)])
    archives.flip(tmp_path / "broken.ffr", 1)  # the header's checksum, so every record is found
    with DatasetWriter(tmp_path / "train", {"label": "int"}, encoders) as writer:
        writer.append({"label": 1})
    header = MapHeader(7, '"tag"', None, "s3://bucket/photos.ffr", 1)
    Copy(CacheFolder(str(tmp_path / "cached"), None), f"{1:032x}-{2:016x}", header)
    mountpoints = ("mounted", "elsewhere", "served", "remote")
    for folder in (*mountpoints, ".zfunc", ".config/fish/completions"):
        (tmp_path / folder).mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        for folder in mountpoints:
            stack.enter_context(mounting.released(tmp_path / folder))
        yield tmp_path


def test_every_example_works_as_it_is_printed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {**programs(place / "bin"), **variables(empty_bucket()), "HOME": str(place)}
    for command in COMMANDS:
        examples = examples_of(shown(capsys, command))
        assert examples == list(COMMANDS[command].examples)
        if command in ("mount", "umount") and (mounting.why_not() or os.geteuid() != 0):
            continue
        for line in examples:
            if command == "view":
                shown_until_interrupted(line, place, environment)
                continue
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line], cwd=place, env=environment,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            # Without syslog, `mount` prints the name of its log file.
            expected = ("(no syslog here)", "the kernel serves this mount; bytes are not verified")
            said = [each for each in done.stderr.splitlines() if not each.endswith(expected)]
            assert (done.returncode, said) == (0, []), line
    assert (place / "0007.jpg").read_bytes() == trees.content(1007)
    assert json.loads((place / "report.json").read_text())["ok"]
    assert b"a.tmp" not in (place / "clean.ffr").read_bytes()


def shown_until_interrupted(line: str, place: Path, environment: dict[str, str]) -> None:
    """Run `ffrecord view`, which serves a page until Ctrl-C."""
    with subprocess.Popen(
        ["bash", "-c", line], cwd=place, env={**environment, "BROWSER": "true"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        try:
            assert running.stdout.readline().startswith("http://127.0.0.1:"), line
        finally:
            os.killpg(running.pid, signal.SIGINT)
        assert running.wait(PATIENCE) == 0, line


def test_every_command_and_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    for name, command in COMMANDS.items():
        assert re.search(rf"^    {name}\s+{re.escape(command.help[:20])}", text, re.MULTILINE)
        (ROOT / f"ffrecord/cli/{name}.py").stat()
        explained = shown(capsys, name)
        for option in re.findall(r"^  (-.*)", explained, re.MULTILINE):
            # The help of a long option is on the next line.
            assert "  " in option or len(option) > 20, option


def test_the_groups_of_commands_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, listed = shown(capsys).partition("\ncommands:\n")
    groups = [
        (heading, re.findall(r"^    (\w+)", lines, re.MULTILINE))
        for heading, lines in re.findall(r"^  (\w.*):\n((?:    .*\n)+)", listed, re.MULTILINE)
    ]
    assert groups == [
        (heading, re.findall(r"`(\w+)`", commands))
        for heading, commands in table_rows("docs/commands.md", "Which command")
    ]
    assert [name for _, names in groups for name in names] == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_argument_has_the_name_that_help_shows(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usage, _, _ = shown(capsys, command).partition("\n\n")
    while usage != (outer := re.sub(r"\[[^][]*\]", "", usage)):  # [--system [PATH]]
        usage = outer
    words = usage.split()[3:]  # after `usage: ffrecord COMMAND`
    assert not [word for word in words if not word.isupper()]
    if not words:
        return  # umount --list and info --system need no argument
    with pytest.raises(SystemExit):
        cli.main([command])
    (missing,) = re.findall(r"required: (.*); see ", capsys.readouterr().err)
    assert missing.replace(",", "").split() == words


def test_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for main, name in ((cli.main, "ffrecord"), (fuse_cli.main, "ffrecord-fuse")):
        for option in ("--version", "-V"):
            with pytest.raises(SystemExit) as end:
                main([option])
            assert (end.value.code, capsys.readouterr().out) == (0, f"{name} {__version__}\n")


def test_the_help_of_ffrecord_fuse_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fuse_cli.main(["--help"])
    first, second, third = examples_of(capsys.readouterr().out)
    assert first.startswith("ffrecord-fuse photos.ffr ")
    assert second.startswith("mount -t fuse.ffrecord-fuse photos.ffr ")
    assert third.startswith("ffrecord-fuse s3://")


@pytest.mark.parametrize(
    "words", ["--help", "--version", "ls --help", "mount --help", "completion bash", "nonsense"]
)
def test_commands_without_a_file_import_no_slow_modules(words: str) -> None:
    assert HEAVY & imported_for(*words.split()) == set()


def imported_for(*words: str | Path) -> set[str]:
    """Return the modules that are loaded when the command has ended."""
    code = "import sys, ffrecord.cli as c\ntry: c.main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("words", ["--help", "--version", "pack --help", "nonsense"])
def test_commands_that_do_not_mount_do_not_import_the_mount(words: str) -> None:
    assert {"ffrecord_fuse", "subprocess", "socket"} & imported_for(*words.split()) == set()


def test_ls_of_a_file_imports_no_dataset_modules(tmp_path: Path) -> None:
    tree = trees.plain_tree(tmp_path / "tree", {"file": b"content"})
    archives.pack(tree, tmp_path / "a.ffr")
    loaded = imported_for("ls", tmp_path / "a.ffr")
    assert "ffrecord.archive.archive" in loaded
    assert {"ffrecord.dataset", "hashlib", "concurrent.futures"} & loaded == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_named_on_the_command_line_has_all_its_arguments(name: str) -> None:
    def help_of(parser: argparse.ArgumentParser) -> str:
        (commands,) = (a for a in parser._actions if a.dest == "command")
        return str(dict(commands.choices or {})[name].format_help())

    assert help_of(make_parser(["other", name, "words"])) == help_of(make_parser())


def test_the_choices_of_the_command_line_match_the_modules() -> None:
    """The command line keeps its own lists, so that it can show them without slow imports."""
    assert list(arguments.FORMATS) == list(FORMATS)
    assert arguments.CODECS == CODECS


@pytest.mark.parametrize("option", ["--no-progress", "--json", "--force"])
def test_similar_commands_have_the_same_options(option: str) -> None:
    long = {"pack", "extract", "convert", "verify", "salvage", "warm"}
    due = {
        "--no-progress": long,
        "--json": {*long, "info", "ls", "cache"},
        "--force": long - {"verify", "warm"},
    }[option]
    (commands,) = (a for a in make_parser()._actions if a.dest == "command")
    assert commands.choices is not None
    having = {
        name
        for name, parser in dict(commands.choices).items()
        if option in parser._option_string_actions
    }
    assert having == due

"""The commands on packed folders as users run them: output, exit codes, one line per error.

Most run in this process; those that are about the process run in one of their own.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import stat
import struct
import subprocess
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ffrecord import PackedFolder, cli
from ffrecord.dataset import DatasetWriter
from ffrecord.errors import (
    ChangedError,
    IndexChecksumError,
    IndexStructureError,
    NoRoomError,
    NotPackedFolderError,
    SampleChecksumError,
)
from ffrecord.format import records as record_layout
from tests.robustness.attacks import builders
from tests.support import archives, handmade, trees
from tests.support.trees import BLOCK

FILES = {
    "a.txt": b"first\n",
    "d/b": b"second\n",
    "d/e/c": b"third\n",
    "d/large": trees.content(3 * BLOCK + 7),
    "-rf": b"a name like an option\n",
    "z": b"",
    "empty/": b"",
}
USAGE, SYSTEM, NO_FOLDER, INTERRUPTED = 2, 13, 23, 130


@dataclass(frozen=True)
class Result:
    code: int
    out: bytes
    err: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def error(self) -> str:
        """The one line that it said on standard error."""
        assert self.err.count(b"\n") == 1, self.err.decode()
        return self.err.decode().rstrip("\n")


Command: TypeAlias = Callable[..., Result]


@pytest.fixture
def ffrecord(capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs a command line in this process."""

    def run(*arguments: str | Path) -> Result:
        try:
            code: Any = cli.main(list(map(str, arguments)))
        except SystemExit as end:  # argparse's way of saying that the command line is wrong
            code = end.code
        out, err = capsysbinary.readouterr()
        return Result(code, out, err)

    return run


def in_a_process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ffrecord", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=600, check=False, **options)


def in_a_shell(line: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which "$f" is the command and "$1" … are the arguments."""
    script = f'f() {{ "$PYTHON" -m ffrecord "$@"; }}; {line}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script, "bash", *map(str, arguments)],
        capture_output=True, timeout=600, check=False, env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = trees.plain_tree(tmp_path / "tree", FILES)
    (top / "link").symlink_to("d")
    os.link(top / "a.txt", top / "d/same")
    return top


@pytest.fixture
def archive(tree: Path, tmp_path: Path) -> Path:
    archives.pack(tree, tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.rich_tree(tmp_path_factory.mktemp("rich") / "tree")


@pytest.fixture(scope="module")
def rich_archive(rich: Path) -> Path:
    archives.pack(rich, rich.with_name("rich.ffr"))
    return rich.with_name("rich.ffr")


TOP = ["-rf", "a.txt", "d", "empty", "link", "z"]


# ---- pack ----------------------------------------------------------------------------------


def test_pack_says_what_it_packed(ffrecord: Command, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.ffr"
    result = ffrecord("pack", tree, out)
    size = sum(map(len, FILES.values()))
    counts = "6 files, 3 folders, 1 symlink, 1 hard link"
    assert result.lines == [f"{out}: {counts}, {size / 1000:.1f} kB"]
    assert (result.code, result.err) == (0, b"")
    with PackedFolder(out) as folder:
        assert folder.read("d/b").tobytes() == FILES["d/b"]


def test_pack_says_one_file_and_two_files(ffrecord: Command, tmp_path: Path) -> None:
    for count, words in ((0, "0 files"), (1, "1 file"), (2, "2 files")):
        tree = trees.plain_tree(tmp_path / f"{count}", {f"{k}": b"x" for k in range(count)})
        out = tmp_path / f"{count}.ffr"
        assert ffrecord("pack", tree, out).lines == [f"{out}: {words}, {count} B"]


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        (["--exclude", "*.txt", "--exclude=d/e"], {"a.txt", "d/e", "d/e/c"}),
        (["--exclude", "d/"], {"d", "d/b", "d/e", "d/e/c", "d/large", "d/same"}),
        (["--jobs", "1", "--no-progress", "--ignore-changed"], set()),
        (["--no-legacy-index"], set()),
        (["--shard-size", "100kB"], set()),
    ],
)
@pytest.mark.parametrize("place", ["before", "between", "after"])
def test_options_of_pack_may_stand_anywhere(
    place: str,
    options: list[str],
    left_out: set[str],
    ffrecord: Command,
    tree: Path,
    tmp_path: Path,
) -> None:
    words: list[Any] = ["pack", tree, tmp_path / "out"]
    at = {"before": 1, "between": 2, "after": 3}[place]
    result = ffrecord(*words[:at], *options, *words[at:])
    assert (result.code, result.err) == (0, b"")
    everything = {os.fsdecode(path) for path in trees.paths(tree)} - {"."}
    with PackedFolder(tmp_path / "out") as folder:
        assert set(map(str, folder.list(recursive=True))) == everything - left_out
        assert bool(folder.archive.legacy_size) == ("--no-legacy-index" not in options)
    assert (tmp_path / "out").is_dir() == ("--shard-size" in options)


def test_pack_dereferences_if_told_so(ffrecord: Command, tree: Path, tmp_path: Path) -> None:
    for option in ("-L", "--dereference"):
        assert ffrecord("pack", option, tree, tmp_path / f"o{option}").code == 0
        with PackedFolder(tmp_path / f"o{option}") as folder:
            assert not folder.is_symlink("link")
            assert folder.read("link/b").tobytes() == FILES["d/b"]


def test_what_is_skipped_is_one_line(ffrecord: Command, rich: Path, tmp_path: Path) -> None:
    result = ffrecord("pack", rich, tmp_path / "o.ffr")
    assert result.code == 0
    assert result.error == f"ffrecord: warning: {rich}: not packed: 1 fifo, 1 socket"


def test_pack_of_a_changing_file_is_one_line(
    ffrecord: Command, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open

    def opening(path: Any, *args: Any, **kwargs: Any) -> int:
        if path == os.fsencode(tree / "d/b"):
            (tree / "d/b").write_bytes(b"now it is longer than it was\n")
        return plain(path, *args, **kwargs)

    with monkeypatch.context() as changing:
        changing.setattr(os, "open", opening)
        result = ffrecord("pack", tree, tmp_path / "o.ffr")
    assert result.code == ChangedError.exit_code
    assert result.error.startswith(f"ffrecord: {tree}/d/b: changed")
    assert not (tmp_path / "o.ffr").exists()
    (tree / "d/b").write_bytes(b"short again\n")
    with monkeypatch.context() as changing:
        changing.setattr(os, "open", opening)
        result = ffrecord("pack", tree, tmp_path / "o.ffr", "--ignore-changed")
    assert result.code == 0
    assert result.error.startswith(f"ffrecord: warning: {tree}/d/b: changed")
    assert (tmp_path / "o.ffr").exists()


def test_an_interrupted_pack_says_so(
    ffrecord: Command, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "preadv", interrupt)
    result = ffrecord("pack", tree, tmp_path / "o.ffr")
    assert (result.code, result.error) == (INTERRUPTED, "ffrecord: interrupted")
    assert not (tmp_path / "o.ffr").exists()


def test_too_many_shards_are_one_line(
    ffrecord: Command, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.archive.pack.MOST_SHARDS", 2)
    result = ffrecord("pack", tree, tmp_path / "o", "--shard-size", "1B")
    assert result.code != 0
    assert "shard" in result.error


@pytest.mark.parametrize(
    ("size", "meant"),
    [
        ("10", "10 bytes"), ("1", "1 byte"), ("1.5", "1 byte"), ("999999", "999,999 bytes"),
        ("1000000", None), ("10B", None), ("1kB", None), ("0.5MB", None), ("10GB", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["pack", "convert"])
def test_a_shard_size_without_a_unit_is_warned_of(
    command: str, size: str, meant: str | None, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tree)
    trees.plain_tree(tree, {"a": b"12345678", "b": b"12345678"})
    options = ["--to", "tar"] if command == "convert" else []
    result = ffrecord(command, tree, tmp_path / "o", "--shard-size", size, *options)
    assert (result.code, len(result.lines)) == (0, 1)
    assert os.path.isdir(tmp_path / "o")
    if meant is None:
        assert result.err == b""
    else:
        why = f"--shard-size {size} is {meant}: is a unit missing, as in {size}MB or {size}GB?"
        assert result.error == f"ffrecord: warning: {why}"


# ---- wrong use -----------------------------------------------------------------------------

WRONG_WORDS = [
    [],
    ["nonsense"],
    ["pack"],
    ["pack", "{tree}"],
    ["pack", "{tree}", "{new}", "more"],
    ["pack", "{tree}", "{new}", "--nonsense"],
    ["pack", "{tree}", "{new}", "--jobs", "0"],
    ["pack", "{tree}", "{new}", "--jobs", "many"],
    ["pack", "{tree}", "{new}", "--shard-size", "large"],
    ["pack", "{tree}", "{new}", "--shard-size", "0"],
    ["pack", "{tree}", "{new}", "--exclude"],
    ["ls"],
    ["ls", "{archive}", "-x"],
    ["cat"],
    ["cat", "{archive}"],
    ["cat", "{archive}", "a.txt", "--record", "0"],
    ["cat", "{archive}", "--record", "x"],
    ["extract"],
    ["extract", "{archive}", "-C"],
    ["extract", "{archive}", "--nonsense"],
    ["extract", "{archive}", "a.txt", "-x"],
    ["verify"],
    ["info"],
    ["info", "{archive}", "{archive}"],
    ["info", "{archive}", "--", "{archive}"],
    ["info", "{archive}", "--json", "--", "{archive}"],
    ["pack", "{tree}", "{new}", "--", "more"],
    ["pack", "{tree}", "{new}", "--jobs", "1", "--", "more"],
    ["cat", "{archive}", "--record", "0", "--", "a.txt"],
]
WRONG_FILES = [
    (["pack", "{missing}", "{new}"], SYSTEM, "No such file"),
    (["pack", "{tree}/a.txt", "{new}"], SYSTEM, "a.txt"),
    (["pack", "{tree}", "{tree}"], SYSTEM, "folder is in the way"),
    (
        ["pack", "{tree}", "{missing}/new.ffr"],
        NO_FOLDER,
        "there is no folder {missing}; make it first",
    ),
    (["pack", "{tree}", "{archive}", "--shard-size", "1GB"], SYSTEM, "new folder"),
    (["pack", "{tree}", "{tree}", "--shard-size", "1GB"], SYSTEM, "new folder"),
    (["ls", "{missing}"], SYSTEM, "No such file"),
    (["ls", "{text}"], 3, "not an FFRecord file"),
    (["ls", "{records}"], NotPackedFolderError.exit_code, "not a packed folder"),
    (["ls", "{tree}"], SYSTEM, "no *.ffr file"),
    (["ls", "{archive}", "nothing"], SYSTEM, "{archive}: nothing: No such file"),
    (["ls", "{archive}", "a.txt/x"], SYSTEM, "a.txt/x: Not a directory"),
    (["cat", "{missing}", "x"], SYSTEM, "No such file"),
    (["cat", "{records}", "x"], NotPackedFolderError.exit_code, "not a packed folder"),
    (["cat", "{archive}", "nothing"], SYSTEM, "{archive}: nothing: No such file"),
    (["cat", "{archive}", "d"], SYSTEM, "d: Is a directory"),
    (["cat", "{archive}", "a.txt/"], SYSTEM, "a.txt/: Not a directory"),
    (["cat", "{archive}", "--record", "99"], USAGE, "record 99 is out of range"),
    (["extract", "{missing}", "-C", "{new}"], SYSTEM, "No such file"),
    (["extract", "{records}", "-C", "{new}"], NotPackedFolderError.exit_code, "packed folder"),
    (["extract", "{archive}", "-C", "{text}"], SYSTEM, "text: is not a folder"),
    (["extract", "{archive}", "-C", "{new}", "nothing"], SYSTEM, "{archive}: nothing: No such"),
    (["extract", "{archive}", "-C", "{new}", "d/nothing"], SYSTEM, "d/nothing: No such file"),
    (["extract", "{archive}", "-C", "{new}", "d", "nothing"], SYSTEM, "nothing: No such file"),
    (["info", "{missing}"], SYSTEM, "No such file"),
    (["info", "{text}"], 3, "not an FFRecord file"),
    (["info", "{program}"], 3, "not an FFRecord file, but a program or library"),
    (["info", "{claim}"], 4, "claim: truncated, or of another kind: "),
    (["pack", "{tree}", "/proc/new.ffr"], SYSTEM, "ffrecord: /proc/new.ffr: No such file"),
    (["salvage", "{records}", "/proc/new.ffr"], SYSTEM, "ffrecord: /proc/new.ffr: No such file"),
    (["convert", "{records}", "/proc/new.bag"], SYSTEM, "ffrecord: /proc/new.bag: No such file"),
    (["salvage", "{records}", "{archive}"], SYSTEM, "is there already; --force replaces it"),
    (["convert", "{records}", "{archive}"], SYSTEM, "is there already; --force replaces it"),
    (["convert", "{records}", "{records}", "--force"], 36, "of that format already"),
    (["convert", "{archive}", "{tree}", "--force"], SYSTEM, "is never replaced: remove it, or"),
    (["convert", "{tree}", "{new}.bag"], 36, "with --drop-names only the contents"),
    (["convert", "{tree}", "{new}.xyz"], 36, "name it with --to: records, packed, "),
    (["convert", "{text}", "{new}.bag"], 36, "name it with --from: records, packed, "),
]


@pytest.fixture
def places(tree: Path, archive: Path, tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "text").write_text("certainly not a record file\n")
    handmade.write_records(tmp_path / "records.ffr", [b"one", b"two"])
    shutil.copy("/bin/ls", tmp_path / "program")
    (tmp_path / "claim").write_bytes(struct.pack("<Iq", 12345, 1000) + bytes(100))
    return {
        "program": tmp_path / "program",
        "claim": tmp_path / "claim",
        "tree": tree,
        "archive": archive,
        "text": tmp_path / "text",
        "records": tmp_path / "records.ffr",
        "new": tmp_path / "new",
        "missing": tmp_path / "missing",
    }


@pytest.mark.parametrize("words", WRONG_WORDS, ids=" ".join)
def test_a_wrong_command_line_is_said_in_words(
    words: list[str], ffrecord: Command, places: dict[str, Path]
) -> None:
    result = ffrecord(*(word.format(**places) for word in words))
    assert (result.code, result.out) == (USAGE, b"")
    command = "".join(f" {word}" for word in words[:1] if word != "nonsense")
    assert result.error.startswith("ffrecord: ")
    assert result.error.endswith(f"; see `ffrecord{command} --help`")
    assert not places["new"].exists()


def test_only_what_is_missing_is_said_to_be(ffrecord: Command, archive: Path) -> None:
    for command, missing in (("ls", "ARCHIVE"), ("extract", "ARCHIVE"), ("cat", "FILE")):
        said = f"ffrecord: the following arguments are required: {missing}; see"
        assert ffrecord(command).error.startswith(said)
    assert "required: OUT; " in ffrecord("pack", archive).error


@pytest.mark.parametrize("command", ["ls", "cat", "extract"])
def test_a_name_like_an_option_is_told_from_one(
    command: str, ffrecord: Command, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = ffrecord(command, archive, "-rf")
    assert (refused.code, refused.out) == (USAGE, b"")
    assert (
        "unrecognized arguments: -rf; a name that begins with - goes behind --; " in refused.error
    )
    assert ffrecord(command, archive, "--", "-rf").code == 0
    assert "goes behind" not in ffrecord("extract", archive, "-C").error


def test_an_option_is_not_abbreviated(ffrecord: Command, archive: Path) -> None:
    refused = ffrecord("ls", "--recursiv", archive)
    assert refused.code == USAGE
    assert "unrecognized arguments: --recursiv" in refused.error


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--shard-size", "10XB", "not a size: '10XB'; write 500MB or 10GB"),
        ("--shard-size", "0", "a shard must be at least 1 byte, not 0"),
        ("--jobs", "abc", "must be a whole number from 1 on, not 'abc'"),
        ("--jobs", "0", "must be a whole number from 1 on, not '0'"),
        ("--jobs", "-3", "must be a whole number from 1 on, not '-3'"),
    ],
)
def test_a_wrong_number_is_said_in_words(
    option: str, value: str, said: str, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    result = ffrecord("pack", tree, tmp_path / "new", f"{option}={value}")
    assert result.code == USAGE
    assert said in result.err.decode().splitlines()[-1]
    assert "invalid" not in result.err.decode()


def test_a_size_of_400_digits_is_large_enough_for_all(
    ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    assert ffrecord("pack", tree, tmp_path / "new", "--shard-size", "9" * 400).code == 0
    assert sorted(os.listdir(tmp_path / "new")) == ["PART_00000.ffr", "index.ffr"]


@pytest.mark.parametrize(
    ("words", "code", "said"), WRONG_FILES, ids=[" ".join(words) for words, _, _ in WRONG_FILES]
)
def test_a_wrong_file_is_one_line(
    words: list[str], code: int, said: str, ffrecord: Command, places: dict[str, Path]
) -> None:
    result = ffrecord(*(word.format(**places) for word in words))
    assert result.error.startswith("ffrecord: ")
    assert said.format(**places) in result.error
    assert "b'" not in result.error
    assert (result.code, result.out) == (code, b"")
    assert not places["new"].exists()


@pytest.mark.parametrize("beside", [[], ["notes.txt"], ["records.ffr"], ["0.ffr", "notes.txt"]])
@pytest.mark.parametrize("words", ["ls {}", "cat {} a.txt", "extract {} -C new", "mount {} new"])
def test_a_folder_that_an_archive_lies_in_is_not_taken_for_it(
    words: str, beside: list[str], ffrecord: Command, archive: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    shutil.copy(archive, place / "photos.ffr")
    for name in beside:
        handmade.write_records(place / name, [b"record"])
    result = ffrecord(*words.format(place).split())
    due = IndexStructureError if "0.ffr" in beside else NotPackedFolderError
    assert (result.code, result.out) == (due.exit_code, b"")
    assert result.error.startswith(f"ffrecord: {place}: ")
    assert result.error.endswith(f" {place}/photos.ffr")
    assert not os.path.exists("new")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("--exlude=*.tmp", "is --exclude meant?"),
        ("--shardsize", "is --shard-size meant?"),
        ("--dereferense", "is --dereference meant?"),
        ("--compress", "a name that begins with - goes behind --"),
        ("-x", "a name that begins with - goes behind --"),
    ],
)
def test_a_misspelled_option_is_told_which_one_is_meant(
    given: str, hint: str, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    refused = ffrecord("pack", tree, tmp_path / "new.ffr", given)
    assert refused.code == USAGE
    assert refused.error.endswith(
        f"unrecognized arguments: {given}; {hint}; see `ffrecord pack --help`"
    )


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("unmount", "; is umount meant?"), ("moutn", "; is mount meant?"),
        ("verfiy", "; is verify meant?"), ("extrcat", "; is extract meant?"),
        ("unpack", ""), ("nonsense", ""),  # the opposite of pack is not pack
    ],
)  # fmt: skip
def test_a_misspelled_command_is_told_which_one_is_meant(
    given: str, hint: str, ffrecord: Command
) -> None:
    refused = ffrecord(given, "x")
    assert (refused.code, refused.out) == (USAGE, b"")
    assert refused.error.startswith(f"ffrecord: argument COMMAND: invalid choice: '{given}' (")
    assert refused.error.endswith(f"){hint}; see `ffrecord --help`")
    with_option = ffrecord(given, "-l", "x").error
    assert hint in with_option
    assert bool(hint) != ("goes behind --" in with_option)


def test_help_names_every_command(ffrecord: Command) -> None:
    result = ffrecord("--help")
    assert result.code == 0
    for command in ("pack", "ls", "cat", "extract", "info", "verify"):
        assert command in result.out.decode()
        assert ffrecord(command, "--help").code == 0


# ---- ls ------------------------------------------------------------------------------------


def test_ls_shows_the_names_of_a_folder_in_order(ffrecord: Command, archive: Path) -> None:
    assert ffrecord("ls", archive) == Result(0, "".join(f"{n}\n" for n in TOP).encode(), b"")
    assert ffrecord("ls", archive, "d").lines == ["b", "e", "large", "same"]
    assert ffrecord("ls", archive, "d/e/").lines == ["c"]
    assert ffrecord("ls", archive, "link/").lines == ["b", "e", "large", "same"]
    assert ffrecord("ls", archive, "empty").out == b""
    for top in ("", "/", ".", "d/.."):
        assert ffrecord("ls", archive, top).lines == TOP


def test_ls_of_a_file_shows_its_name(ffrecord: Command, archive: Path) -> None:
    for name in ("a.txt", "d/e/c", "link", "/d/b"):
        (line,) = ffrecord("ls", archive, name).lines
        assert line.lstrip("/") in (name.lstrip("/"), os.path.basename(name))


def test_ls_of_shards_is_that_of_one_file(
    ffrecord: Command, tree: Path, archive: Path, tmp_path: Path
) -> None:
    archives.pack(tree, tmp_path / "shards", shard_size=100)
    for options in ([], ["-l"], ["-R"], ["--json", "-R"]):
        assert ffrecord("ls", tmp_path / "shards", *options) == ffrecord("ls", archive, *options)


@pytest.mark.parametrize(
    "words",
    [
        ["-l", "{a}", "d"], ["{a}", "-l", "d"], ["{a}", "d", "-l"], ["-l", "{a}", "--", "d"],
        ["{a}", "-l", "--", "d"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_of_ls_may_stand_anywhere(
    words: list[str], ffrecord: Command, archive: Path
) -> None:
    result = ffrecord("ls", *(word.format(a=archive) for word in words))
    assert result.code == 0
    assert [line.split()[-1] for line in result.lines] == ["b", "e", "large", "same"]


def test_ls_of_several_paths_lists_each_under_its_name(ffrecord: Command, archive: Path) -> None:
    due = ["d/e:", "c", "", "d:", "b", "e", "large", "same"]
    assert ffrecord("ls", archive, "d/e", "d").lines == due
    assert ffrecord("ls", archive, "d/e", "-l", "d").lines[0] == "d/e:"
    facts = [json.loads(line) for line in ffrecord("ls", archive, "--json", "d/e", "z").lines]
    assert [fact["path"] for fact in facts] == ["d/e/c", "z"]
    result = ffrecord("ls", archive, "d/e", "nothing")
    assert (result.code, result.lines[:2]) == (SYSTEM, ["d/e:", "c"])
    assert "nothing: No such file" in result.error


def test_ls_r_goes_through_all_folders(ffrecord: Command, archive: Path) -> None:
    due = [
        ".:", *TOP, "", "d:", "b", "e", "large", "same", "", "d/e:", "c", "", "empty:",
    ]  # fmt: skip
    assert ffrecord("ls", "-R", archive).lines == due
    assert ffrecord("ls", archive, "d", "-R").lines == due[8:16]


def test_ls_shows_the_names_that_ls_shows(ffrecord: Command, archive: Path, tree: Path) -> None:
    real = subprocess.run(
        ["ls", "-A1"], cwd=tree, capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=True
    )
    assert ffrecord("ls", archive).out == real.stdout


NOW = int(time.time())
TIMES = {
    "yesterday": (NOW - 86_400) * trees.SECOND,
    "months ago": (NOW - 100 * 86_400) * trees.SECOND,
    "almost a minute": (NOW - 86_400 - NOW % 60 + 59) * trees.SECOND + 999_999_999,
    "last year": (NOW - 300 * 86_400) * trees.SECOND,
    "long ago": 1_000_000_000 * trees.SECOND,
    "before 1970": trees.BEFORE_1970,
    "a moment before 1970": -1,
    "1970": 0,
    "next year": (NOW + 400 * 86_400) * trees.SECOND,
    "2100": trees.YEAR_2100,
}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_ls_l_has_the_columns_of_ls(zone: str, tmp_path: Path) -> None:
    tree = tmp_path / "t"
    for name, when in TIMES.items():
        trees.plain_tree(tree, {name: b"x" * (abs(when) % 5000)})
        os.utime(tree / name, ns=(0, when))
    for mode in (0o000, 0o4755, 0o4644, 0o2755, 0o2644, 0o1777, 0o1644, 0o421):
        (tree / f"{mode:04o}").write_bytes(b"")
        (tree / f"{mode:04o}").chmod(mode)
    os.link(tree / "1970", tree / "same as 1970")
    (tree / "link").symlink_to("some where")
    (tree / "folder").mkdir(mode=0o1777)
    if os.geteuid() == 0:
        os.chown(tree / "yesterday", 4_000_000, 4_000_001)
        os.chown(tree / "0421", 1, 2)
    else:
        (tree / "0000").chmod(0o400)
    archives.pack(tree, tmp_path / "a.ffr")
    environment = {**os.environ, "LC_ALL": "C", "TZ": zone}
    real = subprocess.run(
        ["ls", "-lA", "--time-style=locale"],
        cwd=tree, capture_output=True, env=environment, text=True, check=True,
    )  # fmt: skip
    packed = in_a_process("ls", "-l", tmp_path / "a.ffr", env=environment)
    ours, theirs = columns(packed.stdout.decode()), columns(real.stdout)
    assert ours.keys() == theirs.keys()
    for name, fields in theirs.items():
        if name == "folder":  # its links and size are the file system's own
            fields[1], fields[4] = ours[name][1], ours[name][4]
        assert ours[name] == fields, name
    assert (
        len(
            {
                len(line) - len(line.split(None, 8)[8])
                for line in packed.stdout.decode().splitlines()
            }
        )
        == 1
    )


def columns(listing: str) -> dict[str, list[str]]:
    """Lines of `ls -l` as fields, by name: mode, links, owner, group, size, three of the time."""
    found = {}
    for line in listing.splitlines():
        if line.startswith("total "):
            continue
        *fields, name = line.split(None, 8)
        fields[0] = fields[0].rstrip(".+@")
        found[name] = fields
    return found


def test_ls_l_of_symlinks_shows_where_they_point(ffrecord: Command, archive: Path) -> None:
    for words in (["link"], []):
        lines = ffrecord("ls", "-l", archive, *words).lines
        assert any(line.startswith("l") and line.endswith("link -> d") for line in lines)


def test_ls_json_has_what_stat_has(ffrecord: Command, rich_archive: Path, rich: Path) -> None:
    result = ffrecord("ls", "--json", "-R", rich_archive)
    facts = {each["path"]: each for each in map(json.loads, result.lines)}
    found = {os.fsdecode(path): each for path, each in trees.snapshot(rich).items()}
    kept = {name: each for name, each in found.items() if each.kind in trees.KEPT and name != "."}
    assert facts.keys() == kept.keys()
    for name, each in kept.items():
        fact = facts[name]
        assert fact["kind"] == each.kind
        assert int(fact["mode"], 8) == each.mode
        assert (fact["uid"], fact["gid"]) == (each.uid, each.gid)
        assert fact["mtime_ns"] == each.mtime_ns
        if each.kind != "folder":
            assert (fact["links"], fact["size"]) == (each.links, each.size)
        assert fact.get("target", "") == os.fsdecode(each.target)
        assert ("record" in fact) == (each.kind == "file")
    with PackedFolder(rich_archive) as folder:
        assert all(
            fact["record"] == folder.record(n) for n, fact in facts.items() if "record" in fact
        )


def test_ls_json_of_a_folder_has_whole_paths(ffrecord: Command, archive: Path) -> None:
    facts = [json.loads(line) for line in ffrecord("ls", archive, "d", "--json").lines]
    assert [fact["path"] for fact in facts] == ["d/b", "d/e", "d/large", "d/same"]
    (fact,) = map(json.loads, ffrecord("ls", archive, "d/b", "--json").lines)
    assert (fact["path"], fact["size"]) == ("d/b", len(FILES["d/b"]))


CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


def test_no_name_reaches_the_terminal_as_it_is(
    ffrecord: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    nasty = [
        "\x1b[31mred",
        "new\nline",
        "\x07bell",
        "\x9b0m",
        "\udcff\udc9b",
        "\x7f\r",
        "\u202egnp",
    ]
    tree = trees.plain_tree(tmp_path / "t", {f"d/{name}": b"x" * 50 for name in nasty})
    for name in nasty:
        (tree / f"link to {name}").symlink_to(f"d/{name}")
    archive = tmp_path / "a.ffr"
    archives.pack(tree, archive)
    lines = {"ls": len(nasty) + 1, "ls -l": len(nasty) + 1, "ls d": len(nasty)}
    for line, count in lines.items():
        command, *more = line.split()
        result = ffrecord(command, archive, *more)
        assert (result.code, len(result.lines)) == (0, count)
        assert not CONTROL.search(result.out), line
    for name in nasty:
        archives.damage(archive, f"d/{name}")
    commands: list[list[Any]] = [
        ["ls", archive, "-R"], ["ls", archive, "-lR"], ["info", archive], ["verify", archive],
        ["extract", archive, "-C", tmp_path / "dest\x1b"],
        *(["cat", archive, f"d/{name}"] for name in nasty),
        *(["cat", archive, f"missing {name}"] for name in nasty),
        *(["ls", archive, f"d/{name}", "-l"] for name in nasty),
        *(["extract", archive, "-C", tmp_path / "x", f"no {name}"] for name in nasty),
        ["pack", tree / f"no {nasty[0]}", tmp_path / "b.ffr"],
        ["pack", tree / "d" / nasty[0], tmp_path / "b.ffr"],
    ]  # fmt: skip
    for words in commands:
        result = ffrecord(*words)
        assert not CONTROL.search(result.out + result.err), words
        assert b"\xe2\x80\xae" not in result.out + result.err, "text that runs backwards"
    json_lines = ffrecord("ls", "--json", "-R", archive).out
    assert b"\x1b" not in json_lines
    assert b"\r" not in json_lines


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_name_can_be_listed_in_any_encoding(encoding: str, rich_archive: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    for words in (["ls", "-lR"], ["info"], ["ls", "--json", "-R"]):
        result = in_a_process(words[0], rich_archive, *words[1:], env=environment)
        assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("utf8", ["0", "1"])
def test_the_locale_does_not_change_what_names_are(utf8: str, tmp_path: Path) -> None:
    """In the locale C without Python's UTF-8 mode, the file system's encoding is ASCII."""
    name = "\u00fcn\u00efc\u00f8d\u00e9"
    archives.pack(trees.plain_tree(tmp_path / "t", {f"{name}/x": b"x"}), tmp_path / "t.ffr")
    (tmp_path / "x" / name / "x").mkdir(parents=True)
    environment = {
        **os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": utf8,
        "PYTHONIOENCODING": "utf-8:strict",
    }  # fmt: skip

    def said(*words: str | Path) -> str:
        result = in_a_process(*words, env=environment)
        return (result.stdout + result.stderr).decode()

    archive = tmp_path / "t.ffr"
    assert said("ls", archive) == f"{name}\n"
    assert said("ls", archive, name) == "x\n"
    assert json.loads(said("ls", "--json", archive))["path"] == name
    assert json.loads(said("info", "--json", archive))["largest"][0]["path"] == f"{name}/x"
    assert f"x/{name}/x: a folder is in the way" in said("extract", archive, "-C", tmp_path / "x")
    archives.damage(archive, f"{name}/x")
    assert f"({name}/x)" in said("verify", archive)


def test_names_are_the_same_text_in_any_locale(tmp_path: Path) -> None:
    top = trees.plain_tree(tmp_path / "tree", {"ü/größe": b"a file"})
    (top / "link").symlink_to("ü/größe")
    path = tmp_path / "a.ffr"
    archives.pack(top, path)
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    listed = in_a_process("ls", "--json", "-R", path, env=plain).stdout.splitlines()
    assert {json.loads(line)["path"] for line in listed} == {"link", "ü", "ü/größe"}
    assert {json.loads(line).get("target", "ü/größe") for line in listed} == {"ü/größe"}
    (largest,) = json.loads(in_a_process("info", "--json", path, env=plain).stdout)["largest"]
    assert largest["path"] == "ü/größe"
    archives.damage(path, "ü/größe")
    assert rb"(\xfc/gr\xf6\xdfe)" in in_a_process("verify", path, env=plain).stdout


def test_the_reader_of_a_listing_may_leave_early(rich_archive: Path) -> None:
    result = in_a_shell('f ls -lR "$1" | head -n 1', rich_archive)
    assert result.stderr == b""
    assert result.stdout == b".:\n"


@pytest.mark.parametrize(
    ("line", "code", "out"),
    [
        ('f pack "$2" "$1.new" 2>&-', 0, True),
        ('f verify "$1" 2>&-', 0, True),
        ('f extract "$1" -C "$1.x" 2>&-', 0, True),
        ('f cat "$1" nothing 2>&-', SYSTEM, False),
        ('f ls "$1.missing" 2>&-', SYSTEM, False),
        ('f pack "$2" "$2/missing/x" 2>&-', NO_FOLDER, False),
        ("f nonsense 2>&-", USAGE, False),
    ],
)
def test_a_closed_standard_error_changes_nothing_but_what_is_said(
    line: str, code: int, out: bool, archive: Path, tree: Path
) -> None:
    result = in_a_shell(line, archive, tree)
    assert (result.returncode, bool(result.stdout), result.stderr) == (code, out, b"")


# Interrupted while Python shuts down, which is when it takes its modules apart.
LATE_INTERRUPT = """
import os, signal, sys
from ffrecord import cli

class Late:
    def __del__(self, kill=os.kill, this=os.getpid(), interrupt=signal.SIGINT):
        kill(this, interrupt)

late = Late()
raise SystemExit(cli.command())
"""


@pytest.mark.parametrize(("name", "code"), [("a.txt", 0), ("nothing", SYSTEM)])
def test_an_interrupt_after_all_was_done_changes_nothing(
    name: str, code: int, archive: Path
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LATE_INTERRUPT, "cat", str(archive), name],
        capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.returncode == code
    assert b"Traceback" not in result.stderr


def test_an_interrupt_before_the_command_has_begun_is_said(
    ffrecord: Command, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("argparse.ArgumentParser.parse_known_args", interrupt)
    result = ffrecord("ls", archive)
    assert (result.code, result.error) == (INTERRUPTED, "ffrecord: interrupted")


# ---- cat -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "due"),
    [
        (["a.txt"], ["a.txt"]),
        (["d/b", "a.txt", "d/b"], ["d/b", "a.txt", "d/b"]),
        (["z"], ["z"]),
        (["d/large", "z", "d/e/c"], ["d/large", "z", "d/e/c"]),
        (["link/b", "/d//b", "d/../a.txt"], ["d/b", "d/b", "a.txt"]),
        (["--", "-rf", "a.txt"], ["-rf", "a.txt"]),
        (["./-rf"], ["-rf"]),
    ],
)
def test_cat_writes_files_one_after_the_other(
    paths: list[str], due: list[str], ffrecord: Command, archive: Path
) -> None:
    result = ffrecord("cat", archive, *paths)
    assert result == Result(0, b"".join(FILES[name] for name in due), b"")


def test_cat_writes_a_record(ffrecord: Command, archive: Path) -> None:
    with PackedFolder(archive) as folder:
        record = folder.record("d/b")
    assert ffrecord("cat", archive, "--record", str(record)).out == FILES["d/b"]
    assert ffrecord("cat", "--record", str(record), archive).out == FILES["d/b"]


def test_cat_of_a_damaged_file_writes_nothing_of_what_is_wrong(
    ffrecord: Command, archive: Path
) -> None:
    archives.damage(archive, "d/b")
    result = ffrecord("cat", archive, "a.txt", "d/b", "z")
    assert result.code == SampleChecksumError.exit_code
    assert result.out == FILES["a.txt"]
    assert "is damaged" in result.error


def test_cat_goes_where_a_pipe_goes(archive: Path) -> None:
    result = in_a_shell('f cat "$1" d/large d/large | cksum', archive)
    due = subprocess.run(["cksum"], input=FILES["d/large"] * 2, capture_output=True, check=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, due.stdout, b"")


def test_the_reader_of_a_file_may_leave_early(archive: Path) -> None:
    result = in_a_shell('f cat "$1" d/large d/large d/large d/large | head -c 1', archive)
    assert (result.returncode, result.stderr) == (141, b"")
    assert result.stdout == FILES["d/large"][:1]


# ---- extract -------------------------------------------------------------------------------


def test_extract_restores_everything_and_says_so(
    ffrecord: Command, archive: Path, tree: Path, tmp_path: Path
) -> None:
    result = ffrecord("extract", archive, "-C", tmp_path / "x/y")
    assert (result.code, result.err) == (0, b"")
    (line,) = result.lines
    assert line.startswith(f"{tmp_path}/x/y: 6 files, 3 folders, 1 symlink")
    assert trees.differences(tree, tmp_path / "x/y") == []


def test_extract_goes_into_the_current_folder(
    ffrecord: Command, archive: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert ffrecord("extract", archive).code == 0
    assert trees.differences(tree, tmp_path / "here") == []


@pytest.mark.parametrize(
    "words",
    [
        ["{a}", "-C", "{x}", "d/b", "a.txt"], ["{a}", "d/b", "a.txt", "-C", "{x}"],
        ["{a}", "d/b", "-C", "{x}", "a.txt"], ["-C", "{x}", "{a}", "d/b", "a.txt"],
        ["--directory={x}", "{a}", "d/b", "--no-progress", "a.txt"],
        ["{a}", "-C", "{x}", "--", "d/b", "a.txt"],
        ["{a}", "d/b", "--overwrite", "-C", "{x}", "a.txt"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_options_of_extract_may_stand_anywhere(
    words: list[str], ffrecord: Command, archive: Path, tmp_path: Path
) -> None:
    result = ffrecord("extract", *(word.format(a=archive, x=tmp_path / "x") for word in words))
    assert result.code == 0
    assert {os.fsdecode(path) for path in trees.paths(tmp_path / "x")} == {".", "a.txt", "d", "d/b"}


def test_extract_refuses_to_overwrite_unless_told_so(
    ffrecord: Command, archive: Path, tree: Path, tmp_path: Path
) -> None:
    dest = trees.plain_tree(tmp_path / "x", {"d/b": b"precious"})
    result = ffrecord("extract", archive, "-C", dest)
    assert result.code == SYSTEM
    assert result.error == f"ffrecord: {dest}/d/b: is there already; --force replaces it"
    assert (dest / "d/b").read_bytes() == b"precious"
    assert ffrecord("extract", archive, "-C", dest, "--overwrite").code == 0
    shutil.copystat(tree, dest)
    assert trees.differences(tree, dest) == []


def test_extract_without_room_says_so_and_exits_as_the_readme_has_it(
    ffrecord: Command, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        result = ffrecord("extract", archive, "-C", tmp_path / "x")
    assert result.code == NoRoomError.exit_code
    assert result.error.endswith("-rf: no room to write: No space left on device")


def test_extract_leaves_damaged_files_out_and_says_which(
    ffrecord: Command, archive: Path, tmp_path: Path
) -> None:
    archives.damage(archive, "d/b")
    archives.damage(archive, "d/large", 2 * BLOCK)
    dest = tmp_path / "x"
    result = ffrecord("extract", archive, "-C", dest)
    assert result.code == SampleChecksumError.exit_code
    *said, total = result.err.decode().splitlines()
    assert sorted(line.split(": ")[1] for line in said) == [f"{dest}/d/b", f"{dest}/d/large"]
    assert "2 damaged files" in total
    left = {os.fsdecode(path) for path in trees.paths(dest)}
    assert left == {".", *TOP, "d/e", "d/e/c", "d/same"}


# ---- verify --------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_verify_extract_and_cat_say_the_same_of_a_damaged_large_file(
    sharded: bool, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "packed"
    archives.pack(tree, packed, shard_size=100 if sharded else None)
    archives.damage(packed, "d/large", 3 * BLOCK + 2)  # in the last block, which has 7 bytes
    right = FILES["d/large"][3 * BLOCK :]
    wrong = right[:2] + bytes([right[2] ^ 1]) + right[3:]
    with pytest.raises(SampleChecksumError) as caught, PackedFolder(packed) as folder:
        folder.read("d/large")
    file, record = caught.value.path, caught.value.record
    checksums = (
        f"their checksum is {zlib.crc32(wrong):#010x}, the file says {zlib.crc32(right):#010x}"
    )
    part = f"bytes {3 * BLOCK} to {3 * BLOCK + 6} of it: {checksums}"
    assert bad_lines(ffrecord("verify", packed)) == [
        f"BAD: {file}: record {record} is damaged: {part} (d/large)"
    ]
    extracted = ffrecord("extract", packed, "-C", tmp_path / "x")
    line = f"ffrecord: {tmp_path}/x/d/large: {file}: record {record} is damaged: {part}"
    assert extracted.err.decode().splitlines()[0] == line
    shown = ffrecord("cat", packed, "d/large")
    assert shown.error == f"ffrecord: {file}: record {record} is damaged (d/large): {part}"


def test_verify_tells_of_a_damaged_record_of_the_original_s_archives_as_a_whole(
    ffrecord: Command, tmp_path: Path
) -> None:
    """They have no checksums of blocks."""
    large = FILES["d/large"]
    archive = handmade.write_records(
        tmp_path / "a.ffr", [large, b"piouhjgbr" + pickle.dumps(OrderedDict(large=0), 2)]
    )
    archives.damage(archive, "large", 5)
    wrong = large[:5] + bytes([large[5] ^ 1]) + large[6:]
    checksums = (
        f"its checksum is {zlib.crc32(wrong):#010x}, the file says {zlib.crc32(large):#010x}"
    )
    said = f"{archive}: record 0 is damaged: {checksums}"
    assert bad_lines(ffrecord("verify", archive)) == [f"BAD: {said} (large)"]
    extracted = ffrecord("extract", archive, "-C", tmp_path / "x")
    assert extracted.err.decode().splitlines()[0] == f"ffrecord: {tmp_path}/x/large: {said}"


def test_verify_of_a_good_archive_says_ok(
    ffrecord: Command, archive: Path, tree: Path, rich_archive: Path, tmp_path: Path
) -> None:
    archives.pack(tree, tmp_path / "shards", shard_size=100)
    archives.pack(tree, tmp_path / "bare.ffr", legacy_index=False)
    for path in (archive, tmp_path / "shards", tmp_path / "bare.ffr", rich_archive):
        result = ffrecord("verify", path)
        assert (result.code, result.err) == (0, b"")
        (line,) = result.lines
        with PackedFolder(path) as folder:
            names = len(folder.list(recursive=True))
            assert line == f"{path}: OK, {folder.reader.n} records, {names} names"


def bad_lines(result: Result) -> list[str]:
    assert result.code == 1
    assert result.err == b""
    return [line for line in result.lines if line.startswith("BAD: ")]


@pytest.mark.parametrize(
    "words", [["{a}", "{a}", "--no-progress"], ["{a}", "--no-progress", "{a}"]]
)
def test_options_of_verify_may_stand_anywhere(
    words: list[str], ffrecord: Command, archive: Path
) -> None:
    result = ffrecord("verify", *(word.format(a=archive) for word in words))
    assert (result.code, len(result.lines)) == (0, 2)


@pytest.mark.parametrize(("name", "byte"), [("d/b", 0), ("d/large", 2 * BLOCK), ("-rf", 3)])
@pytest.mark.parametrize("sharded", [False, True])
def test_verify_names_a_damaged_file(
    sharded: bool, name: str, byte: int, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    path = tmp_path / "v"
    archives.pack(tree, path, shard_size=100 if sharded else None)
    archives.damage(path, name, byte)
    result = ffrecord("verify", path)
    (line,) = bad_lines(result)
    assert f"({name})" in line
    assert result.lines[-1].startswith(f"{path}: 1 damaged of ")


def test_verify_names_every_damaged_file_and_goes_on(
    ffrecord: Command, archive: Path, rich_archive: Path
) -> None:
    for name in ("d/b", "d/e/c"):
        archives.damage(archive, name)
    result = ffrecord("verify", archive, rich_archive)
    assert [re.findall(r"\((.*)\)", line) for line in bad_lines(result)] == [["d/b"], ["d/e/c"]]
    assert result.lines[-1].startswith(f"{rich_archive}: OK")


def test_verify_names_a_few_of_the_files_that_share_a_damaged_record(
    ffrecord: Command, tmp_path: Path
) -> None:
    """Paths can be a megabyte each, and any number of inodes can have one record."""
    files = dict.fromkeys((b"%04d" % number for number in range(1000)), b"")
    draft = builders.plant(builders.nested(4000, {**files, b"other": b"whole"}, b"d" * 255))
    draft.files = [b"spoiled", b"whole"]
    for inode in draft.inodes[4001:5001]:
        inode.data, inode.length = 0, len(b"spoiled")
    draft.inodes[5001].data = 1
    (tmp_path / "a.ffr").write_bytes(draft.archive().replace(b"spoiled", b"sp0iled", 1))
    (line,) = bad_lines(ffrecord("verify", tmp_path / "a.ffr"))
    assert re.search(r"…/d.*/0000, .*/0001, .*/0002 and 997 more\)$", line)
    assert len(line) < 20_000


@pytest.mark.parametrize("where", ["the image", "the trailer", "the original's index"])
def test_verify_finds_a_damaged_index(where: str, ffrecord: Command, archive: Path) -> None:
    image, trailer = archives.index_offsets(archive)
    at = {"the image": image + 90, "the trailer": trailer + 9, "the original's index": image - 20}
    archives.flip(archive, at[where])
    assert bad_lines(ffrecord("verify", archive))


@pytest.mark.parametrize("inside", ["nothing", "a file", "a dataset"])
def test_verify_looks_at_record_files_whatever_is_beside_them(
    inside: str, ffrecord: Command, tmp_path: Path
) -> None:
    (tmp_path / "all").mkdir()
    damaged = handmade.write_records(tmp_path / "all" / "a.ffr", [b"right"])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    beside = tmp_path / "all" / "000000"  # as a shard of a dataset is named
    if inside == "a dataset":
        with DatasetWriter(beside, {"x": "int"}) as writer:
            writer.append({"x": 1})
    else:
        beside.mkdir()
        if inside == "a file":
            handmade.write_records(beside / "b.ffr", [b"sound"])
    result = ffrecord("verify", tmp_path / "all")
    assert result.code == 1
    assert b"a.ffr" in result.out


def test_verify_finds_a_missing_shard(ffrecord: Command, tree: Path, tmp_path: Path) -> None:
    archives.pack(tree, tmp_path / "s", shard_size=100)
    (tmp_path / "s" / "PART_00001.ffr").unlink()
    assert any("PART_00001.ffr" in line for line in bad_lines(ffrecord("verify", tmp_path / "s")))


def spoil_table(path: Path, name: str, offset: int = 0) -> None:
    """Change a byte of a table, and make every checksum right again."""

    def change(image: bytearray) -> None:
        image[archives.table_offset(image, name) + offset] ^= 1

    archives.spoil_image(path, change)


def test_verify_finds_checksums_of_blocks_that_are_not_those_of_the_file(
    ffrecord: Command, archive: Path
) -> None:
    spoil_table(archive, "blocks", 4)
    lines = bad_lines(ffrecord("verify", archive))
    assert any("d/large" in line and "block" in line for line in lines)


@pytest.mark.parametrize("offset", [0, 7, 12])
def test_verify_finds_hashes_that_are_not_those_of_the_paths(
    offset: int, ffrecord: Command, archive: Path
) -> None:
    """A reader does not care: it is only slower."""
    spoil_table(archive, "hashes", offset)
    assert any("hash" in line for line in bad_lines(ffrecord("verify", archive)))
    assert ffrecord("cat", archive, "d/b", "a.txt").out == FILES["d/b"] + FILES["a.txt"]


def test_verify_finds_hashes_of_other_entries(ffrecord: Command, archive: Path) -> None:
    def change(image: bytearray) -> None:
        at = archives.table_offset(image, "hashed")
        first, second = struct.unpack_from("<II", image, at)
        struct.pack_into("<II", image, at, second, first)

    archives.spoil_image(archive, change)
    assert any("hash" in line for line in bad_lines(ffrecord("verify", archive)))


Structure: TypeAlias = "OrderedDict[str, Any]"


def structure_of(folder: PackedFolder, path: str = "") -> Structure:
    """The original's index of a folder, but for symlinks to folders, which it has not."""
    found: Structure = OrderedDict()
    for name in folder.list(path):
        inner = f"{path}/{name}" if path else name
        if folder.is_file(inner):
            found[name] = folder.record(inner)
        elif not folder.is_symlink(inner):
            found[name] = structure_of(folder, inner)
    return found


def set_structure(path: Path, change: Callable[[Structure], object]) -> None:
    """Another index for the original, with checksums that hold."""
    with PackedFolder(path) as folder:
        structure = structure_of(folder)
    change(structure)
    parts = archives.take_apart(path)
    parts.before = b"piouhjgbr" + pickle.dumps(structure)
    parts.write(path)


def test_verify_takes_any_pickle_that_says_the_same(ffrecord: Command, archive: Path) -> None:
    set_structure(archive, lambda structure: None)
    assert ffrecord("verify", archive).code == 0


DISAGREEING: dict[str, tuple[Callable[[Structure], object], str]] = {
    "another record": (lambda s: s.update({"a.txt": s["z"]}), "'a.txt'"),
    "another record inside": (lambda s: s["d"].update(b=s["z"]), "'d/b'"),
    "a file less": (lambda s: s["d"].pop("large"), "'d/large'|6 for the original"),
    "a file more": (lambda s: s.update(more=0), "'more'"),
    "a folder more": (lambda s: s.update(more=OrderedDict(x=0)), "'more'"),
    "a folder for a file": (lambda s: s.update(z=OrderedDict()), "'z'"),
    "a file for a folder": (lambda s: s.update(d=0), "'d'"),
    "files swapped": (
        lambda s: s["d"].update(b=s["d"]["large"], large=s["d"]["b"]),
        "'d/(b|large)'",
    ),
    "another name": (lambda s: s["d"].update(B=s["d"].pop("b")), "'d/[bB]'"),
}


@pytest.mark.parametrize("what", DISAGREEING)
def test_verify_finds_an_index_for_the_original_that_disagrees(
    what: str, ffrecord: Command, archive: Path
) -> None:
    change, said = DISAGREEING[what]
    set_structure(archive, change)
    lines = bad_lines(ffrecord("verify", archive))
    assert any(re.search(said, line) for line in lines), lines


def test_verify_finds_that_a_folder_is_a_file_for_the_original(
    ffrecord: Command, archive: Path
) -> None:
    """Whatever number it is given there."""
    for record in range(len(FILES) - 1):
        set_structure(archive, lambda structure, record=record: structure.update(empty=record))  # type: ignore[misc]
        lines = bad_lines(ffrecord("verify", archive))
        assert any("'empty'" in line for line in lines), record


def test_verify_finds_bytes_that_are_no_index_for_the_original(
    ffrecord: Command, archive: Path
) -> None:
    for before in (b"x", b"piouhjgbr", b"piouhjgbr\x80\x04N.", b"some other bytes" * 10):
        parts = archives.take_apart(archive)
        parts.before = before
        parts.write(archive)
        assert bad_lines(ffrecord("verify", archive))


def test_a_damaged_index_has_its_own_exit_code(ffrecord: Command, archive: Path) -> None:
    whole = archive.read_bytes()
    archives.flip(archive, archives.index_offsets(archive)[0] + 90)
    for words in (
        ["ls", archive],
        ["cat", archive, "a.txt"],
        ["extract", archive],
        ["info", archive],
    ):
        result = ffrecord(*words)
        assert (result.code, result.out) == (IndexChecksumError.exit_code, b"")
        assert result.error.startswith(f"ffrecord: {archive}: its index is damaged")
    archive.write_bytes(whole)
    archives.spoil_image(archive, lambda image: image.__setitem__(0, 0))
    for words in (
        ["ls", archive],
        ["cat", archive, "a.txt"],
        ["extract", archive],
        ["info", archive],
    ):
        result = ffrecord(*words)
        assert (result.code, result.out) == (IndexStructureError.exit_code, b"")
        assert result.error.startswith(f"ffrecord: {archive}: ")


# ---- info ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_info_json_has_the_facts(
    sharded: bool, ffrecord: Command, rich: Path, tmp_path: Path
) -> None:
    path = tmp_path / "i.ffr"
    archives.pack(rich, path, shard_size=1_000_000 if sharded else None)
    facts = json.loads(ffrecord("info", path, "--json").out)
    found = [each for name, each in trees.snapshot(rich).items() if name != b"."]
    kept = [each for each in found if each.kind in trees.KEPT]
    files = {each.same_file: each for each in kept if each.kind == "file"}
    parts = [p for p in path.iterdir() if p.name != "index.ffr"] if sharded else []
    everything = path.iterdir() if sharded else [path]
    assert facts["shards"] == len(parts)
    assert facts["files"] == len(files)
    assert facts["folders"] == sum(each.kind == "folder" for each in kept)
    assert facts["symlinks"] == len({each.same_file for each in kept if each.kind == "symlink"})
    assert facts["names"] == len(kept)
    assert facts["data_bytes"] == sum(each.size for each in files.values())
    assert facts["archive_bytes"] == sum(each.stat().st_size for each in everything)
    assert 0 < facts["index_bytes"] < facts["archive_bytes"]
    sizes = sorted(each.size for each in files.values())
    assert facts["file_bytes"]["largest"] == sizes[-1]
    assert facts["file_bytes"]["smallest"] == 0
    assert [each["bytes"] for each in facts["largest"]] == sizes[::-1][: len(facts["largest"])]
    for each in facts["largest"]:
        assert (rich / each["path"]).stat().st_size == each["bytes"]
    for each in facts["histogram"]:
        due = sum(each["from"] <= size < each["below"] for size in sizes)
        assert each["files"] == due
    assert sum(each["files"] for each in facts["histogram"]) == len(sizes)


def test_info_shows_counts_the_largest_files_and_a_histogram(
    ffrecord: Command, archive: Path
) -> None:
    lines = ffrecord("info", archive).lines
    for words in ("files 6", "folders 3", "symlinks 1", "largest file 393.2 kB"):
        assert words in [" ".join(line.split()) for line in lines]
    at = lines.index("largest files")
    assert lines[at + 1].split() == ["393.2", "kB", "d/large"]
    assert any("█" in line for line in lines)


def test_info_of_an_empty_folder_works(ffrecord: Command, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    archives.pack(tmp_path / "t", tmp_path / "e.ffr")
    for options in ([], ["--json"]):
        result = ffrecord("info", tmp_path / "e.ffr", *options)
        assert (result.code, result.err) == (0, b"")
    assert ffrecord("ls", tmp_path / "e.ffr").out == b""
    assert ffrecord("ls", "-l", tmp_path / "e.ffr").out == b""
    assert ffrecord("verify", tmp_path / "e.ffr").code == 0


def test_info_of_records_is_of_records(ffrecord: Command, tmp_path: Path) -> None:
    handmade.write_records(tmp_path / "r.ffr", [b"one", b"three"])
    facts = json.loads(ffrecord("info", tmp_path / "r.ffr", "--json").out)
    assert facts["records"] == 2
    assert "folders" not in facts
    assert record_layout.header_size(2) + 8 == facts["file_bytes"]


def test_modes_of_every_kind_are_shown_as_ls_shows_them(
    ffrecord: Command, rich_archive: Path
) -> None:
    with PackedFolder(rich_archive) as folder:
        for line in ffrecord("ls", "-l", rich_archive, "modes").lines:
            mode, name = line.split(None, 1)[0], line.split(None, 8)[8]
            assert mode == stat.filemode(folder.stat(f"modes/{name}").st_mode)

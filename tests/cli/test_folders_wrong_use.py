"""Wrong command lines on packed folders: one line explains the mistake."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from ffrecord.errors import IndexStructureError, NotPackedFolderError
from tests.support import archives, handmade, trees, users
from tests.support.commands import NO_FOLDER, SYSTEM, USAGE, Command

ELSEWHERE = "choose another folder"
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
    ["pack", "{tree}", "{new}", "--align"],
    ["pack", "{tree}", "{new}", "--align", "none"],
    ["pack", "{tree}", "{new}", "--exclude"],
    ["pack", "{tree}", "{new}", "--plan", "{new}"],  # without --shard-size
    ["pack", "{tree}", "{new}", "--task", "0", "{new}"],
    ["pack", "{tree}", "--commit", "{new}"],
    ["pack", "--plan", "{new}", "--shard-size", "1MB"],
    ["pack", "--task"],
    ["pack", "--task", "{new}"],  # neither K nor SLURM_ARRAY_TASK_ID
    ["pack", "--task", "-1", "{new}"],
    ["pack", "--task", "1/0", "{new}"],
    ["pack", "--task", "x", "{new}"],
    ["pack", "--task", "1", "2", "{new}"],
    ["pack", "--commit", "{new}", "--status", "{new}"],
    ["ls"],
    ["ls", "{archive}", "-x"],
    ["ls", "{archive}", "-lt"],
    ["pack", "{tree}", "{new}/"],
    ["pack", "{tree}", "-"],
    ["convert", "{archive}", "-"],
    ["salvage", "{archive}", "-"],
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
    (
        ["pack", "{missing}", "{tree}"],
        SYSTEM,
        "the folder to pack comes first: `ffrecord pack {tree} {missing}`",
    ),
    (["pack", "{text}", "{tree}"], SYSTEM, "comes first: `ffrecord pack {tree} {text}`"),
    (["pack", "{tree}", "{tree}"], SYSTEM, "a folder of this name already exists"),
    (
        ["pack", "{tree}", "{missing}/new.ffr"],
        NO_FOLDER,
        "the folder {missing} does not exist; create it first",
    ),
    (["pack", "{tree}", "{archive}", "--shard-size", "1GB"], SYSTEM, "new folder"),
    (["pack", "{tree}", "{tree}", "--shard-size", "1GB"], SYSTEM, "new folder"),
    (["ls", "{missing}"], SYSTEM, "No such file"),
    (["ls", "{text}"], 3, "not an FFRecord file"),
    (["ls", "{records}"], NotPackedFolderError.exit_code, "not a packed folder"),
    (["ls", "{tree}"], SYSTEM, "no *.ffr file"),
    (["ls", "{archive}", "nothing"], SYSTEM, "{archive}: nothing: No such file"),
    (["ls", "{archive}/d/b"], SYSTEM, "a word of its own: `ffrecord ls {archive} d/b`"),
    (["salvage", "s3://b/x.ffr", "{new}"], 38, "s3://b/x.ffr: this needs a local file; download"),
    (["salvage", "{records}", "s3://b/x.ffr"], 38, "salvage writes a local file; name one"),
    (["ls", "{archive}", "a.txt/x"], SYSTEM, "a.txt/x: Not a directory"),
    (["cat", "{missing}", "x"], SYSTEM, "No such file"),
    (["cat", "{records}", "x"], NotPackedFolderError.exit_code, "not a packed folder"),
    (["cat", "{archive}", "nothing"], SYSTEM, "{archive}: nothing: No such file"),
    (["cat", "{archive}", "d"], SYSTEM, "d: Is a directory"),
    (["cat", "{archive}", "a.txt/"], SYSTEM, "a.txt/: Not a directory"),
    (["cat", "{archive}", "--record", "99"], USAGE, "record 99 is out of range"),
    (["extract", "{missing}", "-C", "{new}"], SYSTEM, "No such file"),
    (["extract", "{records}", "-C", "{new}"], NotPackedFolderError.exit_code, "packed folder"),
    (["extract", "{archive}", "-C", "{text}"], SYSTEM, "text: not a folder"),
    (["extract", "{archive}", "-C", "{new}", "nothing"], SYSTEM, "{archive}: nothing: No such"),
    (["extract", "{archive}", "-C", "{new}", "d/nothing"], SYSTEM, "d/nothing: No such file"),
    (["extract", "{archive}", "-C", "{new}", "d", "nothing"], SYSTEM, "nothing: No such file"),
    (["warm", "{missing}"], SYSTEM, "No such file"),
    (["warm", "{text}"], 3, "not an FFRecord file"),
    (["warm", "{claim}"], 4, "claim: truncated, or not an FFRecord file: "),
    (["warm", "{tree}"], SYSTEM, "no *.ffr file"),
    (["warm", "{records}", "x"], NotPackedFolderError.exit_code, "not a packed folder"),
    (["warm", "{archive}", "nothing"], SYSTEM, "{archive}: nothing: No such file"),
    (["warm", "{archive}", "a.txt/x"], SYSTEM, "a.txt/x: Not a directory"),
    (["info", "{missing}"], SYSTEM, "No such file"),
    (["info", "{text}"], 3, "not an FFRecord file"),
    (["info", "{program}"], 3, "not an FFRecord file, but a program or library"),
    (["info", "{claim}"], 4, "claim: truncated, or not an FFRecord file: "),
    (["pack", "{tree}", "/proc/new.ffr"], SYSTEM, "ffrecord: /proc/new.ffr: No such file"),
    (["salvage", "{records}", "/proc/new.ffr"], SYSTEM, "ffrecord: /proc/new.ffr: No such file"),
    (["convert", "{records}", "/proc/new.bag"], SYSTEM, "ffrecord: /proc/new.bag: No such file"),
    (["salvage", "{records}", "{archive}"], SYSTEM, "already exists; pass --force to replace it"),
    (["convert", "{records}", "{archive}"], SYSTEM, "already exists; pass --force to replace it"),
    (["convert", "{records}", "{records}", "--force"], 36, "already has the target's format"),
    (
        ["convert", "{archive}", "{tree}", "--force"],
        SYSTEM,
        "folders are never replaced; remove it or",
    ),
    (["convert", "{tree}", "{new}.bag"], 36, "pass --drop-names to keep only the contents"),
    (["convert", "{tree}", "{new}.xyz"], 36, "choose one with --to: records, packed, "),
    (["convert", "{tree}", "{new}.tar.zst"], 36, "new.tar.zst: cannot be compressed as .zst; "),
    (
        ["convert", "{tree}", "{new}.tar.zst", "--to", "tar"],
        36,
        "compressed targets are tar files that end in .tgz, .tar.gz, .tar.bz2, .tar.xz",
    ),
    (
        ["convert", "{records}", "{new}.tfrecord.gz", "--to", "tfrecord"],
        36,
        "new.tfrecord.gz: cannot be compressed as .gz; ",
    ),
    (["convert", "{text}", "{new}.bag"], 36, "choose one with --from: records, packed, "),
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
def test_a_wrong_command_line_is_explained(
    words: list[str], ffrecord: Command, places: dict[str, Path]
) -> None:
    result = ffrecord(*(word.format(**places) for word in words))
    assert (result.code, result.out) == (USAGE, b"")
    command = "".join(f" {word}" for word in words[:1] if word != "nonsense")
    assert result.error.startswith("ffrecord: ")
    assert result.error.endswith(f"; see `ffrecord{command} --help`")
    assert not places["new"].exists()


def test_only_missing_arguments_are_reported_as_missing(ffrecord: Command, archive: Path) -> None:
    for command, missing in (("ls", "ARCHIVE"), ("extract", "ARCHIVE"), ("cat", "FILE")):
        said = f"ffrecord: the following arguments are required: {missing}; see"
        assert ffrecord(command).error.startswith(said)
    assert "required: OUT; " in ffrecord("pack", archive).error


@pytest.mark.parametrize("command", ["ls", "cat", "extract"])
def test_a_name_that_looks_like_an_option_is_explained(
    command: str, ffrecord: Command, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = ffrecord(command, archive, "-rf")
    assert (refused.code, refused.out) == (USAGE, b"")
    assert "unrecognized arguments: -rf; put names that begin with - after --; " in refused.error
    assert ffrecord(command, archive, "--", "-rf").code == 0
    assert "after --" not in ffrecord("extract", archive, "-C").error


def test_an_option_is_not_abbreviated(ffrecord: Command, archive: Path) -> None:
    refused = ffrecord("ls", "--recursiv", archive)
    assert refused.code == USAGE
    assert "unrecognized arguments: --recursiv" in refused.error


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--shard-size", "10XB", "not a size: '10XB'; write it like 500MB or 10GB"),
        ("--shard-size", "0", "a size must be at least 1 byte, not 0"),
        ("--jobs", "abc", "must be a whole number of at least 1, not 'abc'"),
        ("--jobs", "0", "must be a whole number of at least 1, not '0'"),
        ("--jobs", "-3", "must be a whole number of at least 1, not '-3'"),
        ("--align", "4096", "must be 512, not '4096'; without this option there is no padding"),
        ("--shard-size", "10", "10 means 10 bytes; write 10MB or 10GB, or 10B if you do mean"),
    ],
)
def test_a_wrong_number_is_explained(
    option: str, value: str, said: str, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    result = ffrecord("pack", tree, tmp_path / "new", f"{option}={value}")
    assert result.code == USAGE
    assert said in result.err.decode().splitlines()[-1]
    assert "invalid" not in result.err.decode()


def test_a_size_of_400_digits_makes_one_shard(
    ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    assert ffrecord("pack", tree, tmp_path / "new", "--shard-size", "9" * 400).code == 0
    assert sorted(os.listdir(tmp_path / "new")) == ["PART_00000.ffr", "index.ffr"]


@pytest.mark.parametrize(
    ("words", "code", "said"), WRONG_FILES, ids=[" ".join(words) for words, _, _ in WRONG_FILES]
)
def test_a_wrong_file_gives_one_line(
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
def test_a_folder_that_contains_an_archive_is_not_the_archive(
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
        ("--exlude=*.tmp", "did you mean --exclude?"),
        ("--shardsize", "did you mean --shard-size?"),
        ("--dereferense", "did you mean --dereference?"),
        ("--compress", "put names that begin with - after --"),
        ("-x", "put names that begin with - after --"),
    ],
)
def test_a_misspelled_option_is_corrected(
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
        ("unmount", "; did you mean umount?"), ("moutn", "; did you mean mount?"),
        ("verfiy", "; did you mean verify?"), ("extrcat", "; did you mean extract?"),
        ("unpack", "; did you mean extract?"), ("list", "; did you mean ls?"),
        ("create", "; did you mean pack?"), ("help", "; did you mean --help?"), ("nonsense", ""),
    ],
)  # fmt: skip
def test_a_misspelled_command_is_corrected(given: str, hint: str, ffrecord: Command) -> None:
    refused = ffrecord(given, "x")
    assert (refused.code, refused.out) == (USAGE, b"")
    assert refused.error.startswith(f"ffrecord: argument COMMAND: invalid choice: '{given}' (")
    assert refused.error.endswith(f"){hint}; see `ffrecord --help`")
    with_option = ffrecord(given, "-l", "x").error
    assert hint in with_option
    assert bool(hint) != ("after --" in with_option)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ls --long {archive}", "unrecognized arguments: --long; did you mean -l?"),
        ("ls -lt {archive}", "ffrecord: unknown option -t"),
        ("ls -lS", "ffrecord: unknown option -S"),
        (
            "pack 1 2 --shard-size -5MB",
            "write --shard-size=-5MB if this is its value",
        ),
        ("cat {archive} x --record -1", "or use --record N, not both"),
        ("ls -h", "required: ARCHIVE; -h is --human-readable here, --help shows the help"),
        ("ls", "required: ARCHIVE"),
        ("cat {archive} --record abc", "--record: must be a whole number, not 'abc'"),
        ("cat {archive} --record 3 a.txt", "name files or use --record N, not both"),
        ("cat {archive} a.txt --record 3", "name files or use --record N, not both"),
        ("info {archive} 1 2 3", "unrecognized arguments: 1 2 3; info takes one FILE"),
        ("pack 1 2 3 4 5 6", "arguments: 3 4 5 … and 1 more; pack takes one FOLDER and one OUT"),
    ],
)
def test_a_wrong_command_line_shows_the_next_step(
    line: str, said: str, ffrecord: Command, archive: Path
) -> None:
    refused = ffrecord(*line.format(archive=archive).split())
    assert (refused.code, refused.out) == (USAGE, b"")
    assert f"{said}; see `ffrecord {line.split()[0]} --help`" in refused.error


MISSING = "No such file or directory; "
MISSING_NAMES = [
    ("ls", "tree/d/b", f"{MISSING}paths start inside the packed folder: try d/b"),
    ("cat", "/some/tree/d/b", f"{MISSING}paths start inside the packed folder: try d/b"),
    ("ls", "D", f"{MISSING}did you mean d?"),
    ("cat", "D/b", f"{MISSING}did you mean d/b?"),
    ("extract", "emtpy", f"{MISSING}did you mean empty?"),
    ("cat", "d/larg", f"{MISSING}did you mean d/large?"),
    ("extract", "a.tx/more", f"{MISSING}did you mean a.txt?"),
    ("cat", "d/frame_0002", f"{MISSING}`ffrecord ls a.ffr d` lists the names"),
    ("cat", "d/*", f"{MISSING}patterns are not expanded, so name each file"),
    ("ls", "#d?q=1", f"{MISSING}`ffrecord ls a.ffr` lists the names"),
    ("ls", "[ab]", f"{MISSING}patterns are not expanded, so name the folder or each file"),
    ("ls", "*", f"{MISSING}patterns are not expanded, so name the folder or each file"),
    ("extract", "out dir", f"{MISSING}to extract into a folder, use -C 'out dir'"),
    ("extract -C x", "q", f"{MISSING}`ffrecord ls a.ffr` lists the names"),
    ("ls", "link/none/x", f"{MISSING}`ffrecord ls a.ffr link` lists the names"),
    ("cat", "broken", "a symlink to nowhere, which is not in the archive"),
    ("ls", "broken/", "a symlink to nowhere, which is not in the archive"),
    (
        "cat",
        "d/chain/x",
        "d/chain is a symlink to ../broken, which leads to no file in the archive",
    ),
]


@pytest.mark.parametrize(("command", "path", "said"), MISSING_NAMES)
def test_a_name_that_is_not_in_the_archive_gets_a_hint(
    command: str, path: str, said: str, ffrecord: Command, tree: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tree / "broken").symlink_to("nowhere")
    (tree / "d/chain").symlink_to("../broken")
    (tree / "d/frame_0001").write_bytes(b"")
    archives.pack(tree, tmp_path / "a.ffr")
    name, *options = command.split()
    result = ffrecord(name, "a.ffr", *options, path)
    assert (result.code, result.out) == (SYSTEM, b"")
    assert result.error == f"ffrecord: a.ffr: {path}: {said}"
    assert sorted(os.listdir()) == ["a.ffr", "tree"]


def test_a_misspelled_name_is_not_searched_for_among_many(
    ffrecord: Command, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffrecord.cli.missing.MOST_COMPARED", 3)
    assert "did you mean" not in ffrecord("ls", archive, "D").error


def test_a_folder_without_permission_names_the_file_and_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "ordinary"
    tree = trees.plain_tree(place / "tree", {"f": b"x"})
    tree.chmod(0o555)
    archives.pack(tree, place / "a.ffr")
    (place / "locked").mkdir(mode=0o555)
    script = """
os.chdir(sys.argv[1])
sys.stderr = sys.stdout
for line in (
    "convert a.ffr locked/p.tar", "extract a.ffr -C locked", "extract a.ffr -C locked/p/q",
    "pack tree locked/p.ffr", "pack tree locked/p --shard-size 1GB",
):
    assert ffrecord.cli.main(line.split()) == 13
print(os.listdir("locked"))
assert ffrecord.cli.main("extract a.ffr -C mine".split()) == 0  # its folder is read-only, too
assert ffrecord.cli.main("extract a.ffr -C mine --force".split()) == 13
"""
    imports = "import fractions, ffrecord.cli.convert, ffrecord.cli.extract, ffrecord.cli.pack\n"
    with users.reachable(place):
        said = users.run(script, place, imports=imports)
    for line, name in zip(said.splitlines(), ["p.tar", "f", "p", "p.ffr", "p"], strict=False):
        assert line.endswith(f"locked: Permission denied: cannot create {name} here; {ELSEWHERE}")
    empty, *_, mine = said.splitlines()[5:]
    assert empty == "[]"
    advice = "make your folder writable with chmod u+w, or choose another folder"
    assert mine.endswith(f"mine: Permission denied: cannot create f here; {advice}")


def test_help_names_every_command(ffrecord: Command) -> None:
    result = ffrecord("--help")
    assert result.code == 0
    for command in ("pack", "ls", "cat", "extract", "info", "verify"):
        assert command in result.out.decode()
        assert ffrecord(command, "--help").code == 0

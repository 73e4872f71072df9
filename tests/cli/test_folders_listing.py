"""`ls` and `info` of packed folders as users run them.

Most tests run the command in this process; tests about the process start a new one.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ffrecord import PackedFolder
from ffrecord.format import records as record_layout
from tests.support import archives, handmade, trees
from tests.support.commands import (
    FILES,
    INTERRUPTED,
    SYSTEM,
    TOP,
    Command,
    Result,
    in_a_process,
    in_a_shell,
)

# ---- ls ----------------------------------------------------------------------------------------


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


def test_ls_shows_shards_like_one_archive(
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
def test_options_of_ls_may_come_anywhere(
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


def test_ls_r_lists_all_folders(ffrecord: Command, archive: Path) -> None:
    due = [
        ".:", *TOP, "", "d:", "b", "e", "large", "same", "", "d/e:", "c", "", "empty:",
    ]  # fmt: skip
    assert ffrecord("ls", "-R", archive).lines == due
    assert ffrecord("ls", archive, "d", "-R").lines == due[8:16]


def test_ls_prints_the_same_names_as_the_system_ls(
    ffrecord: Command, archive: Path, tree: Path
) -> None:
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
def test_ls_l_prints_the_same_columns_as_the_system_ls(zone: str, tmp_path: Path) -> None:
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
        if name == "folder":  # links and size of a folder depend on the file system
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
    """Return the fields of `ls -l` by name: mode, links, owner, group, size, three for the time."""
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


def test_ls_json_agrees_with_stat(ffrecord: Command, rich_archive: Path, rich: Path) -> None:
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


def test_no_control_character_of_a_name_reaches_the_terminal(
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
def test_the_locale_does_not_change_names(utf8: str, tmp_path: Path) -> None:
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
    assert f"x/{name}/x: a folder has this name" in said("extract", archive, "-C", tmp_path / "x")
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


def test_the_program_that_reads_a_listing_may_end_early(rich_archive: Path) -> None:
    result = in_a_shell('f ls -lR "$1" | head -n 1', rich_archive)
    assert result.stderr == b""
    assert result.stdout == b".:\n"


# The interrupt comes while Python shuts down and clears its modules.
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
def test_an_interrupt_after_the_work_changes_nothing(name: str, code: int, archive: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LATE_INTERRUPT, "cat", str(archive), name],
        capture_output=True, timeout=600, check=False,
    )  # fmt: skip
    assert result.returncode == code
    assert b"Traceback" not in result.stderr


def test_an_interrupt_before_the_command_starts_is_reported(
    ffrecord: Command, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("argparse.ArgumentParser.parse_known_args", interrupt)
    result = ffrecord("ls", archive)
    assert (result.code, result.error) == (INTERRUPTED, "ffrecord: interrupted")


# ---- info --------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", [None, 512])
@pytest.mark.parametrize("sharded", [False, True])
def test_info_json_has_the_facts(
    sharded: bool, align: int | None, ffrecord: Command, rich: Path, tmp_path: Path
) -> None:
    path = tmp_path / "i.ffr"
    archives.pack(rich, path, shard_size=1_000_000 if sharded else None, align=align)
    facts = json.loads(ffrecord("info", path, "--json").out)
    found = [each for name, each in trees.snapshot(rich).items() if name != b"."]
    kept = [each for each in found if each.kind in trees.KEPT]
    files = {each.same_file: each for each in kept if each.kind == "file"}
    parts = [p for p in path.iterdir() if p.name != "index.ffr"] if sharded else []
    everything = path.iterdir() if sharded else [path]
    assert facts["shards"] == len(parts)
    assert facts["alignment"] == (align or 1)
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


@pytest.mark.parametrize(("options", "due"), [([], "none"), (["--align", "512"], "512 B")])
def test_info_shows_the_alignment(
    options: list[str], due: str, ffrecord: Command, tree: Path, tmp_path: Path
) -> None:
    assert ffrecord("pack", tree, tmp_path / "i.ffr", *options).code == 0
    assert f"alignment {due}" in [
        " ".join(line.split()) for line in ffrecord("info", tmp_path / "i.ffr").lines
    ]


def test_an_empty_folder_has_no_alignment(ffrecord: Command, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    assert ffrecord("pack", tmp_path / "t", tmp_path / "i.ffr").code == 0
    lines = [" ".join(line.split()) for line in ffrecord("info", tmp_path / "i.ffr").lines]
    assert "alignment none" in lines


def test_info_of_an_empty_folder_works(ffrecord: Command, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    archives.pack(tmp_path / "t", tmp_path / "e.ffr")
    for options in ([], ["--json"]):
        result = ffrecord("info", tmp_path / "e.ffr", *options)
        assert (result.code, result.err) == (0, b"")
    assert ffrecord("ls", tmp_path / "e.ffr").out == b""
    assert ffrecord("ls", "-l", tmp_path / "e.ffr").out == b""
    assert ffrecord("verify", tmp_path / "e.ffr").code == 0


def test_info_of_record_files_describes_records(ffrecord: Command, tmp_path: Path) -> None:
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

"""Output of commands for people and for scripts: JSON, sizes, colours, refusals."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ffrecord import (
    DatasetWriter,
    FileReader,
    PackedFolder,
    ShardedDatasetWriter,
    cli,
    encoders,
    terminal,
)
from ffrecord.cli import common
from ffrecord.convert import convert
from tests.docs.pages import ROOT
from tests.support import archives, handmade, trees

Run = Callable[..., tuple[int, str, str]]
ODD = os.fsdecode(b"odd\xff")


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run(*words: str | Path) -> tuple[int, str, str]:
        code = cli.main(list(map(str, words)))
        out, err = capsysbinary.readouterr()
        return code, os.fsdecode(out), os.fsdecode(err)

    return run


def facts_of(run: Run, *words: str | Path) -> Any:
    code, out, _ = run(*words, "--json")
    return {**json.loads(out), "code": code}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = trees.plain_tree(tmp_path / "tree", {"a": b"1" * 1500, "d/b": b"2", ODD: b"3"})
    (top / "link").symlink_to(ODD)
    (top / "a").chmod(0o755)
    return top


@pytest.fixture
def archive(tree: Path, tmp_path: Path) -> Path:
    archives.pack(tree, tmp_path / "a.ffr")
    return tmp_path / "a.ffr"


# ---- pack and existing files -------------------------------------------------------------------


def test_pack_replaces_a_file_only_with_force(run: Run, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "precious"
    out.write_bytes(b"precious")
    assert run("pack", tree, out) == (
        13, "", f"ffrecord: {out}: already exists; pass --force to replace it\n"
    )  # fmt: skip
    assert out.read_bytes() == b"precious"
    assert run("pack", tree, out, "--force")[0] == 0
    with PackedFolder(out) as folder:
        assert folder.read("d/b").tobytes() == b"2"


# ---- JSON --------------------------------------------------------------------------------------


def test_pack_and_extract_report_in_json(run: Run, tree: Path, tmp_path: Path) -> None:
    facts = facts_of(run, "pack", tree, tmp_path / "n.ffr")
    assert facts == {
        "code": 0, "out": f"{tmp_path}/n.ffr", "files": 3, "folders": 1, "symlinks": 1,
        "hard_links": 0, "bytes": 1502, "shards": 0, "skipped": {}, "changed": [],
    }  # fmt: skip
    archives.damage(tmp_path / "n.ffr", ODD)
    facts = facts_of(run, "extract", tmp_path / "n.ffr", "-C", tmp_path / "x")
    (damaged,) = facts.pop("damaged_files")
    assert base64.b64decode(damaged["path_base64"]) == os.fsencode(tmp_path / "x" / ODD)
    assert "record" in damaged["error"]
    assert facts == {
        "code": 7, "directory": f"{tmp_path}/x", "files": 2, "folders": 1, "symlinks": 1,
        "hard_links": 0, "bytes": 1501, "damaged": 1,
    }  # fmt: skip


def test_a_name_that_is_not_utf8_is_complete_in_json(run: Run, archive: Path) -> None:
    _, out, _ = run("ls", archive, "--json")
    found = {each["path"]: each for each in map(json.loads, out.splitlines())}
    assert base64.b64decode(found[ODD]["path_base64"]) == b"odd\xff"
    assert base64.b64decode(found["link"]["target_base64"]) == b"odd\xff"
    assert "path_base64" not in found["link"]
    assert out.isascii()  # any language can read it


def test_verify_reports_in_json(run: Run, archive: Path, tmp_path: Path) -> None:
    records = handmade.write_records(tmp_path / "r.ffr", [b"one", b"two"])
    facts = facts_of(run, "verify", archive, records)
    assert (facts["code"], facts["ok"]) == (0, True)
    assert [each["verdict"] for each in facts["files"]] == ["ok", "ok"]
    assert [each["names"] for each in facts["files"]] == [5, None]
    archives.damage(archive, "d/b")
    facts = facts_of(run, "verify", archive, records, tmp_path / "missing")
    assert (facts["code"], facts["ok"]) == (1, False)
    bad, good, missing = facts["files"]
    (problem,) = bad["problems"]
    with PackedFolder(archive) as folder:
        assert problem["record"] == folder.record("d/b")
    assert problem["error"] == "SampleChecksumError"
    assert (problem["paths"], problem["more_paths"]) == ([{"path": "d/b"}], 0)
    assert (good["verdict"], good["records"], good["problems"]) == ("ok", 2, [])
    assert (missing["verdict"], missing["not_read"]) == ("not read", "No such file or directory")


# ---- salvage -----------------------------------------------------------------------------------


def test_salvage_names_the_first_lost_records_and_counts_the_others(
    run: Run, tmp_path: Path
) -> None:
    path = handmade.write_records(tmp_path / "r.ffr", [b"record"] * 100)
    with FileReader(path) as reader:
        first = int(reader.get_offsets(0)[0])
    with open(path, "r+b") as file:
        file.seek(first)
        file.write(bytes(6 * 50))
    code, out, _ = run("salvage", path, tmp_path / "s1.ffr")
    lines = [line for line in out.splitlines() if line.startswith("LOST: ")]
    assert code == 1
    assert [int(re.findall(r"record (\d+)", line)[0]) for line in lines[:-1]] == list(range(20))
    assert lines[-1] == "LOST: and 30 more; --verbose lists them all"
    _, out, _ = run("salvage", path, tmp_path / "s2.ffr", "--verbose")
    assert out.count("LOST: record") == 50
    facts = facts_of(run, "salvage", path, tmp_path / "s3.ffr")
    assert [each["record"] for each in facts["lost"]] == list(range(50))


# ---- typed datasets ----------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_info_of_a_dataset_shows_its_fields(sharded: bool, run: Run, tmp_path: Path) -> None:
    spec = {"number": "int", "words": "utf8[]"}
    path = tmp_path / "set"
    opened: Any = (
        ShardedDatasetWriter(path, spec, encoders, 4)
        if sharded
        else DatasetWriter(path, spec, encoders)
    )
    with opened as writer:
        for i in range(10):
            writer.append({"number": i, "words": ["abc"] * i})
    facts = facts_of(run, "info", path)
    assert (facts["kind"], facts["datapoints"]) == ("dataset", 10)
    assert facts["shards"] == (3 if sharded else 0)
    assert facts["fields"]["words"] == {"type": "utf8[]", "values": 45, "data_bytes": 135}
    assert facts["fields"]["number"]["values"] == 10
    assert facts["file_bytes"] == sum(each.stat().st_size for each in path.rglob("*.ffr"))
    _, out, _ = run("info", path)
    assert re.search(r"^  words +utf8\[\] +45 values +135 B$", out, re.MULTILINE)


def test_a_users_own_type_may_have_a_plus_in_its_name(run: Run, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "set", {"both": "left+right"}, {"left+right": bytes}) as writer:
        writer.append({"both": b"12"})
    assert facts_of(run, "info", tmp_path / "set")["fields"]["both"]["type"] == "left+right"
    assert run("verify", tmp_path / "set")[0] == 0


def test_commands_on_archives_recognise_a_dataset(run: Run, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "set", {"number": "int"}, encoders) as writer:
        writer.append({"number": 1})
    for words in (["ls"], ["cat", "x"], ["extract"], ["cat", "--record", "0"], ["mount", "{}"]):
        command, *more = (word.format(tmp_path) for word in words)
        code, out, err = run(command, tmp_path / "set", *more)
        assert (code, out) == (14, "")
        assert err.startswith(f"ffrecord: {tmp_path}/set: this is a typed dataset, ")
        assert err.count("\n") == 1
        if "--record" in words:  # the file that the error names can be read
            assert run(command, err.split()[-1], *more) == (0, "\1", "")


# ---- output for people -------------------------------------------------------------------------


def test_counts_have_commas_for_people_and_none_in_json(run: Run, tmp_path: Path) -> None:
    sizes = [1] * 1500 + [1000]
    path = handmade.write_records(tmp_path / "r.ffr", [bytes(size) for size in sizes])
    _, out, _ = run("info", path)
    assert re.search(r"^records +1,501$", out, re.MULTILINE)
    assert "shards" not in out
    rows = out.partition("record sizes\n")[2].splitlines()
    assert [row.split()[-2] for row in rows] == ["1,500", "1"]  # no line for empty bins
    assert facts_of(run, "info", path)["records"] == 1501
    assert run("verify", path)[1] == f"{path}: OK, 1,501 records\n"
    one = handmade.write_records(tmp_path / "one.ffr", [b"1"])
    assert run("verify", one)[1] == f"{one}: OK, 1 record\n"


def test_verify_names_a_folder_without_records_only_once(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("verify", tmp_path)
    why = "no *.ffr file in this folder; `ffrecord pack` makes one from a folder's files"
    assert (code, out) == (13, f"{tmp_path}: NOT READ: {why}\n")


@pytest.mark.parametrize("command", ["ls", "mount"])
def test_for_a_plain_folder_the_error_recommends_pack(
    command: str, run: Run, tree: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, said = run(command, tree, *([empty] if command == "mount" else []))
    assert (code, out) == (13, "")
    assert "`ffrecord pack` makes one" in said


def test_pack_and_extract_count_alike(run: Run, tree: Path, tmp_path: Path) -> None:
    (tree / "link").unlink()
    os.link(tree / "a", tree / "d/same")
    packed = run("pack", tree, tmp_path / "n.ffr")[1]
    extracted = run("extract", tmp_path / "n.ffr", "-C", tmp_path / "x")[1]
    assert packed == f"{tmp_path}/n.ffr: 3 files, 1 folder, 1 hard link, 1.5 kB\n"
    assert extracted.partition(": ")[2] == packed.partition(": ")[2]


def test_commands_give_advice_as_options_and_python_as_arguments(
    run: Run, archive: Path, tmp_path: Path
) -> None:
    run("extract", archive, "-C", tmp_path / "x")
    assert "; pass --force to replace it\n" in run("extract", archive, "-C", tmp_path / "x")[2]
    with PackedFolder(archive) as folder, pytest.raises(FileExistsError, match="overwrite=True"):
        folder.extract(tmp_path / "x")
    (tmp_path / "x.tar").touch()
    assert "; pass --force to replace it\n" in run("convert", archive, tmp_path / "x.tar")[2]
    with pytest.raises(FileExistsError, match="force=True"):
        convert(archive, tmp_path / "x.tar")


def test_umount_lists_where_archives_are_mounted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "22 1 8:1 / / rw - ext4 /dev/vda rw",
        "40 22 0:50 / /mnt/a\\040b ro - fuse.ffrecord a.ffr ro",
        "41 22 0:51 / /mnt/c ro shared:1 - fuse.ffrecord-fuse c.ffr ro",
        "42 22 0:52 / /mnt/other ro - fuse.sshfs other ro",
        "43 22 0:53 / /mnt/d ro - erofs ffrecord+verity:/d.ffr ro",
        "44 22 0:54 / /mnt/image ro - erofs /dev/loop0 ro",
    ]
    (tmp_path / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr("ffrecord_fuse.mounting.mounttable.MOUNTINFO", str(tmp_path / "mountinfo"))
    assert run("umount", "--list") == (0, "/mnt/a b\n/mnt/c\n/mnt/d\n", "")


def test_sizes_are_shown_as_people_read_them(run: Run, archive: Path) -> None:
    _, out, _ = run("ls", "-lah", archive, "a")
    assert " 1.5 kB " in out
    _, out, _ = run("ls", "-l", archive, "a")
    assert " 1500 " in out
    _, out, _ = run("info", archive)
    assert re.search(r"^data bytes +1\.5 kB \(1,502 bytes\)$", out, re.MULTILINE)


def test_ls_colours_names_by_kind_only_on_request(run: Run, archive: Path) -> None:
    plain = run("ls", "-p1", archive)[1]
    assert plain.splitlines() == ["a", "d/", "link", ODD]
    colours = run("ls", "-p", archive, "--color=always")[1]
    assert colours != plain
    assert re.sub(r"\033\[[0-9;]*m", "", colours) == plain
    assert "\033[1;34md\033[0m/" in colours
    assert "\033[1;32ma\033[0m" in colours
    assert run("ls", "-p", archive, "--color=never")[1] == plain


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_has_colours_and_progress(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert terminal.has_colours(Terminal())
    assert not terminal.has_colours(io.StringIO())
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            assert not terminal.has_colours(Terminal())
            assert terminal.has_colours(Terminal(), "always")
    with monkeypatch.context() as shown:
        screen = Terminal()
        shown.setattr("sys.stderr", screen)
        assert common.shows_progress(False)
        assert not common.shows_progress(True)
        assert run("info", tmp_path / "missing")[0] == 13
        assert screen.getvalue().startswith("\033[31mffrecord:\033[0m ")
    assert run("info", tmp_path / "missing")[2].startswith("ffrecord: ")


@pytest.mark.parametrize("command", ["pack", "extract", "verify", "salvage", "warm"])
def test_progress_is_shown_on_a_terminal_only(
    command: str, run: Run, archive: Path, tree: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    words: dict[str, list[str | Path]] = {
        "pack": [tree, tmp_path / "{}.ffr"],
        "extract": [archive, "-C", tmp_path / "{}"],
        "verify": [archive],
        "salvage": [archive, tmp_path / "{}.ffr"],
        "warm": [archive],
    }
    assert run(command, *(str(word).format("x") for word in words[command]))[2] == ""
    for number, options in enumerate([[], ["--no-progress"]]):
        with monkeypatch.context() as shown:
            screen = Terminal()
            shown.setattr("sys.stderr", screen)
            arguments = (str(word).format(number) for word in words[command])
            assert run(command, *arguments, *options)[0] == 0
        assert bool(screen.getvalue()) == (not options)


def test_the_page_on_json_has_every_key(
    run: Run, archive: Path, tree: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs/commands.md").read_text()
    records = handmade.write_records(tmp_path / "r.ffr", [b"one", b"two"])
    with DatasetWriter(tmp_path / "set", {"number": "int"}, encoders) as writer:
        writer.append({"number": 1})
    outputs = [
        ["pack", tree, tmp_path / "n.ffr"],
        ["extract", archive, "-C", tmp_path / "x"],
        ["convert", records, tmp_path / "r.bag"],
        ["salvage", records, tmp_path / "s.ffr"],
        ["verify", archive],
        ["warm", archive],
        *(["info", path] for path in (archive, records, tmp_path / "set")),
        ["info", "--system", tmp_path],
        ["ls", archive, "d"],
    ]
    for words in outputs:
        for key in facts_of(run, *words):  # type: ignore[arg-type]
            assert key == "code" or f"`{key}`" in page, (words, key)

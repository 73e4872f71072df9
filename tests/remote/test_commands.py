"""Commands take URLs, and print no secrets."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

import ffrecord
from ffrecord import RemoteError, UrlError
from ffrecord.remote import uploads
from tests.remote.conftest import Site
from tests.support import archives, trees
from tests.support.commands import SYSTEM, USAGE, in_a_process

FILES = {"a.txt": b"first\n", "d/b": b"second\n", "d/large": trees.content(400_000)}


@pytest.fixture(scope="module")
def urls(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of a folder with an archive, records and a dataset."""
    top = trees.plain_tree(tmp_path_factory.mktemp("commands") / "top", FILES)
    (site.folder / "commands").mkdir()
    archives.pack(top, site.folder / "commands/tree.ffr")
    with ffrecord.FileWriter(site.folder / "commands/plain.ffr", 2) as writer:
        writer.write([b"zero", b"one"])
    with ffrecord.DatasetWriter(site.folder / "commands/set", {"n": "int", "t": "utf8"}) as points:
        points.append({"n": 1, "t": "one"})
    return f"{site.url}/commands"


def run(*arguments: str | Path, code: int = 0) -> str:
    ran = in_a_process(*arguments)
    assert ran.returncode == code, ran.stderr.decode()
    assert b"Traceback" not in ran.stderr
    return (ran.stderr if code else ran.stdout).decode()


def test_ls_cat_info_and_verify_take_urls(urls: str) -> None:
    assert run("ls", "-R", f"{urls}/tree.ffr").split() == [
        ".:", "a.txt", "d", "d:", "b", "large",
    ]  # fmt: skip
    assert run("cat", f"{urls}/tree.ffr", "d/b") == "second\n"
    assert run("cat", f"{urls}/plain.ffr", "--record", "-1") == "one"
    facts = json.loads(run("info", "--json", f"{urls}/tree.ffr"))
    assert (facts["kind"], facts["files"]) == ("packed folder", 3)
    assert json.loads(run("info", "--json", f"{urls}/set"))["datapoints"] == 1
    names = ["tree.ffr", "plain.ffr", "set"]
    checked = run("verify", *(f"{urls}/{name}" for name in names)).splitlines()
    assert [line.partition(": OK")[0] for line in checked] == [f"{urls}/{name}" for name in names]


def test_extract_and_convert_take_urls(site: Site, urls: str, tmp_path: Path) -> None:
    run("extract", f"{urls}/tree.ffr", "-C", tmp_path / "out")
    for name, content in FILES.items():
        assert (tmp_path / "out" / name).read_bytes() == content
    run("convert", f"{urls}/tree.ffr", tmp_path / "tree.tar")
    shutil.copy(tmp_path / "tree.tar", site.folder / "commands")
    refused = run("convert", f"{urls}/tree.tar", tmp_path / "again.ffr", code=UrlError.exit_code)
    assert "tree.tar: not an FFRecord file; other formats are not read over the network" in refused
    with tarfile.open(tmp_path / "tree.tar") as tar:
        assert {member.name for member in tar if member.isfile()} >= set(FILES)
    run("convert", f"{urls}/plain.ffr", tmp_path / "plain.recordio", "--to", "recordio")
    run("convert", f"{urls}/set", tmp_path / "set")
    assert ffrecord.DatasetReader(tmp_path / "set")[0] == {"n": 1, "t": "one"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["ls", "{}/none.ffr?sig=SECRET"], SYSTEM, "none.ffr: no such object; check the URL"),
        (["cat", "{}/tree.ffr?sig=SECRET", "d/B"], SYSTEM, "did you mean d/b?"),
        (["ls", "{}/set?sig=SECRET"], 14, "this is a typed dataset"),
        (["warm", "{}/tree.ffr?sig=SECRET"], UrlError.exit_code, "this needs a local file"),
        (["ls", "http://127.0.0.1:1/a.ffr?sig=SECRET"], RemoteError.exit_code, "no connection"),
        (["ls", "nowhere://a/b?sig=SECRET"], UrlError.exit_code, "fsspec knows no such protocol"),
        (["convert", "{}/a.tar?sig=SECRET", "out", "--from", "tar"], UrlError.exit_code,
         "a.tar: tar is not read over the network; download it first"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_without_secrets(
    urls: str, arguments: list[str], code: int, message: str
) -> None:
    said = run(*(each.format(urls) for each in arguments), code=code)
    assert said.count("\n") == 1
    assert message in said
    assert "SECRET" not in said


def test_every_command_takes_a_cache(urls: str, tmp_path: Path) -> None:
    cache = ["--cache", str(tmp_path / "cache"), "--cache-size", "1GB"]
    for words in (
        ["ls", f"{urls}/tree.ffr"], ["cat", f"{urls}/tree.ffr", "d/b"],
        ["info", f"{urls}/tree.ffr"], ["verify", f"{urls}/tree.ffr?sig=SECRET"],
        ["extract", f"{urls}/tree.ffr", "-C", str(tmp_path / "out")],
        ["convert", f"{urls}/tree.ffr", str(tmp_path / "tree.tar")],
    ):  # fmt: skip
        run(*words, *cache)
        (kept,) = json.loads(run("cache", "ls", "--json", *cache[:2]))["copies"]
        assert kept["url"] == f"{urls}/tree.ffr"
        assert kept["there"] == kept["size"] > 400_000
        assert kept["on_disk"] >= kept["there"]
        run("cache", "rm", "--all", *cache[:2])


def test_cache_lists_checks_and_removes_copies(urls: str, tmp_path: Path) -> None:
    cache = ["--cache", str(tmp_path / "cache")]
    for name in ("tree.ffr", "plain.ffr"):
        run("verify", f"{urls}/{name}?sig=SECRET", *cache)
    listed = run("cache", "ls", *cache).splitlines()
    assert len(listed) == 3
    assert listed[0].endswith(f"{urls}/plain.ffr")
    assert "100 %" in listed[1]
    assert listed[2].startswith("2 files, ")
    assert run("cache", "verify", *cache).count(": OK, ") == 2
    (copy,) = (path for path in (tmp_path / "cache").glob("*.copy") if path.stat().st_size > 4096)
    with copy.open("r+b") as file:
        file.seek(300_000)
        file.write(b"wrong")
    ran = in_a_process("cache", "verify", f"{urls}/tree.ffr", *cache)
    assert ran.returncode == 1
    assert b"tree.ffr: 1 of 7 blocks damaged and dropped; they are fetched again" in ran.stdout
    facts = json.loads(run("cache", "verify", "--json", *cache))["copies"]
    assert sorted((each["blocks"], each["damaged"]) for each in facts) == [(1, 0), (6, 0)]
    below = json.loads(run("cache", "ls", "--json", f"{urls}/", *cache))["copies"]
    assert len(below) == 2
    assert run("cache", "verify", urls, *cache).count(": OK, ") == 2
    assert run("cache", "rm", f"{urls}/tree.ffr", *cache).startswith("removed 1 file, ")
    assert not copy.exists()
    assert b"not in the cache" in in_a_process("cache", "rm", f"{urls}/pl", *cache).stderr
    assert json.loads(run("cache", "rm", "--unfinished", "--json", *cache))["removed"] == 0
    assert json.loads(run("cache", "rm", urls, "--json", *cache))["removed"] == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


@pytest.mark.parametrize("given", ["--cache", "FFRECORD_CACHE"])
def test_the_home_folder_may_be_a_tilde(
    urls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = ["--cache=~/kept"] if given == "--cache" else []
    if given == "FFRECORD_CACHE":
        monkeypatch.setenv(given, "~/kept")
    run("verify", f"{urls}/plain.ffr", *cache)
    found = json.loads(run("cache", "ls", "--json", *cache))
    assert found["folder"] == str(tmp_path / "kept")
    assert [each["url"] for each in found["copies"]] == [f"{urls}/plain.ffr"]
    if not cache:
        record = uploads.Record("s3://bucket/a", None, {})
        assert os.listdir(tmp_path / "kept/uploads") == [Path(record.path).name]
        record.end()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["cache", "verify"], USAGE, "name the folder of the cache with --cache"),
        (["cache", "rm", "--cache", "{0}"], USAGE,
         "name the URLs to remove, or use --all or --unfinished alone"),
        (["cache", "rm", "--all", "--unfinished", "--cache", "{0}"], USAGE, "alone"),
        (["cache", "ls", "--cache", "{0}/none"], SYSTEM, "none: no such folder; check --cache"),
        (["cache", "ls", "--cache", "s3://data/c"], UrlError.exit_code,
         "s3://data/c: the cache must be a folder on a local disk"),
        (["ls", "http://h/a", "--cache", "s3://data/c"], UrlError.exit_code,
         "s3://data/c: the cache must be a folder on a local disk"),
        (["cache", "ls", "--cache", __file__], SYSTEM, "Not a directory"),
        (["cache", "rm", "http://h/a?sig=SECRET", "--cache", "{0}"], SYSTEM,
         "http://h/a: not in the cache"),
        (["ls", "local.ffr", "--cache", "{0}"], USAGE, "are for URLs, and no URL was given"),
        (["ls", "http://h/a", "--cache-size", "10"], USAGE, "10 means 10 bytes"),
    ],
)  # fmt: skip
def test_a_wrong_use_of_the_cache_is_one_line(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    said = run(*(each.format(tmp_path) for each in arguments), code=code).splitlines()[-1]
    assert message in said
    assert "SECRET" not in said


def test_verify_of_a_missing_url_shows_no_secret(urls: str) -> None:
    ran = in_a_process("verify", f"{urls}/none.ffr?sig=SECRET")
    assert b"NOT READ: no such object" in ran.stdout
    assert b"SECRET" not in ran.stdout + ran.stderr

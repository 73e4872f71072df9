"""The command line as a user runs it: output, exit codes, one line per error."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ffrecord import (
    DatasetWriter,
    FileReader,
    FileWriter,
    ShardedDatasetWriter,
    encoders,
    errors,
)

RECORDS = [b"zero", b"", b"x" * 5000, b"last\n"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sample.ffr"
    with FileWriter(path, len(RECORDS)) as writer:
        writer.write(RECORDS)
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ffrecord", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=600, check=False)


def damage(path: Path, record: int) -> None:
    with FileReader(path) as reader:
        offset = int(reader.get_offsets(0)[record])
    with open(path, "r+b") as handle:
        handle.seek(offset)
        byte = handle.read(1)
        handle.seek(offset)
        handle.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("index", [0, 1, 2, 3, -1])
def test_cat_writes_exactly_the_record(file: Path, index: int) -> None:
    result = run("cat", file, "--record", str(index))
    assert (result.returncode, result.stdout) == (0, RECORDS[index])


def test_cat_of_a_missing_record_names_the_number_of_records(file: Path) -> None:
    result = run("cat", file, "--record", "4")
    assert result.returncode == 2
    said = f"ffrecord: {file}: record 4 is out of range: there are 4 records, numbered 0 to 3\n"
    assert result.stderr.decode() == said


def test_info_json_has_the_facts(file: Path) -> None:
    facts = json.loads(run("info", file, "--json").stdout)
    sizes = [len(record) for record in RECORDS]
    with FileReader(file) as reader:
        assert facts["fingerprint"] == reader.fingerprint
    assert facts["records"] == 4
    assert facts["data_bytes"] == sum(sizes)
    assert facts["file_bytes"] == os.path.getsize(file)
    assert facts["record_bytes"]["largest"] == 5000
    for each in facts["histogram"]:
        expected = sum(each["from"] <= size < each["below"] for size in sizes)
        assert each["records"] == expected
    assert sum(each["records"] for each in facts["histogram"]) == 4


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """Return the path of a file whose writer flushed two records and was then interrupted."""
    path = tmp_path / "long.ffr"
    writer = FileWriter(path, resumable=True)
    writer.write(RECORDS[2:])
    writer.suspend()
    return path


def test_info_and_cat_show_the_flushed_records_of_an_unfinished_file(unfinished: Path) -> None:
    result = run("info", "--unfinished", unfinished, "--json")
    facts = json.loads(result.stdout)
    assert (result.returncode, facts["kind"]) == (0, "unfinished records")
    assert (facts["records"], facts["data_bytes"]) == (2, 5005)
    assert facts["file_bytes"] == (unfinished.parent / ".long.ffr.partial").stat().st_size
    assert b"unfinished records" in run("info", "--unfinished", unfinished).stdout
    result = run("cat", "--unfinished", unfinished, "--record", "-1")
    assert (result.returncode, result.stdout) == (0, RECORDS[-1])


def test_the_option_unfinished_changes_nothing_for_a_finished_file(file: Path) -> None:
    for command, *more in (["info"], ["cat", "--record", "2"]):
        due = run(command, file, *more).stdout
        assert run(command, file, *more, "--unfinished").stdout == due != b""


@pytest.mark.parametrize(
    "command", [["info"], ["cat", "--record", "0"], ["verify"], ["ls"], ["convert", "out.tar"]]
)
def test_an_unfinished_file_is_not_found_without_the_option_that_the_error_names(
    command: list[str], unfinished: Path
) -> None:
    result = run(command[0], unfinished, *command[1:])
    assert result.returncode == 13
    said = f"{unfinished}: ", "not finished", "`ffrecord info --unfinished` shows", "salvage"
    (line,) = (result.stderr + result.stdout).decode().splitlines()
    assert all(each in line for each in said)


def test_the_command_that_the_error_names_saves_the_flushed_records(unfinished: Path) -> None:
    said = run("verify", unfinished).stdout.decode()
    (command,) = re.findall(r"or `ffrecord (salvage .* OUT)`", said)
    out = unfinished.with_name("saved.ffr")
    assert run(*shlex.split(command.replace("OUT", str(out)))).returncode == 0
    with FileReader(out) as reader:
        assert reader.n == 2


def test_the_option_unfinished_needs_a_file_and_for_cat_a_record_number(
    unfinished: Path, file: Path
) -> None:
    folder = unfinished.parent
    for command, path, more, code, said in (
        ("info", folder, [], 3, "a folder"),
        ("info", folder / "none.ffr", [], 13, "neither this file nor an unfinished one"),
        ("cat", unfinished, [], 2, "--unfinished needs --record N"),
        ("cat", unfinished, ["name"], 2, "--unfinished needs --record N"),
        ("cat", unfinished, ["--record", "2"], 2, "there are 2 records"),
    ):
        result = run(command, path, *more, "--unfinished")
        assert (result.returncode, result.stdout) == (code, b"")
        (line,) = result.stderr.decode().splitlines()
        assert said in line


def test_info_draws_a_histogram(file: Path) -> None:
    output = run("info", file).stdout.decode()
    assert "█" in output
    assert "4.1 kB – 8.2 kB" in output


def test_info_of_an_empty_file_works(tmp_path: Path) -> None:
    FileWriter(tmp_path / "empty.ffr", 0).close()
    result = run("info", tmp_path / "empty.ffr")
    assert result.returncode == 0
    assert b"records          0" in result.stdout


def test_verify_of_good_files_says_ok(file: Path) -> None:
    result = run("verify", file, file)
    assert result.returncode == 0
    assert result.stdout.decode() == f"{file}: OK, 4 records\n" * 2


def test_verify_lists_every_bad_record_and_continues(file: Path, tmp_path: Path) -> None:
    good = tmp_path / "good.ffr"
    good.write_bytes(file.read_bytes())
    text = tmp_path / "text.ffr"
    text.write_text("certainly not a record file\n")
    damage(file, 0)
    damage(file, 3)
    result = run("verify", file, text, tmp_path, good)
    lines = result.stdout.decode().splitlines()
    assert result.returncode == 1
    assert "record 0 is damaged" in lines[0]
    assert "record 3 is damaged" in lines[1]
    assert lines[2] == f"{file}: 2 damaged of 4 records"
    assert "not an FFRecord file" in lines[3]
    assert lines[-1] == f"{good}: OK, 4 records"
    assert not result.stderr


def test_verify_of_a_dataset_finds_files_that_do_not_belong_together(tmp_path: Path) -> None:
    spec = {"number": "int", "words": "utf8+zstd[]", "own": "mine"}
    for name, start in (("one", 0), ("two", 10)):
        with DatasetWriter(tmp_path / name, spec, {**encoders, "mine": bytes}) as writer:
            for i in range(start, start + 5):
                writer.append({"number": i, "words": ["a"] * i, "own": b"x"})
    one, two = tmp_path / "one", tmp_path / "two"
    assert run("verify", one, two).returncode == 0
    shutil.copy(two / "number.ffr", one / "number.ffr")
    result = run("verify", one)
    assert result.returncode == 1
    assert b"number.ffr: not the file that this dataset was written with" in result.stdout
    (one / "number.ffr").unlink()
    result = run("verify", one)
    assert result.returncode == 1
    assert b"number.ffr: this file of the dataset is missing" in result.stdout


def test_verify_of_a_sharded_dataset_checks_every_shard(tmp_path: Path) -> None:
    with ShardedDatasetWriter(tmp_path / "all", {"number": "int"}, encoders, 4) as writer:
        for i in range(10):
            writer.append({"number": i})
    result = run("verify", tmp_path / "all")
    assert (result.returncode, result.stdout.count(b"OK")) == (0, 3)
    damage(tmp_path / "all" / "000001" / "number.ffr", 2)
    result = run("verify", tmp_path / "all")
    assert (result.returncode, result.stdout.count(b"OK")) == (1, 2)


def test_verify_continues_after_a_missing_file(file: Path, tmp_path: Path) -> None:
    result = run("verify", tmp_path / "nope.ffr", file)
    lines = result.stdout.decode().splitlines()
    assert result.returncode == 13
    assert lines == [
        f"{tmp_path}/nope.ffr: NOT READ: No such file or directory",
        f"{file}: OK, 4 records",
    ]


def exit_codes() -> dict[str, int]:
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    ours = [c for c in classes if issubclass(c, errors.FFRecordError)]
    return {c.__name__: c.exit_code for c in ours}


def test_every_error_has_its_own_exit_code() -> None:
    codes = exit_codes()
    assert len(set(codes.values())) == len(codes)


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", 4), (b"short", 4), (b"text " * 10, 3), (bytes(12), 8), (b"abcd" + bytes(8), 6)],
)
def test_a_bad_file_gives_one_line_and_its_exit_code(
    tmp_path: Path, content: bytes, code: int
) -> None:
    path = tmp_path / "bad.ffr"
    path.write_bytes(content)
    result = run("info", path)
    assert result.returncode == code
    assert result.stderr.decode().startswith(f"ffrecord: {path}: ")
    assert result.stderr.count(b"\n") == 1


def test_a_missing_file_gives_one_line(tmp_path: Path) -> None:
    result = run("info", tmp_path / "nope.ffr")
    assert result.returncode == 13
    assert result.stderr.decode() == f"ffrecord: {tmp_path}/nope.ffr: No such file or directory\n"


def test_a_name_with_a_newline_cannot_forge_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a\nffrecord: all is well"
    path.write_bytes(b"short")
    assert run("info", path).stderr.count(b"\n") == 1


def test_verify_reports_damage_although_another_file_is_missing(file: Path, tmp_path: Path) -> None:
    damage(file, 2)
    assert run("verify", tmp_path / "nope.ffr", file).returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_name_and_any_encoding_can_be_printed(
    file: Path, tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    odd = tmp_path / os.fsdecode(b"odd\xfe\x1b\n.ffr")
    odd.write_bytes(file.read_bytes())
    for command in ("info", "verify"):
        result = run(command, odd)
        assert (result.returncode, result.stderr) == (0, b"")
        assert b"\x1b" not in result.stdout
    assert run("verify", odd).stdout.count(b"\n") == 1


def test_a_sparse_header_that_claims_more_than_memory_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "sparse.ffr"
    with open(path, "wb") as handle:
        handle.write(b"crc!" + (1 << 38).to_bytes(8, "little"))
        handle.truncate(1 << 42)
    result = run("info", path)
    assert result.returncode == 5
    assert result.stderr.count(b"\n") == 1


def test_the_program_that_reads_a_record_may_end_early(file: Path) -> None:
    command = f"{sys.executable} -m ffrecord cat {file} --record 2 | head -c 1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=600, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"x", b"")


def test_a_legacy_file_warns_in_one_line(file: Path) -> None:
    with open(file, "r+b") as handle:
        handle.write(bytes(4))
    result = run("verify", file)
    assert result.returncode == 0
    assert result.stderr.decode().startswith("ffrecord: warning: ")
    assert result.stderr.count(b"\n") == 1

"""`ffrecord.progress`: without a bar, tqdm is not used at all."""

from __future__ import annotations

import io
import multiprocessing
import sys
from pathlib import Path

import pytest
from tqdm import tqdm

from ffrecord import pack_folder, write_dataset
from ffrecord.cli import main
from ffrecord.convert import convert
from ffrecord.progress import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown", "drawn"),
    [
        (Terminal, None, True), (io.StringIO, None, False), (Terminal, False, False),
        (io.StringIO, True, True),
    ],
)  # fmt: skip
def test_a_bar_is_drawn_on_request_or_on_a_terminal(
    stream: type[io.StringIO], shown: bool | None, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    with bar(shown=shown, total=3, unit=" things") as each:
        each.set_description("counting", refresh=False)
        each.set_postfix_str("so far", refresh=False)
        each.update()
        each.update(2)
    text = stderr.getvalue()
    assert ("3/3" in text) is drawn
    assert drawn or not text


def test_work_without_a_bar_ignores_the_lock_of_a_killed_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"content")
    packed = str(tmp_path / "packed.ffr")
    context = multiprocessing.get_context("fork")
    with tqdm.get_lock():  # as a process that was killed with the lock leaves it
        child = context.Process(target=_work, args=(str(tmp_path), packed))
        child.start()
        child.join(600)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0


def _work(top: str, packed: str) -> None:
    """Run everything that could draw a bar."""
    pack_folder(f"{top}/folder", packed)
    convert(packed, f"{top}/again.tar")
    convert(packed, f"{top}/again")
    write_dataset(f"{top}/dataset", [{"number": 1}], progress=False)
    assert main(["verify", packed]) == 0
    assert main(["warm", packed]) == 0
    assert main(["extract", packed, "-C", f"{top}/extracted"]) == 0
    assert main(["salvage", packed, f"{top}/salvaged.ffr"]) == 0

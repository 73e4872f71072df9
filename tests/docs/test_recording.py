"""The terminal in README shows the commands of scripts/recording.py, and what they print."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import recording
from tests.cli.test_help import programs
from tests.docs.pages import text_of
from tests.fuse.mounted import mounting

SVG = "{http://www.w3.org/2000/svg}"


def shown() -> list[str]:
    """Return the lines of the picture."""
    lines: defaultdict[float, str] = defaultdict(str)
    for text in ElementTree.parse(recording.OUT).iter(f"{SVG}text"):
        lines[float(text.attrib["y"])] += (text.text or "").replace("\xa0", " ")
    return [lines[y] for y in sorted(lines)]


@pytest.mark.skipif(mounting.why_not() is not None, reason="the recorded commands mount")
def test_the_recorded_commands_still_print_the_lines_of_the_picture(tmp_path: Path) -> None:
    environment = programs(tmp_path / "bin")
    recording.write_photos(tmp_path)
    session = recording.run_commands(tmp_path, environment)
    expected = [
        line for command, output in session for line in (f"$ {command}", *output.splitlines())
    ]
    assert shown() == expected


def test_readme_shows_the_picture_and_it_loads_nothing() -> None:
    assert f"](docs/pictures/{recording.OUT.name})" in text_of("README.md")
    picture = recording.OUT.read_text("utf-8")
    assert "<script" not in picture
    assert "http" not in picture.replace('xmlns="http://www.w3.org/2000/svg"', "")

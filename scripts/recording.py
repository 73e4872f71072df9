"""Record a session in a terminal, and draw it as docs/pictures/terminal.svg.

    python -m scripts.recording

The commands are run, and rich draws them with their output. asciinema draws no SVG, and termtosvg
is no longer maintained.

The picture works as an image in a page: it has its own background for light and dark pages, uses a
font of the reader's machine, and its lines appear one after the other by CSS alone.
tests/docs/test_recording.py runs the commands again, and compares.
"""

from __future__ import annotations

import io
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.benchmarks.harness import ROOT

OUT = ROOT / "docs" / "pictures" / "terminal.svg"
COMMANDS = (
    "find photos -type f | wc -l",
    "ffrecord pack photos photos.ffr",
    "ffrecord verify photos.ffr",
    "ffrecord cat photos.ffr labels.csv | tail -n 2",
    "mkdir mounted && ffrecord mount photos.ffr mounted --log mount.log",
    "ls mounted",
    "ls mounted/dogs | tail -n 2",
    "diff -r photos mounted && echo no difference",
    "ffrecord umount mounted",
)
KINDS, EACH = ("cats", "dogs", "owls"), 1000

PAUSE = 1.2
"""Seconds between two commands. Half of it is between a command and its output."""

PICTURE = """\
<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}"
 xmlns="http://www.w3.org/2000/svg">
<title>ffrecord pack, verify, mount and umount in a terminal</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace }}
.{unique_id}-title {{ font: 18px system-ui, sans-serif }}
@keyframes appear {{ from {{ opacity: 0 }} }}
APPEARING
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none !important }} }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own template without its fonts, which would be loaded from another host."""


def write_photos(folder: Path) -> None:
    """Write the folder `photos`: the same small files each time."""
    chance = random.Random(1)
    names = [f"{kind}/{number:04}.jpg" for kind in KINDS for number in range(EACH)]
    for kind in KINDS:
        (folder / "photos" / kind).mkdir(parents=True)
    for name in names:
        (folder / "photos" / name).write_bytes(chance.randbytes(chance.randrange(5_000, 15_000)))
    labels = "".join(f"{name},{name.partition('/')[0].rstrip('s')}\n" for name in names)
    (folder / "photos" / "labels.csv").write_text(labels)


def run_commands(folder: Path, environment: dict[str, str]) -> list[tuple[str, str]]:
    """Run the commands in `folder`, and return each with its output. Leave nothing mounted."""
    shown = []
    try:
        for command in COMMANDS:
            run = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command], cwd=folder, text=True, check=True,
                env={**environment, "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            shown.append((command, run.stdout))
    finally:
        if os.path.ismount(folder / "mounted"):
            command = "ffrecord umount mounted"
            subprocess.run(command.split(), cwd=folder, env=environment, check=False)
    return shown


def drawn(session: list[tuple[str, str]]) -> str:
    """Return the session as an SVG."""
    from rich.console import Console  # needed to draw only, not by the test
    from rich.text import Text

    parts = [part for command, output in session for part in (f"$ {command}\n", output)]
    width = max(len(line) for part in parts for line in part.splitlines()) + 1
    console = Console(record=True, width=width, file=io.StringIO())
    appearing, first = [], 0
    for number, part in enumerate(parts):
        text = Text(part)
        if number % 2 == 0:
            text.stylize("bold")
            text.stylize("green", 0, 1)  # the prompt
        console.print(text, end="")
        after = first + len(part.splitlines())
        lines = ", ".join(f'text[clip-path$="-line-{line})"]' for line in range(first, after))
        if lines:
            seconds = PAUSE / 2 * number
            appearing.append(f"{lines} {{{{ animation: appear 1ms {seconds:g}s backwards }}}}")
        first = after
    template = PICTURE.replace("APPEARING", "\n".join(appearing))
    picture: str = console.export_svg(title="", code_format=template, unique_id="terminal")
    return re.sub(r"<text[^>]*>\n</text>", "", picture)  # rich draws the end of each line


def main() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder))
        session = run_commands(Path(folder), {**os.environ, "PATH": path})
    OUT.write_text(drawn(session), encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

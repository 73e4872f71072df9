"""Look at a folder in Chromium, and measure in the page; runs in a fresh process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import Any

from . import memory

PATIENCE = 120.0  # seconds
WINDOW: Any = {"width": 2560, "height": 2400}
THUMBNAILS = 200
SHORTEST = 50.0  # milliseconds: browsers report no shorter tasks
STEP = 600  # pixels of a small step: a turn of a mouse wheel
MEASURING = f"""
  window.seen = {{first: 0, thumbnails: 0}};
  window.longest = 0;
  new PerformanceObserver((list) => {{
    for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
  }}).observe({{type: "longtask"}});
  const look = () => {{
    const now = performance.now();
    if (!seen.first && document.querySelector("#main .item .name")) seen.first = now;
    const there = [...document.querySelectorAll("#main .item img")];
    const decoded = there.filter((image) => image.naturalWidth > 0).length;
    if (!seen.thumbnails && decoded >= {THUMBNAILS}) seen.thumbnails = now;
    if (!seen.first || !seen.thumbnails) setTimeout(look, 5);
  }};
  document.addEventListener("readystatechange", look, {{once: true}});
"""


def look(file: str, folder: str, pictures: bool, steps: int) -> dict[str, float]:
    """Serve an archive, look at one of its folders, and scroll through it."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "ffrecord", "view", file]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with sync_playwright() as driver:
                browser = driver.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                page = browser.new_page(viewport=WINDOW)
                page.add_init_script(MEASURING)
                page.goto(f"{url}#/{folder}")
                _wait(page, "seen.thumbnails" if pictures else "seen.first")
                seen = page.evaluate("seen")
                page.evaluate("longest = 0")
                browser.start_tracing(page=page, categories=["toplevel"])
                _scroll(page, steps)
                blocked = max(SHORTEST, page.evaluate("longest"))
                busy = _longest_task(json.loads(browser.stop_tracing())["traceEvents"])
                browser.close()
            values = {
                "first_ms": seen["first"], "blocked_ms": blocked, "busy_ms": busy,
                "server_mb": memory.proportional(server.pid) / 1e6,
            }  # fmt: skip
            return {**values, "thumbnails_ms": seen["thumbnails"]} if pictures else values
        finally:
            server.kill()


def _longest_task(events: list[dict[str, Any]]) -> float:
    """Return the most processor time, in milliseconds, of a task of the page's main thread."""
    main = {
        (each["pid"], each["tid"])
        for each in events
        if each["name"] == "thread_name" and each["args"]["name"] == "CrRendererMain"
    }
    tasks = (each for each in events if (each["pid"], each["tid"]) in main)
    return max((each.get("tdur", 0) / 1000 for each in tasks), default=0.0)


def _scroll(page: Any, steps: int) -> None:
    page.mouse.move(WINDOW["width"] // 2, WINDOW["height"] // 2)
    for _ in range(steps):
        page.mouse.wheel(0, STEP)
        page.wait_for_timeout(30)
    box = "document.querySelector('#main .scroller')"
    jumps = max(1, steps // 5)
    for jump in range(jumps):
        share = (jump * 7 % jumps) / jumps
        page.evaluate(f"{box}.scrollTop = {box}.scrollHeight * {share}")
        page.wait_for_timeout(250)


def _wait(page: Any, expression: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not page.evaluate(expression):
        if time.monotonic() > limit:
            raise TimeoutError(f"the page never reached {expression}")
        page.wait_for_timeout(50)

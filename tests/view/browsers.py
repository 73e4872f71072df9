"""A real browser for tests: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ffrecord.view.opening import open_path
from ffrecord.view.server import Server

PATIENCE = 60_000  # milliseconds: a page that takes longer is broken, even on a busy machine
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 760}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser. Skip the test if there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which(next(filter(_runs, ("chromium", "chromium-browser")), ""))
    if program is None:
        pytest.skip("chromium is not installed; scripts/setup installs it")
    with playwright.sync_playwright() as driver:
        # Without its sandbox, because tests may run as root in a container.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def _runs(program: str) -> bool:
    """Return True if a program works: Ubuntu's chromium-browser may only ask to install a snap."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def served(path: Path | str) -> Iterator[Server]:
    """Serve a path or URL."""
    with Server(open_path(path)) as server:
        server.start()
        yield server


@dataclass
class Tab:
    """A tab with one page of ours. Requests to other hosts and errors of scripts are collected."""

    page: Any
    server: Server
    errors: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._note)

    def _note(self, request: Any) -> None:
        # The viewer of PDFs is a part of the browser, with URLs of its own.
        own = "blob:", "data:", "chrome:", "chrome-extension:"
        ours = request.url.startswith((self.server.url, *own))
        if not ours:
            self.strangers.append(request.url)

    def go(self, state: str = "") -> None:
        """Open a state of the page as a link from elsewhere."""
        self.page.goto("about:blank")
        self.page.goto(self.server.url + state)

    def move(self, state: str) -> None:
        """Go to a state within the page, without loading it again."""
        self.page.evaluate("(state) => { location.hash = state }", state)

    def see(self, selector: str, text: str | None = None) -> Any:
        """Wait until something is visible, and return it."""
        found = self.page.locator(selector)
        if text is not None:
            found = found.filter(has_text=text)
        found.first.wait_for(state="visible")
        return found.first

    def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        # Not wait_for_function: it calls eval() in the page, which our policy forbids.
        limit = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < limit, f"never true: {expression}"
            self.page.wait_for_timeout(20)

    @property
    def state(self) -> str:
        """The part of the URL that has the state."""
        return str(self.page.url.partition("#")[2])

    def check(self) -> None:
        """Fail if a script of the page failed, or the page asked another host for something."""
        errors, strangers = self.errors[:], self.strangers[:]
        self.errors.clear()
        self.strangers.clear()
        assert errors == []
        assert strangers == []


@contextlib.contextmanager
def tab(browser: Any, server: Server, **options: Any) -> Iterator[Tab]:
    """Open a tab, and check at its end that the page had no errors."""
    context = browser.new_context(viewport=DESKTOP, **options)
    try:
        made = Tab(context.new_page(), server)
        yield made
        made.check()
    finally:
        context.close()

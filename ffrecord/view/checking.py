"""Verification of all checksums in the background, with progress for the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from ffrecord.archive.owners import RecordNames
from ffrecord.errors import FFRecordError
from ffrecord.records.damage import find_damage
from ffrecord.records.reader import FileReader
from ffrecord.view.contents import message
from ffrecord.view.listings import shown

MOST_SHOWN = 100  # damaged records that the page lists
ADVICE = "the page shows its records"


class Stopped(Exception):  # noqa: N818 - a request to end, not an error
    """The user has stopped the verification."""


class Checking:
    """One verification at a time. Any number of threads may use it.

    Args:
        open_readers: returns new readers of all record files. They are closed after use.
    """

    def __init__(self, open_readers: Callable[[], Sequence[FileReader]]) -> None:
        self._open_readers = open_readers
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._state: dict[str, Any] = {"state": "not run"}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start to verify, unless that is being done."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self._stop.clear()
            self._state = {"state": "running", "done": 0, "total": 0, "bad": 0, "damaged": []}
            self._thread = threading.Thread(target=self._run, name="verify", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask a verification to end. It ends after its current batch."""
        self._stop.set()

    def state(self) -> dict[str, Any]:
        """Return the progress or the result, ready for JSON."""
        return dict(self._state)

    def wait(self) -> None:
        """Wait for the end of a verification."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        state = self._state
        try:
            readers = self._open_readers()
            try:
                state["total"] = sum(reader.n for reader in readers)
                for reader in readers:
                    self._check(reader, state)
            finally:
                for reader in readers:
                    reader.close()
            state["state"] = "damaged" if state["bad"] else "ok"
        except Stopped:
            state["state"] = "stopped"
        except (FFRecordError, OSError) as error:
            state["state"], state["error"] = "failed", message(error)

    def _check(self, reader: FileReader, state: dict[str, Any]) -> None:
        names = RecordNames(reader, ADVICE)
        if names.problem is not None:
            self._add(state, {"message": message(names.problem)})

        def advance(count: int) -> None:
            state["done"] += count
            if self._stop.is_set():
                raise Stopped

        for record, error in find_damage(reader, False, advance):
            paths = names.of(record)
            found = {"record": record, "message": message(names.narrowed(record, error)),
                     "paths": [shown(path) for path in paths.shown]}  # fmt: skip
            self._add(state, found)

    def _add(self, state: dict[str, Any], found: dict[str, Any]) -> None:
        state["bad"] += 1
        if len(state["damaged"]) < MOST_SHOWN:
            state["damaged"] = [*state["damaged"], found]

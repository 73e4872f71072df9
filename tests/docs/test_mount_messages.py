"""docs/mount.md explains every message of a failed mount or unmount, and no others."""

from __future__ import annotations

import pytest

from ffrecord.archive.names import NO_WORKING_FOLDER
from tests.docs.messages import messages
from tests.docs.pages import ROOT, table_rows

PAGE = "docs/mount.md"
FROM_ELSEWHERE = {"Too many levels of symbolic links", NO_WORKING_FOLDER}
"""Messages from outside ffrecord_fuse: one from os.strerror, one from the library."""


def explained(*headings: str) -> list[str]:
    rows = [row for heading in headings for row in table_rows(PAGE, heading)]
    assert all(len(row) == 3 and all(row) for row in rows)
    return [row[0].strip("`").strip() for row in rows]


@pytest.mark.parametrize(
    ("error", "argument", "headings"),
    [
        ("MountError", 2, ("When mounting", "When unmounting")),
        ("OptionError", 0, ("When options are wrong",)),
        ("Refused", 1, ("Why the kernel cannot serve",)),
    ],
)
def test_the_tables_have_every_message_once(
    error: str, argument: int, headings: tuple[str, ...]
) -> None:
    found = messages(ROOT / "ffrecord_fuse", {error: argument})
    assert len(found) >= 5
    told = explained(*headings)
    assert len(told) == len(set(told))
    assert set(told) - FROM_ELSEWHERE == found

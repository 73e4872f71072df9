"""docs/errors.md lists every error and warning class, with the message that it really has.

When a message has changed, `python -m tests.docs.provoked` writes the new examples into the page.
"""

from __future__ import annotations

import re
import shlex

import pytest

import ffrecord.errors
import ffrecord_fuse.errors
from ffrecord import FFRecordError
from tests.docs import provoked
from tests.docs.pages import code_spans, text_of
from tests.docs.provoked import PAGE
from tests.docs.test_blocks import check_ffrecord

CLASSES: dict[str, type[Exception]] = {
    name: value
    for module in (ffrecord.errors, ffrecord_fuse.errors)
    for name, value in vars(module).items()
    if isinstance(value, type)
    and issubclass(value, (FFRecordError, Warning))
    and value.__module__ == module.__name__
}
HOW = "write a section for it in docs/errors.md, and a function in tests/docs/provoked.py"
UPDATE = "`python -m tests.docs.provoked` writes the new message into the page"


def sections() -> dict[str, str]:
    """Return the text below each heading that names a class."""
    _, *parts = re.split(r"^### ", text_of(PAGE), flags=re.MULTILINE)
    return {name: body for name, _, body in (part.partition("\n") for part in parts)}


def exit_codes() -> dict[str, int]:
    """Return the exit code of every error. Warnings have none."""
    return {
        name: value.exit_code for name, value in CLASSES.items() if issubclass(value, FFRecordError)
    }


def test_the_page_has_a_section_for_every_class_and_no_other() -> None:
    assert sorted(CLASSES.keys() - sections().keys()) == [], HOW
    assert sorted(sections().keys() - CLASSES.keys()) == [], "no such class: remove its section"
    assert len(re.findall("^### ", text_of(PAGE), re.MULTILINE)) == len(sections())


def test_every_class_has_an_example_and_can_be_raised() -> None:
    assert sorted(CLASSES.keys() - provoked.PROVOKE.keys()) == [], HOW
    assert sorted(CLASSES.keys() - provoked.examples(text_of(PAGE)).keys()) == [], HOW


@pytest.mark.parametrize("name", CLASSES)
def test_an_example_is_the_real_message(name: str) -> None:
    found = provoked.provoke(name)
    assert found.kind is CLASSES[name]
    if found.exit_code is not None:
        assert found.exit_code == exit_codes()[name]
    example = provoked.examples(text_of(PAGE))[name]
    assert provoked.masked(example) == provoked.masked(found.message), UPDATE


def test_every_section_of_an_error_names_its_exit_code() -> None:
    found = {
        name: re.findall(r"^Exit code (\d+)\.", body, re.M) for name, body in sections().items()
    }
    due = {name: [str(exit_codes()[name])] if name in exit_codes() else [] for name in CLASSES}
    assert found == due


def test_the_table_lists_every_error_once_in_the_order_of_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| \[(\w+)\]\(#(\w+)\) \|", text_of(PAGE), re.MULTILINE)
    assert all(anchor == name.lower() for _, name, anchor in rows)
    due = sorted(exit_codes().items(), key=lambda each: each[1])
    assert [(name, int(code)) for code, name, _ in rows] == due


def test_the_links_within_the_page_lead_to_a_section() -> None:
    anchors = {name.lower() for name in sections()}
    assert set(re.findall(r"\]\(#([^)]*)\)", text_of(PAGE))) <= anchors


def test_the_recommended_commands_accept_their_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = [span for span in code_spans(PAGE) if re.match(r"ffrecord [a-z]", span)]
    assert len(commands) >= 15
    for line in commands:
        check_ffrecord(shlex.split(line)[1:], monkeypatch)


def test_an_outdated_example_is_replaced_and_a_correct_one_stays() -> None:
    text = text_of(PAGE)
    before, heading, after = text.partition("### ClosedError\n")
    old = provoked.examples(text)["ClosedError"]
    outdated = before + heading + after.replace(old, "an old message", 1)
    assert provoked.examples(outdated)["ClosedError"] == "an old message"
    assert provoked.updated(outdated) == text

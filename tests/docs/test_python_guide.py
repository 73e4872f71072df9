"""docs/python.md names every public name of `ffrecord`, and no name that does not exist."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import ffrecord
import ffrecord.archive.extract
import ffrecord.convert
import ffrecord.records.batch
import ffrecord.records.salvage
import ffrecord.utils
from ffrecord.remote.options import RemoteOptions
from tests.docs.pages import blocks, code_spans

PAGE = "docs/python.md"

OFFERED: dict[str, Any] = {
    **{name: getattr(ffrecord, name) for name in ffrecord.__all__},
    "PendingRead": ffrecord.records.batch.PendingRead,
    "ExtractReport": ffrecord.archive.extract.ExtractReport,
    "Lost": ffrecord.records.salvage.Lost,
    "dump": ffrecord.utils.dump,
    "convert": ffrecord.convert.convert,
}
ELSEWHERE = {"ffrecord", "ffrecord_fuse", "torch", "mount", "utils", "DataLoader"}
"""Names that other pages describe."""

INSIDE = {"archive", "append", "seal"}
"""Members for our own modules, not for users."""


def words_of_the_guide() -> set[str]:
    """Return all words in the code of the guide: in fenced blocks and in code spans."""
    text = " ".join([*code_spans(PAGE), *(block.text for block in blocks(PAGE))])
    return set(re.findall(r"\w+", text))


def public(owner: Any) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # not a function: a table of codecs, the version
        return set()


def vocabulary() -> Iterator[str]:
    """Yield all known names: functions, classes, their attributes and arguments."""
    yield from OFFERED
    yield from dir(builtins)
    for offered in OFFERED.values():
        yield from parameters(offered)
        if not inspect.isclass(offered):
            continue
        yield from public(offered)
        if dataclasses.is_dataclass(offered):
            yield from (field.name for field in dataclasses.fields(offered))
        for name in public(offered):
            yield from parameters(getattr(offered, name))
    for instance_attributes in (
        vars(ffrecord.SampleChecksumError("", 0, 0, 0)), vars(ffrecord.ReadFailedError("", 5, 0)),
        vars(ffrecord.RemoteError("", "", None, None, 1)),
    ):  # fmt: skip
        yield from instance_attributes
    yield from RemoteOptions.__annotations__  # the arguments `**remote`
    yield from ("fnames", "n", "count")  # set when a reader or writer is opened


def test_every_public_name_is_in_the_guide() -> None:
    assert set(ffrecord.__all__) - words_of_the_guide() == set()


@pytest.mark.parametrize(
    "owner",
    [ffrecord.FileReader, ffrecord.FileWriter, ffrecord.PackedFolder, ffrecord.PackReport],
    ids=lambda owner: str(owner.__name__),
)
def test_every_method_and_argument_for_users_is_in_the_guide(owner: Any) -> None:
    assert (public(owner) | parameters(owner)) - INSIDE - words_of_the_guide() == set()


@pytest.mark.parametrize(
    "function", [ffrecord.pack_folder, ffrecord.salvage_file, ffrecord.utils.dump]
)
def test_every_argument_of_a_function_is_in_the_guide(function: Any) -> None:
    assert parameters(function) - words_of_the_guide() == set()


def test_every_name_in_the_guide_exists() -> None:
    known = set(vocabulary()) | ELSEWHERE
    for span in code_spans(PAGE):
        if not re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", span):
            continue  # a pattern of files, a path, a piece of a message
        head, _, arguments = span.partition("(")
        for name in [*head.split("."), *re.findall(r"(\w+)=", arguments)]:
            assert name in known or name in WORDS, f"{span}: {name} does not exist"


def test_the_guide_imports_only_public_names() -> None:
    for block in blocks(PAGE):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ffrecord"):
                assert {each.name for each in node.names} <= set(OFFERED)


WORDS = {
    "auto", "aio", "buffered", "mmap",  # modes
    "pickle", "json", "loads", "np", "float32", "uint8", "io", "BytesIO",  # Python and numpy
    "record", "view", "tobytes", "report", "i", "file", "a",
}  # fmt: skip
"""Words that the guide shows as code but FFRecord does not define."""

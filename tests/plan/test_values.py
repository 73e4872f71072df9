"""Plans as text: they survive the way to JSON and back, and damaged ones are refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from ffrecord import PlanError
from ffrecord.plan import values
from ffrecord.plan.values import PackPlan, Part, Plan, WritePlan

PARTS = (Part(0, 3, 3, 100), Part(3, 2, 4, 77))
PACK = PackPlan("/out/odd\udcff", "0a1b2c3d", PARTS, "/in", dereference=True, align=512)
WRITE = WritePlan("/out", "ffffffff", PARTS, "dataset", {"x": "int", "y": "utf8[]"})


@pytest.mark.parametrize("plan", [PACK, WRITE, PackPlan("/out", "0a", (), "/in")])
def test_a_plan_survives_json_and_pickle(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    (tmp_path / "plan.json").read_bytes().decode("ascii")
    assert type(plan).load(tmp_path / "plan.json") == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_plan_of_the_most_shards_is_small() -> None:
    parts = tuple(Part(10_000 * k, 10_000, 10_000, 1_000_000_000) for k in range(100_000))
    assert len(PackPlan("/out", "0a", parts, "/in").to_json()) < 4_000_000


@pytest.mark.parametrize(
    "change",
    [
        {"ffrecord": "writing"}, {"version": 2}, {"version": None}, {"target": "relative"},
        {"key": "../../x"}, {"key": 7}, {"folder": 7}, {"dereference": "yes"}, {"extra": 1},
        {"align": 7}, {"align": "512"},
        {"parts": None}, {"parts": {"first": [0]}},
        {"parts": {"first": [0], "count": [-1], "records": [0], "bytes": [0]}},
        {"parts": {"first": [0], "count": ["1"], "records": [0], "bytes": [0]}},
        {"parts": {"first": [0, 1], "count": [1], "records": [0], "bytes": [0]}},
        {"parts": {"first": [1], "count": [1], "records": [0], "bytes": [0]}},
        {"parts": {"first": [0, 2], "count": [1, 1], "records": [0, 0], "bytes": [0, 0]}},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_in_a_plan_is_an_error(change: dict[str, Any]) -> None:
    facts = json.loads(PACK.to_json())
    with pytest.raises(PlanError, match="plan"):
        PackPlan.from_json(json.dumps({**facts, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "p: the plan has version 2, and this library reads version 1; make a new"),
        ({"ffrecord": "writing"}, "p: this plan is for 'writing', not for 'packing'; make a new"),
    ],
)
def test_another_kind_or_version_of_plan_is_named(change: dict[str, Any], message: str) -> None:
    facts = json.loads(PACK.to_json())
    with pytest.raises(PlanError, match=message):
        PackPlan.from_json(json.dumps({**facts, **change}), "p")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b"7", b"null"])
def test_a_text_that_is_no_plan_is_an_error_that_names_the_file(
    text: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text)
    with pytest.raises(PlanError, match=r"plan\.json: not a plan, or damaged"):
        PackPlan.load(path)


def test_a_file_too_large_for_a_plan_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "LARGEST_PLAN", 100)
    PACK.save(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="too large"):
        PackPlan.load(tmp_path / "plan.json")

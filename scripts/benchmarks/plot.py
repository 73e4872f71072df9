"""Bar charts as PNG: horizontal bars, ours in colour, short enough for the width of a README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 8.6
"""Inches. A README shows an image at most 830 pixels wide, so a point is about 1.3 pixels."""
DOTS = 180
BAR, EDGES = 0.28, 0.75
"""Inches of a bar with its gap, and of a panel's title and margins."""
HEADING = 0.75
ROOM = 1.32
"""Length of an axis in relation to its longest bar: room for the number."""


class Kind(Enum):
    """The role of a bar, with its colour."""

    OURS = "#c8102e"
    VARIANT = "#eda5ae"
    PEER = "#8a9bab"
    LIMIT = "#ffffff"


@dataclass(frozen=True, slots=True)
class Bar:
    """A contestant's figure; None if it was not measured or failed."""

    label: str
    value: float | None
    kind: Kind
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """The same work by several contestants."""

    title: str
    bars: Sequence[Bar]

    @property
    def longest(self) -> float:
        """The largest value."""
        return max(bar.value or 0 for bar in self.bars)


def draw(
    panels: Sequence[Panel], title: str, unit: str, path: Path, *, columns: int, one_scale: bool
) -> None:
    """Draw the panels in rows of `columns`, with the title above them, and save them.

    Each panel has its own scale, unless they have `one_scale`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [panels[begin : begin + columns] for begin in range(0, len(panels), columns)]
    most = [max(len(panel.bars) for panel in row) for row in rows]
    heights = [bars * BAR + EDGES for bars in most]
    size = (WIDTH, sum(heights) + HEADING)
    longest = max(panel.longest for panel in panels)
    figure, axes = pyplot.subplots(
        len(rows), columns, figsize=size, height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for row, row_axes, bars in zip(rows, axes, most, strict=True):
        for place, (panel, axis) in enumerate(zip(row, row_axes, strict=False)):
            labels = [bar.label for bar in panel.bars]
            repeated = place > 0 and labels == [bar.label for bar in row[place - 1].bars]
            _panel(panel, axis, has_labels=not repeated)
            axis.set_xlim(0, ROOM * (longest if one_scale else panel.longest))
            axis.set_ylim(bars - 0.5, -0.5)  # the same thickness in the whole row
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
    figure.supxlabel(unit, fontsize=9, color="#555555", x=0.99, ha="right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS, facecolor="white")
    pyplot.close(figure)


def _panel(panel: Panel, axis: Axes, *, has_labels: bool) -> None:
    for place, bar in enumerate(panel.bars):
        outline = "#555555" if bar.kind is Kind.LIMIT else bar.kind.value
        axis.barh(place, bar.value or 0, 0.72, color=bar.kind.value, edgecolor=outline)
        text = " ".join(filter(None, [_short(bar.value), bar.note]))
        weight = "bold" if bar.kind is Kind.OURS else "normal"
        axis.annotate(
            text, (bar.value or 0, place), (3, 0), textcoords="offset points", va="center",
            fontsize=8.5, fontweight=weight,
        )  # fmt: skip
    axis.set_title(panel.title, fontsize=10, loc="left")
    axis.set_yticks(range(len(panel.bars)), [bar.label for bar in panel.bars], fontsize=9)
    axis.tick_params(left=False, bottom=False, labelbottom=False, labelleft=has_labels)
    axis.spines[["top", "right", "bottom"]].set_visible(False)


def _short(value: float | None) -> str:
    """Return a number with three digits, or two below 1."""
    if value is None:
        return "–"
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}" if value >= 1 else f"{value:.2g}"

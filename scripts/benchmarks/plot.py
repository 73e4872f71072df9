"""Bar charts of a run, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Colours = dict[str, tuple[float, float, float, float]]

GROUP_WIDTH = 0.86


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a group of bars for each entry of `groups`, with one bar for every series."""

    title: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]


def grouped_bars(panels: Sequence[Panel], title: str, unit: str, ours: str, path: Path) -> None:
    """Draw the panels below each other with log scales, and save them.

    Series whose name begins with `ours` have warm colours, the others cool ones, so that ours stand
    out among many peers.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = _colours(list(dict.fromkeys(n for panel in panels for n in panel.series)), ours)
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(13, 5 * len(panels)), squeeze=False, layout="constrained"
    )
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        _draw(panel, axis, colours)
        axis.set_ylabel(f"{unit}, log scale")
    figure.suptitle(title, fontsize=14)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(panel: Panel, axis: Axes, colours: Colours) -> None:
    width = GROUP_WIDTH / len(panel.series)
    for place, (name, values) in enumerate(panel.series.items()):
        shift = (place + 0.5) * width - GROUP_WIDTH / 2
        # A missing value is nan, because zero has no place on a log scale.
        heights = [float("nan") if value is None else value for value in values]
        lefts = [group + shift for group in range(len(heights))]
        bars = axis.bar(lefts, heights, width, color=colours[name], label=name)
        axis.bar_label(bars, [_short(v) for v in values], fontsize=7, rotation=90, padding=2)
    axis.set_yscale("log")
    axis.set_title(panel.title)
    axis.set_xticks(range(len(panel.groups)), panel.groups)
    axis.margins(x=0.02, y=0.15)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)


def _colours(names: Sequence[str], ours: str) -> Colours:
    from matplotlib import colormaps

    own = [name for name in names if name.startswith(ours)]
    others = [name for name in names if not name.startswith(ours)]
    warm, cool = colormaps["YlOrRd"], colormaps["viridis"]
    return {
        **{name: warm(0.85 - 0.55 * place / len(own)) for place, name in enumerate(own)},
        **{name: cool(0.95 * place / len(others)) for place, name in enumerate(others)},
    }


def _short(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    return f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}"

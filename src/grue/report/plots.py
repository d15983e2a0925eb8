"""Panels drawn by matplotlib as SVG. A figure holds only numbers: titles and legends are the page's own text."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from grue.report.curves import Panel, Series
from grue.report.markup import Html
from grue.report.svg import INK, MUTED, OKABE_ITO, RULE, clean_svg
from grue.report.text import number, one_line, percent, short_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 3)), (0, (1.2, 2)), (0, (7, 2, 1.5, 2)))


class Reference(NamedTuple):
    """A level to compare with: a horizontal line and its name at the right."""

    name: str
    value: float


class Size(NamedTuple):
    """Inches."""

    width: float
    height: float
    left: float
    right: float


SMALL = Size(2.6, 1.55, 0.44, 0.08)
LARGE = Size(7.8, 3.2, 0.44, 1.35)


def panel_svg(
    panel: Panel,
    key: str,
    size: Size = SMALL,
    references: Sequence[Reference] = (),
    *,
    ring: tuple[float, float] | None = None,
    axis: str = "steps",
) -> Html:
    """The panel as an <svg> element whose ids all begin with `key`; with a ring around the point `ring`.

    The lines' groups are called "<key>-data-<index>", their bands "<key>-band-<index>", raw points "<key>-raw-<index>",
    the ring's "<key>-ring". `axis` is what the steps are called in words.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": key, "text.parse_math": False, "font.size": 8}
    with rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a figure is fine despite missing glyphs and numbers near the limits of floats
        figure = Figure(figsize=(size.width, size.height))
        bottom, top = 0.24 / size.height, 0.10 / size.height
        width = 1 - (size.left + size.right) / size.width
        axes = figure.add_axes((size.left / size.width, bottom, width, 1 - bottom - top))
        for index, series in enumerate(panel.series):
            _draw(axes, series, index)
        if ring is not None:
            look: Any = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": INK}
            axes.plot(*ring, clip_on=False, gid="ring", **look)
        _frame(axes, panel, references, whole=size is LARGE)
        if size is LARGE:
            _name_lines(axes, panel, references)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return clean_svg(buffer.getvalue(), key, describe(panel, axis))


def describe(panel: Panel, axis: str) -> str:
    """What the figure shows, in words: for readers who cannot see it."""
    parts = []
    words = percent if panel.metric.unit == "share" else number
    for series in panel.series:
        values = series.raw_y or series.y
        name = f"{series.name}: " if series.name else ""
        parts.append(
            f"{name}{len(values)} points over {axis} {number(series.x[0])} to {number(series.x[-1])},"
            f" from {words(values[0])} to {words(values[-1])}"
        )
    return f"{panel.metric.title}; " + "; ".join(parts)


def _draw(axes: Axes, series: Series, index: int) -> None:
    colour = OKABE_ITO[index % len(OKABE_ITO)]
    if series.raw_y:
        axes.plot(series.x, series.raw_y, color=colour, linewidth=0.6, alpha=0.35, gid=f"raw-{index}")
    if series.low:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.16, linewidth=0, gid=f"band-{index}")
    few = len(series.x) <= 40 and not series.raw_y
    axes.plot(series.x, series.y, color=colour, linewidth=1.4, linestyle=DASHES[index % 4], gid=f"data-{index}")
    if few:
        axes.plot(series.x, series.y, color=colour, linewidth=0, marker="o", markersize=2.6)


def _frame(axes: Axes, panel: Panel, references: Sequence[Reference], *, whole: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    quiet_frame(axes)
    axes.margins(x=0.02, y=0.08)
    values = [value for series in panel.series for value in (*series.y, *series.raw_y, *series.low, *series.high)]
    if panel.metric.unit == "share" and whole:
        axes.set_ylim(min(-0.01, *values), max(1.02, *values))
    elif panel.metric.unit == "share":
        axes.set_ylim(min(0.0, *values), max(values) * 1.1 if max(values) > 0 else 1.0)
    steps = {step for series in panel.series for step in series.x}
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=all(step == int(step) for step in steps)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5 if whole else 4, integer=panel.metric.unit == "count"))
    if len(steps) == 1:
        axes.set_xticks(sorted(steps))
    label = percent_tick if panel.metric.unit == "share" else compact
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    for reference in references:
        axes.axhline(reference.value, color=MUTED, linewidth=0.7, linestyle=(0, (1.5, 2.5)), zorder=1)


def quiet_frame(axes: Axes) -> None:
    """A bottom line, faint grid lines and grey numbers: the rest of a frame distracts from the curves."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.spines["bottom"].set_linewidth(0.6)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=3, colors=MUTED, labelcolor=MUTED)


def _name_lines(axes: Axes, panel: Panel, references: Sequence[Reference]) -> None:
    """Names at the right end of lines and references, moved apart where they would overlap."""
    names = [(series.y[-1], series.name or panel.metric.title, index) for index, series in enumerate(panel.series)]
    names += [(reference.value, reference.name, -1) for reference in references]
    names.sort()
    low, high = axes.get_ylim()
    heights = spread([height for height, _, _ in names], gap=0.068 * (high - low), low=low, high=high)
    for height, (value, name, index) in zip(heights, names, strict=True):
        label = f"{one_line(name, 20)}  {short_percent(value)}" if panel.metric.unit == "share" else one_line(name, 20)
        axes.text(
            1.012,
            height,
            label,
            transform=axes.get_yaxis_transform(),
            verticalalignment="center",
            color=OKABE_ITO[index % len(OKABE_ITO)] if index >= 0 else MUTED,
            fontweight="bold" if index >= 0 else "normal",
        )


def spread(heights: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """The ascending heights moved as little as needed to be `gap` apart inside [low, high]; closer if they must."""
    placed = list(heights)
    gap = min(gap, (high - low) / max(len(placed) - 1, 1))
    for _ in range(50):
        for i in range(len(placed) - 1):
            overlap = gap - (placed[i + 1] - placed[i])
            if overlap > 0:
                placed[i] -= overlap / 2
                placed[i + 1] += overlap / 2
        placed = [min(max(height, low), high) for height in placed]
    for i in range(len(placed) - 1):  # if the limits have pushed them together again
        placed[i + 1] = max(placed[i + 1], placed[i] + gap)
    excess = placed[-1] - high if placed else 0.0
    return [height - max(excess, 0.0) for height in placed]


def percent_tick(value: float) -> str:
    return f"{100 * value:.4g}%"


def compact(value: float) -> str:
    """A tick label of about five characters at most: 0, 0.25, 12, 60k, 1.5M, 2e-4."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3 or size >= 1e12:
        mantissa, _, exponent = f"{value:.2g}".partition("e")
        if not exponent:
            mantissa, _, exponent = f"{value:.1e}".partition("e")
            mantissa = f"{float(mantissa):g}"
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{letter}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")
